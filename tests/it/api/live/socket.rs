//! Sessions over a WebSocket: with a client of our own that shows every frame, and with a browser's, as Node has it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use reveille::http::server::{self, ServerLimits};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::{deliver, delivered, id, told};
use crate::api::service::{ADMIN, Api};
use crate::support::websocket::{Frame, WebSocket};

/// A browser's client: it can set no header.
const BROWSER: &str = r#"
const [address, token] = process.argv.slice(1);
const socket = new WebSocket(address);
socket.onopen = () => socket.send(JSON.stringify({ token }));
socket.onmessage = (event) => console.log(event.data);
socket.onclose = (event) => console.log(JSON.stringify({ closed: event.code, reason: event.reason }));
"#;

struct Server {
    api: Api,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    async fn with(limits: ServerLimits) -> Server {
        let api = Api::with(limits).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve =
            server::serve(listener, api.app.clone(), limits, Default::default(), api.metrics.clone(), api.stop.clone());
        Server { address, serving: tokio::spawn(serve), api }
    }

    /// Shakes hands, with a token in the header or without.
    async fn open(&self, path: &str, token: Option<&str>) -> Result<WebSocket, String> {
        let login = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        WebSocket::open(self.address, path, &login).await
    }

    /// A handshake without a token, and this as its first message.
    async fn greeted(&self, hello: &str) -> WebSocket {
        let mut socket = self.open("/v1/live/ws", None).await.unwrap();
        socket.send(hello).await;
        socket
    }

    /// Stops the server, which must come to its end by itself.
    async fn stop(self) {
        self.api.stop.cancel();
        tokio::time::timeout(Duration::from_secs(8), self.serving).await.expect("an end").unwrap();
    }
}

fn opened() -> Frame {
    Frame::Text(json!({ "event": "session", "tenant_id": "ann" }))
}

fn refused(why: &str) -> Frame {
    Frame::Close(1008, why.into())
}

#[tokio::test]
async fn message_comes_as_a_frame_and_the_service_says_goodbye() {
    let server = Server::with(ServerLimits::default()).await;
    let token = server.api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let mut by_header = server.open("/v1/live/ws", Some(&token)).await.unwrap();
    let mut by_admin = server.open("/v1/live/ws?tenant_id=ann", Some(ADMIN)).await.unwrap();
    let mut by_message = server.greeted(&json!({ "token": token }).to_string()).await;
    for socket in [&mut by_header, &mut by_admin, &mut by_message] {
        assert_eq!(socket.next().await, opened());
    }
    assert_eq!(deliver(&server.api, id(7)).await, delivered());
    for socket in [&mut by_header, &mut by_admin, &mut by_message] {
        assert_eq!(socket.next().await, Frame::Text(told(id(7))));
    }
    let seen = format!("last-event-id: {}\r\nauthorization: Bearer {token}\r\n", id(7));
    let mut later = WebSocket::open(server.address, "/v1/live/ws", &seen).await.unwrap();
    assert_eq!(later.next().await, opened());
    let hello = json!({ "token": token, "last_event_id": id(7) }).to_string();
    let mut latest = server.greeted(&hello).await;
    assert_eq!(latest.next().await, opened());
    server.stop().await;
    for mut socket in [by_header, by_admin, by_message, later, latest] {
        assert_eq!(socket.next().await, Frame::Close(1001, "the service stops".into()));
    }
}

#[tokio::test]
async fn browser_says_who_it_is_in_its_first_message() {
    let server = Server::with(ServerLimits::default()).await;
    let (token_id, token) = server.api.token_until("ann", &["deliveries:read", "approvals:decide"], None).await;
    let mut node = Command::new("node")
        .args(["--experimental-websocket", "--no-warnings", "-e", BROWSER])
        .args([format!("ws://{}/v1/live/ws", server.address), token])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node");
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.expect("a line");
        serde_json::from_str(&line.unwrap().expect("a line")).unwrap()
    };
    assert_eq!(next().await, json!({ "event": "session", "tenant_id": "ann" }));
    assert_eq!(deliver(&server.api, id(7)).await, delivered());
    assert_eq!(next().await, told(id(7)));
    server.api.admin("DELETE", &format!("/v1/tokens/{token_id}"), None).await.expect(204);
    assert_eq!(next().await, json!({ "closed": 1008, "reason": "the token is no longer valid" }));
    assert!(node.wait().await.unwrap().success());
    server.stop().await;
}

#[tokio::test]
async fn caller_without_a_valid_token_or_permission_gets_no_session() {
    let limits = ServerLimits { header_time: Duration::from_millis(300), ..ServerLimits::default() };
    let server = Server::with(limits).await;
    server.api.streams_per_tenant(1).await;
    let token = server.api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let other = server.api.token("ann", &["runs:read"]).await;
    let status = async |path: &str, token: &str| server.open(path, Some(token)).await.err().unwrap()[9..12].to_owned();
    assert_eq!(status("/v1/live/ws", "wrong").await, "401");
    assert_eq!(status("/v1/live/ws", &other).await, "403");
    assert_eq!(status("/v1/live/ws?tenant_id=bob", &token).await, "404");
    assert_eq!(status("/v1/live/ws", ADMIN).await, "400");
    assert_eq!(status("/v1/live/ws?token=rv", &token).await, "400");

    let wrong = refused("the token is not valid: it is mistyped, or not one of this service");
    assert_eq!(server.greeted(r#"{"token":"wrong"}"#).await.next().await, wrong);
    assert_eq!(server.greeted("hello").await.next().await, refused("send {\"token\": \"rv_…\"} first"));
    let admin = json!({ "token": ADMIN }).to_string();
    let nameless = refused("/tenant_id: is missing: an admin token names the tenant");
    assert_eq!(server.greeted(&admin).await.next().await, nameless);
    let mut silent = server.open("/v1/live/ws", None).await.unwrap();
    assert_eq!(silent.next().await, refused("no token came"));

    let mut only = server.greeted(&json!({ "token": token }).to_string()).await;
    assert_eq!(only.next().await, opened());
    assert_eq!(status("/v1/live/ws", &token).await, "429");
    let quota =
        "the quota `streams` is 1, and 1 are used: close streams that nobody reads, or ask the operator for more";
    let full = Frame::Close(1013, quota.into());
    assert_eq!(server.greeted(&json!({ "token": token }).to_string()).await.next().await, full);
    server.stop().await;
}

#[tokio::test]
async fn session_without_pong_is_closed_and_frees_its_permit() {
    let limits = ServerLimits { keep_alive: Duration::from_secs(2), connections: 1, ..ServerLimits::default() };
    let server = Server::with(limits).await;
    server.api.streams_per_tenant(1).await;
    let mut socket = server.open("/v1/live/ws?tenant_id=ann", Some(ADMIN)).await.unwrap();
    assert_eq!(socket.next().await, opened());
    // a socket is a connection like any other, and counts as one
    assert!(server.open("/v1/live/ws", None).await.err().unwrap().starts_with("http/1.1 503"));
    assert_eq!(socket.next().await, Frame::Ping);
    assert_eq!(socket.next().await, Frame::Close(1000, String::new()));
    assert_eq!(socket.next().await, Frame::End);
    let began = std::time::Instant::now();
    while let Err(head) = server.open("/v1/live/ws?tenant_id=ann", Some(ADMIN)).await {
        assert!(began.elapsed() < Duration::from_secs(20), "{head}");
    }
    server.stop().await;
}
