//! The other side of an agent's turns: a model and its tools. It holds the requests of one step until it is told to
//! answer, so that a test knows what the service has written when it dies, and it keeps count over all its lives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::{any, post};
use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::harness::PATIENCE;

/// Characters of what the tool that only reads answers.
pub const LOOKED_AT: usize = 3_000;

/// A step of a run with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnStep {
    /// The model is asked for the first time.
    Question,
    /// The call is made.
    Call,
    /// The model is asked with the result of the call.
    Result,
}

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct TurnServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Requests of this step get no answer.
    held: watch::Sender<Option<TurnStep>>,
    counts: Mutex<TurnCounts>,
}

/// Requests by step and tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnCounts {
    pub asked: BTreeMap<(TurnStep, String), usize>,
    pub answered: BTreeMap<(TurnStep, String), usize>,
    /// Idempotency keys of calls, by tool.
    pub keys: BTreeMap<String, BTreeSet<String>>,
}

impl TurnCounts {
    pub fn asked(&self, step: TurnStep, tool: &str) -> usize {
        self.asked.get(&(step, tool.to_owned())).copied().unwrap_or_default()
    }

    fn answered(&self, step: TurnStep, tool: &str) -> usize {
        self.answered.get(&(step, tool.to_owned())).copied().unwrap_or_default()
    }
}

impl TurnServer {
    pub async fn start() -> TurnServer {
        let shared = Arc::new(Shared { held: watch::channel(None).0, counts: Mutex::default() });
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/tools/{tool}", any(call))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        TurnServer { address, shared }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on requests of this step wait, and those of the step before are answered. Nothing is counted yet.
    pub fn hold(&self, step: Option<TurnStep>) {
        self.shared.held.send_replace(step);
    }

    /// Forgets what has come.
    pub fn begin_count(&self) {
        *self.shared.counts.lock().unwrap() = TurnCounts::default();
    }

    pub fn counts(&self) -> TurnCounts {
        self.shared.counts.lock().unwrap().clone()
    }

    /// Waits until the step has come for each of these tools.
    pub async fn until_asked(&self, step: TurnStep, tools: &[&str]) {
        self.until(&format!("{step:?} has come"), |counts| tools.iter().all(|tool| counts.asked(step, tool) > 0)).await;
    }

    /// Waits until the step is answered for each of these tools.
    pub async fn until_answered(&self, step: TurnStep, tools: &[&str]) {
        self.until(&format!("{step:?} is answered"), |counts| tools.iter().all(|tool| counts.answered(step, tool) > 0))
            .await;
    }

    async fn until(&self, what: &str, is_so: impl Fn(&TurnCounts) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.counts()) {
            assert!(begun.elapsed() < PATIENCE, "not so: {what}: {:?}", self.counts());
            pause(Duration::from_millis(10)).await;
        }
    }
}

impl Shared {
    /// Counts a request, and its answer once it may be given.
    async fn answers(&self, step: TurnStep, tool: &str) {
        *self.counts.lock().unwrap().asked.entry((step, tool.to_owned())).or_default() += 1;
        let _ = self.held.subscribe().wait_for(|held| *held != Some(step)).await;
        *self.counts.lock().unwrap().answered.entry((step, tool.to_owned())).or_default() += 1;
    }
}

/// Calls the one tool that it is offered beside that for data files, then says what came of it.
async fn complete(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    let mut names =
        body["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["function"]["name"].as_str());
    let tool = names.find(|name| *name != "read_data_file").expect("a tool").to_owned();
    let last = body["messages"].as_array().and_then(|messages| messages.last()).expect("a message");
    let (step, message, finish) = match last["role"] == "tool" {
        false => {
            let call = json!({ "id": "call_1", "type": "function", "function": { "name": tool, "arguments": "{}" } });
            let message = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
            (TurnStep::Question, message, "tool_calls")
        }
        true => (TurnStep::Result, json!({ "role": "assistant", "content": last["content"] }), "stop"),
    };
    shared.answers(step, &tool).await;
    Json(json!({ "choices": [{ "index": 0, "message": message, "finish_reason": finish }] }))
}

async fn call(State(shared): State<Arc<Shared>>, Path(tool): Path<String>, headers: HeaderMap) -> Json<Value> {
    if let Some(key) = headers.get("idempotency-key") {
        let key = key.to_str().expect("a text").to_owned();
        shared.counts.lock().unwrap().keys.entry(tool.clone()).or_default().insert(key);
    }
    shared.answers(TurnStep::Call, &tool).await;
    // what is looked at is longer than a conversation takes
    let rows = if tool == "look" { "x".repeat(LOOKED_AT) } else { String::new() };
    Json(json!({ "done": tool, "rows": rows }))
}
