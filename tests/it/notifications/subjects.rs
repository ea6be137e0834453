//! A message is told by what it is about: its subject is for people, its key keeps it from being made twice, and
//! neither decides anything else.

use reveille::domain::notification::{DeliveryState, MessageKind};
use reveille::domain::task::TaskStatus;
use reveille::store::ReferredRecords;
use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    messages_with_other_subjects_and_keys_are_told_as_before
}

async fn referred(instance: &Instance, kind: MessageKind) -> Vec<ReferredRecords> {
    let deliveries = instance.deliveries().await.into_iter().filter(|delivery| delivery.kind == kind);
    let mut found = Vec::new();
    for delivery in deliveries {
        let read = instance.on(|store| async move { store.referred(&delivery).await });
        found.push(read.await.expect("what it refers to"));
    }
    found
}

/// A question, a notice that a task lacks a credential, and a code: each finds what it is about after somebody has
/// given it another subject and another key.
async fn messages_with_other_subjects_and_keys_are_told_as_before(mut world: World) {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    world.public_url = Some("https://wake.example.org".into());
    world.egress.allow = vec!["127.0.0.1:*".into()];
    let instance = world.instance();
    let webhook = json!({ "url": format!("{}/ann", server.uri()), "secret": format!("whsec_{}", "AAAA".repeat(8)) });
    let recipient = json!({ "timezone": "UTC", "addresses": { "webhook": webhook }, "fallback": ["webhook"] });
    assert_eq!(instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(recipient)).await.0, 200);
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let pays = instance.task(json!({ "name": "Pay", "trigger": never, "acts": ["ask:1800"] })).await;
    let hourly = json!({ "type": "schedule", "interval": "1h" });
    let steps = json!([{ "name": "look", "http": { "url": "http://127.0.0.1:9/", "credential": "shop/work" } }]);
    let shops = instance
        .task(json!({ "name": "Shop", "trigger": hourly, "executor": "pipeline", "action": { "config": { "steps": steps } } }))
        .await;
    for task in [&pays, &shops] {
        instance.run_now(task).await;
        instance.settle(0).await;
    }
    assert_eq!(instance.stored(&shops).await.status, TaskStatus::Paused);
    let code = json!({ "channel": "webhook" });
    assert_eq!(instance.ask("POST", "/v1/recipients/ann/verify", ADMIN, Some(code)).await.0, 202);

    let renamed = "update deliveries set subject = 'Bonjour', dedupe_key = 'k' || kind";
    world.execute(renamed, renamed).await;

    let told = referred(&instance, MessageKind::Notice).await;
    let credential = told[0].credential.as_ref().expect("the credential that it is about");
    assert_eq!(told.len(), 1);
    assert_eq!((credential.reference.as_str(), credential.task.as_deref()), ("shop/work", Some("Shop")));
    assert!(credential.paused);
    instance.notify().await;
    let requests = server.received_requests().await.expect("recorded");
    let mut bodies: Vec<Value> = requests.iter().map(|request| request.body_json().expect("JSON")).collect();
    bodies.sort_by_key(|body| body["type"].to_string());
    let kinds: Vec<&str> = bodies.iter().filter_map(|body| body["type"].as_str()).collect();
    assert_eq!(kinds, ["approval.requested", "code", "notice"]);
    assert_eq!(bodies[0]["data"]["items"].as_array().map(Vec::len), Some(2));
    let text = bodies[1]["data"]["text"].as_str().expect("a text");
    assert!(text.chars().take(6).all(|c| c.is_ascii_digit()), "{text}");
    let states: Vec<_> = instance.deliveries().await.iter().map(|delivery| delivery.state).collect();
    assert_eq!(states, [DeliveryState::Delivered; 3]);
    // the question stays open
    instance.crash();
}
