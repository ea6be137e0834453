//! Redirects: each place judged like the first, few of them, and nothing secret carried on to another origin.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reveille::ports::egress::{Egress, EgressError, EgressRequest};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{Names, denied, egress, settings};

async fn redirecting(server: &MockServer, from: &str, status: u16, to: &str) {
    let answer = ResponseTemplate::new(status).insert_header("location", to);
    Mock::given(path(from)).respond_with(answer).mount(server).await;
}

async fn answering(server: &MockServer, at: &str) {
    Mock::given(path(at)).respond_with(ResponseTemplate::new(200).set_body_string("here")).mount(server).await;
}

fn local() -> Egress {
    egress(&["127.0.0.1:*"])
}

fn secrets() -> HeaderMap {
    let names = ["authorization", "cookie", "x-api-key", "webhook-signature"];
    let mut headers: HeaderMap =
        names.into_iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("canary"))).collect();
    headers.insert("accept", HeaderValue::from_static("application/json"));
    let mut sensitive = HeaderValue::from_static("canary");
    sensitive.set_sensitive(true);
    headers.insert("accept-language", sensitive);
    headers
}

/// The last request to a server.
async fn last(server: &MockServer) -> wiremock::Request {
    server.received_requests().await.unwrap().pop().expect("a request")
}

#[tokio::test]
async fn redirect_within_the_origin_keeps_everything() {
    let server = MockServer::start().await;
    redirecting(&server, "/a", 307, "/b?x=1").await;
    answering(&server, "/b").await;
    let request = EgressRequest {
        headers: secrets(),
        body: "one".into(),
        ..EgressRequest::new(Method::PUT, format!("{}/a", server.uri()))
    };
    let response = local().fetch(request).await.unwrap();
    assert_eq!((response.status, response.url.as_str()), (StatusCode::OK, format!("{}/b?x=1", server.uri()).as_str()));
    let there = last(&server).await;
    assert_eq!((there.method.as_str(), there.body.as_slice()), ("PUT", b"one".as_slice()));
    assert!(secrets().iter().all(|(name, value)| there.headers.get(name) == Some(value)), "{:?}", there.headers);
}

#[tokio::test]
async fn redirect_to_another_origin_drops_secrets() {
    let (here, there) = (MockServer::start().await, MockServer::start().await);
    redirecting(&here, "/a", 302, &format!("{}/b", there.uri())).await;
    answering(&there, "/b").await;
    let request = EgressRequest { headers: secrets(), ..EgressRequest::new(Method::GET, format!("{}/a", here.uri())) };
    assert_eq!(local().fetch(request).await.unwrap().body, "here");
    let headers = last(&there).await.headers;
    assert_eq!(headers.get("accept"), Some(&HeaderValue::from_static("application/json")));
    assert!(!format!("{headers:?}").contains("canary"), "{headers:?}");
    assert_eq!(headers.get("referer"), None);
}

#[tokio::test]
async fn header_dropped_at_a_redirect_does_not_come_back() {
    let (here, there) = (MockServer::start().await, MockServer::start().await);
    redirecting(&here, "/a", 302, &format!("{}/b", there.uri())).await;
    redirecting(&there, "/b", 302, &format!("{}/c", here.uri())).await;
    answering(&here, "/c").await;
    let request = EgressRequest { headers: secrets(), ..EgressRequest::new(Method::GET, format!("{}/a", here.uri())) };
    local().fetch(request).await.unwrap();
    assert!(!format!("{:?}", last(&here).await.headers).contains("canary"));
}

#[tokio::test]
async fn body_is_not_carried_to_another_origin() {
    let (here, there) = (MockServer::start().await, MockServer::start().await);
    for status in [307, 308] {
        redirecting(&here, &format!("/{status}"), status, &there.uri()).await;
        let request = EgressRequest {
            body: "canary".into(),
            ..EgressRequest::new(Method::POST, format!("{}/{status}", here.uri()))
        };
        let why = denied(local().fetch(request).await);
        assert!(why.starts_with("the body would be carried on to another origin"), "{why}");
    }
    assert_eq!(there.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn methods_change_as_the_standard_has_it() {
    let cases = [
        (301, Method::POST, "GET", ""),
        (302, Method::POST, "GET", ""),
        (303, Method::POST, "GET", ""),
        (303, Method::PUT, "GET", ""),
        (301, Method::PUT, "PUT", "one"),
        (307, Method::POST, "POST", "one"),
        (308, Method::POST, "POST", "one"),
    ];
    for (status, sent, received, body) in cases {
        let server = MockServer::start().await;
        redirecting(&server, "/a", status, "/b").await;
        answering(&server, "/b").await;
        let request =
            EgressRequest { body: "one".into(), ..EgressRequest::new(sent.clone(), format!("{}/a", server.uri())) };
        local().fetch(request).await.unwrap();
        let there = last(&server).await;
        assert_eq!(
            (there.method.as_str(), there.body.as_slice()),
            (received, body.as_bytes()),
            "{status} after {sent}"
        );
    }
}

#[tokio::test]
async fn three_redirects_are_followed_and_a_fourth_is_not() {
    let server = MockServer::start().await;
    for (from, to) in [("/0", "/1"), ("/1", "/2"), ("/2", "/3"), ("/3", "/4")] {
        redirecting(&server, from, 302, to).await;
    }
    answering(&server, "/4").await;
    let get = |from: &str| EgressRequest::new(Method::GET, format!("{}{from}", server.uri()));
    assert_eq!(local().fetch(get("/1")).await.unwrap().body, "here");
    assert_eq!(local().fetch(get("/0")).await.unwrap_err(), EgressError::TooManyRedirects);
}

#[tokio::test]
async fn each_place_is_judged_like_the_first() {
    let server = MockServer::start().await;
    let port = server.address().port();
    let places = [
        "http://169.254.169.254/latest/meta-data".to_owned(),
        format!("http://[::1]:{port}/"),
        format!("http://127.0.0.2:{port}/"),
        format!("http://0x7f000002:{port}/"),
        "http://10.0.0.1/".to_owned(),
        "//10.0.0.1/".to_owned(),
        "http://metadata.google.internal/".to_owned(),
        "http://private.example/".to_owned(),
        "http://8.8.8.8:22/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "gopher://127.0.0.1:6379/_INFO".to_owned(),
    ];
    let names = Names::default().with("private.example", &[&["192.168.0.1"]]);
    let egress = Egress::with_resolver(&settings(&["127.0.0.1:*"]), names).unwrap();
    for (index, place) in places.iter().enumerate() {
        redirecting(&server, &format!("/{index}"), 302, place).await;
        denied(egress.fetch(EgressRequest::new(Method::GET, format!("{}/{index}", server.uri()))).await);
    }
    redirecting(&server, "/user", 302, &format!("http://user:password@127.0.0.1:{port}/")).await;
    let error = egress.fetch(EgressRequest::new(Method::GET, format!("{}/user", server.uri()))).await.unwrap_err();
    assert_eq!(error, EgressError::Invalid { why: "a URL may not hold a user or a password".into() });
}

#[tokio::test]
async fn redirect_is_the_answer_where_none_is_to_be_followed_or_none_is_named() {
    let server = MockServer::start().await;
    redirecting(&server, "/a", 302, "/b").await;
    Mock::given(method("GET")).and(path("/c")).respond_with(ResponseTemplate::new(304)).mount(&server).await;
    let at = |from: &str| EgressRequest::new(Method::GET, format!("{}{from}", server.uri()));
    let unfollowed = local().fetch(EgressRequest { follow_redirects: false, ..at("/a") }).await.unwrap();
    assert_eq!(
        (unfollowed.status, &unfollowed.headers["location"]),
        (StatusCode::FOUND, &HeaderValue::from_static("/b"))
    );
    assert_eq!(local().fetch(at("/c")).await.unwrap().status, StatusCode::NOT_MODIFIED);
}
