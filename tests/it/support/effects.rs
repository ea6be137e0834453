//! The other side of `webhook` tasks: takes runs as a foreign agent would, answers with the attempt's number, and
//! writes down what arrived and when. It takes the payments of pipelines and agents, too. It outlives the services of
//! its test, so it sees both sides of a crash.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use reveille::base::clock::{machine_now, pause};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use uuid::Uuid;

use crate::support::sink::request;

/// One attempt of a run, as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    pub run_id: Uuid,
    pub task_id: Uuid,
    pub attempt: i64,
    /// The idempotency key that came with it.
    pub key: String,
    pub scheduled_for: DateTime<Utc>,
    /// By the machine's clock.
    pub at: DateTime<Utc>,
}

/// A request of a pipeline or an agent that must not be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Payment {
    pub run_id: Uuid,
    /// The idempotency key that came with it.
    pub key: String,
}

/// Listens until its test ends. Clones share one journal.
#[derive(Clone)]
pub struct Effects {
    address: SocketAddr,
    journal: Arc<Mutex<Vec<Effect>>>,
    payments: Arc<Mutex<Vec<Payment>>>,
    reservations: Arc<AtomicU64>,
    /// How long an answer takes, in milliseconds.
    delay: Arc<AtomicU64>,
    /// Answers to later attempts than this are kept.
    released: watch::Sender<i64>,
}

impl Effects {
    /// Answers at once.
    pub async fn start() -> Effects {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let effects = Effects {
            address,
            journal: Arc::default(),
            payments: Arc::default(),
            reservations: Arc::default(),
            delay: Arc::default(),
            released: watch::channel(i64::MAX).0,
        };
        let serving = effects.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let effects = serving.clone();
                tokio::spawn(async move { effects.serve(stream).await });
            }
        });
        effects
    }

    pub fn url(&self) -> String {
        format!("http://{}/run", self.address)
    }

    /// From now on each answer takes so long.
    pub fn takes(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// From now on what this attempt and earlier ones of a run come to is answered, and of later ones it is kept.
    pub fn releases(&self, attempt: i64) {
        self.released.send_replace(attempt);
    }

    /// In the order in which they arrived.
    pub fn journal(&self) -> Vec<Effect> {
        self.journal.lock().unwrap().clone()
    }

    /// Payments in the order in which they arrived.
    pub fn payments(&self) -> Vec<Payment> {
        self.payments.lock().unwrap().clone()
    }

    /// How often something was reserved, which may be done again.
    pub fn reservations(&self) -> u64 {
        self.reservations.load(Ordering::Relaxed)
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some((key, body)) = request(&mut stream, "idempotency-key").await else { return };
        let Ok(body) = serde_json::from_slice::<Value>(&body) else { return };
        let id = |value: &Value| value.as_str().expect("an id").parse().expect("an id");
        if body["pays"].is_string() {
            self.payments.lock().unwrap().push(Payment { run_id: payer(&body["pays"]), key });
            return self.answer(&mut stream, "paid").await;
        }
        if body["reserves"].is_string() {
            self.reservations.fetch_add(1, Ordering::Relaxed);
            return self.answer(&mut stream, "reserved").await;
        }
        let run = &body["data"]["run"];
        let effect = Effect {
            run_id: id(&run["id"]),
            task_id: id(&body["data"]["task"]["id"]),
            attempt: run["attempt"].as_i64().expect("an attempt"),
            key,
            scheduled_for: run["scheduled_for"].as_str().expect("an instant").parse().expect("an instant"),
            at: machine_now(),
        };
        let (output, attempt) = (answer_to(effect.run_id, effect.attempt), effect.attempt);
        self.journal.lock().unwrap().push(effect);
        let _ = self.released.subscribe().wait_for(|released| attempt <= *released).await;
        self.answer(&mut stream, &output).await;
    }

    /// Answers, after as long as answers take.
    async fn answer(&self, stream: &mut TcpStream, output: &str) {
        let delay = self.delay.load(Ordering::Relaxed);
        if delay > 0 {
            pause(Duration::from_millis(delay)).await;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        let body = serde_json::json!({ "output": output }).to_string();
        let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
    }
}

/// The run that pays: its id, or the first id in the message of an agent.
fn payer(pays: &Value) -> Uuid {
    let words = pays.as_str().expect("a text").split_whitespace();
    words.flat_map(str::parse).next().expect("the id of a run")
}

/// The answer to an attempt; it becomes the output of its run.
pub fn answer_to(run_id: Uuid, attempt: i64) -> String {
    format!("{run_id} attempt {attempt}")
}
