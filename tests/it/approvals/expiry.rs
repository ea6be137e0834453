//! Time passes and nobody answers: who is reminded when, who else is asked, and that no answer is never a yes.

use chrono_tz::Tz;
use reveille::base::id::Scope;
use reveille::base::token::TokenHash;
use reveille::domain::approval::{ApprovalStatus, Settings};
use reveille::domain::notification::{Addresses, Delivery, Recipient};
use reveille::domain::run::RunState;
use reveille::domain::task::{Task, TaskStatus};
use reveille::store::ApprovalFilter;
use serde_json::{Value, json};
use uuid::Uuid;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    each_reminder_comes_once_and_after_them_the_run_expires
    after_a_time_of_being_down_only_the_latest_reminder_is_sent
    another_is_asked_as_well_after_his_share_of_the_time
    named_approvers_are_asked_from_the_start_by_a_link_of_their_own
    webhook_recipient_of_a_question_is_told_the_call_and_the_link
    question_that_expired_while_nobody_was_up_is_a_no
}

/// A run that asks two things at 08:00, with half an hour to answer, and its task, whose results are told to nobody.
pub async fn asking(instance: &Instance) -> (Task, Uuid) {
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let task = instance.task(json!({ "name": "Pay", "trigger": never, "acts": ["ask:1800"], "output": null })).await;
    let run = instance.run_now(&task).await;
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::PendingApproval);
    (task, run)
}

/// Each delivery as `who what`, in the order in which they were made.
async fn sent_messages(instance: &Instance) -> Vec<String> {
    let line = |delivery: Delivery| {
        let mut key = delivery.dedupe_key.split(':').skip(2).collect::<Vec<_>>().join(" ");
        if key == "result" {
            key = delivery.kind.as_str().to_owned();
        }
        format!("{} {key}", delivery.recipient)
    };
    instance.deliveries().await.into_iter().map(line).collect()
}

async fn statuses(instance: &Instance, run_id: Uuid) -> Vec<ApprovalStatus> {
    let filter = ApprovalFilter { run_id: Some(run_id), limit: 10, ..ApprovalFilter::default() };
    let listed = instance.on(|store| async move { store.list_approvals(&Scope::Every, &filter).await }).await;
    listed.expect("approvals").into_iter().map(|approval| approval.status).collect()
}

async fn each_reminder_comes_once_and_after_them_the_run_expires(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let (_, run) = asking(&instance).await;
    for (time, so_far) in [
        ("08:00", &["ann ask"][..]),
        ("08:14:59", &["ann ask"]),
        ("08:15", &["ann ask", "ann reminder 1"]),
        ("08:20", &["ann ask", "ann reminder 1"]),
        ("08:27", &["ann ask", "ann reminder 1", "ann reminder 2"]),
        ("08:29:59", &["ann ask", "ann reminder 1", "ann reminder 2"]),
    ] {
        world.advance_to(time);
        instance.attend().await;
        instance.attend().await;
        assert_eq!(sent_messages(&instance).await, so_far, "{time}");
        assert_eq!(instance.run(run).await.state, RunState::PendingApproval, "{time}");
    }
    world.advance_to("08:30:01");
    instance.attend().await;
    assert_eq!(sent_messages(&instance).await, ["ann ask", "ann reminder 1", "ann reminder 2", "ann failure"]);
    assert_eq!(instance.run(run).await.state, RunState::Expired);
    instance.finish(&world).await;
}

async fn after_a_time_of_being_down_only_the_latest_reminder_is_sent(world: World) {
    let first = world.instance();
    first.recipient().await;
    asking(&first).await;
    first.crash();
    world.advance_to("08:28");
    let second = world.instance();
    second.attend().await;
    assert_eq!(sent_messages(&second).await, ["ann ask", "ann reminder 2"]);
    second.crash();
}

async fn another_is_asked_as_well_after_his_share_of_the_time(mut world: World) {
    world.approvals = Settings { escalate_to: Some("boss".into()), escalate_after: 0.6, ..Settings::default() };
    let instance = world.instance();
    instance.recipient().await;
    let addresses = Addresses { email: Some("boss@example.org".into()), ..Addresses::default() };
    let boss = Recipient { timezone: Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() };
    let put = instance.on(|store| async move { store.put_recipient(&Scope::Every, "boss", &boss, None).await }).await;
    put.expect("written");
    asking(&instance).await;
    for (time, so_far) in [
        ("08:15", &["ann ask", "ann reminder 1"][..]),
        ("08:18", &["ann ask", "ann reminder 1", "boss ask"]),
        ("08:27", &["ann ask", "ann reminder 1", "boss ask", "ann reminder 2", "boss reminder 2"]),
    ] {
        world.advance_to(time);
        instance.attend().await;
        instance.attend().await;
        assert_eq!(sent_messages(&instance).await, so_far, "{time}");
    }
    let tenants: Vec<String> = instance.deliveries().await.into_iter().map(|delivery| delivery.tenant_id).collect();
    assert_eq!(tenants, ["ann"; 5], "it is his tenant's question, whoever answers");
    instance.crash();
}

async fn named_approvers_are_asked_from_the_start_by_a_link_of_their_own(mut world: World) {
    world.approvals = Settings {
        required_approvers: 2,
        additional_approvers: vec!["boss".into(), "ann".into(), "boss".into()],
        escalate_to: Some("boss".into()),
        escalate_after: 0.6,
        ..Settings::default()
    };
    let instance = world.instance();
    instance.recipient().await;
    let addresses = Addresses { email: Some("boss@example.org".into()), ..Addresses::default() };
    let boss = Recipient { timezone: Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() };
    let put = instance.on(|store| async move { store.put_recipient(&Scope::Every, "boss", &boss, None).await }).await;
    put.expect("written");
    asking(&instance).await;
    for (time, so_far) in [
        ("08:00", &["ann ask", "boss ask"][..]),
        ("08:15", &["ann ask", "boss ask", "ann reminder 1", "boss reminder 1"]),
        ("08:18", &["ann ask", "boss ask", "ann reminder 1", "boss reminder 1"]),
    ] {
        world.advance_to(time);
        instance.attend().await;
        assert_eq!(sent_messages(&instance).await, so_far, "{time}");
    }
    instance.crash();
}

async fn webhook_recipient_of_a_question_is_told_the_call_and_the_link(mut world: World) {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    world.approvals = Settings { escalate_to: Some("boss".into()), ..Settings::default() };
    world.public_url = Some("https://wake.example.org".into());
    world.egress.allow = vec!["127.0.0.1:*".into()];
    let instance = world.instance();
    for name in ["ann", "boss"] {
        let webhook =
            json!({ "url": format!("{}/{name}", server.uri()), "secret": format!("whsec_{}", "AAAA".repeat(8)) });
        let recipient = json!({ "timezone": "UTC", "addresses": { "webhook": webhook }, "fallback": ["webhook"] });
        let path = format!("/v1/recipients/{name}");
        assert_eq!(instance.ask("PUT", &path, ADMIN, Some(recipient)).await.0, 200);
    }
    let (_, run) = asking(&instance).await;
    let mut links = Vec::new();
    for (time, expected) in [
        ("08:00", &[("/ann", "approval.requested")][..]),
        ("08:15", &[("/ann", "approval.reminder"), ("/boss", "approval.requested")]),
        ("08:27", &[("/ann", "approval.reminder"), ("/boss", "approval.reminder")]),
    ] {
        world.advance_to(time);
        instance.attend().await;
        instance.notify().await;
        let mut told: Vec<(String, Value)> = (server.received_requests().await.expect("recorded").iter())
            .map(|request| (request.url.path().to_owned(), request.body_json().expect("JSON")))
            .collect();
        server.reset().await;
        Mock::given(method("POST")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
        told.sort_by(|a, b| a.0.cmp(&b.0));
        let kinds: Vec<(&str, &str)> =
            told.iter().map(|(path, body)| (path.as_str(), body["type"].as_str().unwrap_or_default())).collect();
        assert_eq!(kinds, expected, "{time}");
        for (path, body) in &told {
            let data = &body["data"];
            assert_eq!((&data["tenant_id"], &data["run_id"]), (&json!("ann"), &json!(run)), "{path}");
            assert_eq!(data["items"].as_array().map(Vec::len), Some(2), "{path}");
            let link = data["link"].as_str().expect("a link");
            let token = link.strip_prefix("https://wake.example.org/approvals/").expect("where people reach us");
            let (hash, now) = (*TokenHash::of(token).as_bytes(), world.clock.now());
            let opened = instance.on(move |store| async move { store.approvals_by_link(&hash, now).await }).await;
            let (remembered, batch) = opened.expect("the link opens");
            assert_eq!(format!("/{}", remembered.recipient), *path, "each has a link of their own");
            assert_eq!((batch.len(), remembered.channel.as_str()), (2, "webhook"));
            links.push(link.to_owned());
        }
    }
    links.sort();
    links.dedup();
    assert_eq!(links.len(), 5, "no message has the link of another");
    instance.crash();
}

async fn question_that_expired_while_nobody_was_up_is_a_no(world: World) {
    let first = world.instance();
    first.recipient().await;
    let (task, run) = asking(&first).await;
    first.crash();
    world.advance_to("09:00");
    let second = world.instance();
    second.attend().await;
    assert_eq!(statuses(&second, run).await, [ApprovalStatus::Expired; 2]);
    let ended = second.run(run).await;
    assert_eq!((ended.state, ended.reason.as_deref()), (RunState::Expired, Some("approval_expired")));
    assert_eq!(
        sent_messages(&second).await,
        ["ann ask", "ann failure"],
        "who was asked hears of it, whatever the output"
    );
    assert_eq!(world.journal.begun().len(), 1, "nothing was executed");
    assert_eq!(second.stored(&task).await.status, TaskStatus::Active);
    second.finish(&world).await;
}
