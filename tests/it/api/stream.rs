//! Following a run: what was committed first, then what happens, each thing once, until the end.

mod instances;
mod shared_looks;

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use chrono::TimeDelta;
use futures::{FutureExt, StreamExt};
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::{ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::http::server::ServerLimits;
use reveille::store::{Finish, Lease};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt;
use uuid::Uuid;

use super::service::{ADMIN, Api, daily_of};
use crate::support::sse::{EVENT_STREAM, HeldStream};
use crate::support::world::claim_ready;

/// A client that follows a run.
struct Client {
    body: BodyDataStream,
    stream: HeldStream,
}

/// One server-sent event: name, id, data.
#[derive(Debug, Clone, PartialEq)]
struct StreamSoFar {
    name: String,
    id: String,
    data: Value,
}

impl Client {
    async fn follow(api: &Api, run: Uuid, last_event_id: Option<&str>) -> Client {
        Client::follow_as(api, ADMIN, run, last_event_id).await
    }

    async fn follow_as(api: &Api, token: &str, run: Uuid, last_event_id: Option<&str>) -> Client {
        let path = format!("/v1/runs/{run}/stream");
        let mut request = Request::get(&path).header("authorization", format!("Bearer {token}"));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], EVENT_STREAM);
        Client { body: response.into_body().into_data_stream(), stream: HeldStream::of("GET", &path) }
    }

    /// The next event, comments passed over; `None` at the end.
    async fn next(&mut self) -> Option<StreamSoFar> {
        loop {
            if let Some(event) = self.stream.next() {
                let data = event.json();
                return Some(StreamSoFar { name: event.name, id: event.id, data });
            }
            let part = timeout(Duration::from_secs(20), self.body.next()).await.expect("something is told");
            self.stream.push(&part?.unwrap());
        }
    }

    /// The names of the next events up to this one, which is the last of them.
    async fn until(&mut self, name: &str) -> Vec<StreamSoFar> {
        let mut told = Vec::new();
        loop {
            told.push(self.next().await.unwrap_or_else(|| panic!("no {name} after {told:?}")));
            if told.last().is_some_and(|last| last.name == name) {
                return told;
            }
        }
    }
}

fn names(told: &[StreamSoFar]) -> Vec<&str> {
    told.iter().map(|told| told.name.as_str()).collect()
}

/// A started run, and the lease that a worker has on it.
async fn started(api: &Api) -> (Uuid, Lease) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/run", task["id"].as_str().unwrap());
    let run: Uuid = api.admin("POST", &place, None).await.expect(201)["id"].as_str().unwrap().parse().unwrap();
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("the run");
    let starts = api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap();
    assert_eq!(starts.started.len(), 1);
    (run, claim.lease)
}

async fn append(api: &Api, lease: Lease, seq: i64, turn: i64, message: TranscriptMessage) {
    let at = api.clock.now();
    let entry = TranscriptEntry::new(seq, turn, at, message);
    api.store.append("a", lease, &[entry]).await.unwrap();
}

async fn finish(api: &Api, lease: Lease, state: RunState, error: Option<RunFault>) {
    let usage = Usage { turns: 2, tool_calls: 1, input_tokens: 30, output_tokens: 4, cost_micros: 1500 };
    let output = error.is_none().then(|| "Three mails".into());
    let end = Finish { output, error, usage, execution_ms: 5, ..Finish::of(lease, None, state) };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
}

fn asks_for_time() -> TranscriptMessage {
    let call = ToolCall::new("call_1", "current_time", json!({}));
    TranscriptMessage::Assistant {
        text: Some("One moment".into()),
        tool_calls: vec![call],
        provider_message: None,
        finish: None,
    }
}

fn time_result() -> TranscriptMessage {
    TranscriptMessage::Tool {
        call_id: "call_1".into(),
        name: "current_time".into(),
        notices: vec![],
        content: "noon".into(),
        is_error: false,
        reasons: vec![],
        fetched_at: None,
    }
}

fn answer() -> TranscriptMessage {
    TranscriptMessage::Assistant {
        text: Some("Three mails".into()),
        tool_calls: Vec::new(),
        provider_message: None,
        finish: None,
    }
}

#[tokio::test]
async fn run_that_has_ended_is_told_from_its_transcript() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    append(&api, lease, 0, 0, TranscriptMessage::user("[Scheduled Task] …")).await;
    append(&api, lease, 1, 1, asks_for_time()).await;
    append(&api, lease, 2, 1, time_result()).await;
    append(&api, lease, 3, 2, answer()).await;
    finish(&api, lease, RunState::Succeeded, None).await;
    let read = api.admin("GET", &format!("/v1/runs/{run}/transcript?limit=2"), None).await.expect(200);
    assert_eq!(
        read["items"],
        json!([
            { "seq": 0, "turn": 0, "at": "2026-11-21T00:00:00Z", "role": "user", "text": "[Scheduled Task] …" },
            { "seq": 1, "turn": 1, "at": "2026-11-21T00:00:00Z", "role": "assistant", "text": "One moment",
                "tool_calls": [{ "id": "call_1", "name": "current_time", "args": {} }] },
        ])
    );
    let rest = format!("/v1/runs/{run}/transcript?limit=2&cursor={}", read["next_cursor"].as_str().unwrap());
    let rest = api.admin("GET", &rest, None).await.expect(200);
    assert_eq!(
        (&rest["items"][0]["role"], &rest["items"][1]["seq"], &rest["next_cursor"]),
        (&json!("tool"), &json!(3), &Value::Null)
    );

    let mut client = Client::follow(&api, run, None).await;
    let told = client.until("execution_end").await;
    assert_eq!(client.next().await, None, "the stream ends with the run");
    let of = |name: &str, data: Value| (name.to_owned(), data);
    let usage = json!({ "turns": 2, "tool_calls": 1, "input_tokens": 30, "output_tokens": 4, "cost_usd": 0.0015 });
    let expected = [
        of("session", json!({ "type": "session", "run_id": run })),
        of("", Value::Null),
        of("message_start", json!({ "type": "message_start", "turn": 1 })),
        of("message_end", json!({ "type": "message_end", "turn": 1, "text": "One moment" })),
        of(
            "tool_call_start",
            json!({ "type": "tool_call_start", "turn": 1, "tool": "current_time", "args": {}, "id": "call_1" }),
        ),
        of(
            "tool_result",
            json!({ "type": "tool_result", "turn": 1, "tool": "current_time", "id": "call_1", "result": "noon",
                "error": false }),
        ),
        of("message_start", json!({ "type": "message_start", "turn": 2 })),
        of("message_end", json!({ "type": "message_end", "turn": 2, "text": "Three mails" })),
        of("state_change", json!({ "type": "state_change", "state": "succeeded", "reason": null })),
        of("execution_end", json!({ "type": "execution_end", "conversation_id": null, "usage": usage })),
    ];
    assert_eq!(told.iter().map(|told| (told.name.clone(), told.data.clone())).collect::<Vec<_>>(), expected);
    // of the entry's two events the first has an id of its own
    let ids: Vec<&str> = told.iter().map(|told| told.id.split(".l").next().unwrap()).collect();
    assert_eq!(ids, ["", "0", "", "0", "1.t1", "2.t1", "", "3.t2", "3.t2.ssucceeded-1", ""]);
    assert!(told[3].id.starts_with("0.l1-"), "{}", told[3].id);
}

#[tokio::test]
async fn progress_of_a_call_is_told_while_it_is_made_and_not_after_a_break() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    append(&api, lease, 0, 1, asks_for_time()).await;
    let mut client = Client::follow(&api, run, None).await;
    let place = client.until("tool_call_start").await.pop().unwrap().id;
    api.hub.publish(run, || StreamEvent::ToolProgress {
        turn: 1,
        tool: "current_time".into(),
        id: "call_1".into(),
        progress: 1.0,
        total: None,
        message: Some("looking at the clock".into()),
        agent: None,
    });
    let told = client.until("tool_progress").await.pop().unwrap();
    let expected = json!({ "type": "tool_progress", "turn": 1, "tool": "current_time", "id": "call_1", "progress": 1.0,
        "message": "looking at the clock" });
    assert_eq!((told.id.as_str(), told.data), ("", expected));
    append(&api, lease, 1, 1, time_result()).await;
    append(&api, lease, 2, 2, answer()).await;
    finish(&api, lease, RunState::Succeeded, None).await;
    let result = client.until("tool_result").await.pop().unwrap();
    assert!(result.id.starts_with("1.t1"), "its place is behind the entry: {}", result.id);
    for place in [None, Some(place.as_str())] {
        let again = Client::follow(&api, run, place).await.until("execution_end").await;
        assert!(names(&again).contains(&"tool_result") && !names(&again).contains(&"tool_progress"), "{again:?}");
    }
}

#[tokio::test]
async fn client_that_comes_back_misses_nothing_and_hears_nothing_twice() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    append(&api, lease, 0, 1, asks_for_time()).await;
    append(&api, lease, 1, 1, time_result()).await;
    append(&api, lease, 2, 2, answer()).await;
    finish(&api, lease, RunState::Succeeded, None).await;
    let told = Client::follow(&api, run, Some("1")).await.until("execution_end").await;
    assert_eq!(names(&told), ["session", "message_start", "message_end", "state_change", "execution_end"]);
    assert_eq!(told[2].id, "2.t2");
    // the end is told again to who comes back behind it, and nothing else is
    let told = Client::follow(&api, run, Some(&told[3].id)).await.until("execution_end").await;
    assert_eq!(names(&told), ["session", "execution_end"]);
}

#[tokio::test]
async fn live_event_is_told_at_once_and_not_again_when_it_is_committed() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    let told = client.until("state_change").await;
    assert_eq!(told.last().unwrap().data["state"], "running");
    for event in [
        StreamEvent::MessageStart { turn: 1 },
        StreamEvent::MessageChunk { turn: 1, text: "Three ".into() },
        StreamEvent::MessageChunk { turn: 1, text: "mails".into() },
        StreamEvent::MessageEnd { turn: 1, text: "Three mails".into(), model_call: None },
    ] {
        api.hub.publish(run, || event);
    }
    let told = client.until("message_end").await;
    assert_eq!(names(&told), ["message_start", "message_chunk", "message_chunk", "message_end"]);
    append(&api, lease, 0, 1, answer()).await;
    let committed = client.next().await.unwrap();
    assert_eq!((committed.name.as_str(), committed.id.as_str(), committed.data), ("", "0.t1.srunning-1", Value::Null));
    assert_eq!(api.hub.watched(), 1);
    api.hub.publish(run, || StreamEvent::ExecutionEnd { conversation_id: None, usage: json!({}), finish: None });
    finish(&api, lease, RunState::Succeeded, None).await;
    let told = client.until("execution_end").await;
    assert_eq!(names(&told), ["state_change", "execution_end"]);
    assert_eq!(told[1].data["usage"]["turns"], 2, "the end is the recorded one");
    assert_eq!(client.next().await, None);
    assert_eq!(api.hub.watched(), 0, "a run that has ended is not listened for");
}

#[tokio::test]
async fn reader_that_has_gone_is_not_listened_for() {
    let api = Api::new().await;
    let (run, _) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    client.until("state_change").await;
    assert_eq!(api.hub.watched(), 1);
    drop(client);
    // its stream goes on in a task of its own, which ends with it
    while api.hub.watched() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn run_that_another_instance_executes_is_followed_by_its_transcript() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    client.until("state_change").await;
    append(&api, lease, 0, 1, answer()).await;
    assert_eq!(names(&client.until("message_end").await), ["message_start", "message_end"]);
    finish(&api, lease, RunState::Failed, Some(RunFault::new("timeout", "took too long"))).await;
    let told = client.until("execution_end").await;
    assert_eq!(names(&told), ["state_change", "error", "execution_end"]);
    assert_eq!(told[1].data, json!({ "type": "error", "code": "timeout", "message": "took too long" }));
}

#[tokio::test]
async fn failing_run_tells_its_error_once_to_who_listens() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    client.until("state_change").await;
    let fault = RunFault::new("timeout", "took too long");
    finish(&api, lease, RunState::Failed, Some(fault.clone())).await;
    api.hub.publish(run, || StreamEvent::Error { code: fault.code, message: fault.message });
    api.hub.publish(run, || StreamEvent::ExecutionEnd { conversation_id: None, usage: json!({}), finish: None });
    let told = client.until("execution_end").await;
    assert_eq!(names(&told).iter().filter(|name| **name == "error").count(), 1, "{told:?}");
}

#[tokio::test]
async fn long_transcript_is_told_whole_before_the_end() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    for turn in 0..250 {
        append(&api, lease, turn, turn + 1, answer()).await;
    }
    finish(&api, lease, RunState::Succeeded, None).await;
    let told = Client::follow(&api, run, None).await.until("execution_end").await;
    let ends: Vec<String> = told.iter().filter(|t| t.name == "message_end").map(|t| t.id.clone()).collect();
    let expected: Vec<String> = (0..250).map(|seq| format!("{seq}.t{}", seq + 1)).collect();
    assert_eq!(ends, expected);
}

#[tokio::test]
async fn streams_end_when_the_service_is_stopped_and_say_that_they_live_until_then() {
    let limits = ServerLimits { keep_alive: Duration::from_millis(20), ..ServerLimits::default() };
    let api = Api::with(limits).await;
    let (run, _) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    client.until("state_change").await;
    let comment = timeout(Duration::from_secs(20), client.body.next()).await.expect("a comment").unwrap().unwrap();
    assert!(comment.starts_with(b":"), "{comment:?}");
    api.stop.cancel();
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn stream_ends_when_its_token_is_revoked_however_much_is_said() {
    let api = Api::new().await;
    let (run, _) = started(&api).await;
    let (id, token) = api.token_until("ann", &["runs:read"], None).await;
    let mut client = Client::follow_as(&api, &token, run, None).await;
    client.until("state_change").await;
    api.store.revoke_token(&super::service::only("ann"), id).await.unwrap();
    let chatter = async {
        loop {
            api.hub.publish(run, || StreamEvent::MessageChunk { turn: 1, text: "and so on".into() });
            tokio::task::yield_now().await;
        }
    };
    let ended = async { while client.next().await.is_some() {} };
    tokio::select! {
        () = chatter => {}
        () = timeout(Duration::from_secs(20), ended).map(|ended| ended.expect("the stream ends")) => {}
    }
}

#[tokio::test]
async fn id_that_is_none_of_the_stream_s_is_refused() {
    let api = Api::new().await;
    let (run, _) = started(&api).await;
    let path = format!("/v1/runs/{run}/stream");
    let reply = api.ask_with("GET", &path, Some(ADMIN), None, &[("last-event-id", "turn 7")]).await;
    assert_eq!(reply.expect(400)["detail"], "Last-Event-ID must be an id of this stream");
}
