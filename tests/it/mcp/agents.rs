//! An agent that calls the tool of an MCP server, the whole way with the real binary: over each wire the provider is
//! told a name that it takes, and the server is called by its own.

use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::time::timeout;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::agent::wire::fakes::{FakeReply, Wire, calling, said};
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::mcp::McpFixture;

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A model that calls the tool of the server, and then answers.
pub async fn model(wire: Wire) -> MockServer {
    let server = MockServer::start().await;
    let streamed = |reply: &FakeReply| ResponseTemplate::new(200).set_body_raw(reply.events(wire), "text/event-stream");
    let call = streamed(&calling(&[("c1", "one__echo", r#"{"text":"hello"}"#)]));
    Mock::given(method("POST")).respond_with(call).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(streamed(&said("It said hello."))).mount(&server).await;
    server
}

/// A model whose every run makes these calls at once and, with their results, says `done`.
pub async fn model_of_calls(
    calls: &'static [(&'static str, &'static str, &'static str)],
    done: &'static str,
) -> MockServer {
    let server = MockServer::start().await;
    let answer = move |request: &Request| {
        let body: Value = request.body_json().expect("a JSON body");
        let reply = if Wire::Chat.results(&body).is_empty() { calling(calls) } else { said(done) };
        ResponseTemplate::new(200).set_body_raw(reply.events(Wire::Chat), "text/event-stream")
    };
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    server
}

/// A configuration with the model, and with a server `one` whose tool `echo` nobody is asked about.
pub fn config(wire: Wire, model: &MockServer, command: &[String]) -> String {
    format!(
        "[llm.models.main]\nprovider = \"{}\"\nbase_url = \"{}/v1\"\nmodel = \"model-7\"\napi_key = \"sk-test-0123456789\"\n\
         [[mcp_servers]]\nname = \"one\"\ncommand = {}\n\
         [mcp_servers.tools.echo]\ncategory = \"read\"\nconsequence = \"low\"\n",
        wire.provider(),
        model.uri(),
        json!(command),
    )
}

/// The run of a task that may use this tool, once it has ended.
async fn run_with(api: &Api, tool: &str) -> Value {
    let task = json!({
        "tenant_id": "ann", "name": "Echo", "trigger": { "type": "schedule", "cron": "0 0 1 1 *" },
        "action": { "instruction": "Echo hello.", "config": { "tools": [tool] } },
    });
    let task = api.post("/v1/tasks", &task).await;
    let run = api.post(&format!("/v1/tasks/{}/run", task["id"].as_str().unwrap()), &json!({})).await;
    let place = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    let ended = timeout(PATIENCE, async {
        loop {
            let run = api.get(&place).await;
            match run["state"].as_str() {
                Some("queued" | "running") => pause(LOOK).await,
                _ => return run,
            }
        }
    });
    ended.await.expect("the run ends in time")
}

#[tokio::test]
async fn agent_calls_an_mcp_tool_over_each_wire() {
    for wire in Wire::ALL {
        let (model, fixture) = (model(wire).await, McpFixture::new());
        let mut service = Service::new().with_config(&config(wire, &model, &fixture.command()));
        service.start().await;
        let run = run_with(&Api::of(&service), "one.echo").await;
        assert_eq!((&run["state"], &run["output"]), (&json!("succeeded"), &json!("It said hello.")), "{run:#}");
        assert_eq!(run["usage"]["tool_calls"], 1, "{wire:?}");
        assert_eq!(fixture.noted("echo"), ["hello"], "{wire:?}");
        let requests = model.received_requests().await.expect("requests are recorded");
        assert_eq!(requests.len(), 2, "{wire:?}");
        for request in &requests {
            let body: Value = request.body_json().expect("a JSON body");
            let name = |tool: &Value| match wire {
                Wire::Chat => tool["function"]["name"].clone(),
                Wire::Responses | Wire::Anthropic => tool["name"].clone(),
            };
            let names: Vec<Value> = body["tools"].as_array().into_iter().flatten().map(name).collect();
            assert!(names.contains(&json!("one__echo")) && !names.contains(&json!("one.echo")), "{wire:?}: {names:?}");
        }
        assert!(service.terminate().await.success());
    }
}

#[tokio::test]
async fn call_that_fails_is_repeated_as_the_settings_of_its_tool_say() {
    let (model, fixture) = (model_of_calls(&[("c1", "one__hang", "{}")], "It hangs.").await, McpFixture::new());
    let hang = "[mcp_servers.tools.hang]\ncategory = \"read\"\nconsequence = \"low\"\ntimeout_seconds = 1\n\
        retry = { max_retries = 1, on = [\"timeout\"], first_wait = 0.0, timeout_factor = 1.0 }\n";
    let config = config(Wire::Chat, &model, &fixture.command()) + hang;
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let run = run_with(&Api::of(&service), "one.hang").await;
    assert_eq!((&run["state"], &run["output"]), (&json!("succeeded"), &json!("It hangs.")), "{run:#}");
    assert_eq!(fixture.noted("hangs").len(), 2, "once, and once more");
    assert!(service.terminate().await.success());
}
