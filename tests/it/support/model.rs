//! A server that speaks a model provider's wire format: it asks for the time first, and answers once it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

/// The model that answers say they are of.
pub const ANSWERING_MODEL: &str = "test-model-2026-01-01";

/// Differences between providers.
pub trait WireFormat: Send + Sync + 'static {
    /// As in `[llm.models.…] provider`.
    const PROVIDER: &'static str;
    const PATH: &'static str;
    /// Path behind the server's address in `base_url`.
    const BASE: &'static str;

    /// The stream that asks for the tool `current_time`.
    fn asks_for_the_time() -> String;
    /// The stream that answers.
    fn answers() -> String;
    /// Whether the last message of a request is a tool's result.
    fn ends_with_a_tool_result(body: &Value) -> bool;
}

pub struct OpenAiFormat;

impl WireFormat for OpenAiFormat {
    const PROVIDER: &'static str = "openai";
    const PATH: &'static str = "/v1/chat/completions";
    const BASE: &'static str = "/v1";

    fn asks_for_the_time() -> String {
        let call = json!({ "index": 0, "id": "call_1", "type": "function",
            "function": { "name": "current_time", "arguments": "{}" } });
        events(&[
            json!({ "model": ANSWERING_MODEL,
                "choices": [{ "index": 0, "delta": { "role": "assistant", "tool_calls": [call] } }] }),
            json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110 } }),
        ]) + "data: [DONE]\n\n"
    }

    fn answers() -> String {
        events(&[
            json!({ "model": ANSWERING_MODEL,
                "choices": [{ "index": 0, "delta": { "role": "assistant", "content": "It is " } }] }),
            json!({ "choices": [{ "index": 0, "delta": { "content": "late." } }] }),
            json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 120, "completion_tokens": 5, "total_tokens": 125 } }),
        ]) + "data: [DONE]\n\n"
    }

    fn ends_with_a_tool_result(body: &Value) -> bool {
        body["messages"].as_array().and_then(|messages| messages.last()).is_some_and(|last| last["role"] == "tool")
    }
}

pub struct ResponsesFormat;

impl WireFormat for ResponsesFormat {
    const PROVIDER: &'static str = "openai-responses";
    const PATH: &'static str = "/v1/responses";
    const BASE: &'static str = "/v1";

    fn asks_for_the_time() -> String {
        let call = json!({ "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "current_time",
            "arguments": "{}", "status": "completed" });
        response(&[call], 100, 10)
    }

    fn answers() -> String {
        let content = json!([{ "type": "output_text", "text": "It is late.", "annotations": [] }]);
        let message = json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": content });
        let delta = json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "It is late." });
        named_events(&[delta]) + &response(&[message], 120, 5)
    }

    fn ends_with_a_tool_result(body: &Value) -> bool {
        let last = body["input"].as_array().and_then(|input| input.last());
        last.is_some_and(|last| last["type"] == "function_call_output")
    }
}

/// Items as they are told of, and the end of the stream.
fn response(items: &[Value], input: u64, output: u64) -> String {
    let usage = json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output });
    let done = |(index, item): (usize, &Value)| json!({ "type": "response.output_item.done", "output_index": index, "item": item });
    let mut all: Vec<Value> = items.iter().enumerate().map(done).collect();
    let response = json!({ "id": "resp_1", "model": ANSWERING_MODEL, "status": "completed", "error": null, "output": items, "usage": usage });
    all.push(json!({ "type": "response.completed", "response": response }));
    named_events(&all)
}

pub struct AnthropicFormat;

impl WireFormat for AnthropicFormat {
    const PROVIDER: &'static str = "anthropic";
    const PATH: &'static str = "/v1/messages";
    const BASE: &'static str = "";

    fn asks_for_the_time() -> String {
        named_events(&[
            json!({ "type": "message_start", "message": { "id": "msg_1", "model": ANSWERING_MODEL, "role": "assistant", "content": [],
                "usage": { "input_tokens": 100, "output_tokens": 1 } } }),
            json!({ "type": "content_block_start", "index": 0,
                "content_block": { "type": "tool_use", "id": "toolu_1", "name": "current_time", "input": {} } }),
            json!({ "type": "content_block_delta", "index": 0,
                "delta": { "type": "input_json_delta", "partial_json": "{}" } }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 10 } }),
            json!({ "type": "message_stop" }),
        ])
    }

    fn answers() -> String {
        named_events(&[
            json!({ "type": "message_start", "message": { "id": "msg_2", "model": ANSWERING_MODEL, "role": "assistant", "content": [],
                "usage": { "input_tokens": 120, "output_tokens": 1 } } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "It is late." } }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 5 } }),
            json!({ "type": "message_stop" }),
        ])
    }

    fn ends_with_a_tool_result(body: &Value) -> bool {
        let last = body["messages"].as_array().and_then(|messages| messages.last());
        last.is_some_and(|last| last["content"][0]["type"] == "tool_result")
    }
}

/// Whether the request lets the model call tools.
fn may_call(body: &Value) -> bool {
    body["tool_choice"] != "none" && body["tool_choice"]["type"] != "none"
}

fn events(data: &[Value]) -> String {
    data.iter().map(|event| format!("data: {event}\n\n")).collect()
}

fn named_events(data: &[Value]) -> String {
    data.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

/// A model that can be made to think for ever.
pub struct ModelServer {
    server: MockServer,
    provider: &'static str,
    base: &'static str,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    first_turns: AtomicUsize,
    hold: AtomicBool,
    held: AtomicUsize,
}

struct Brain<F> {
    state: Arc<State>,
    format: std::marker::PhantomData<F>,
}

impl<F: WireFormat> Respond for Brain<F> {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let body: Value = request.body_json().expect("a JSON body");
        let answer = ResponseTemplate::new(200);
        if may_call(&body) && !F::ends_with_a_tool_result(&body) {
            self.state.first_turns.fetch_add(1, Ordering::SeqCst);
            return answer.set_body_raw(F::asks_for_the_time(), "text/event-stream");
        }
        if self.state.hold.load(Ordering::SeqCst) {
            self.state.held.fetch_add(1, Ordering::SeqCst);
            return answer.set_delay(Duration::from_secs(3600));
        }
        answer.set_body_raw(F::answers(), "text/event-stream")
    }
}

impl ModelServer {
    pub async fn start<F: WireFormat>() -> ModelServer {
        let server = MockServer::start().await;
        let state = Arc::new(State::default());
        let brain = Brain::<F> { state: Arc::clone(&state), format: std::marker::PhantomData };
        Mock::given(method("POST")).and(path(F::PATH)).respond_with(brain).mount(&server).await;
        ModelServer { server, provider: F::PROVIDER, base: F::BASE, state }
    }

    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// As in `[llm.models.…] base_url`.
    pub fn url(&self) -> String {
        format!("{}{}", self.server.uri(), self.base)
    }

    /// The bodies of all requests that have one, in order.
    pub fn requests(&self) -> Vec<Value> {
        let received = futures::executor::block_on(self.server.received_requests()).expect("requests are recorded");
        let asked = received.iter().filter(|request| !request.body.is_empty());
        asked.map(|request| request.body_json().expect("a JSON body")).collect()
    }

    /// How often it was asked without a tool's result: how often a first turn was begun.
    pub fn first_turns(&self) -> usize {
        self.state.first_turns.load(Ordering::SeqCst)
    }

    /// From now on a request behind a tool's result gets no answer.
    pub fn hold_answers_after_a_tool(&self) {
        self.state.hold.store(true, Ordering::SeqCst);
    }

    pub fn answer_again(&self) {
        self.state.hold.store(false, Ordering::SeqCst);
    }

    /// Returns once a request is being held.
    pub async fn until_holding(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.state.held.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline, "the model was not asked a second time");
            pause(Duration::from_millis(20)).await;
        }
    }
}
