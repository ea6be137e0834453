//! The other side of a conversation that is long enough to be summarised: a model that reads page after page by a tool
//! and then says whether it was shown a summary, and one that sums up. It holds requests until it is told to answer,
//! and counts them over all lives of the service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::harness::PATIENCE;
use super::turns::READING;

/// Pages that are read, one in a turn. With the last one the summary is begun, so that the last turn alone may be shown
/// it.
pub const PAGES: u64 = 8;
/// The turn that answers.
pub const LAST_TURN: u64 = PAGES + 1;
/// The conversation of the turn with which the summary is begun has more messages than this.
pub const SUMMARISED_FROM: &str = "12";
/// The name of the model that sums up.
pub const SUMMARISER: &str = "summariser";
/// Tokens of an answer.
const INPUT: i64 = 200;
const OUTPUT: i64 = 50;

/// Requests that get no answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HeldRequests {
    pub turn: Option<u64>,
    pub summaries: bool,
}

/// Requests since the count began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SummaryCounts {
    /// By the number of the turn, from 1.
    pub turns: BTreeMap<u64, usize>,
    pub turns_answered: BTreeMap<u64, usize>,
    pub pages: BTreeMap<u64, usize>,
    pub summaries: usize,
    pub summaries_answered: usize,
    /// The last of them that was answered, by the order in which they were asked for.
    last_answered: usize,
}

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct SummaryServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    held: watch::Sender<HeldRequests>,
    counts: Mutex<SummaryCounts>,
}

impl SummaryServer {
    pub async fn start() -> SummaryServer {
        let shared = Arc::new(Shared { held: watch::channel(HeldRequests::default()).0, counts: Mutex::default() });
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/pages/{page}", get(page))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        SummaryServer { address, shared }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on these requests wait, and no others.
    pub fn hold(&self, held: HeldRequests) {
        self.shared.held.send_replace(held);
    }

    /// Forgets what has come.
    pub fn begin_count(&self) {
        *self.shared.counts.lock().unwrap() = SummaryCounts::default();
    }

    pub fn counts(&self) -> SummaryCounts {
        self.shared.counts.lock().unwrap().clone()
    }

    /// Waits until this is so of what has come.
    pub async fn until(&self, what: &str, is_so: impl Fn(&SummaryCounts) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.counts()) {
            assert!(begun.elapsed() < PATIENCE, "not so: {what}: {:?}", self.counts());
            pause(Duration::from_millis(10)).await;
        }
    }
}

impl Shared {
    fn count(&self, add: impl FnOnce(&mut SummaryCounts)) {
        add(&mut self.counts.lock().unwrap());
    }

    async fn until_let(&self, is_held: impl Fn(&HeldRequests) -> bool) {
        let _ = self.held.subscribe().wait_for(|held| !is_held(held)).await;
    }
}

async fn complete(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    match body["model"] == SUMMARISER {
        true => summary(&shared).await,
        false => turn(&shared, &body).await,
    }
}

async fn summary(shared: &Shared) -> Json<Value> {
    let mut number = 0;
    shared.count(|counts| {
        counts.summaries += 1;
        number = counts.summaries;
    });
    shared.until_let(|held| held.summaries).await;
    shared.count(|counts| {
        counts.summaries_answered += 1;
        counts.last_answered = counts.last_answered.max(number);
    });
    answer(json!({ "role": "assistant", "content": "The first pages were read." }), "stop")
}

/// Asks for the page behind the last one, and answers once all are read.
async fn turn(shared: &Shared, body: &Value) -> Json<Value> {
    let messages = body["messages"].as_array().expect("messages");
    let last = messages.iter().rev().find(|message| message["role"] == "tool");
    let turn = last.map_or(0, |message| page_in(&message["content"].to_string())) + 1;
    shared.count(|counts| *counts.turns.entry(turn).or_default() += 1);
    shared.until_let(|held| held.turn == Some(turn)).await;
    shared.count(|counts| *counts.turns_answered.entry(turn).or_default() += 1);
    if turn == LAST_TURN {
        let is_shown = body["messages"].to_string().contains("A summary of your turns");
        return answer(json!({ "role": "assistant", "content": format!("All is read, summary: {is_shown}") }), "stop");
    }
    let function = json!({ "name": "look", "arguments": json!({ "page": turn }).to_string() });
    let call = json!({ "id": format!("call_{turn}"), "type": "function", "function": function });
    answer(json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "tool_calls")
}

/// The number behind `page-` in the result of a call.
fn page_in(result: &str) -> u64 {
    let (_, number) = result.split_once("page-").expect("a result of the tool");
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

fn answer(message: Value, finish: &str) -> Json<Value> {
    let usage = json!({ "prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT });
    let choice = json!({ "index": 0, "message": message, "finish_reason": finish });
    Json(json!({ "choices": [choice], "usage": usage }))
}

/// The last page comes once a summary that is under way and not held was answered, and the service has had time to read
/// it.
async fn page(State(shared): State<Arc<Shared>>, Path(page): Path<u64>) -> Json<Value> {
    shared.count(|counts| *counts.pages.entry(page).or_default() += 1);
    if page == PAGES {
        while !shared.held.borrow().summaries && is_summing_up(&shared) {
            pause(Duration::from_millis(10)).await;
        }
        pause(READING).await;
    }
    Json(json!({ "read": format!("page-{page}") }))
}

/// Whether the summary that was begun with the last asking for its turn has no answer. Either may come first.
fn is_summing_up(shared: &Shared) -> bool {
    let counts = shared.counts.lock().unwrap();
    counts.last_answered < counts.turns.get(&PAGES).copied().unwrap_or_default()
}
