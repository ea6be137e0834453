//! The time of messages: quiet hours, digests, budgets, sick channels, addresses that have to be proved. By real
//! webhooks and a real mail server.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::secret::Secret;
use reveille::domain::notification::{Delivery, DeliveryState, HoldReason, MessageKind, NewDelivery};
use reveille::domain::task::Urgency;
use reveille::engine::service::ServiceLoop;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::outbox::claim_due;
use crate::support::sink::{Answer, Sink};
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, World, at, on_both};

on_both! {
    messages_of_the_night_are_told_together_in_the_morning
    digest_of_one_is_that_message
    digest_that_fails_goes_to_the_next_channel_with_its_messages
    digest_that_failed_is_sent_again_with_its_messages
    message_that_comes_when_its_digest_is_under_way_joins_none
    held_message_goes_on_the_minute_over_every_change_of_the_clock
    message_over_the_budget_of_the_day_goes_the_next_morning
    test_message_comes_whatever_the_hour
    question_waits_for_the_end_of_quiet_hours_and_joins_no_digest
    sick_channel_is_left_alone_without_using_up_attempts
    backlog_goes_on_as_soon_as_there_is_a_place
    refused_message_uses_up_nothing_of_the_budget
    message_held_by_the_budget_is_no_probe_of_a_sick_channel
    question_does_not_wait_for_a_sick_channel
    only_proved_addresses_are_told_where_the_operator_says_so
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A world whose webhooks may go to this machine, with a sink.
async fn world_with_sink(world: &mut World) -> Sink {
    world.egress.allow = vec!["127.0.0.1:*".into()];
    world.channels.webhook.timeout_seconds = 1;
    Sink::start().await
}

async fn put(instance: &Instance, recipient: Value) {
    let (status, answer) = instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(recipient)).await;
    assert_eq!(status, 200, "{answer}");
}

/// A recipient with this sink as its webhook, and what differs.
fn received(sink: &Sink, more: Value) -> Value {
    let webhook = json!({ "url": sink.url(), "secret": SECRET });
    let mut recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "webhook": webhook } });
    for (name, value) in more.as_object().expect("an object") {
        match name.as_str() {
            "email" => recipient["addresses"]["email"] = value.clone(),
            _ => recipient[name] = value.clone(),
        }
    }
    recipient
}

fn night(more: Value) -> Value {
    let mut hours = json!({ "from": "22:00", "to": "07:00", "channels": ["webhook", "email"] });
    hours.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([hours])
}

fn message(channels: &[&str], text: &str, urgency: Urgency) -> NewDelivery {
    NewDelivery {
        tenant_id: "ann".into(),
        recipient: "ann".into(),
        channel: channels[0].into(),
        fallback: channels[1..].iter().map(|name| (*name).to_owned()).collect(),
        dedupe_key: format!("message:{text}"),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency,
        subject: Some(format!("About {text}")),
        text: Some(text.into()),
    }
}

async fn post(instance: &Instance, channels: &[&str], text: &str, urgency: Urgency) {
    let message = message(channels, text, urgency);
    instance.on(|store| async move { store.post_delivery(&message).await }).await.expect("posted");
}

async fn only_digest(instance: &Instance) -> Delivery {
    let digests: Vec<Delivery> =
        instance.deliveries().await.into_iter().filter(|delivery| delivery.kind == MessageKind::Digest).collect();
    let [digest] = <[Delivery; 1]>::try_from(digests).unwrap_or_else(|digests| panic!("{digests:#?}"));
    digest
}

/// State, why it was held, and attempts of all but digests, by text.
async fn delivery_states(instance: &Instance) -> Vec<(String, &'static str, Option<HoldReason>, i32)> {
    let all = instance.deliveries().await.into_iter().filter(|delivery| delivery.kind != MessageKind::Digest);
    let text = |delivery: &Delivery| delivery.text.clone().unwrap_or_else(|| delivery.kind.as_str().into());
    all.map(|d| (text(&d), d.state.as_str(), d.hold_reason, d.attempts)).collect()
}

fn events(sink: &Sink) -> Vec<String> {
    sink.taken().into_iter().map(|taken| taken.event).collect()
}

async fn messages_of_the_night_are_told_together_in_the_morning(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    put(&instance, received(&sink, json!({ "quiet_hours": night(json!({})) }))).await;
    world.advance_to("22:30");
    for (text, urgency) in [("milk", Urgency::Normal), ("fire", Urgency::High), ("bread", Urgency::Low)] {
        post(&instance, &["webhook"], text, urgency).await;
    }
    instance.notify().await;
    let held = Some(HoldReason::QuietHours);
    let so_far = [
        ("milk".into(), "pending", held, 0),
        ("fire".into(), "delivered", None, 1),
        ("bread".into(), "pending", held, 0),
    ];
    assert_eq!(delivery_states(&instance).await, so_far);
    let digest = only_digest(&instance).await;
    assert_eq!(
        (digest.next_at, digest.dedupe_key.as_str()),
        (Some(at("02 06:00")), "digest:webhook:2027-03-02T06:00:00.000Z")
    );
    let held: Vec<Delivery> =
        instance.deliveries().await.into_iter().filter(|delivery| delivery.digest_id == Some(digest.id)).collect();
    assert_eq!(held.iter().map(|held| held.next_at).collect::<Vec<_>>(), [None, None]);

    world.clock.advance(at("02 06:00") - world.clock.now() - TimeDelta::milliseconds(1));
    instance.notify().await;
    assert_eq!(events(&sink), ["message"]);
    world.clock.advance(TimeDelta::milliseconds(1));
    instance.notify().await;
    instance.notify().await;
    let taken = sink.taken();
    assert_eq!(events(&sink), ["message", "digest"]);
    let items = json!([
        { "subject": "About milk", "text": "milk", "created_at": "2027-03-01T22:30:00.000Z" },
        { "subject": "About bread", "text": "bread", "created_at": "2027-03-01T22:30:00.000Z" },
    ]);
    assert_eq!(taken[1].data, json!({ "tenant_id": "ann", "items": items, "more": 0 }));
    for delivery in instance.deliveries().await.iter().filter(|delivery| delivery.digest_id == Some(digest.id)) {
        assert_eq!((delivery.state, delivery.delivered_at), (DeliveryState::Delivered, Some(at("02 06:00"))));
    }
    instance.finish(&world).await;
}

async fn digest_of_one_is_that_message(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    put(&instance, received(&sink, json!({ "quiet_hours": night(json!({})) }))).await;
    world.advance_to("23:00");
    post(&instance, &["webhook"], "milk", Urgency::Normal).await;
    instance.notify().await;
    world.advance_to("02 06:00");
    instance.notify().await;
    let [taken] = <[_; 1]>::try_from(sink.taken()).expect("one message");
    assert_eq!((taken.event.as_str(), &taken.data["text"]), ("message", &json!("milk")));
    assert_eq!(delivery_states(&instance).await, [("milk".into(), "delivered", Some(HoldReason::QuietHours), 0)]);
    instance.finish(&world).await;
}

async fn digest_that_fails_goes_to_the_next_channel_with_its_messages(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    let hours = night(json!({ "channels": ["email"] }));
    put(&instance, received(&sink, json!({ "email": "ann@example.org", "quiet_hours": hours }))).await;
    world.advance_to("23:00");
    // the one names no other way, and goes by that of the other all the same
    post(&instance, &["email"], "milk", Urgency::Normal).await;
    post(&instance, &["email", "webhook"], "bread", Urgency::Normal).await;
    instance.notify().await;
    world.advance_to("02 06:00");
    // there is no email here
    instance.notify().await;
    let stands = instance.deliveries().await;
    let digests: Vec<_> =
        stands.iter().filter(|d| d.kind == MessageKind::Digest).map(|d| (d.channel.as_str(), d.state)).collect();
    assert_eq!(digests, [("email", DeliveryState::Failed), ("webhook", DeliveryState::Pending)]);
    instance.notify().await;
    assert_eq!(sink.taken()[0].data["items"].as_array().unwrap().len(), 2);
    let done = |text: &str| (text.to_owned(), "delivered", Some(HoldReason::QuietHours), 0);
    assert_eq!(delivery_states(&instance).await, [done("milk"), done("bread")]);
    instance.finish(&world).await;
}

async fn digest_that_failed_is_sent_again_with_its_messages(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    sink.answer(|_, number| Answer::Status(if number == 0 { 400 } else { 204 }));
    let instance = world.instance();
    put(&instance, received(&sink, json!({ "quiet_hours": night(json!({})) }))).await;
    world.advance_to("23:00");
    for text in ["milk", "bread", "salt"] {
        post(&instance, &["webhook"], text, Urgency::Normal).await;
    }
    instance.notify().await;
    world.advance_to("02 06:00");
    instance.notify().await;
    let failed = |text: &str| (text.to_owned(), "failed", Some(HoldReason::QuietHours), 0);
    assert_eq!(delivery_states(&instance).await, [failed("milk"), failed("bread"), failed("salt")]);
    // one of them by itself, then the rest together
    sink.answer(|_, _| Answer::Status(204));
    let salt = instance.deliveries().await.into_iter().find(|d| d.text.as_deref() == Some("salt")).expect("salt");
    let digest = only_digest(&instance).await;
    for id in [salt.id, digest.id] {
        let (status, answer) = instance.ask("POST", &format!("/v1/deliveries/{id}/retry"), ADMIN, None).await;
        assert_eq!((status, &answer["state"]), (202, &json!("pending")), "{answer}");
    }
    instance.notify().await;
    let done = |text: &str| (text.to_owned(), "delivered", Some(HoldReason::QuietHours), 0);
    assert_eq!(delivery_states(&instance).await, [done("milk"), done("bread"), ("salt".into(), "delivered", None, 1)]);
    let mut told = events(&sink);
    told.sort();
    assert_eq!(told, ["digest", "message"]);
    instance.finish(&world).await;
}

async fn message_that_comes_when_its_digest_is_under_way_joins_none(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    put(&instance, received(&sink, json!({ "quiet_hours": night(json!({})) }))).await;
    world.advance_to("23:00");
    post(&instance, &["webhook"], "milk", Urgency::Normal).await;
    instance.notify().await;
    post(&instance, &["webhook"], "late", Urgency::Normal).await;
    let until = at("02 06:10");
    let late = instance.on(move |store| async move { claim_due(&store, until, 10).await }).await.expect("claimed");
    let [late] = <[_; 1]>::try_from(late).expect("one claim");
    // it was judged at night, and is recorded when the digest has begun
    let digest = only_digest(&instance).await;
    world.advance_to("02 06:00");
    instance.notify().await;
    let due = at("02 06:00");
    let mark = reveille::domain::notification::Mark::Hold {
        hold_reason: HoldReason::QuietHours,
        digest: Box::new(late.delivery.digest(due)),
        at: due,
    };
    instance.on(move |store| async move { store.mark_delivery(&late, &mark).await }).await.expect("marked");
    assert_eq!(only_digest(&instance).await.id, digest.id);
    instance.notify().await;
    assert_eq!(events(&sink), ["message", "message"]);
    let done = [("milk".into(), "delivered", Some(HoldReason::QuietHours), 0), ("late".into(), "delivered", None, 1)];
    assert_eq!(delivery_states(&instance).await, done);
    instance.finish(&world).await;
}

async fn held_message_goes_on_the_minute_over_every_change_of_the_clock(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    let instant = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
    // zone, quiet hours, digest, when it comes, when it is told
    let cases = [
        ("America/New_York", "23:30-02:30", None, "2027-03-14T06:59:00Z", "2027-03-14T07:00:00Z"),
        ("Europe/Berlin", "23:30-02:30", None, "2027-03-28T00:59:00Z", "2027-03-28T01:00:00Z"),
        ("Europe/Berlin", "22:00-07:00", Some("02:30"), "2027-03-28T20:30:00Z", "2027-03-29T05:00:00Z"),
        ("Australia/Lord_Howe", "23:30-01:45", None, "2027-04-03T14:50:00Z", "2027-04-03T15:15:00Z"),
        ("Australia/Lord_Howe", "20:00-02:15", Some("02:20"), "2027-10-02T14:00:00Z", "2027-10-02T15:30:00Z"),
        ("Europe/Berlin", "23:30-02:30", None, "2027-10-31T00:45:00Z", "2027-10-31T01:30:00Z"),
        ("America/New_York", "20:00-00:30", Some("01:30"), "2027-11-07T04:00:00Z", "2027-11-07T05:30:00Z"),
        ("America/New_York", "20:00-01:30", Some("01:30"), "2027-11-07T05:45:00Z", "2027-11-08T06:30:00Z"),
    ];
    for (told_before, (zone, hours, digest, comes, told)) in cases.into_iter().enumerate() {
        let (from, to) = hours.split_once('-').unwrap();
        let digest = digest.map(|time| json!({ "at": [time] }));
        let quiet = json!([{ "from": from, "to": to, "channels": ["webhook"] }]);
        put(&instance, received(&sink, json!({ "timezone": zone, "quiet_hours": quiet, "digest": digest }))).await;
        world.clock.advance(instant(comes) - world.clock.now());
        post(&instance, &["webhook"], comes, Urgency::Normal).await;
        instance.notify().await;
        world.clock.advance(instant(told) - world.clock.now() - TimeDelta::milliseconds(1));
        instance.notify().await;
        assert_eq!(sink.taken().len(), told_before, "{zone} {hours}: told before {told}");
        world.clock.advance(TimeDelta::milliseconds(1));
        instance.notify().await;
        assert_eq!(sink.taken().len(), told_before + 1, "{zone} {hours}: not told at {told}");
    }
    instance.finish(&world).await;
}

async fn message_over_the_budget_of_the_day_goes_the_next_morning(mut world: World) {
    let server = MailServer::start().await;
    world.channels.email.url = Some(Secret::new(format!("smtp://{}", server.address())));
    world.channels.email.from = Some("Reveille <reveille@example.org>".into());
    let instance = world.instance();
    let ann = json!({
        "timezone": "Asia/Tokyo", "addresses": { "email": "ann@example.org" }, "budget": { "per_day": 2 },
    });
    put(&instance, ann).await;
    // 17:00 in Tokyo
    for (text, urgency) in [
        ("1", Urgency::Normal),
        ("2", Urgency::High),
        ("3", Urgency::Normal),
        ("4", Urgency::High),
        ("5", Urgency::Low),
    ] {
        post(&instance, &["email"], text, urgency).await;
        instance.notify().await;
    }
    let sent = |text: &str| (text.to_owned(), "delivered", None, 1);
    let held = |text: &str| (text.to_owned(), "pending", Some(HoldReason::Budget), 0);
    assert_eq!(delivery_states(&instance).await, [sent("1"), sent("2"), held("3"), sent("4"), held("5")]);
    // 08:00 in Tokyo
    assert_eq!(only_digest(&instance).await.next_at, Some(at("23:00")));
    // the day begins there at 15:00
    world.advance_to("15:00");
    for text in ["6", "7", "8"] {
        post(&instance, &["email"], text, Urgency::Normal).await;
        instance.notify().await;
    }
    assert_eq!(delivery_states(&instance).await[5..], [sent("6"), sent("7"), held("8")]);
    world.advance_to("23:00");
    instance.notify().await;
    let mut subjects: Vec<String> = server.messages().iter().map(|mail| mail.header("subject").to_owned()).collect();
    subjects.sort();
    let told = ["3 messages that could wait", "About 1", "About 2", "About 4", "About 6", "About 7"];
    assert_eq!(subjects, told);
    assert!(delivery_states(&instance).await.iter().all(|(_, state, ..)| *state == "delivered"));
    instance.finish(&world).await;
}

async fn test_message_comes_whatever_the_hour(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    let hours = night(json!({ "from": "00:00", "to": "00:00", "breaks_through": "never" }));
    put(&instance, received(&sink, json!({ "quiet_hours": hours, "budget": { "per_day": 0 } }))).await;
    let (status, test) =
        instance.ask("POST", "/v1/recipients/ann/test", ADMIN, Some(json!({ "channel": "webhook" }))).await;
    assert_eq!((status, &test["kind"]), (202, &json!("test")), "{test}");
    instance.notify().await;
    assert_eq!(events(&sink), ["test"]);
    instance.finish(&world).await;
}

async fn asking(instance: &Instance, seconds: u32) -> Uuid {
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let act = format!("ask:{seconds}");
    let task = instance.task(json!({ "name": "Pay", "trigger": never, "acts": [act], "output": null })).await;
    let run = instance.run_now(&task).await;
    instance.settle(0).await;
    run
}

async fn question_waits_for_the_end_of_quiet_hours_and_joins_no_digest(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    world.public_url = Some("https://wake.example.org".into());
    let instance = world.instance();
    let hours = night(json!({ "breaks_through": "never" }));
    put(&instance, received(&sink, json!({ "quiet_hours": hours }))).await;
    world.advance_to("22:00");
    asking(&instance, 12 * 3600).await;
    instance.notify().await;
    assert_eq!(delivery_states(&instance).await, [("ask".into(), "pending", Some(HoldReason::QuietHours), 0)]);
    assert_eq!(instance.deliveries().await[0].next_at, Some(at("02 06:00")));
    // this one would be a no by then
    asking(&instance, 3600).await;
    instance.notify().await;
    assert_eq!(events(&sink), ["approval.requested"]);
    world.advance_to("02 06:00");
    instance.notify().await;
    assert_eq!(events(&sink), ["approval.requested"; 2]);
    instance.crash();
}

async fn sick_channel_is_left_alone_without_using_up_attempts(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    sink.answer(|_, _| Answer::Status(503));
    let instance = world.instance();
    put(&instance, received(&sink, json!({}))).await;
    for n in 0..5 {
        post(&instance, &["webhook"], &n.to_string(), Urgency::Normal).await;
        instance.notify().await;
    }
    post(&instance, &["webhook"], "later", Urgency::Normal).await;
    instance.notify().await;
    assert_eq!(sink.requests().len(), 5);
    let later = instance.deliveries().await.remove(5);
    assert_eq!((later.state, later.attempts, later.hold_reason), (DeliveryState::Pending, 0, None));
    let host = sink.url().replace("http://", "").replace("/hook", "");
    let error = format!("not attempted: `webhook` to {host} fails at present, and is left alone for a while");
    assert_eq!(later.last_error, Some(error));
    // the others are due after 5 s, and wait as well
    world.advance(29.0);
    instance.notify().await;
    assert_eq!(sink.requests().values().sum::<usize>(), 5);
    // all are due by then: one goes ahead, and the rest once it has come back
    sink.answer(|_, _| Answer::Status(204));
    world.advance(61.0);
    instance.notify().await;
    assert!(!sink.taken().is_empty());
    world.advance(11.0);
    instance.notify().await;
    assert_eq!(sink.taken().len(), 6);
    let attempts: Vec<i32> = instance.deliveries().await.iter().map(|delivery| delivery.attempts).collect();
    assert_eq!(attempts, [2, 2, 2, 2, 2, 1]);
    instance.finish(&world).await;
}

async fn backlog_goes_on_as_soon_as_there_is_a_place(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    let instance = world.instance();
    put(&instance, received(&sink, json!({}))).await;
    for n in 0..33 {
        post(&instance, &["webhook"], &n.to_string(), Urgency::Normal).await;
    }
    let hint = instance.engine().notifier.wakeup();
    // all places are free again before anybody waits for one
    instance.notify().await;
    assert_eq!(sink.taken().len(), 32);
    tokio::time::timeout(Duration::from_secs(30), hint).await.expect("the rest is not waited with");
    instance.notify().await;
    assert_eq!(sink.taken().len(), 33);
    instance.finish(&world).await;
}

async fn refused_message_uses_up_nothing_of_the_budget(mut world: World) {
    let server = MailServer::start().await;
    world.channels.email.url = Some(Secret::new(format!("smtp://{}", server.address())));
    world.channels.email.from = Some("Reveille <reveille@example.org>".into());
    let instance = world.instance();
    put(&instance, json!({ "addresses": { "email": "ann@example.org" }, "budget": { "per_day": 1 } })).await;
    // there is no device to push to, so the mail is the day's only interruption
    post(&instance, &["push", "email"], "1", Urgency::Normal).await;
    instance.notify().await;
    instance.notify().await;
    post(&instance, &["email"], "2", Urgency::Normal).await;
    instance.notify().await;
    let stands = [
        ("1".into(), "failed", None, 1),
        ("1".into(), "delivered", None, 1),
        ("2".into(), "pending", Some(HoldReason::Budget), 0),
    ];
    assert_eq!(delivery_states(&instance).await, stands);
    instance.finish(&world).await;
}

async fn message_held_by_the_budget_is_no_probe_of_a_sick_channel(mut world: World) {
    // nobody listens there
    world.channels.email.url = Some(Secret::new("smtp://127.0.0.1:1"));
    world.channels.email.from = Some("Reveille <reveille@example.org>".into());
    let instance = world.instance();
    put(&instance, json!({ "addresses": { "email": "ann@example.org" }, "budget": { "per_day": 5 } })).await;
    for n in 0..5 {
        post(&instance, &["email"], &n.to_string(), Urgency::Normal).await;
        instance.notify().await;
    }
    let given_up = "update deliveries set state = 'failed', next_at = null";
    world.execute(given_up, given_up).await;
    world.advance(31.0);
    for (text, urgency) in [("over", Urgency::Normal), ("fire", Urgency::High)] {
        post(&instance, &["email"], text, urgency).await;
        instance.notify().await;
    }
    let stands = [("over".into(), "pending", Some(HoldReason::Budget), 0), ("fire".into(), "pending", None, 1)];
    assert_eq!(delivery_states(&instance).await[5..], stands, "the other one is the probe");
    instance.finish(&world).await;
}

async fn question_does_not_wait_for_a_sick_channel(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    sink.answer(|_, _| Answer::Status(503));
    let server = MailServer::start().await;
    world.channels.email.url = Some(Secret::new(format!("smtp://{}", server.address())));
    world.channels.email.from = Some("Reveille <reveille@example.org>".into());
    world.public_url = Some("https://wake.example.org".into());
    let instance = world.instance();
    let ways = json!({ "email": "ann@example.org", "fallback": ["webhook", "email"] });
    put(&instance, received(&sink, ways)).await;
    for n in 0..5 {
        post(&instance, &["webhook"], &n.to_string(), Urgency::Normal).await;
        instance.notify().await;
    }
    asking(&instance, 3600).await;
    instance.notify().await;
    instance.notify().await;
    let asks: Vec<(String, &str, i32)> = instance
        .deliveries()
        .await
        .into_iter()
        .filter(|d| d.kind == MessageKind::Ask)
        .map(|d| (d.channel, d.state.as_str(), d.attempts))
        .collect();
    assert_eq!(asks, [("webhook".into(), "failed", 1), ("email".into(), "delivered", 1)]);
    assert_eq!(server.messages().len(), 1);
    instance.crash();
}

async fn only_proved_addresses_are_told_where_the_operator_says_so(mut world: World) {
    let sink = world_with_sink(&mut world).await;
    world.channels.require_verified = true;
    let instance = world.instance();
    put(&instance, received(&sink, json!({}))).await;
    post(&instance, &["webhook"], "before", Urgency::Urgent).await;
    instance.notify().await;
    let refused = &instance.deliveries().await[0];
    assert_eq!(refused.last_error.as_deref(), Some("the address for `webhook` is not verified"));
    assert_eq!((refused.state, sink.taken()), (DeliveryState::Failed, vec![]));

    let verify = "/v1/recipients/ann/verify";
    let (status, sent) = instance.ask("POST", verify, ADMIN, Some(json!({ "channel": "webhook" }))).await;
    assert_eq!((status, &sent["kind"], &sent["text"]), (202, &json!("code"), &Value::Null), "{sent}");
    instance.notify().await;
    let [taken] = <[_; 1]>::try_from(sink.taken()).expect("the code alone");
    let code = taken.data["text"].as_str().unwrap()[..6].to_owned();
    let give = async |code: &str| {
        instance.ask("POST", verify, ADMIN, Some(json!({ "channel": "webhook", "code": code }))).await
    };
    let other = if code == "123456" { "123457" } else { "123456" };
    let (status, wrong) = give(other).await;
    assert_eq!((status, &wrong["errors"][0]["message"]), (422, &json!("is wrong; 4 more tries")), "{wrong}");
    let (status, proved) = give(&code).await;
    assert_eq!((status, &proved["verified"]), (200, &json!({ "webhook": "2027-03-01T08:00:00Z" })), "{proved}");
    let (status, _) = give(&code).await;
    assert_eq!(status, 422, "a code is good once");
    for table in [
        "select count(*) from deliveries where coalesce(body, '') || coalesce(subject, '') || coalesce(last_error, '') like '%code that proves%'",
        "select count(*) from verifications",
    ] {
        assert_eq!(world.number(table).await, 0);
    }
    post(&instance, &["webhook"], "after", Urgency::Normal).await;
    instance.notify().await;
    assert_eq!(events(&sink), ["code", "message"]);
    // another address has to be proved again
    put(&instance, received(&Sink::start().await, json!({}))).await;
    let (_, shown) = instance.ask("GET", "/v1/recipients/ann", ADMIN, None).await;
    assert_eq!(shown["verified"], json!({}));
    instance.finish(&world).await;
}
