//! Calls that tell how far they are: over both transports and of both eras, in the stream of the run, without secrets,
//! in their pace, and with no more time for it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reveille::ports::egress::operator_client;
use reveille::ports::tool::progress::{MESSAGE_CHARS, PACE};
use reveille::ports::tool::{ProgressNote, ToolContext, ToolProgress};
use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::agents::config;
use super::harness::{McpHarness, PATIENCE, by_command, by_url, code, text, until_listed};
use crate::agent::wire::fakes::{FakeReply, Wire, calling, said};
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::mcp::{McpFixture, everything_command, everything_http, hostile_command};
use crate::support::sse::events_of;

/// The notes that a call has told.
type Heard = Arc<Mutex<Vec<ProgressNote>>>;

/// The context of a call that is listened to.
fn listening(harness: &McpHarness) -> (ToolContext, Heard) {
    let heard = Heard::default();
    let listener = Arc::clone(&heard);
    let progress = ToolProgress::to(move |note| listener.lock().unwrap().push(note));
    (ToolContext { progress, ..harness.context("ann") }, heard)
}

/// A climb of so many steps with so many milliseconds behind each.
fn climb(count: u32, say: &str, wait: u32) -> Value {
    json!({ "count": count, "say": say, "wait": wait })
}

fn is_rising(heard: &[ProgressNote]) -> bool {
    heard.windows(2).all(|two| two[0].progress < two[1].progress)
}

#[tokio::test]
async fn progress_is_told_over_both_transports_and_of_both_eras() {
    let (local, remote) = (McpFixture::new(), McpFixture::new());
    let (new, old) = (remote.start_http().await, everything_http().await);
    let servers = [
        by_command("new", &local.command()),
        by_url("new-remote", &new.url),
        by_command("old", &everything_command()),
        by_url("old-remote", &old.url),
    ];
    let harness = McpHarness::start(&servers).await;
    for server in ["new", "new-remote"] {
        let (context, heard) = listening(&harness);
        let called = harness.call_in(&context, &format!("{server}.climb"), climb(4, "step", 600)).await;
        assert_eq!(text(called), "climbed 4", "{server}");
        let heard = heard.lock().unwrap();
        assert!(!heard.is_empty() && is_rising(&heard), "{server}: {heard:?}");
        for note in heard.iter() {
            assert_eq!((note.total, &note.message), (Some(4.0), &Some(format!("step {}", note.progress))), "{server}");
        }
    }
    for server in ["old", "old-remote"] {
        let (context, heard) = listening(&harness);
        let arguments = json!({ "duration": 3, "steps": 4 });
        harness.call_in(&context, &format!("{server}.trigger-long-running-operation"), arguments).await.unwrap();
        let heard = heard.lock().unwrap();
        assert!(!heard.is_empty() && is_rising(&heard), "{server}: {heard:?}");
        assert!(heard.iter().all(|note| (note.total, &note.message) == (Some(4.0), &None)), "{server}: {heard:?}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn progress_shows_no_secret() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    let (context, heard) = listening(&harness);
    context.used_secrets.add(["canary-8-of-ann"]);
    // where it is cut, it would be cut in two
    let say = format!("{} canary-8-of-ann", "x".repeat(MESSAGE_CHARS - 10));
    assert_eq!(text(harness.call_in(&context, "one.climb", climb(2, &say, 600)).await), "climbed 2");
    let heard = heard.lock().unwrap().clone();
    assert!(!heard.is_empty());
    for message in heard.iter().filter_map(|note| note.message.as_deref()) {
        assert!(message.starts_with("xxx") && !message.contains("canary"), "{message}");
        assert!(message.chars().count() <= MESSAGE_CHARS, "{message}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn flood_of_progress_is_paced() {
    let harness = McpHarness::start(&[by_command("loud", &hostile_command("flood-progress"))]).await;
    let (context, heard) = listening(&harness);
    harness.tool("loud.flood").await;
    let begun = Instant::now();
    assert_eq!(text(harness.call_in(&context, "loud.flood", json!({})).await), "flooded");
    let most = begun.elapsed().as_millis() / PACE.as_millis() + 1;
    let heard = heard.lock().unwrap().clone();
    assert!(!heard.is_empty() && heard.len() as u128 <= most, "{} in {:?}", heard.len(), begun.elapsed());
    assert!(is_rising(&heard), "{heard:?}");
    assert!(heard.iter().all(|note| note.message == Some("x".repeat(MESSAGE_CHARS))), "{heard:?}");
    assert_eq!(text(harness.call("loud.echo", json!({ "text": "still there" })).await), "still there");
    harness.stop().await;
}

#[tokio::test]
async fn progress_extends_no_time_limit() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    let (context, heard) = listening(&harness);
    let context = ToolContext { time_limit: Duration::from_secs(3), ..context };
    assert_eq!(code(harness.call_in(&context, "one.climb", climb(1_000, "step", 100)).await), "timeout");
    assert!(!heard.lock().unwrap().is_empty(), "it told how far it was");
    assert_eq!(text(harness.call("one.echo", json!({ "text": "still there" })).await), "still there");
    harness.stop().await;
}

/// A model that has the tool climb six steps, and then answers.
async fn model() -> MockServer {
    let server = MockServer::start().await;
    let wire = Wire::Chat;
    let streamed = |reply: &FakeReply| ResponseTemplate::new(200).set_body_raw(reply.events(wire), "text/event-stream");
    let call = streamed(&calling(&[("c1", "one__climb", r#"{"count":6,"say":"step","wait":700}"#)]));
    Mock::given(method("POST")).respond_with(call).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(streamed(&said("It is up."))).mount(&server).await;
    server
}

#[tokio::test]
async fn progress_of_a_tool_is_streamed_and_has_no_id() {
    let (model, fixture) = (model().await, McpFixture::new());
    let config = config(Wire::Chat, &model, &fixture.command()).replace("tools.echo", "tools.climb");
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let api = Api::of(&service);
    until_listed(&api, &["one.climb"]).await;
    let task = json!({
        "tenant_id": "ann", "name": "Climb", "trigger": { "type": "schedule", "cron": "0 0 1 1 *" },
        "action": { "instruction": "Climb.", "config": { "tools": ["one.climb"] } },
    });
    let task = api.post("/v1/tasks", &task).await;
    let run = api.post(&format!("/v1/tasks/{}/run", task["id"].as_str().unwrap()), &json!({})).await;
    let path = format!("/v1/runs/{}/stream", run["id"].as_str().unwrap());
    let follow = async || {
        let request = operator_client(PATIENCE).get(format!("{}{path}", service.url()));
        let answer = request.bearer_auth(service.admin_token().expect("a token")).send().await.expect("an answer");
        events_of("GET", &path, &answer.bytes().await.expect("the whole stream"))
    };

    let told = follow().await;
    let named = |name: &str| told.iter().find(|event| event.name == name).unwrap_or_else(|| panic!("no {name}"));
    let call = named("tool_call_start").json();
    let steps: Vec<_> = told.iter().filter(|event| event.name == "tool_progress").collect();
    assert!(!steps.is_empty(), "{told:?}");
    for step in &steps {
        let data = step.json();
        let done = data["progress"].as_f64().expect("a number");
        let expected = json!({
            "type": "tool_progress", "turn": call["turn"], "tool": "one.climb", "id": call["id"], "progress": done,
            "total": 6.0, "message": format!("step {done}"),
        });
        assert_eq!((step.id.as_str(), &data), ("", &expected));
    }
    let place = |name: &str| told.iter().position(|event| event.name == name).unwrap_or_else(|| panic!("no {name}"));
    assert!(place("tool_progress") < place("tool_result"), "{told:?}");
    assert_eq!(told.last().map(|event| event.name.as_str()), Some("execution_end"));
    let again = follow().await;
    assert!(again.iter().all(|event| event.name != "tool_progress"), "it is not told again: {again:?}");
    assert!(service.terminate().await.success());
}
