//! Requests compute on threads of their own: those that serve others go on.

use serde_json::{Value, json};

use super::service::{Api, daily_of};
use crate::support::computing::{HeldThreads, until_waiting};

/// Asks while all computing threads are held. The request waits, another is answered meanwhile; then it has this status.
async fn computed(api: &Api, method: &str, path: &str, body: Option<Value>, status: u16) -> Value {
    let computing = api.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        api.admin("GET", "/v1/tasks", None).await.expect(200);
        drop(threads);
    };
    let (reply, ()) = tokio::join!(api.admin(method, path, body), meanwhile);
    reply.expect(status)
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
