//! A model over HTTP/1.1 that answers nobody until it is told to, and counts who waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use reveille::base::clock::pause;
use reveille::ports::llm::ModelSettings;
use serde_json::{Value, json};
use tokio::sync::watch;

/// How long callers may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct SlowModel {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Callers that have no answer yet, by what they are to do.
    waiting: Mutex<BTreeMap<String, usize>>,
    /// The most of them at once.
    most: Mutex<usize>,
    /// Callers that may have an answer, in the order in which they asked.
    answers: watch::Sender<usize>,
    asked: Mutex<usize>,
}

impl SlowModel {
    pub async fn start() -> SlowModel {
        let answers = watch::channel(0).0;
        let shared =
            Arc::new(Shared { waiting: Mutex::default(), most: Mutex::default(), answers, asked: Mutex::default() });
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/embeddings", post(complete))
            .route("/hook", post(complete))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        SlowModel { address, shared }
    }

    /// Settings of a model that asks here.
    pub fn settings(&self) -> ModelSettings {
        let base_url = Some(format!("http://{}/v1", self.address));
        ModelSettings {
            base_url,
            model: "slow".into(),
            stream: false,
            timeout_seconds: 600,
            ..ModelSettings::default()
        }
    }

    /// Where webhooks are taken that wait as calls do.
    pub fn hook(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Callers that wait for an answer: with this text in their request.
    pub fn waiting(&self, text: &str) -> usize {
        self.shared.waiting.lock().unwrap().iter().filter(|(body, _)| body.contains(text)).map(|(_, count)| count).sum()
    }

    /// The most callers that have waited at once.
    pub fn most(&self) -> usize {
        *self.shared.most.lock().unwrap()
    }

    /// Returns once so many have asked in all.
    pub async fn until_asked(&self, count: usize) {
        let began = Instant::now();
        while self.asked() < count {
            assert!(began.elapsed() < PATIENCE, "{} have asked, not {count}", self.asked());
            pause(Duration::from_millis(2)).await;
        }
    }

    fn asked(&self) -> usize {
        *self.shared.asked.lock().unwrap()
    }

    /// Returns once so many wait with this text in their request.
    pub async fn until_waiting(&self, text: &str, count: usize) {
        let began = Instant::now();
        while self.waiting(text) != count {
            assert!(began.elapsed() < PATIENCE, "{} wait with {text:?}, not {count}", self.waiting(text));
            pause(Duration::from_millis(2)).await;
        }
    }

    /// Answers so many more of those who ask, in the order in which they have asked.
    pub fn answer(&self, more: usize) {
        self.shared.answers.send_modify(|answers| *answers = answers.saturating_add(more));
    }
}

async fn complete(State(shared): State<Arc<Shared>>, body: String) -> Json<Value> {
    let place = {
        let mut asked = shared.asked.lock().unwrap();
        *asked += 1;
        *asked
    };
    {
        let mut waiting = shared.waiting.lock().unwrap();
        *waiting.entry(body.clone()).or_default() += 1;
        let now: usize = waiting.values().sum();
        let mut most = shared.most.lock().unwrap();
        *most = now.max(*most);
    }
    let _caller = Caller { shared: Arc::clone(&shared), body };
    let _ = shared.answers.subscribe().wait_for(|answers| *answers >= place).await;
    let message = json!({ "role": "assistant", "content": "done" });
    Json(json!({ "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] }))
}

/// Counts as waiting until it is dropped, with its answer or because it has gone.
struct Caller {
    shared: Arc<Shared>,
    body: String,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting.lock().unwrap();
        if let Some(count) = waiting.get_mut(&self.body) {
            *count -= 1;
        }
    }
}
