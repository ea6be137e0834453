//! Input of a triggered run, from its message to its end: the agent of a step lacks a field, the recipient is told by a
//! link and reminded, and answers on the page behind it, or does not.

use reveille::domain::run::{Run, RunState};
use serde_json::json;

use super::undo_window::page;
use crate::support::app::Instance;
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, PUBLIC, World, on_both};

on_both! {
    triggered_run_gets_its_input_on_the_page_whose_link_was_sent
    triggered_run_whose_input_nobody_gives_expires_and_its_recipient_is_told
    input_is_asked_for_in_the_language_of_its_recipient
}

/// The subjects of messages that ask, in English and in German.
const ASKS: [&str; 2] = ["Trip asks you for something", "Trip braucht eine Angabe von Ihnen"];

/// An agent that steps alone may call, and that wants an airport.
fn booking(world: &mut World, server: &MailServer) {
    world.mail_by(server);
    world.egress.allow = vec!["127.0.0.1:*".into()];
    let booker = json!({
        "name": "Booker", "instruction": "You book flights.", "expose_as_tool": false, "tools": [],
        "fields": [{
            "name": "airport", "type": "string", "required": true, "validator": "value.matches('^[A-Z]{3}$')",
            "validator_description": "the three letters of an airport",
        }],
    });
    world.agents = vec![serde_json::from_value(booker).expect("an agent")];
    world.follows(&json!({ "steps": [{ "when": "\"airport\":\"SFO\"", "text": "Booked." }] }));
}

/// A run that its schedule has started at 08:01, and that lacks the airport. The task's messages go to another channel
/// than the recipient's first.
async fn waiting(world: &World, instance: &Instance, locale: &str) -> Run {
    let webhook = json!({ "url": "http://127.0.0.1:9/told", "secret": format!("whsec_{}", "AAAA".repeat(8)) });
    let addresses = json!({ "email": "ann@example.org", "webhook": webhook });
    let fallback = ["webhook", "email"];
    let recipient = json!({ "timezone": "UTC", "locale": locale, "addresses": addresses, "fallback": fallback });
    let (status, put) = instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(recipient)).await;
    assert_eq!(status, 200, "{put}");
    let agent = json!({ "name": "Booker", "instruction": "Book it.", "args": { "airport": "{{ task.metadata.to }}" } });
    let task = json!({
        "name": "Trip", "trigger": { "type": "schedule", "at": "2027-03-01T08:01:00Z" }, "executor": "pipeline",
        "action": { "config": { "steps": [{ "name": "book", "agent": agent, "on_error": "continue" }] } },
        "metadata": { "to": "the sea" }, "output": { "channel": "email" },
    });
    let task = instance.task(task).await;
    world.advance_to("08:01");
    instance.fire().await;
    instance.settle(0).await;
    let [run] = instance.runs(&task).await.try_into().expect("one run");
    assert_eq!((run.state, run.trigger_type.as_str()), (RunState::WaitingForInput, "schedule"), "{run:#?}");
    run
}

/// Lets it be this time, and everything be done and told that is due.
async fn at(world: &World, instance: &Instance, time: &str) {
    world.advance_to(time);
    instance.attend().await;
    instance.settle(0).await;
    instance.notify().await;
}

/// The links of the messages that ask, as paths.
fn links(server: &MailServer) -> Vec<String> {
    let asking = server.messages().into_iter().filter(|mail| ASKS.contains(&mail.header("subject")));
    let link = |text: &str| text.lines().find_map(|line| line.strip_prefix(PUBLIC).map(str::to_owned));
    let link = |text: String| link(&text).unwrap_or_else(|| panic!("no link in {text}"));
    asking.map(|mail| link(mail.text)).collect()
}

async fn triggered_run_gets_its_input_on_the_page_whose_link_was_sent(mut world: World) {
    let server = MailServer::start().await;
    booking(&mut world, &server);
    let instance = world.instance();
    let run = waiting(&world, &instance, "en").await;
    at(&world, &instance, "08:01").await;
    let [asked] = instance.deliveries().await.try_into().expect("one delivery");
    assert_eq!((asked.channel.as_str(), asked.fallback), ("email", vec!["webhook".to_owned()]));
    let [mail] = server.messages().try_into().expect("one message");
    assert!(mail.text.contains("1. Booker needs to know: airport\n"), "{}", mail.text);
    let [first] = links(&server).try_into().expect("one link");

    // half of the time to answer is over
    at(&world, &instance, "08:15:59").await;
    assert_eq!(links(&server).len(), 1);
    at(&world, &instance, "08:16").await;
    let mut reminder = links(&server);
    reminder.retain(|link| *link != first);
    let [reminder] = reminder.try_into().expect("a link of its own");

    let (status, html) = page(&instance, &reminder, None).await;
    assert_eq!(status, 200, "{html}");
    for shown in ["Something is needed from you", "Booker needs to know: airport", "airport: the three letters of"] {
        assert!(html.contains(shown), "{shown} is not in\n{html}");
    }
    let (_, rest) = html.split_once("name=\"nonce\" value=\"").expect("a nonce");
    let nonce = rest.split_once('"').expect("a nonce").0;
    let (before, _) = html.split_once("\"><bdi>airport</bdi>").expect("the field");
    let field = before.rsplit_once("\"i0").expect("the id of the field").1;
    let field = format!("0.{field}");
    let answer = |airport: &'static str| [("nonce", nonce), ("do", "answer:0"), (field.as_str(), airport)];
    let (status, html) = page(&instance, &reminder, Some(&answer("sfo"))).await;
    assert_eq!(status, 422, "the agent's own rules hold: {html}");
    assert!(html.contains("e\">the three letters of an airport</p>"), "{html}");
    assert_eq!(instance.run(run.id).await.state, RunState::WaitingForInput);
    let (status, html) = page(&instance, &reminder, Some(&answer("SFO"))).await;
    assert_eq!(status, 303, "{html}");

    instance.settle(0).await;
    let ended = instance.run(run.id).await;
    assert_eq!((ended.state, ended.output.as_deref()), (RunState::Succeeded, Some("Booked.")));
    let (_, explained) = instance.ask("GET", &format!("/v1/runs/{}/explain", run.id), ADMIN, None).await;
    let sentence = explained["calls"][0]["sentence"].as_str().unwrap_or_default();
    assert!(sentence.ends_with("It was executed."), "{explained:#}");
    let (status, html) = page(&instance, &first, None).await;
    assert_eq!(status, 200, "{html}");
    assert!(!html.contains("<form"), "it is answered: {html}");
    instance.finish(&world).await;
}

async fn triggered_run_whose_input_nobody_gives_expires_and_its_recipient_is_told(mut world: World) {
    let server = MailServer::start().await;
    booking(&mut world, &server);
    let instance = world.instance();
    let run = waiting(&world, &instance, "en").await;
    for time in ["08:01", "08:16", "08:28", "08:30:59"] {
        at(&world, &instance, time).await;
        assert_eq!(instance.run(run.id).await.state, RunState::WaitingForInput, "{time}");
    }
    assert_eq!(links(&server).len(), 3, "the question, and two reminders");
    at(&world, &instance, "08:31:01").await;
    let ended = instance.run(run.id).await;
    assert_eq!((ended.state, ended.reason.as_deref()), (RunState::Expired, Some("input_expired")));
    let told = server.messages().into_iter().find(|mail| mail.header("subject") == "Trip expired");
    let told = told.expect("the end is told").text;
    assert!(told.contains("expired: input_expired."), "{told}");
    instance.finish(&world).await;
}

async fn input_is_asked_for_in_the_language_of_its_recipient(mut world: World) {
    let server = MailServer::start().await;
    booking(&mut world, &server);
    let instance = world.instance();
    let run = waiting(&world, &instance, "de-AT").await;
    // the question, and its reminder
    for (time, count) in [("08:01", 1), ("08:16", 2)] {
        at(&world, &instance, time).await;
        let mails = server.messages();
        assert_eq!(mails.len(), count, "{time}");
        for mail in mails {
            assert_eq!(mail.header("subject"), ASKS[1]);
            assert!(mail.text.contains("1. Booker muss noch wissen: airport\n"), "{}", mail.text);
        }
    }
    let link = links(&server).pop().expect("a link");
    let (status, html) = page(&instance, &link, None).await;
    assert_eq!(status, 200, "{html}");
    let fault = "airport: passt nicht: the three letters of an airport";
    for shown in ["Booker muss noch wissen: airport", fault] {
        assert!(html.contains(shown), "{shown} is not in\n{html}");
    }
    let (_, inputs) = instance.ask("GET", &format!("/v1/runs/{}", run.id), ADMIN, None).await;
    assert!(inputs.to_string().contains("Booker needs to know: airport"), "programs are told as before: {inputs:#}");
    instance.cancel(run.id).await;
    instance.finish(&world).await;
}
