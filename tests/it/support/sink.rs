//! A receiver of webhooks over real sockets, which drops what it has seen and misbehaves by a script.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Takes the message where this is 2xx.
    Status(u16),
    /// A status with Retry-After in seconds.
    RetryAfter(u16, u64),
    /// Closes the connection without a word, and has not taken the message.
    Drop,
    /// Takes the message and closes the connection without a word.
    TakeAndDrop,
    /// Takes the message and never answers.
    TakeAndHang,
}

/// A message that was taken, once for each id.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenMessage {
    pub id: String,
    pub event: String,
    pub data: Value,
}

type Script = dyn Fn(&str, usize) -> Answer + Send + Sync;

#[derive(Default)]
struct SinkState {
    /// In the order in which they were taken.
    taken: Vec<TakenMessage>,
    /// Requests by id, with the body of the first.
    requests: BTreeMap<String, (usize, String)>,
    /// Ids whose body was another at a later request.
    changed: Vec<String>,
    /// Ids that were told that they are taken, and those of them that were sent once more.
    thanked: BTreeSet<String>,
    in_vain: Vec<String>,
}

/// Listens until it is dropped.
#[derive(Clone)]
pub struct Sink {
    address: SocketAddr,
    seen: Arc<Mutex<SinkState>>,
    script: Arc<Mutex<Arc<Script>>>,
}

impl Sink {
    /// Takes everything.
    pub async fn start() -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let script: Arc<Script> = Arc::new(|_, _| Answer::Status(204));
        let sink = Sink {
            address: listener.local_addr().expect("an address"),
            seen: Arc::default(),
            script: Arc::new(Mutex::new(script)),
        };
        let serving = sink.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sink = serving.clone();
                tokio::spawn(async move { sink.serve(stream).await });
            }
        });
        sink
    }

    /// From now on answers as this says of an id and the number of its request, counted from 0.
    pub fn answer(&self, script: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(script);
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn taken(&self) -> Vec<TakenMessage> {
        self.seen.lock().unwrap().taken.clone()
    }

    /// How often each id was sent.
    pub fn requests(&self) -> BTreeMap<String, usize> {
        self.seen.lock().unwrap().requests.iter().map(|(id, (count, _))| (id.clone(), *count)).collect()
    }

    /// Ids that came again with another body.
    pub fn changed(&self) -> Vec<String> {
        self.seen.lock().unwrap().changed.clone()
    }

    /// Ids that were sent again after a 2xx was answered, once for each time.
    pub fn sent_in_vain(&self) -> Vec<String> {
        self.seen.lock().unwrap().in_vain.clone()
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some((id, body)) = request(&mut stream, "webhook-id").await else { return };
        let Ok(body) = String::from_utf8(body) else { return };
        let script = Arc::clone(&self.script.lock().unwrap());
        let answer = {
            let mut seen = self.seen.lock().unwrap();
            let entry = seen.requests.entry(id.clone()).or_insert_with(|| (0, body.clone()));
            let (number, changed) = (entry.0, entry.1 != body);
            entry.0 += 1;
            if changed {
                seen.changed.push(id.clone());
            }
            if seen.thanked.contains(&id) {
                seen.in_vain.push(id.clone());
            }
            let answer = script(&id, number);
            let takes = matches!(answer, Answer::Status(200..=299) | Answer::TakeAndDrop | Answer::TakeAndHang);
            if takes && !seen.taken.iter().rev().any(|taken| taken.id == id) {
                let body: Value = serde_json::from_str(&body).expect("JSON");
                let event = body["type"].as_str().expect("a type").to_owned();
                seen.taken.push(TakenMessage { id: id.clone(), event, data: body["data"].clone() });
            }
            answer
        };
        let head = match answer {
            Answer::Status(status) => format!("HTTP/1.1 {status} x\r\n"),
            Answer::RetryAfter(status, seconds) => format!("HTTP/1.1 {status} x\r\nretry-after: {seconds}\r\n"),
            Answer::Drop | Answer::TakeAndDrop => return,
            // the other side gives up and closes
            Answer::TakeAndHang => {
                let _ = stream.read(&mut [0; 1]).await;
                return;
            }
        };
        let said = stream.write_all(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n").as_bytes()).await;
        if let (Ok(()), Answer::Status(200..=299)) = (said, answer) {
            self.seen.lock().unwrap().thanked.insert(id);
        }
    }
}

/// This header's value and the body of one request.
pub async fn request(stream: &mut TcpStream, named: &str) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let header =
                |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim().to_owned());
            let length: usize = header("content-length:")?.parse().ok()?;
            if bytes.len() >= end + 4 + length {
                return Some((header(&format!("{named}:"))?, bytes[end + 4..end + 4 + length].to_vec()));
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}
