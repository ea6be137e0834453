//! Requests compute on threads of their own: those that serve others go on.

use std::pin::pin;

use serde_json::{Value, json};

use super::service::{Api, daily, daily_of};
use crate::approvals::harness::{ask, note};
use crate::support::computing::{HeldThreads, until_waiting};

/// Asks while all computing threads are held. The request waits, another is answered meanwhile; then it has this
/// status.
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

/// The answer to a request of this tenant, and how often it waited for a computing thread.
async fn with_waits<T>(api: &Api, tenant: &'static str, request: impl Future<Output = T>) -> (T, usize) {
    let computing = api.store.computing().clone();
    let mut threads = HeldThreads::all_of(&computing, tenant).await;
    let (mut request, mut waits) = (pin!(request), 0);
    loop {
        tokio::select! {
            biased;
            answer = &mut request => return (answer, waits),
            () = until_waiting(&computing, 1) => {
                waits += 1;
                tokio::select! {
                    biased;
                    answer = &mut request => return (answer, waits),
                    () = threads.let_pass() => {}
                }
            }
        }
    }
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
async fn long_answers_are_written_on_computing_threads_and_short_ones_where_they_are() {
    let api = Api::new().await;
    let made = async |length: usize| {
        let mut task = daily_of("ann");
        task["action"]["instruction"] = json!("x".repeat(length));
        let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
        format!("/v1/tasks/{}", task["id"].as_str().unwrap())
    };
    let (long, short) = (made(17_000).await, made(10).await);
    let computing = api.store.computing().clone();
    let mut threads = HeldThreads::all_of(&computing, "*").await;
    let meanwhile = async {
        // the row is read, and then the answer is written
        for _ in 0..2 {
            until_waiting(&computing, 1).await;
            api.admin("GET", &short, None).await.expect(200);
            threads.let_pass().await;
        }
    };
    let (reply, ()) = tokio::join!(api.admin("GET", &long, None), meanwhile);
    assert_eq!(reply.header("content-type"), "application/json");
    let read = reply.expect(200);
    assert_eq!(read["action"]["instruction"].as_str().map(str::len), Some(17_000));
    let meanwhile = async {
        // the rows of the page are read, and then the answer is written
        for _ in 0..2 {
            until_waiting(&computing, 1).await;
            threads.let_pass().await;
        }
    };
    let (reply, ()) = tokio::join!(api.admin("GET", "/v1/tasks", None), meanwhile);
    let listed = reply.expect(200);
    let actions: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|task| &task["action"]).collect();
    assert!(actions.len() == 2 && actions.contains(&&read["action"]), "{actions:?}");
    drop(threads);
}

#[tokio::test]
async fn long_tasks_remembered_answers_and_events_are_written_on_computing_threads_and_short_ones_where_they_are() {
    let api = Api::new().await;
    let ann = api.token("ann", &["*"]).await;
    let make = async |length: usize, key: Option<&str>| {
        let mut task = daily();
        task["action"]["instruction"] = json!("x".repeat(length));
        let headers: Vec<(&str, &str)> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
        let made = api.ask_with("POST", "/v1/tasks", Some(&ann), Some(task), &headers);
        let (made, waits) = with_waits(&api, "ann", made).await;
        assert_eq!(made.expect(201)["action"]["instruction"].as_str().map(str::len), Some(length));
        waits
    };
    // a trigger is read there in any case
    assert_eq!((make(10, None).await, make(10, Some("short")).await), (1, 1));
    // the body is read, the row is written, and so is the answer
    assert_eq!(make(17_000, None).await, 4);
    assert_eq!(make(17_000, Some("long")).await, 5, "the answer that is remembered is written, too");

    let publish = async |length: usize| {
        let event = json!({ "source": "shop", "type": "sold", "data": "x".repeat(length) });
        let (taken, waits) = with_waits(&api, "ann", api.ask("POST", "/v1/events", Some(&ann), Some(event))).await;
        taken.expect(202);
        waits
    };
    assert_eq!((publish(10).await, publish(17_000).await), (0, 2), "it is read, and written as it is stored");
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
