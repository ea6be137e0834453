//! Requests compute on threads of their own: those that serve others go on.

use serde_json::{Value, json};

use super::service::{Api, daily_of};
use crate::approvals::harness::{ask, note};
use crate::support::computing::{HeldThreads, until_waiting};

/// Asks while all computing threads are held. The request waits, another is answered meanwhile; then it has this status.
async fn computed(api: &Api, method: &str, path: &str, body: Option<Value>, status: u16) -> Value {
    delayed(api, api.admin(method, path, body)).await.expect(status)
}

/// The answer to a request that begins while all computing threads are held, and waits for one of them.
async fn delayed<T>(api: &Api, request: impl Future<Output = T>) -> T {
    let computing = api.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        api.admin("GET", "/v1/tasks", None).await.expect(200);
        drop(threads);
    };
    let (reply, ()) = tokio::join!(request, meanwhile);
    reply
}

#[tokio::test]
async fn triggers_of_requests_are_read_on_computing_threads() {
    let api = Api::new().await;
    let task = computed(&api, "POST", "/v1/tasks", Some(daily_of("ann")), 201).await;
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let edited = json!({ "trigger": { "type": "schedule", "cron": "0 9 * * *" } });
    let edited = computed(&api, "PATCH", &place, Some(edited), 200).await;
    assert_eq!(edited["trigger"]["cron"], "0 9 * * *");
    let explained = computed(&api, "GET", &format!("{place}/explain"), None, 200).await;
    assert_eq!(explained["next"].as_array().unwrap().len(), 5);
    let preview = json!({ "trigger": { "type": "schedule", "cron": "0 9 * * *" } });
    computed(&api, "POST", "/v1/schedules/preview", Some(preview), 200).await;
    for (method, path) in [("POST", "pause"), ("POST", "resume")] {
        computed(&api, method, &format!("{place}/{path}"), None, 200).await;
    }
}

#[tokio::test]
async fn conditions_and_pipelines_of_requests_are_read_on_computing_threads() {
    let api = Api::new().await;
    let trigger =
        json!({ "type": "condition", "poll": { "http": { "url": "https://h.example" } }, "expression": "value >" });
    let body = json!({ "tenant_id": "ann", "trigger": trigger });
    let faults = computed(&api, "POST", "/v1/conditions/test", Some(body), 422).await;
    assert!(faults["errors"].to_string().contains("/trigger/expression"), "{faults}");
    let config = json!({ "steps": [{ "name": "a", "map": "event.x.matches('a') >" }] });
    let body = json!({ "tenant_id": "ann", "config": config });
    let faults = computed(&api, "POST", "/v1/pipelines/dry-run", Some(body), 422).await;
    assert!(faults["errors"].to_string().contains("/config/steps/0/map"), "{faults}");
}

#[tokio::test]
async fn overrides_and_decisions_of_requests_are_judged_on_computing_threads() {
    let api = Api::new().await;
    let request = json!({ "tenant_id": "ann", "tool": "http_request", "gate": "auto", "when": "args.url ==" });
    let faults = computed(&api, "POST", "/v1/approval-overrides", Some(request), 422).await;
    assert!(faults["errors"].to_string().contains("/when"), "{faults}");

    let asked = ask(&api, "ann", vec![note()]).await;
    let (approval, long) = (&asked.approvals[0], "x".repeat(31));
    let edit = json!({ "decision": "edit", "digest": approval.digest, "modifications": { "text": long } });
    let faults = computed(&api, "POST", &format!("/v1/approvals/{}/decision", approval.id), Some(edit), 422).await;
    assert!(faults["errors"].to_string().contains("/modifications/text"), "{faults}");
}
