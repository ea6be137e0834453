//! A model over HTTP that says how many messages of a conversation it was shown and what was said last. Asked to pay, it calls
//! a tool of the same address first.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};

use super::binary::Service;
use super::world::MASTER_KEY;

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct TalkingModel {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicUsize,
    paid: AtomicUsize,
}

impl TalkingModel {
    pub async fn start() -> TalkingModel {
        let counts = Arc::new(Counts::default());
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/pay", post(pay))
            .with_state(Arc::clone(&counts));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        TalkingModel { address, counts }
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.counts.asked.load(Ordering::Relaxed)
    }

    /// How often the tool was called.
    pub fn paid(&self) -> usize {
        self.counts.paid.load(Ordering::Relaxed)
    }

    /// A service whose agent asks it; on the database of this URL, or on SQLite.
    pub fn service(&self, database: Option<&str>) -> Service {
        let tool = format!(
            "[[tools]]\nname = \"pay\"\ndescription = \"Pays.\"\ncategory = \"side_effect\"\nconsequence = \"high\"\n\
             [tools.http]\nmethod = \"POST\"\nurl = \"http://{}/pay\"\n",
            self.address
        );
        let service = Service::new()
            .with_config(&tool)
            .with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN)
            .with("REVEILLE_EGRESS__ALLOW", r#"["127.0.0.1:*"]"#)
            // runs of the dead go on soon
            .with("REVEILLE_ENGINE__LEASE_SECONDS", "2.0")
            .with("REVEILLE_APPROVALS__TOOLS__PAY__GATE", "confirm")
            .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
            .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "talking")
            .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
            .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", format!("http://{}/v1", self.address));
        match database {
            Some(url) => service
                .with("REVEILLE_DATABASE__URL", url)
                .with("REVEILLE_VAULT__MASTER_KEYS", json!([MASTER_KEY]).to_string()),
            None => service,
        }
    }
}

/// The admin token of such a service.
pub const TOKEN: &str = "the admin token of the tests of chats";

async fn complete(State(counts): State<Arc<Counts>>, Json(asked): Json<Value>) -> Json<Value> {
    counts.asked.fetch_add(1, Ordering::Relaxed);
    let messages = asked["messages"].as_array().cloned().unwrap_or_default();
    let spoken = messages.iter().filter(|message| message["role"] == "user" || message["role"] == "assistant").count();
    let last = messages.last().cloned().unwrap_or_default();
    let said = last["content"].as_str().unwrap_or_default();
    let choice = match (last["role"].as_str(), said.contains("pay")) {
        (Some("tool"), _) => answer("paid".into()),
        (_, true) => {
            let function = json!({ "name": "pay", "arguments": "{}" });
            let call = json!({ "id": "call_1", "type": "function", "function": function });
            let message = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
            json!({ "index": 0, "message": message, "finish_reason": "tool_calls" })
        }
        _ => answer(format!("{spoken}: {said}")),
    };
    Json(json!({ "choices": [choice], "usage": { "prompt_tokens": 10, "completion_tokens": 2 } }))
}

fn answer(text: String) -> Value {
    json!({ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" })
}

async fn pay(State(counts): State<Arc<Counts>>) -> Json<Value> {
    counts.paid.fetch_add(1, Ordering::Relaxed);
    Json(json!({ "done": true }))
}
