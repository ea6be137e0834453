//! Abuse of the server: raw sockets that are slow, large, many, or cut off.

mod unread_bodies;

use std::net::SocketAddr;
use std::time::Duration;

use reveille::http::server::proxies::{ForwardedHeader, TrustedProxies};
use reveille::http::server::{self, ServerLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::service::{ADMIN, Api};

/// How long anything may take on a loaded machine before a test calls it stuck.
const PATIENCE: Duration = Duration::from_secs(20);
/// A limit that a test runs into.
const SHORT: Duration = Duration::from_millis(200);

struct Server {
    api: Api,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    async fn with(limits: ServerLimits) -> Server {
        Server::behind(limits, TrustedProxies::default()).await
    }

    async fn behind(limits: ServerLimits, proxies: TrustedProxies) -> Server {
        let api = Api::with(limits).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = server::serve(listener, api.app.clone(), limits, proxies, api.metrics.clone(), api.stop.clone());
        Server { address, serving: tokio::spawn(serve), api }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection from another address of this machine.
    async fn connect_from(&self, from: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Sends bytes as they are and reads until the other side closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // the server may have heard enough before all is written
        let _ = stream.write_all(bytes).await;
        rest(&mut stream).await
    }
}

/// Everything until the other side closes, which it must.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("the connection is closed");
    String::from_utf8_lossy(&text).into_owned()
}

/// The answer to one request on a connection that stays open.
async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("an answer").expect("an open connection");
        text.push(byte);
    }
    String::from_utf8(text).unwrap()
}

fn status(answer: &str) -> u16 {
    let word = answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    word.parse().unwrap()
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    format!("{head}authorization: Bearer {ADMIN}\r\n{headers}\r\n\r\n{body}").into_bytes()
}

#[tokio::test]
async fn silent_or_stalled_connection_is_closed() {
    let server = Server::with(ServerLimits { header_time: SHORT, ..ServerLimits::default() }).await;
    assert_eq!(rest(&mut server.connect().await).await, "", "not a byte");
    assert_eq!(server.exchange(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ").await, "", "half a header");
    assert!(!server.exchange(b"PRI * HTTP/2.0\r\n\r\n").await.contains("200"));

    let mut kept = server.connect().await;
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let answer = rest(&mut kept).await;
    assert_eq!(status(&answer), 200, "an idle connection is closed after its answer: {answer}");
}

#[tokio::test]
async fn too_many_or_too_large_headers_are_refused() {
    let server = Server::with(ServerLimits::default()).await;
    let request = |headers: String| format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    let many = |count: usize| (0..count).map(|n| format!("x-{n}: y\r\n")).collect::<String>();
    assert_eq!(status(&server.exchange(request(many(98)).as_bytes()).await), 200);
    assert_eq!(status(&server.exchange(request(many(99)).as_bytes()).await), 431);
    let large = |bytes: usize| format!("x-large: {}\r\n", "y".repeat(bytes));
    assert_eq!(status(&server.exchange(request(large(60 * 1024)).as_bytes()).await), 200);
    assert_eq!(status(&server.exchange(request(large(64 * 1024)).as_bytes()).await), 431);
}

#[tokio::test]
async fn body_that_is_too_large_is_refused_announced_or_not() {
    let server = Server::with(ServerLimits::default()).await;
    let announced = server.exchange(&post("content-length: 1048577", "")).await;
    assert_eq!(status(&announced), 413);
    assert!(announced.contains("at most 1048576 bytes are taken here"), "{announced}");
    let chunk = format!("{:x}\r\n{}\r\n", 64 * 1024, "x".repeat(64 * 1024));
    let chunked = server.exchange(&post("transfer-encoding: chunked", &chunk.repeat(17))).await;
    assert_eq!(status(&chunked), 413);
    let fitting = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));
    let fits = server.exchange(&post(&format!("content-length: {}", fitting.len()), &fitting)).await;
    assert_eq!(status(&fits), 422, "a text is no task, but it is read");
}

#[tokio::test]
async fn body_that_comes_too_slowly_or_not_whole_is_refused() {
    let server = Server::with(ServerLimits { body_time: SHORT, ..ServerLimits::default() }).await;
    let slow = server.exchange(&post("content-length: 10", "{")).await;
    assert_eq!(status(&slow), 408);
    assert!(slow.contains("urn:reveille:problem:request-timeout"), "{slow}");

    let mut cut = server.connect().await;
    cut.write_all(&post("content-length: 10", "{")).await.unwrap();
    cut.shutdown().await.unwrap();
    let answer = rest(&mut cut).await;
    assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
}

#[tokio::test]
async fn import_ends_when_its_client_has_left() {
    let never = Duration::from_secs(3_600);
    let limits = ServerLimits { body_time: never, import_time: never, drain: never, ..ServerLimits::default() };
    let Server { api, address, serving } = Server::with(limits).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/tasks/import HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\nexpect: 100-continue\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    // the import has begun: it asks for the body
    assert_eq!(status(&self::head(&mut client).await), 100);
    client.write_all(b"3\r\n\n\n\n\r\n").await.unwrap();
    drop(client);
    api.stop.cancel();
    timeout(PATIENCE, serving).await.expect("nothing goes on for a client that has left").unwrap();
}

#[tokio::test]
async fn connections_are_limited_for_each_address_and_in_all() {
    let limits = ServerLimits { connections: 3, connections_per_address: 2, ..ServerLimits::default() };
    let server = Server::with(limits).await;
    let hello = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut held = vec![server.connect().await, server.connect().await];
    for stream in &mut held {
        stream.write_all(hello).await.unwrap();
        assert_eq!(status(&head(stream).await), 200);
    }
    let refused = server.exchange(hello).await;
    assert_eq!(status(&refused), 429);
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("urn:reveille:problem:too-many-requests"));

    let mut other = server.connect_from([127, 0, 0, 2]).await;
    other.write_all(hello).await.unwrap();
    assert_eq!(status(&head(&mut other).await), 200, "another address has its own share");
    let refused = rest(&mut server.connect_from([127, 0, 0, 3]).await).await;
    assert_eq!(status(&refused), 503);
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("application/problem+json"), "{refused}");

    let text = server.api.metrics.text();
    assert!(text.contains("reveille_http_connections 3\n"), "{text}");
    assert!(text.contains("reveille_http_connections_refused_total 2\n"), "{text}");
    drop(held);
    // a permit is free once the server has noticed; until then it says 429
    let answer = timeout(PATIENCE, async {
        loop {
            let answer = server.exchange(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            if !answer.contains("429") {
                return answer;
            }
        }
    });
    assert_eq!(status(&answer.await.expect("a free seat")), 200);
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let server = Server::with(ServerLimits { write_stall: SHORT, ..ServerLimits::default() }).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    // answers that nobody reads, until they fill all there is between us
    let requests = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400);
    let stuck = timeout(PATIENCE, async { while stream.write_all(requests.as_bytes()).await.is_ok() {} });
    stuck.await.expect("the server closes the connection");
}

#[tokio::test]
async fn nonsense_on_the_wire_brings_nothing_down() {
    let server = Server::with(ServerLimits { header_time: SHORT, body_time: SHORT, ..ServerLimits::default() }).await;
    let odd: [&[u8]; 10] = [
        b"\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET /%ff%fe/../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx\xff: y\r\n\r\n",
    ];
    for bytes in odd {
        let answer = server.exchange(bytes).await;
        assert!(answer.is_empty() || (400..500).contains(&status(&answer)), "{bytes:?}: {answer}");
    }
    let well = server.exchange(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status(&well), 200);
}

#[tokio::test]
async fn stop_lets_what_is_open_end_and_cuts_what_does_not() {
    let limits = ServerLimits { drain: SHORT, body_time: PATIENCE, ..ServerLimits::default() };
    let server = Server::with(limits).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(status(&head(&mut idle).await), 200);
    let mut stuck = server.connect().await;
    let ask = String::from_utf8(post("content-length: 10\r\nexpect: 100-continue", "")).unwrap();
    stuck.write_all(ask.as_bytes()).await.unwrap();
    assert_eq!(status(&head(&mut stuck).await), 100, "its body is waited for");

    server.api.stop.cancel();
    timeout(PATIENCE, server.serving).await.expect("the server stops").unwrap();
    assert!(rest(&mut idle).await.contains("\"ok\""), "what was answered is whole");
    assert_eq!(rest(&mut stuck).await, "");
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

/// A stream of the bus on a connection of its own; the head of what is answered.
async fn follow(server: &Server, token: &str, headers: &str) -> (TcpStream, String) {
    let mut stream = server.connect().await;
    let request =
        format!("GET /v1/events/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = head(&mut stream).await;
    (stream, head)
}

#[tokio::test]
async fn streams_of_a_token_and_of_a_tenant_leave_room_for_probes_pages_and_others() {
    let limits = ServerLimits { connections_per_address: 32, streams_per_address: 6, ..ServerLimits::default() };
    let server = Server::with(limits).await;
    server.api.streams_per_tenant(4).await;
    let (one, two) = (server.api.token("ann", &["events:read"]).await, server.api.token("ann", &["events:read"]).await);
    let mut open = Vec::new();
    // a token has half of its tenant's streams
    for (token, expected) in [(&one, [200, 200, 429]), (&two, [200, 200, 429])] {
        for expected in expected {
            let (stream, head) = follow(&server, token, "").await;
            assert_eq!(status(&head), expected, "{head}");
            match expected {
                200 => open.push(stream),
                _ => {
                    let head = head.to_lowercase();
                    assert!(head.contains("retry-after: 5") && head.contains("application/problem+json"), "{head}");
                }
            }
        }
    }
    // all tenants together have a part of the connections of an address
    for (tenant, expected) in [("bob", 200), ("cleo", 200), ("dan", 429)] {
        let token = server.api.token(tenant, &["events:read"]).await;
        let (stream, head) = follow(&server, &token, "").await;
        assert_eq!(status(&head), expected, "{head}");
        open.extend((expected == 200).then_some(stream));
    }
    for (path, expected) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/approvals/x", 404)] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        assert_eq!(status(&server.exchange(request.as_bytes()).await), expected, "{path}");
    }
}

#[tokio::test]
async fn trusted_proxy_is_limited_by_the_clients_that_it_names() {
    let limits =
        ServerLimits { connections_per_address: 1, streams_per_address: 1, wrong_tokens: 1, ..ServerLimits::default() };
    let proxies = TrustedProxies::read(&["127.0.0.1".into()], ForwardedHeader::XForwardedFor).unwrap();
    let server = Server::behind(limits, proxies).await;
    let token = server.api.token("ann", &["events:read"]).await;
    let client = |last: u8| format!("x-forwarded-for: 198.51.100.1, 203.0.113.{last}\r\n");
    // more connections than one address may have, and a stream for each client
    let first = follow(&server, &token, &client(1)).await;
    let second = follow(&server, &token, &client(2)).await;
    let again = follow(&server, &token, &client(1)).await;
    assert_eq!([&first, &second, &again].map(|(_, head)| status(head)), [200, 200, 429]);
    // guesses count for the client who guesses
    let guess = format!("rv_{}", "x".repeat(40));
    for (last, expected) in [(3, 401), (3, 429), (4, 401)] {
        assert_eq!(status(&follow(&server, &guess, &client(last)).await.1), expected, "client {last}");
    }
    // whoever is no proxy speaks for itself
    let untrusted = Server::with(ServerLimits { connections_per_address: 8, ..limits }).await;
    for expected in [401, 429] {
        let request =
            format!("GET /v1/tasks HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {guess}\r\n");
        let answer = untrusted.exchange(format!("{request}{}\r\n", client(expected as u8)).as_bytes()).await;
        assert_eq!(status(&answer), expected);
    }
}

#[tokio::test]
async fn request_without_one_readable_host_is_refused() {
    let server = Server::with(ServerLimits::default()).await;
    for (hosts, expected) in [
        ("host: x\r\n", 200),
        ("host: [::1]:7700\r\n", 200),
        ("", 400),
        ("host: x\r\nhost: x\r\n", 400),
        ("host: \r\n", 400),
        ("host: user@x\r\n", 400),
        ("host: x:port\r\n", 400),
        ("host: x, y\r\n", 400),
    ] {
        let request = format!("GET /healthz HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let answer = server.exchange(request.as_bytes()).await;
        assert_eq!(status(&answer), expected, "{hosts:?}: {answer}");
        assert!(expected == 200 || answer.contains("urn:reveille:problem:malformed"), "{answer}");
    }
}
