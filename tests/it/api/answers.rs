//! Messages whose answer takes longer than their request waits: the request is told that the run goes on, and its
//! answer is found later. The service of these tests waits a millisecond, and no engine runs: the test executes each
//! run.

use std::time::Duration;

use chrono::TimeDelta;
use reveille::domain::run::RunState;
use reveille::http::server::ServerLimits;
use reveille::store::{Finish, StartedRun};
use serde_json::{Value, json};
use uuid::Uuid;

use super::service::{ADMIN, Api, on_both};
use crate::support::world::claim_ready;

on_both! {
    message_that_takes_longer_is_answered_202_and_its_answer_is_found_by_get
    response_that_takes_longer_is_in_progress_and_completed_when_it_is_read_again
}

/// The answer of these runs.
const ANSWER: &str = "Good morning";

/// Sends something as the admin. Sent again, it is the same message.
async fn send(api: &Api, path: &str, body: &Value) -> (u16, Value) {
    let reply = api.ask_with("POST", path, Some(ADMIN), Some(body.clone()), &[("idempotency-key", "slow")]).await;
    (reply.status.as_u16(), reply.body)
}

/// Starts the run that is ready.
async fn start(api: &Api) -> StartedRun {
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("a run that is ready");
    let started = api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap().started;
    let [started] = <[StartedRun; 1]>::try_from(started).expect("one run that starts");
    started
}

async fn finish(api: &Api, started: &StartedRun) {
    let end = Finish::of(started.lease, started.run.task_id, RunState::Succeeded);
    let end = Finish { output: Some(ANSWER.into()), ..end };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
}

#[test]
fn request_waits_25_seconds_for_its_answer_unless_it_is_told_otherwise() {
    let limits = ServerLimits::default();
    assert_eq!(limits.answer_time, Duration::from_secs(25), "as the pages and the reference say");
    assert!(limits.answer_time < limits.request_time, "the request is answered before it is given up");
}

async fn message_that_takes_longer_is_answered_202_and_its_answer_is_found_by_get(api: Api) {
    let said = json!({ "tenant_id": "ann", "message": "hello" });
    let (status, recorded) = send(&api, "/v1/chat", &said).await;
    assert_eq!((status, &recorded["state"], &recorded["response"]), (202, &json!("queued"), &json!("")));
    let started = start(&api).await;
    assert_eq!(json!(started.run.id), recorded["run_id"]);
    let (status, under_way) = send(&api, "/v1/chat", &said).await;
    assert_eq!((status, &under_way["state"], &under_way["response"]), (202, &json!("running"), &json!("")));
    assert_eq!(under_way["run_id"], recorded["run_id"], "it is the same message");
    finish(&api, &started).await;

    let run = api.admin("GET", &format!("/v1/runs/{}", started.run.id), None).await.expect(200);
    assert_eq!((&run["state"], &run["output"]), (&json!("succeeded"), &json!(ANSWER)));
    let conversation = recorded["conversation_id"].as_str().expect("an id");
    let messages = api.admin("GET", &format!("/v1/conversations/{conversation}/messages"), None).await.expect(200);
    let [message] = messages["items"].as_array().expect("messages").as_slice() else { panic!("{messages:#}") };
    assert_eq!((&message["message"], &message["response"]), (&json!("hello"), &json!(ANSWER)));
    let (status, answered) = send(&api, "/v1/chat", &said).await;
    assert_eq!((status, &answered["state"], &answered["response"]), (200, &json!("succeeded"), &json!(ANSWER)));
    assert_eq!(answered["run_id"], recorded["run_id"]);
}

async fn response_that_takes_longer_is_in_progress_and_completed_when_it_is_read_again(api: Api) {
    let said = json!({ "tenant_id": "ann", "input": "hello" });
    let (status, recorded) = send(&api, "/v1/responses", &said).await;
    assert_eq!((status, &recorded["status"], &recorded["background"]), (200, &json!("queued"), &json!(false)));
    let started = start(&api).await;
    let (status, under_way) = send(&api, "/v1/responses", &said).await;
    assert_eq!((status, &under_way["status"], &under_way["output"]), (200, &json!("in_progress"), &json!([])));
    assert_eq!(under_way["id"], recorded["id"], "it is the same message");
    let place = format!("/v1/responses/{}", recorded["id"].as_str().expect("an id"));
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["status"], "in_progress");
    finish(&api, &started).await;

    let answered = api.admin("GET", &place, None).await.expect(200);
    assert_eq!((&answered["status"], &answered["background"]), (&json!("completed"), &json!(false)));
    assert_eq!(answered["output"][0]["content"][0]["text"], ANSWER);
    let (status, again) = send(&api, "/v1/responses", &said).await;
    assert_eq!((status, &again["id"], &again["output"]), (200, &answered["id"], &answered["output"]));
}
