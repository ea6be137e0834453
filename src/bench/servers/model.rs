//! A model over HTTP that speaks chat completions: it asks for a tool that only reads, asks for it once more, and
//! answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, header};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bench::servers::{LoopbackServer, ServerCall};
use crate::config::Config;
use crate::ports::llm::ModelSettings;

/// Turns of a conversation: two that call a tool, and one that answers.
pub const TURNS: usize = 3;
/// Stands in a request once for each result of a tool.
const RESULT: &[u8] = br#""role":"tool""#;
/// Stands in a request whose answer is to be streamed.
const STREAMED: &[u8] = br#""stream":true"#;
/// Stands in each request but those for vectors.
const MESSAGES: &[u8] = br#""messages":"#;
/// Dimensions of a vector, as many as common models make.
const DIMENSIONS: usize = 1_536;
const ANSWER: &str = "It is noon in one place and evening in the other.";

/// Listens until it is dropped.
pub struct ModelServer {
    server: LoopbackServer,
    state: Arc<ModelState>,
}

#[derive(Default)]
struct ModelState {
    recording: AtomicBool,
    recorded: Mutex<Vec<Bytes>>,
    /// Final answers wait for the token, where there is one.
    hold: Mutex<Option<CancellationToken>>,
    waiting: AtomicUsize,
    /// When first requests of conversations came, since answers are held.
    begun: Mutex<Vec<Duration>>,
}

impl ModelServer {
    /// Answers at once, until it is told otherwise.
    pub async fn open() -> anyhow::Result<ModelServer> {
        let state: Arc<ModelState> = Arc::default();
        let answering = Arc::clone(&state);
        let answer = move |call| {
            let state = Arc::clone(&answering);
            Box::pin(async move { state.answer(call).await }) as futures::future::BoxFuture<'static, _>
        };
        Ok(ModelServer { server: LoopbackServer::open(Arc::new(answer)).await?, state })
    }

    /// Where its API begins.
    pub fn base_url(&self) -> String {
        self.server.url("/v1")
    }

    /// Keeps the requests from now on.
    pub fn start_recording(&self) {
        self.state.recording.store(true, Ordering::Release);
    }

    /// The requests that were kept, and keeps no more.
    pub fn take_recorded(&self) -> Vec<Bytes> {
        self.state.recording.store(false, Ordering::Release);
        std::mem::take(&mut self.state.recorded.lock().expect("bench lock"))
    }

    /// Lets final answers wait until the token is cancelled, and notes when conversations begin.
    pub fn hold_answers(&self, until: CancellationToken) {
        *self.state.hold.lock().expect("bench lock") = Some(until);
    }

    /// When the first requests of conversations came, by [`crate::base::clock::Clock::elapsed`].
    pub fn take_begun(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.state.begun.lock().expect("bench lock"))
    }

    /// Requests that wait for their answer.
    pub fn waiting(&self) -> usize {
        self.state.waiting.load(Ordering::Acquire)
    }
}

impl ModelState {
    async fn answer(&self, call: ServerCall) -> Response<String> {
        if count(&call.body, MESSAGES) == 0 {
            return typed("application/json", vectors(&call.body));
        }
        if self.recording.load(Ordering::Acquire) {
            self.recorded.lock().expect("bench lock").push(call.body.clone());
        }
        let turn = count(&call.body, RESULT);
        let hold = self.hold.lock().expect("bench lock").clone();
        if let Some(hold) = hold {
            if turn == 0 {
                self.begun.lock().expect("bench lock").push(call.at);
            }
            if turn + 1 >= TURNS {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                hold.cancelled().await;
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let (message, reason) = message(turn);
        match count(&call.body, STREAMED) > 0 {
            true => typed("text/event-stream", streamed(message, reason)),
            false => typed("application/json", whole(message, reason)),
        }
    }
}

fn typed(kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// A vector of each text, which are all of about the same meaning.
fn vectors(body: &[u8]) -> String {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let texts = asked["input"].as_array().map_or(1, Vec::len);
    let vector =
        |text: usize| -> Vec<f64> { (0..DIMENSIONS).map(|at| 1.0 + ((at + text) % 7) as f64 / 100.0).collect() };
    let data: Vec<Value> =
        (0..texts).map(|at| json!({ "object": "embedding", "index": at, "embedding": vector(at) })).collect();
    json!({ "object": "list", "data": data, "usage": { "prompt_tokens": 10, "total_tokens": 10 } }).to_string()
}

/// Makes this the model of a service.
pub fn set_model(config: &mut Config, base_url: String) {
    let model = ModelSettings { base_url: Some(base_url), model: "measurement".into(), ..ModelSettings::default() };
    config.llm.models.insert(config.llm.default.clone(), model);
}

/// How often the text stands in it.
fn count(body: &[u8], text: &[u8]) -> usize {
    body.windows(text.len()).filter(|window| *window == text).count()
}

/// The message of a turn, and why it ends. Each call differs from the one before, so that none is taken for a loop.
fn message(turn: usize) -> (Value, &'static str) {
    let zones = ["Europe/Berlin", "Asia/Tokyo"];
    match zones.get(turn) {
        Some(zone) => {
            let arguments = json!({ "timezone": zone }).to_string();
            let function = json!({ "name": "current_time", "arguments": arguments });
            let call = json!({ "index": 0, "id": format!("call_{turn}"), "type": "function", "function": function });
            (json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "tool_calls")
        }
        None => (json!({ "role": "assistant", "content": ANSWER }), "stop"),
    }
}

fn whole(message: Value, reason: &str) -> String {
    json!({ "choices": [{ "index": 0, "message": message, "finish_reason": reason }], "usage": usage() }).to_string()
}

fn streamed(message: Value, reason: &str) -> String {
    let events = [
        json!({ "choices": [{ "index": 0, "delta": message }] }),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }),
        json!({ "choices": [], "usage": usage() }),
    ];
    events.iter().map(|event| format!("data: {event}\n\n")).chain(["data: [DONE]\n\n".to_owned()]).collect()
}

fn usage() -> Value {
    json!({ "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_calls_a_tool_twice_and_then_answers() {
        let reasons: Vec<&str> = (0..TURNS).map(|turn| message(turn).1).collect();
        assert_eq!(reasons, ["tool_calls", "tool_calls", "stop"]);
        assert_ne!(message(0).0["tool_calls"][0]["function"], message(1).0["tool_calls"][0]["function"]);
    }

    #[test]
    fn results_of_tools_are_counted() {
        let body = json!({ "messages": [{ "role": "tool" }, { "role": "user" }, { "role": "tool" }] }).to_string();
        assert_eq!((count(body.as_bytes(), RESULT), count(b"short", RESULT)), (2, 0));
    }
}
