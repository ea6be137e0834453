//! Calls that need no consent and may still be stopped: held in the outbox for a while, with a link to stop them, and
//! then done once, by whichever instance is there.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Request, header};
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::domain::approval::{Approval, ApprovalStatus};
use reveille::domain::notification::DeliveryState;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::ports::tool::{Tool, ToolOutput};
use reveille::store::ApprovalFilter;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::agent::harness::FakeTool;
use crate::support::app::Instance;
use crate::support::smtp::{Mail, MailServer};
use crate::support::world::{ADMIN, PUBLIC, World, at, on_both};

on_both! {
    held_call_is_told_with_a_link_that_stops_it
    held_call_that_nobody_stops_is_done_once_after_its_time
    call_that_is_held_when_its_instance_dies_is_done_once_by_another
    held_call_does_not_wait_for_those_that_are_asked
    notice_that_can_not_be_delivered_keeps_nothing_from_being_done
}

/// Calls that were executed.
pub type RecordedActions = Arc<Mutex<Vec<Value>>>;

/// A world whose agent files a note, which nobody has to agree to and which can be stopped for a minute.
pub fn filing(world: &mut World, server: &MailServer, more: Vec<Value>) -> RecordedActions {
    let deeds = RecordedActions::default();
    let tool = |name: &'static str, category: Category, undo_seconds: Option<u64>| {
        let deeds = deeds.clone();
        let prop = FakeTool::new(name, move |_, arguments| {
            deeds.lock().unwrap().push(arguments);
            async move { Ok(ToolOutput::text("it is done")) }
        });
        let prop = prop.with(|tool| {
            tool.category = category;
            tool.consequence = Consequence::Low;
            tool.idempotent = false;
            tool.summary = Some(format!("{name} {{note}}"));
            tool.undo_seconds = undo_seconds;
        });
        Arc::new(prop) as Arc<dyn Tool>
    };
    world.tools = vec![tool("file", Category::Internal, Some(60)), tool("tell", Category::SideEffect, None)];
    let calls: Vec<Value> = [vec![json!({ "tool": "file", "args": { "note": "one" } })], more].concat();
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": calls },
        { "turn": 2, "text": "All is settled: {{ file }}" },
    ] }));
    world.mail_by(server);
    deeds
}

/// A run that has asked its model, and waits.
async fn waiting(instance: &Instance) -> (Task, Uuid) {
    instance.recipient().await;
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let action = json!({ "instruction": "File the note" });
    let wanted =
        json!({ "name": "Notes", "trigger": never, "executor": "orchestrator", "action": action, "output": null });
    let task = instance.task(wanted).await;
    let run = instance.run_now(&task).await;
    instance.settle(0).await;
    let parked = instance.run(run).await;
    assert_eq!(parked.state, RunState::PendingApproval, "{parked:#?}");
    instance.attend().await;
    (task, run)
}

async fn approvals(instance: &Instance, run_id: Uuid) -> Vec<Approval> {
    let filter = ApprovalFilter { run_id: Some(run_id), limit: 10, ..ApprovalFilter::default() };
    let listed = instance.on(|store| async move { store.list_approvals(&Scope::Every, &filter).await }).await;
    let mut listed = listed.expect("approvals");
    listed.reverse();
    listed
}

/// The acts on record, oldest first, as `actor: action`.
async fn acts(instance: &Instance) -> Vec<String> {
    let (status, audit) = instance.ask("GET", "/v1/audit?tenant_id=ann", ADMIN, None).await;
    assert_eq!(status, 200, "{audit}");
    let entries = audit["items"].as_array().unwrap().iter().rev();
    entries
        .map(|entry| format!("{}: {}", entry["actor"].as_str().unwrap(), entry["action"].as_str().unwrap()))
        .collect()
}

async fn the_mail(instance: &Instance, server: &MailServer) -> Mail {
    instance.notify().await;
    let [mail] = server.messages().try_into().expect("one message");
    mail
}

/// Asks for the page of a link, or sends its form.
pub async fn page(instance: &Instance, path: &str, form: Option<&[(&str, &str)]>) -> (u16, String) {
    let method = if form.is_some() { "POST" } else { "GET" };
    let sent = form.map(|fields| url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(sent.map_or(Body::empty(), Body::from))
        .expect("a request");
    let router = instance.router();
    instance
        .on(|_| async move {
            let answer = router.oneshot(request).await.expect("an answer");
            let status = answer.status().as_u16();
            let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
            (status, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
        })
        .await
}

async fn held_call_is_told_with_a_link_that_stops_it(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    let instance = world.instance();
    let (_, run) = waiting(&instance).await;
    let [held] = approvals(&instance, run).await.try_into().expect("one approval");
    assert_eq!((held.status, held.hold_until), (ApprovalStatus::Approved, Some(at("08:01"))));

    let mail = the_mail(&instance, &server).await;
    assert_eq!(mail.header("subject"), "Notes is about to act: 1 thing may still be stopped");
    assert!(
        mail.text.contains("1. file one\n\nIt is done at 2027-03-01 08:01 UTC unless you stop it."),
        "{}",
        mail.text
    );
    let link = mail.text.lines().last().expect("a last line");
    let path = link.strip_prefix(PUBLIC).expect("the link").to_owned();
    world.advance(59.0);
    let (status, html) = page(&instance, &path, None).await;
    assert_eq!(status, 200);
    for shown in ["This can still be stopped", "Needs no approval", "Let through by the rules", "Why nobody is asked"] {
        assert!(html.contains(shown), "{shown} is not in\n{html}");
    }
    let (_, rest) = html.split_once("name=\"nonce\" value=\"").expect("a nonce");
    let nonce = rest.split_once('"').expect("a nonce").0;
    let (status, html) = page(&instance, &path, Some(&[("nonce", nonce), ("do", "cancel:0")])).await;
    assert_eq!(status, 303, "{html}");

    instance.settle(0).await;
    let ended = instance.run(run).await;
    let told = "All is settled: User cancelled this action.";
    assert_eq!((ended.state, ended.output.as_deref()), (RunState::Succeeded, Some(told)));
    assert_eq!(*deeds.lock().unwrap(), Vec::<Value>::new());
    assert_eq!(acts(&instance).await, ["policy: approval.held", "recipient:ann: approval.stopped"]);
    instance.finish(&world).await;
}

async fn held_call_that_nobody_stops_is_done_once_after_its_time(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    let instance = world.instance();
    let (_, run) = waiting(&instance).await;
    let path = format!("/v1/runs/{run}/explain");
    let (_, explained) = instance.ask("GET", &path, ADMIN, None).await;
    assert!(explained.to_string().contains("is held until 2027-03-01T08:01:00Z"), "{explained}");
    world.advance(59.0);
    instance.attend().await;
    instance.settle(0).await;
    assert_eq!((instance.run(run).await.state, deeds.lock().unwrap().len()), (RunState::PendingApproval, 0));
    world.advance(1.0);
    instance.attend().await;
    instance.settle(0).await;
    let ended = instance.run(run).await;
    assert_eq!((ended.state, ended.output.as_deref()), (RunState::Succeeded, Some("All is settled: it is done")));
    assert_eq!(*deeds.lock().unwrap(), [json!({ "note": "one" })]);
    assert_eq!(acts(&instance).await, ["policy: approval.held"]);
    let [done] = approvals(&instance, run).await.try_into().expect("one approval");
    assert_eq!(done.outcome.map(|outcome| outcome.text), Some("it is done".into()));
    let (_, shown) = instance.ask("GET", &format!("/v1/runs/{run}"), ADMIN, None).await;
    let held = json!([{ "tool": "file", "message": "held for 60 s, and may be stopped until then" }]);
    assert_eq!(shown["result"]["tool_warnings"], held, "{shown}");
    let (_, explained) = instance.ask("GET", &path, ADMIN, None).await;
    let call = &explained["calls"][0];
    assert_eq!(call["sentence"], "Nobody was asked; it could be stopped until 2027-03-01T08:01:00Z. It was executed.");
    assert_eq!(call["reasons"][0], "the matrix says auto for internal of low consequence");
    // the notice comes too late to stop anything, and is not sent
    instance.notify().await;
    assert_eq!(server.messages(), []);
    instance.finish(&world).await;
}

async fn call_that_is_held_when_its_instance_dies_is_done_once_by_another(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    let first = world.instance();
    let (_, run) = waiting(&first).await;
    first.crash();
    let second = world.instance();
    world.advance(30.0);
    second.attend().await;
    second.settle(0).await;
    assert_eq!(deeds.lock().unwrap().len(), 0);
    world.advance(31.0);
    second.attend().await;
    second.settle(0).await;
    assert_eq!(second.run(run).await.state, RunState::Succeeded);
    assert_eq!(deeds.lock().unwrap().len(), 1);
    assert_eq!(approvals(&second, run).await.len(), 1, "it was put once");
    second.finish(&world).await;
}

async fn held_call_does_not_wait_for_those_that_are_asked(mut world: World) {
    let server = MailServer::start().await;
    let more = vec![json!({ "tool": "tell", "args": { "note": "two" } })];
    let deeds = filing(&mut world, &server, more);
    let instance = world.instance();
    let (_, run) = waiting(&instance).await;
    let mail = the_mail(&instance, &server).await;
    assert_eq!(mail.header("subject"), "Notes asks for your approval of 1 thing");
    assert!(
        mail.text.contains("1. file one (done at 2027-03-01 08:01 UTC unless you stop it)\n2. tell two\n"),
        "{}",
        mail.text
    );
    world.advance(60.0);
    instance.attend().await;
    instance.settle(0).await;
    assert_eq!(*deeds.lock().unwrap(), [json!({ "note": "one" })]);
    assert_eq!(instance.run(run).await.state, RunState::PendingApproval, "the other one is open still");
    let [_, open] = approvals(&instance, run).await.try_into().expect("two approvals");
    let answer = json!({ "decision": "approve", "digest": open.digest });
    let path = format!("/v1/approvals/{}/decision", open.id);
    assert_eq!(instance.ask("POST", &path, ADMIN, Some(answer)).await.0, 200);
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Succeeded);
    assert_eq!(deeds.lock().unwrap().len(), 2, "each once");
    instance.finish(&world).await;
}

async fn notice_that_can_not_be_delivered_keeps_nothing_from_being_done(mut world: World) {
    let server = MailServer::start().await;
    let deeds = filing(&mut world, &server, vec![]);
    // nothing listens there
    world.channels.email.url = Some(Secret::new("smtp://127.0.0.1:9"));
    let instance = world.instance();
    let (_, run) = waiting(&instance).await;
    instance.notify().await;
    let [notice] = instance.deliveries().await.try_into().expect("one delivery");
    assert_ne!(notice.state, DeliveryState::Delivered);
    assert!(notice.last_error.is_some());
    world.advance(60.0);
    instance.attend().await;
    instance.settle(0).await;
    assert_eq!((instance.run(run).await.state, deeds.lock().unwrap().len()), (RunState::Succeeded, 1));
    instance.finish(&world).await;
}
