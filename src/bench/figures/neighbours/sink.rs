//! The target of tools, polls and webhooks of `neighbours`: a small HTTP server on several addresses of this machine,
//! which notes when a request has come, and answers some of them late.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::base::clock::pause;

/// Addresses of each tenant: how often one host is polled is bounded for all together.
pub const HOSTS: usize = 16;
/// Tenants that have addresses: the quiet one, and two others.
const TENANTS: usize = 3;
/// The largest request that is read.
const MOST: usize = 4 * 1024 * 1024;

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

/// Listens until it is dropped.
pub struct MessageSink {
    seen: Arc<Mutex<SeenMessages>>,
    port: u16,
    _listening: JoinSet<()>,
}

impl MessageSink {
    /// On the same port of all its addresses.
    pub async fn open() -> anyhow::Result<MessageSink> {
        let seen: Arc<Mutex<SeenMessages>> = Arc::default();
        let mut listening = JoinSet::new();
        let mut port = 0;
        for tenant in 0..TENANTS {
            for host in 0..HOSTS {
                let listener = TcpListener::bind((address(tenant, host), port)).await?;
                port = listener.local_addr()?.port();
                listening.spawn(listen(listener, Arc::clone(&seen)));
            }
        }
        Ok(MessageSink { seen, port, _listening: listening })
    }

    /// An address of a tenant, with a path.
    pub fn url(&self, tenant: usize, host: usize, path: &str) -> String {
        format!("http://{}:{}{path}", address(tenant, host % HOSTS), self.port)
    }

    /// When the step of an event has asked, and when its message has come.
    pub fn of_event(&self, number: u64) -> (Option<Instant>, Option<Instant>) {
        let seen = self.seen.lock().expect("bench lock");
        (seen.steps.get(&number).copied(), seen.messages.get(&number).copied())
    }

    /// When a value was polled.
    pub fn polls(&self, number: u64) -> Vec<Instant> {
        self.seen.lock().expect("bench lock").polls.get(&number).cloned().unwrap_or_default()
    }
}

fn address(tenant: usize, host: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, tenant as u8, host as u8 + 1)
}

async fn listen(listener: TcpListener, seen: Arc<Mutex<SeenMessages>>) {
    let mut answering = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        answering.spawn(async move {
            // a caller that has left needs no answer
            let _ = answer(stream, &seen).await;
        });
        while answering.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, seen: &Mutex<SeenMessages>) -> std::io::Result<()> {
    let Some((path, body)) = request(&mut stream).await? else { return Ok(()) };
    let received_at = Instant::now();
    match path.trim_start_matches('/').split_once('/') {
        Some(("slow", seconds)) => pause(Duration::from_secs(seconds.parse().unwrap_or(0))).await,
        Some(("step", number)) => note(number, |number| {
            seen.lock().expect("bench lock").steps.entry(number).or_insert(received_at);
        }),
        Some(("value", number)) => note(number, |number| {
            seen.lock().expect("bench lock").polls.entry(number).or_default().push(received_at);
        }),
        Some(("hook", _)) => note(numbered(&body), |number| {
            seen.lock().expect("bench lock").messages.entry(number).or_insert(received_at);
        }),
        _ => {}
    }
    let body = r#"{"price":612}"#;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).await
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
