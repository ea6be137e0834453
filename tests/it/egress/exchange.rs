//! One exchange: names are looked up once and all their addresses judged, sizes and times are bounded.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use reveille::base::secret::Secret;
use reveille::ports::egress::{Egress, EgressError, EgressRequest, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wiremock::matchers::{body_string, header as has_header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{Names, denied, egress, settings};
use crate::support::broken_servers::ClosedPort;

fn get(url: impl Into<String>) -> EgressRequest {
    EgressRequest::new(Method::GET, url)
}

/// Answers every connection with `answer` after its request's head, then does `after` with it.
async fn raw_server(answer: &'static [u8], hold: bool) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = vec![];
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = socket.read(&mut head).await;
            let _ = socket.write_all(answer).await;
            if hold {
                held.push(socket);
            }
        }
    });
    address
}

#[tokio::test]
async fn request_goes_out_whole_and_its_answer_comes_back_whole() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/orders"))
        .and(body_string("one"))
        .and(has_header("x-api-key", "k"))
        .and(has_header("user-agent", concat!("reveille/", env!("CARGO_PKG_VERSION"))))
        .respond_with(ResponseTemplate::new(418).insert_header("x-answer", "yes").set_body_string("short and stout"))
        .mount(&server)
        .await;
    let mut request =
        EgressRequest { body: "one".into(), ..EgressRequest::new(Method::POST, format!("{}/orders", server.uri())) };
    request.headers.insert("x-api-key", HeaderValue::from_static("k"));
    let response = egress(&["127.0.0.1:*"]).fetch(request).await.unwrap();
    assert_eq!(
        (response.status, &response.headers["x-answer"], response.body),
        (StatusCode::IM_A_TEAPOT, &HeaderValue::from_static("yes"), Bytes::from("short and stout"))
    );
    assert_eq!(response.url.as_str(), format!("{}/orders", server.uri()));
}

#[tokio::test]
async fn private_address_gets_no_connection() {
    let server = MockServer::start().await;
    let why = denied(egress(&[]).fetch(get(server.uri())).await);
    assert!(why.starts_with("127.0.0.1 is loopback"), "{why}");
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn egress_denies_a_name_with_one_private_address() {
    let names = Names::default().with("mixed.example", &[&["93.184.216.34", "2606:4700::1111", "10.0.0.7"]]);
    let egress = Egress::with_resolver(&settings(&[]), names).unwrap();
    let why = denied(egress.fetch(get("http://mixed.example/")).await);
    assert!(why.starts_with("mixed.example (10.0.0.7) is private"), "{why}");
}

#[tokio::test]
async fn every_kind_of_private_answer_condemns_a_name() {
    let kinds = [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.1.1",
        "172.16.0.1",
        "192.168.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "2002:a00:1::1",
        "2001:0:1::1",
        "fc00::1",
        "fd00::1",
        "fe80::1",
        "ff02::1",
        "2001:db8::1",
    ];
    for ip in kinds {
        let names = Names::default().with("host.example", &[&[ip]]);
        let egress = Egress::with_resolver(&settings(&[]), names).unwrap();
        denied(egress.fetch(get("http://host.example/")).await);
    }
}

#[tokio::test]
async fn name_is_looked_up_once_and_the_judged_address_is_the_one_connected_to() {
    // the same port on two loopback addresses: only the first may ever be asked
    let first = MockServer::builder().listener(std::net::TcpListener::bind("127.0.0.2:0").unwrap()).start().await;
    let port = first.address().port();
    let rebound = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is free on 127.0.0.1, too");
    let second = MockServer::builder().listener(rebound).start().await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200).set_body_string("first")).mount(&first).await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200).set_body_string("second")).mount(&second).await;

    let names = Names::default().with("rebind.example", &[&["127.0.0.2"], &["127.0.0.1"]]);
    let egress = Egress::with_resolver(&settings(&["127.0.0.2:*"]), names.clone()).unwrap();
    let url = format!("http://rebind.example:{port}/");
    assert_eq!(egress.fetch(get(&url)).await.unwrap().body, "first");
    assert_eq!(names.asked(), ["rebind.example"]);

    // the next request asks again and is judged again: no connection is kept that a later answer would not allow
    let why = denied(egress.fetch(get(&url)).await);
    assert!(why.starts_with("rebind.example (127.0.0.1) is loopback"), "{why}");
    assert_eq!(second.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn name_that_the_operator_opened_may_lead_to_a_private_address() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .and(has_header("host", format!("hooks.internal:{}", server.address().port())))
        .respond_with(ResponseTemplate::new(204))
        .mount(&server)
        .await;
    let names = Names::default().with("hooks.internal", &[&["127.0.0.1"]]);
    let egress = Egress::with_resolver(&settings(&["hooks.internal:*"]), names).unwrap();
    let url = format!("http://hooks.internal:{}/", server.address().port());
    assert_eq!(egress.fetch(get(url)).await.unwrap().status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn port_that_is_open_for_one_network_only_is_judged_with_the_address() {
    let names =
        Names::default().with("inside.example", &[&["10.0.0.1"]]).with("outside.example", &[&["93.184.216.34"]]);
    let egress = Egress::with_resolver(&settings(&["10.0.0.0/8:9000"]), names).unwrap();
    let why = denied(egress.fetch(get("http://outside.example:9000/")).await);
    assert!(why.starts_with("port 9000 of outside.example (93.184.216.34) is not open"), "{why}");
    let inside = EgressRequest { timeout: Duration::from_millis(50), ..get("http://inside.example:9000/") };
    assert!(!matches!(egress.fetch(inside).await, Err(EgressError::Denied { .. })));
}

#[tokio::test]
async fn unknown_name_is_a_failure_to_connect() {
    let answer = egress(&[]).fetch(get("http://nowhere.example/")).await.unwrap_err();
    assert_eq!(answer.to_string(), "can't connect: the name nowhere.example can't be looked up: no such name");
}

#[tokio::test]
async fn headers_that_are_not_the_callers_are_refused() {
    for name in
        ["host", "content-length", "transfer-encoding", "connection", "upgrade", "proxy-authorization", "te", "expect"]
    {
        let mut request = get("http://8.8.8.8/");
        request.headers.insert(name, HeaderValue::from_static("x"));
        let error = egress(&[]).fetch(request).await.unwrap_err();
        assert_eq!(error.to_string(), format!("invalid request: the header `{name}` can't be set"));
    }
}

#[tokio::test]
async fn body_is_read_up_to_the_limit_and_not_a_byte_further() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(201).set_body_bytes(vec![b'x'; 1000]))
        .mount(&server)
        .await;
    let egress = egress(&["127.0.0.1:*"]);
    let whole = egress.fetch(EgressRequest { max_bytes: 1000, ..get(server.uri()) }).await.unwrap();
    assert_eq!(whole.body.len(), 1000);
    let cut = egress.fetch(EgressRequest { max_bytes: 999, ..get(server.uri()) }).await.unwrap_err();
    assert_eq!(cut, EgressError::TooLarge { status: StatusCode::CREATED, limit: 999 });
}

#[tokio::test]
async fn body_is_counted_after_decompression() {
    use std::io::Write;
    let mut bomb = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    bomb.write_all(&vec![0; 16 * 1024 * 1024]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 20_000, "it is small on the wire");
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(200).insert_header("content-encoding", "gzip").set_body_bytes(bomb);
    Mock::given(method("GET")).respond_with(answer).mount(&server).await;
    let error = egress(&["127.0.0.1:*"]).fetch(get(server.uri())).await.unwrap_err();
    assert_eq!(error, EgressError::TooLarge { status: StatusCode::OK, limit: 1024 * 1024 });
}

#[tokio::test]
async fn compressed_answer_comes_back_plain() {
    use std::io::Write;
    let mut small = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    small.write_all(b"hello").unwrap();
    let server = MockServer::start().await;
    let answer =
        ResponseTemplate::new(200).insert_header("content-encoding", "gzip").set_body_bytes(small.finish().unwrap());
    Mock::given(method("GET")).and(has_header("accept-encoding", "gzip")).respond_with(answer).mount(&server).await;
    assert_eq!(egress(&["127.0.0.1:*"]).fetch(get(server.uri())).await.unwrap().body, "hello");
}

#[tokio::test]
async fn server_that_hangs_is_given_up() {
    let silent = raw_server(b"", true).await;
    let half = raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", true).await;
    for address in [silent, half] {
        let after = Duration::from_millis(200);
        let request = EgressRequest { timeout: after, ..get(format!("http://{address}/")) };
        assert_eq!(egress(&["127.0.0.1:*"]).fetch(request).await.unwrap_err(), EgressError::Timeout { after });
    }
}

#[tokio::test]
async fn server_that_breaks_off_is_told_from_one_that_is_not_there() {
    let egress = egress(&["127.0.0.1:*"]);
    let closes = raw_server(b"", false).await;
    let halfway = raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", false).await;
    let no_http = raw_server(b"SSH-2.0-OpenSSH_9.2\r\n", false).await;
    for address in [closes, halfway, no_http] {
        let error = egress.fetch(get(format!("http://{address}/?key=canary"))).await.unwrap_err();
        assert!(matches!(error, EgressError::Broken { .. }), "{error:?}");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
    let closed = ClosedPort::bind();
    let absent = egress.fetch(get(format!("http://{}/?key=canary", closed.address()))).await.unwrap_err();
    assert!(matches!(absent, EgressError::Connect { .. }), "{absent:?}");
    assert!(!absent.to_string().contains("canary"), "{absent}");
}

#[tokio::test]
async fn configured_proxy_is_used_and_the_target_is_judged_all_the_same() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://ann:secret@{}", proxy.local_addr().unwrap());
    let names =
        Names::default().with("public.example", &[&["93.184.216.34"]]).with("private.example", &[&["10.0.0.1"]]);
    let settings = Settings { proxy: Some(Secret::new(url)), ..Settings::default() };
    let egress = Egress::with_resolver(&settings, names).unwrap();
    let served = tokio::spawn(async move {
        let (mut socket, _) = proxy.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let length = socket.read(&mut head).await.unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    });
    denied(egress.fetch(get("http://private.example/")).await);
    assert_eq!(egress.fetch(get("http://public.example/a")).await.unwrap().body, "ok");
    let head = served.await.unwrap().to_lowercase();
    assert!(head.starts_with("get http://public.example/a http/1.1\r\n"), "{head}");
    assert!(head.contains("proxy-authorization: basic yw5uonnly3jlda=="), "{head}");
}

#[tokio::test]
async fn operators_client_reaches_private_addresses_and_follows_no_redirect() {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(302).insert_header(header::LOCATION.as_str(), "/elsewhere");
    Mock::given(path("/")).respond_with(answer).expect(1).mount(&server).await;
    let client = reveille::ports::egress::operator_client(Duration::from_secs(5));
    assert_eq!(client.get(server.uri()).send().await.unwrap().status(), StatusCode::FOUND);
}
