//! A model's server that keeps what it is sent and answers in pieces of its own choosing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reveille::base::clock::Clock;
use reveille::base::secret::Secret;
use reveille::ports::llm::connections::ModelConnections;
use reveille::ports::llm::{ModelParts, ModelSettings};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One answer.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    /// The chunks of the body.
    pub body: Vec<Vec<u8>>,
    pub end: End,
}

#[derive(PartialEq)]
pub enum End {
    Whole,
    /// The connection breaks before the body is whole.
    Broken,
    /// Nothing more comes, and the connection stays.
    Hangs,
    /// The connection breaks before anything is said.
    Dropped,
    /// Nothing is ever said, and the connection stays.
    Silent,
}

impl Reply {
    pub fn json(status: u16, body: &Value) -> Reply {
        let headers = vec![("content-type", "application/json".to_owned())];
        Reply { status, headers, body: vec![body.to_string().into_bytes()], end: End::Whole }
    }

    /// Server-sent events in pieces of `size` bytes, which cut lines, numbers and letters in two.
    pub fn events(text: &str, size: usize) -> Reply {
        let body = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        let headers = vec![("content-type", "text/event-stream; charset=utf-8".to_owned())];
        Reply { status: 200, headers, body, end: End::Whole }
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Reply {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn ending(mut self, end: End) -> Reply {
        self.end = end;
        self
    }
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Method, path and version.
    pub line: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// The body as it was written.
    pub text: String,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub struct Server {
    pub address: String,
    pub received: Arc<Mutex<Vec<ReceivedRequest>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Answers one request after the other, each on a connection of its own.
    pub async fn start(replies: Vec<Reply>) -> Server {
        Server::strict(replies, |_| None).await
    }

    /// Gives the answer of `judge`, where it has one, in the place of the next.
    pub async fn strict(
        replies: Vec<Reply>,
        judge: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let received: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let kept = received.clone();
        let mut replies = VecDeque::from(replies);
        let accepting = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Some(reply) = replies.pop_front() {
                let (mut connection, _) = listener.accept().await.unwrap();
                let request = read(&mut connection).await;
                let reply = judge(&request).unwrap_or(reply);
                kept.lock().unwrap().push(request);
                if !matches!(reply.end, End::Dropped | End::Silent) {
                    write(&mut connection, &reply).await;
                }
                if matches!(reply.end, End::Hangs | End::Silent) {
                    open.push(connection);
                }
            }
            std::future::pending::<()>().await; // keeps what hangs open
        });
        Server { address, received, accepting }
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn read(connection: &mut TcpStream) -> ReceivedRequest {
    let mut bytes = Vec::new();
    let head = loop {
        let mut piece = [0; 4096];
        let length = connection.read(&mut piece).await.unwrap();
        assert!(length > 0, "the request broke off");
        bytes.extend_from_slice(&piece[..length]);
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let (line, rest) = text.split_once("\r\n").unwrap();
    let header = |line: &str| line.split_once(':').map(|(n, v)| (n.to_lowercase(), v.trim().to_owned())).unwrap();
    let headers: Vec<(String, String)> = rest.lines().map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse().unwrap());
    let mut body = bytes[head + 4..].to_vec();
    let missing = length.unwrap_or(0_usize).saturating_sub(body.len());
    let mut more = vec![0; missing];
    connection.read_exact(&mut more).await.unwrap();
    body.extend(more);
    let text = String::from_utf8(body).unwrap();
    ReceivedRequest { line: line.to_owned(), headers, body: serde_json::from_str(&text).unwrap(), text }
}

async fn write(connection: &mut TcpStream, reply: &Reply) {
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut bytes = format!("{head}\r\n").into_bytes();
    // each chunk reaches the client as a piece of its own
    for piece in &reply.body {
        bytes.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        bytes.extend(piece);
        bytes.extend(b"\r\n");
    }
    if reply.end == End::Whole {
        bytes.extend(b"0\r\n\r\n");
    }
    connection.write_all(&bytes).await.unwrap();
    connection.flush().await.unwrap();
}

/// Settings of a model behind this server, with a key.
pub fn settings(server: &Server, change: impl FnOnce(&mut ModelSettings)) -> ModelSettings {
    let mut settings = ModelSettings {
        base_url: Some(format!("{}/v1", server.address)),
        model: "model-7".into(),
        api_key: Some(Secret::new("sk-canary")),
        ..ModelSettings::default()
    };
    change(&mut settings);
    settings
}

/// The settings from which a provider makes its model.
pub fn offer<T>(settings: &ModelSettings, make: impl FnOnce(&ModelParts) -> T) -> T {
    let connections = Arc::new(ModelConnections::new(Duration::from_secs(settings.timeout_seconds)));
    make(&ModelParts { settings, key: settings.api_key.as_ref(), connections: &connections, clock: &Clock::system() })
}
