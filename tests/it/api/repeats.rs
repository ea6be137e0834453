//! A request that is sent twice with one `Idempotency-Key` takes effect once, and is answered the same.

use chrono::TimeDelta;
use reveille::domain::notification::{Mark, MessageKind, NewDelivery};
use serde_json::{Value, json};

use super::service::{ADMIN, Api, daily_of, on_both};
use crate::support::outbox::claim_due;

on_both! {
    repeated_task_is_made_once_even_when_its_instant_has_passed
    key_stands_for_one_request
    keys_of_different_tenants_do_not_meet_and_are_forgotten_after_a_day
    refused_request_uses_up_no_key
    runs_backfills_and_retries_are_made_once
    text_of_a_token_is_never_repeated
    late_repetition_of_a_pause_a_resume_or_a_cancel_takes_no_effect
    delivery_is_sent_again_once_for_each_key
}

async fn post(api: &Api, path: &str, key: &str, body: Value) -> (u16, String, Value) {
    let reply = api.ask_with("POST", path, Some(ADMIN), Some(body), &[("idempotency-key", key)]).await;
    (reply.status.as_u16(), reply.header("idempotency-replayed").to_owned(), reply.body)
}

async fn repeated_task_is_made_once_even_when_its_instant_has_passed(api: Api) {
    let mut task = daily_of("ann");
    task["trigger"] = json!({ "type": "schedule", "at": "2026-11-21T00:01:00Z" });
    let (status, replayed, first) = post(&api, "/v1/tasks", "key 1", task.clone()).await;
    assert_eq!((status, replayed.as_str()), (201, ""));
    api.advance(3600);
    let (status, replayed, second) = post(&api, "/v1/tasks", "key 1", task).await;
    assert_eq!((status, replayed.as_str(), second), (201, "true", first));
    let tasks = api.admin("GET", "/v1/tasks", None).await.expect(200);
    assert_eq!(tasks["items"].as_array().unwrap().len(), 1);
}

async fn key_stands_for_one_request(api: Api) {
    post(&api, "/v1/tasks", "k", daily_of("ann")).await;
    let (status, _, problem) = post(&api, "/v1/tasks", "k", daily_of("bob")).await;
    assert_eq!((status, &problem["type"]), (422, &json!("urn:reveille:problem:invalid")));
    let (status, ..) = post(&api, "/v1/tokens", "k", json!({ "name": "x", "scopes": ["*"] })).await;
    assert_eq!(status, 422);
    let tasks = api.admin("GET", "/v1/tasks", None).await.expect(200);
    assert_eq!(tasks["items"].as_array().unwrap().len(), 1);
}

async fn keys_of_different_tenants_do_not_meet_and_are_forgotten_after_a_day(api: Api) {
    let (ann, bob) = (api.token("ann", &["*"]).await, api.token("bob", &["*"]).await);
    let body = super::service::daily();
    let make = async |token: &str| {
        let reply =
            api.ask_with("POST", "/v1/tasks", Some(token), Some(body.clone()), &[("idempotency-key", "k")]).await;
        reply.expect(201)["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (make(&ann).await, make(&bob).await);
    assert_ne!(first, second);
    assert_eq!(make(&ann).await, first);
    api.advance(24 * 3600);
    assert_ne!(make(&ann).await, first);
}

async fn refused_request_uses_up_no_key(api: Api) {
    let mut wrong = daily_of("ann");
    wrong["name"] = json!("");
    assert_eq!(post(&api, "/v1/tasks", "k", wrong).await.0, 422);
    assert_eq!(post(&api, "/v1/tasks", "k", daily_of("ann")).await.0, 201);
}

async fn runs_backfills_and_retries_are_made_once(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let (_, _, run) = post(&api, &format!("{place}/run"), "r", json!({ "input": 7 })).await;
    api.advance(1);
    assert_eq!(
        post(&api, &format!("{place}/run"), "r", json!({ "input": 7 })).await,
        (201, "true".into(), run.clone())
    );
    let run_place = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    api.admin("POST", &format!("{run_place}/cancel"), None).await.expect(200);
    let (_, _, again) = post(&api, &format!("{run_place}/retry"), "t", json!({})).await;
    api.advance(1);
    assert_eq!(post(&api, &format!("{run_place}/retry"), "t", json!({})).await, (201, "true".into(), again));
    let range = json!({ "from": "2026-11-18T00:00:00Z", "to": "2026-11-19T00:00:00Z" });
    let (_, _, backfill) = post(&api, &format!("{place}/backfill"), "b", range.clone()).await;
    assert_eq!(post(&api, &format!("{place}/backfill"), "b", range).await, (202, "true".into(), backfill));
    let runs = api.admin("GET", "/v1/runs", None).await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 3, "{runs}");
}

async fn text_of_a_token_is_never_repeated(api: Api) {
    let draft = json!({ "name": "x", "scopes": ["*"] });
    let (_, _, made) = post(&api, "/v1/tokens", "k", draft.clone()).await;
    assert!(made["token"].as_str().unwrap().starts_with("rv_admin_"));
    let (status, replayed, again) = post(&api, "/v1/tokens", "k", draft).await;
    assert_eq!((status, replayed.as_str(), &again["token"], &again["id"]), (201, "true", &Value::Null, &made["id"]));
}

async fn late_repetition_of_a_pause_a_resume_or_a_cancel_takes_no_effect(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let (pause, resume) = (format!("{place}/pause"), format!("{place}/resume"));
    let (status, replayed, paused) = post(&api, &pause, "p", json!({ "reason": "holiday" })).await;
    assert_eq!((status, replayed.as_str(), &paused["status"]), (200, "", &json!("paused")));
    let (_, _, resumed) = post(&api, &resume, "r", json!({})).await;
    assert_eq!(resumed["status"], "active");
    assert_eq!(post(&api, &pause, "p", json!({ "reason": "holiday" })).await, (200, "true".into(), paused));
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["status"], "active");
    api.admin("POST", &pause, None).await.expect(200);
    assert_eq!(post(&api, &resume, "r", json!({})).await, (200, "true".into(), resumed));
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["status"], "paused");

    let run = api.admin("POST", &format!("{place}/run"), None).await.expect(201);
    let cancel = format!("/v1/runs/{}/cancel", run["id"].as_str().unwrap());
    let (status, _, cancelled) = post(&api, &cancel, "c", json!({})).await;
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")));
    assert_eq!(post(&api, &cancel, "c", json!({})).await, (200, "true".into(), cancelled));
    assert_eq!(post(&api, &pause, "c", json!({})).await.0, 422, "the key stands for the cancel");
}

async fn delivery_is_sent_again_once_for_each_key(api: Api) {
    let message = NewDelivery {
        tenant_id: "ann".into(),
        recipient: "ann".into(),
        channel: "email".into(),
        fallback: Vec::new(),
        dedupe_key: "notice:x:1".into(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: None,
        text: Some("There you are".into()),
    };
    api.store.post_delivery(&message).await.unwrap();
    let fail = async || {
        let until = api.store.clock().now() + TimeDelta::seconds(60);
        let claim = claim_due(&api.store, until, 1).await.unwrap().pop().expect("a due delivery");
        let mark = Mark::Failed { error: "no such mailbox".into(), fall_back: None };
        api.store.mark_delivery(&claim, &mark).await.unwrap();
        claim.delivery.id
    };
    let place = format!("/v1/deliveries/{}", fail().await);
    let (status, replayed, again) = post(&api, &format!("{place}/retry"), "k", json!({})).await;
    assert_eq!((status, replayed.as_str(), &again["state"]), (202, "", &json!("pending")));
    assert_eq!(api.admin("GET", &place, None).await.expect(200), again);
    fail().await;
    assert_eq!(post(&api, &format!("{place}/retry"), "k", json!({})).await, (202, "true".into(), again));
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["state"], "failed");
}
