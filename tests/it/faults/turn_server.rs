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

/// Characters of what the tool `look` answers.
pub const LOOKED_AT: usize = 3_000;
/// Tokens that an answer of the model says it has read, and written.
const INPUT: i64 = 200;
const OUTPUT: i64 = 50;
/// Tokens of an answer.
pub const TOKENS: i64 = INPUT + OUTPUT;

/// A step of a run with one turn of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnStep {
    /// The model is asked for the first time.
    Question,
    /// The call is made.
    Call,
    /// The model is asked with the results of the calls.
    Result,
}

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct TurnServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Requests of these steps get no answer: those of one tool, or all.
    held: watch::Sender<Vec<(TurnStep, Option<&'static str>)>>,
    counts: Mutex<TurnCounts>,
}

/// Requests by step and tool. Those to the model are counted by the names of the tools that it is offered, in order,
/// with a `+` between them.
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
        let shared = Arc::new(Shared { held: watch::channel(Vec::new()).0, counts: Mutex::default() });
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
        self.shared.held.send_replace(step.map(|step| (step, None)).into_iter().collect());
    }

    /// As [`TurnServer::hold`], but each of these steps for one tool alone.
    pub fn hold_each(&self, held: &[(TurnStep, &'static str)]) {
        self.shared.held.send_replace(held.iter().map(|(step, tool)| (*step, Some(*tool))).collect());
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
        let _ = self.held.subscribe().wait_for(|held| !is_held(held, step, tool)).await;
        *self.counts.lock().unwrap().answered.entry((step, tool.to_owned())).or_default() += 1;
    }
}

fn is_held(held: &[(TurnStep, Option<&'static str>)], step: TurnStep, tool: &str) -> bool {
    held.iter().any(|(of, only)| *of == step && only.is_none_or(|only| only == tool))
}

/// Calls all tools that it is offered beside that for data files, then says what came of them.
async fn complete(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    let offered = body["tools"].as_array().expect("tools").iter();
    let names = offered.filter_map(|tool| tool["function"]["name"].as_str());
    let mut names: Vec<&str> = names.filter(|name| *name != "read_data_file").collect();
    names.sort_unstable();
    let last = body["messages"].as_array().expect("messages").iter().rev();
    let results = last.take_while(|message| message["role"] == "tool");
    let results: Vec<String> = results.map(|message| text_of(&message["content"])).collect();
    let (step, message, finish) = match results.is_empty() {
        true => {
            let call = |(number, name): (i32, &&str)| {
                let function = json!({ "name": name, "arguments": arguments_for(name) });
                json!({ "id": format!("call_{number}"), "type": "function", "function": function })
            };
            let calls: Vec<Value> = (1..).zip(&names).map(call).collect();
            let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
            (TurnStep::Question, message, "tool_calls")
        }
        false => (TurnStep::Result, json!({ "role": "assistant", "content": results.join("\n") }), "stop"),
    };
    shared.answers(step, &names.join("+")).await;
    let usage = json!({ "prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": TOKENS });
    let choice = json!({ "index": 0, "message": message, "finish_reason": finish });
    Json(json!({ "choices": [choice], "usage": usage }))
}

/// The arguments that a tool is called with: the one of an MCP server needs some.
fn arguments_for(tool: &str) -> &'static str {
    if tool == "one__confirm" { r#"{"env":"prod"}"# } else { "{}" }
}

fn text_of(content: &Value) -> String {
    content.as_str().map_or_else(|| content.to_string(), str::to_owned)
}

async fn call(State(shared): State<Arc<Shared>>, Path(tool): Path<String>, headers: HeaderMap) -> Json<Value> {
    if let Some(key) = headers.get("idempotency-key") {
        let key = key.to_str().expect("a text").to_owned();
        shared.counts.lock().unwrap().keys.entry(tool.clone()).or_default().insert(key);
    }
    shared.answers(TurnStep::Call, &tool).await;
    // the rows of this tool are longer than a conversation takes
    let rows = if tool == "look" { "x".repeat(LOOKED_AT) } else { String::new() };
    Json(json!({ "done": tool, "rows": rows }))
}
