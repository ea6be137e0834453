//! A model over HTTP that counts the tokens of each answer as a provider does, and adds them up for the test.

use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use reveille::ports::llm::ModelSettings;
use serde_json::{Value, json};

/// Tokens that it says it has read for an answer.
pub const INPUT: i64 = 200;
/// Tokens that it says it has written.
pub const OUTPUT: i64 = 50;
/// Tokens of an answer.
pub const TOKENS: i64 = INPUT + OUTPUT;

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct MeteredModel {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The message of each answer, and its finish reason.
    message: Value,
    finish: &'static str,
    answers: Mutex<i64>,
}

impl MeteredModel {
    /// Answers everybody with a text.
    pub async fn start() -> MeteredModel {
        MeteredModel::answering(json!({ "role": "assistant", "content": "done" }), "stop").await
    }

    /// Asks for the same tool each time.
    pub async fn calling(tool: &str) -> MeteredModel {
        let call = json!({ "id": "call-1", "type": "function", "function": { "name": tool, "arguments": "{}" } });
        let message = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
        MeteredModel::answering(message, "tool_calls").await
    }

    /// Answers everybody so.
    pub async fn answering(message: Value, finish: &'static str) -> MeteredModel {
        let shared = Arc::new(Shared { message, finish, answers: Mutex::default() });
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/messages", post(anthropic))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        MeteredModel { address, shared }
    }

    /// Settings of a model that asks here: its answers have 400 tokens at most, and a token costs a micro-dollar.
    pub fn settings(&self) -> ModelSettings {
        ModelSettings {
            base_url: Some(format!("http://{}/v1", self.address)),
            model: "metered".into(),
            stream: false,
            max_output_tokens: Some(400),
            price_per_million_input: 1.0,
            price_per_million_output: 1.0,
            ..ModelSettings::default()
        }
    }

    /// Answers that were given.
    pub fn answers(&self) -> i64 {
        *self.shared.answers.lock().unwrap()
    }

    /// Tokens of all of them.
    pub fn tokens(&self) -> i64 {
        self.answers() * TOKENS
    }
}

/// A text in the words of the other wire.
async fn anthropic(State(shared): State<Arc<Shared>>, _: String) -> Json<Value> {
    *shared.answers.lock().unwrap() += 1;
    let content = json!([{ "type": "text", "text": "done" }]);
    Json(json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "metered", "content": content,
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": { "input_tokens": INPUT, "output_tokens": OUTPUT },
    }))
}

async fn complete(State(shared): State<Arc<Shared>>, _: String) -> Json<Value> {
    *shared.answers.lock().unwrap() += 1;
    let usage = json!({ "prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": TOKENS });
    let choice = json!({ "index": 0, "message": shared.message, "finish_reason": shared.finish });
    Json(json!({ "choices": [choice], "usage": usage }))
}
