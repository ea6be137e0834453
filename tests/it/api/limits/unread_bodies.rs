//! Answers that are ready before the body of their request is read: they arrive whole, and the connection is kept or
//! closed as they say.

use std::time::Duration;

use reveille::base::clock::pause;
use reveille::http::server::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PATIENCE, Server, head, status};
use crate::api::service::ADMIN;

/// The header with which an answer ends its connection.
const CLOSES: &str = "\r\nconnection: close\r\n";

/// The head of a request that is refused for want of a token, whatever its body says.
fn without_token(body: &str) -> String {
    format!("POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{body}\r\n\r\n")
}

/// The answer to one request, with its body. The connection may stay open.
async fn answer(stream: &mut TcpStream) -> String {
    let mut answer = head(stream).await;
    let length = answer.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("the length of a body");
    let mut body = vec![0; length.parse().unwrap()];
    timeout(PATIENCE, stream.read_exact(&mut body)).await.expect("a body").expect("an open connection");
    answer.push_str(&String::from_utf8(body).unwrap());
    answer
}

/// The connection ends, and not by a reset.
async fn ends(stream: &mut TcpStream) {
    let more = timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("the connection is closed");
    assert_eq!(more.expect("it is closed in order"), 0, "nothing is sent behind the answer");
}

#[tokio::test]
async fn answer_to_a_long_refused_body_arrives_whole_and_closes_the_connection() {
    let limits = ServerLimits { body_bytes: 1024, import_bytes: 1024, ..ServerLimits::default() };
    let server = Server::with(limits).await;
    let (piece, pieces) = ("x".repeat(32 * 1024), 16);
    let length = format!("content-length: {}", piece.len() * pieces);
    let with_token = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n{body}\r\n\r\n")
    };
    for (request, expected) in [
        (without_token(&length), 401),
        (with_token("/v1/tasks", &length), 413),
        (with_token("/v1/tasks/import", &length), 413),
        (format!("POST /v1/nowhere HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n"), 404),
        (format!("POST /v1/tasks HTTP/1.1\r\nhost: x y\r\n{length}\r\n\r\n"), 400),
    ] {
        let mut client = server.connect().await;
        client.write_all(request.as_bytes()).await.unwrap();
        for _ in 0..pieces {
            client.write_all(piece.as_bytes()).await.expect("the rest is read");
        }
        let answer = answer(&mut client).await;
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.contains(CLOSES) && answer.ends_with('}'), "{answer}");
        ends(&mut client).await;
    }
    // a body whose length nobody has said, refused when it has become too long
    let mut client = server.connect().await;
    client.write_all(with_token("/v1/tasks", "transfer-encoding: chunked").as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
    for _ in 0..pieces {
        client.write_all(chunk.as_bytes()).await.expect("the rest is read");
    }
    client.write_all(b"0\r\n\r\n").await.expect("the rest is read");
    let answer = answer(&mut client).await;
    assert_eq!(status(&answer), 413, "{answer}");
    assert!(answer.contains(CLOSES) && answer.ends_with('}'), "{answer}");
    ends(&mut client).await;
}

#[tokio::test]
async fn short_refused_body_leaves_the_connection_usable() {
    let server = Server::with(ServerLimits::default()).await;
    let mut client = server.connect().await;
    // more than is read of a connection at once
    let body = "x".repeat(60_000);
    let sized = without_token(&format!("content-length: {}", body.len()));
    let chunked = without_token("transfer-encoding: chunked");
    for request in [format!("{sized}{body}"), format!("{chunked}{:x}\r\n{body}\r\n0\r\n\r\n", body.len())] {
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = answer(&mut client).await;
        assert_eq!(status(&answer), 401, "{answer}");
        assert!(!answer.contains("connection: close"), "{answer}");
    }
    // a body that comes behind its head
    client.write_all(without_token("content-length: 4").as_bytes()).await.unwrap();
    pause(Duration::from_millis(10)).await;
    client.write_all(b"null").await.unwrap();
    let refused = answer(&mut client).await;
    assert_eq!(status(&refused), 401, "{refused}");
    assert!(!refused.contains("connection: close"), "{refused}");

    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let next = answer(&mut client).await;
    assert_eq!(status(&next), 200, "the connection is as good as before: {next}");
}

#[tokio::test]
async fn body_that_its_client_holds_back_is_not_asked_for_where_the_request_is_refused() {
    let server = Server::with(ServerLimits::default()).await;
    let mut client = server.connect().await;
    client.write_all(without_token("content-length: 4\r\nexpect: 100-continue").as_bytes()).await.unwrap();
    let answer = answer(&mut client).await;
    assert_eq!(status(&answer), 401, "{answer}");
    assert!(answer.contains(CLOSES), "{answer}");
    // a client that sends all the same is heard to the end
    client.write_all(b"null").await.unwrap();
    ends(&mut client).await;
}

#[tokio::test]
async fn client_that_sends_for_ever_behind_its_answer_is_cut() {
    let server = Server::with(ServerLimits::default()).await;
    let request = without_token("transfer-encoding: chunked");
    // as fast as it can: the bytes are bounded
    let mut fast = server.connect().await;
    fast.write_all(request.as_bytes()).await.unwrap();
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    let cut = timeout(PATIENCE, async { while fast.write_all(chunk.as_bytes()).await.is_ok() {} });
    cut.await.expect("the connection is cut");

    // a little at a time: the time is bounded
    let mut slow = server.connect().await;
    slow.write_all(request.as_bytes()).await.unwrap();
    slow.write_all(b"1\r\nx\r\n").await.unwrap();
    let answer = answer(&mut slow).await;
    assert_eq!(status(&answer), 401, "{answer}");
    assert!(answer.contains(CLOSES), "{answer}");
    let mut taken = 0;
    let cut = timeout(PATIENCE, async {
        while slow.write_all(b"1\r\nx\r\n").await.is_ok() {
            taken += 1;
            pause(Duration::from_millis(50)).await;
        }
    });
    cut.await.expect("the connection is cut");
    assert!(taken > 3, "the rest was read for a while: {taken}");
}
