//! The target of tools, polls and webhooks of `neighbours`: a small HTTP server on several addresses of this machine,
//! which notes when a request of the quiet tenant has come, counts those of the hostile ones, and answers some of them
//! late.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::base::clock::pause;
use crate::bench::figures::neighbours::work::{HostileWork, WorkCounts};

/// Addresses of each tenant: how often one host is polled is bounded for all together.
pub const HOSTS: usize = 16;
/// Tenants that have addresses: the quiet one, which is the first, and two others.
const TENANTS: usize = 3;
/// The largest request that is read.
const MOST: usize = 4 * 1024 * 1024;
/// Answers everything but `/text/`.
const PRICE: &str = r#"{"price":612}"#;

/// When what was asked.
#[derive(Default)]
struct SeenMessages {
    /// By what stands behind `/step/`.
    steps: HashMap<u64, Instant>,
    /// By the number in the message.
    messages: HashMap<u64, Instant>,
    /// By what stands behind `/value/`, in their order.
    polls: HashMap<u64, Vec<Instant>>,
}

/// Shared by all connections.
struct SinkState {
    /// Of the quiet tenant.
    seen: Mutex<SeenMessages>,
    /// Of the hostile tenants.
    work: Arc<WorkCounts>,
    /// Answers `/text/`.
    text: String,
}

/// Listens until it is dropped.
pub struct MessageSink {
    state: Arc<SinkState>,
    port: u16,
    _listening: JoinSet<()>,
}

impl MessageSink {
    /// On the same port of all its addresses. Those of the hostile tenants are served by `clients`, so that they hold
    /// up no answer to the quiet one; `text` is what a poll of `/text/` is told.
    pub async fn open(clients: &Handle, text: &str) -> anyhow::Result<MessageSink> {
        let text = json!({ "text": text }).to_string();
        let state = Arc::new(SinkState { seen: Mutex::default(), work: Arc::default(), text });
        let mut listening = JoinSet::new();
        let mut port = 0;
        for tenant in 0..TENANTS {
            for host in 0..HOSTS {
                let bound = TcpListener::bind((address(tenant, host), port));
                let listener = if tenant == 0 { bound.await? } else { clients.spawn(bound).await?? };
                port = listener.local_addr()?.port();
                let answering = listen(listener, Arc::clone(&state));
                match tenant {
                    0 => listening.spawn(answering),
                    _ => listening.spawn_on(answering, clients),
                };
            }
        }
        Ok(MessageSink { state, port, _listening: listening })
    }

    /// The work of the hostile tenants.
    pub fn work(&self) -> &Arc<WorkCounts> {
        &self.state.work
    }

    /// An address of a tenant, with a path.
    pub fn url(&self, tenant: usize, host: usize, path: &str) -> String {
        format!("http://{}:{}{path}", address(tenant, host % HOSTS), self.port)
    }

    /// When the step of an event has asked, and when its message has come.
    pub fn of_event(&self, number: u64) -> (Option<Instant>, Option<Instant>) {
        let seen = self.state.seen.lock().expect("bench lock");
        (seen.steps.get(&number).copied(), seen.messages.get(&number).copied())
    }

    /// When a value was polled.
    pub fn polls(&self, number: u64) -> Vec<Instant> {
        self.state.seen.lock().expect("bench lock").polls.get(&number).cloned().unwrap_or_default()
    }
}

fn address(tenant: usize, host: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, tenant as u8, host as u8 + 1)
}

async fn listen(listener: TcpListener, state: Arc<SinkState>) {
    let mut answering = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        answering.spawn(async move {
            // a caller that has left needs no answer
            let _ = answer(stream, &state).await;
        });
        while answering.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, state: &SinkState) -> std::io::Result<()> {
    let Some((path, body)) = request(&mut stream).await? else { return Ok(()) };
    let received_at = Instant::now();
    let mut answer = PRICE;
    match path.trim_start_matches('/').split_once('/') {
        Some(("step", number)) => note(number, |number| {
            state.seen.lock().expect("bench lock").steps.entry(number).or_insert(received_at);
        }),
        Some(("value", number)) => note(number, |number| {
            state.seen.lock().expect("bench lock").polls.entry(number).or_default().push(received_at);
        }),
        Some(("hook", _)) => note(numbered(&body), |number| {
            state.seen.lock().expect("bench lock").messages.entry(number).or_insert(received_at);
        }),
        Some(("poll", seconds)) => answer_late(state, Some(HostileWork::SlowPoll), seconds).await,
        Some(("wait", seconds)) => answer_late(state, Some(HostileWork::SlowStep), seconds).await,
        Some(("told", seconds)) => {
            let is_long = body.contains(LONG_MARK).then_some(HostileWork::Markdown);
            answer_late(state, is_long, seconds).await;
        }
        Some(("searched", "filter")) => state.work.add(HostileWork::FilterSearch),
        Some(("searched", "condition")) => state.work.add(HostileWork::ConditionSearch),
        Some(("text", _)) => answer = &state.text,
        _ => {}
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", answer.len());
    stream.write_all(format!("{head}connection: close\r\n\r\n{answer}").as_bytes()).await
}

/// Counts a request of a hostile tenant, and waits before it is answered.
async fn answer_late(state: &SinkState, kind: Option<HostileWork>, seconds: &str) {
    if let Some(kind) = kind {
        state.work.add(kind);
    }
    pause(Duration::from_secs(seconds.parse().unwrap_or(0))).await;
}

fn note(number: &str, note: impl FnOnce(u64)) {
    if let Ok(number) = number.parse() {
        note(number);
    }
}

/// The number of `event 17.` in a message.
fn numbered(body: &str) -> &str {
    let behind = body.split_once(MARK).map_or("", |(_, behind)| behind);
    behind.split_once('.').map_or("", |(number, _)| number)
}

/// Stands before the number of an event in its message.
pub const MARK: &str = "saw event ";
/// Stands in a message with long Markdown.
pub const LONG_MARK: &str = "Deep and long";

/// Path and body of a request; `None`: none has come.
async fn request(stream: &mut TcpStream) -> std::io::Result<Option<(String, String)>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                return Ok(Some((path, String::from_utf8_lossy(&bytes[end + 4..]).into_owned())));
            }
        }
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            _ if bytes.len() > MOST => return Ok(None),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_known_by_the_number_in_it() {
        assert_eq!(numbered(r#"{"data":{"output":"saw event 17."}}"#), "17");
        assert_eq!(numbered("nothing of it"), "");
    }
}
