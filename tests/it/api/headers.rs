//! Arbitrary bytes and extreme numbers in every header that is read, and in every number of a query, against every
//! operation: each is answered, and none with a fault of the service.
//!
//! Which header an operation reads does not matter: each may get each of them, so one that is read later is tried as
//! well.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use reveille::http::server::Peer;
use reveille::http::server::proxies::{ForwardedHeader, TrustedProxies};
use reveille::ports::egress::retry_after;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::service::{ADMIN, Api};

/// Headers that a service, a proxy or a browser may send.
const HEADERS: [&str; 46] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "authorization",
    "ce-datacontenttype",
    "ce-dataschema",
    "ce-extension",
    "ce-id",
    "ce-source",
    "ce-specversion",
    "ce-subject",
    "ce-tenantid",
    "ce-time",
    "ce-type",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "last-event-id",
    "origin",
    "range",
    "sec-fetch-site",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "stripe-signature",
    "traceparent",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-door",
    "x-forwarded-for",
    "x-github-event",
    "x-hub-signature-256",
    "x-slack-request-timestamp",
    "x-slack-signature",
];

/// Numbers at the ends of what they may be, and what looks like one.
const NUMBERS: [&str; 18] = [
    "0",
    "-0.0",
    "-1",
    "1",
    "201",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "170141183460469231731687303715884105728",
    "1e308",
    "1e999",
    "NaN",
    "inf",
    "0x10",
    "00000000000000000001",
    "+7",
    " 7 ",
];

/// Values that some header may hold, so that the code behind its first check is reached as well.
const WORDS: [&str; 22] = [
    "",
    "application/json",
    "application/json; charset=\"utf-8\"; charset",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/x-www-form-urlencoded",
    "bytes=0-9223372036854775807,-1",
    "chunked",
    "for=\"[2001:db8::1]:4711\";proto=https, for=_hidden, for=unknown, for=\"",
    "127.0.0.1, ::1, 1.2.3.4:99999, [::, ,,",
    "reveille.example.org:65536",
    "[::1",
    "a@b/c",
    "Bearer ",
    "Bearer rv_t_0000000000000000000000000000000000000000000000000000",
    "Basic dXNlcjpwYXNzd29yZA==",
    "t=18446744073709551616,v1=00,v1=zz",
    "v0=0000000000000000000000000000000000000000000000000000000000000000",
    "v1,AAAA v1a,x v1,",
    "sha256=00",
    "1.0",
    "2026-11-21T00:00:00.999999999999999999999Z",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(NUMBERS.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        prop::sample::select(WORDS.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
        (prop::sample::select(vec![b'a', b',', b' ', b';', b'"', b'[', b'9', 0xFF]), 0_usize..20_000)
            .prop_map(|(byte, count)| vec![byte; count]),
    ]
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    prop::collection::vec((prop::sample::select(HEADERS.to_vec()), value()), 1..6)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(20_261_124),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The headers that HTTP lets through.
fn written(headers: &[(&'static str, Vec<u8>)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            map.append(HeaderName::from_static(name), value);
        }
    }
    map
}

/// An address of an operation, on things that are not there, or may be.
fn url_of(template: &str) -> String {
    template
        .replace("{id}", "00000000-0000-0000-0000-000000000001")
        .replace("{tenant_id}", "ann")
        .replace("{task_id}", "00000000-0000-0000-0000-000000000001")
        .replace("{source}", "standard")
        .replace("{channel}", "sms")
        .replace("{token}", "none")
        .replace("{ticket}", "none")
        .replace("{service}", "google")
        .replace("{account_name}", "work")
}

/// A service whose streams end at once.
fn api(runtime: &Runtime) -> Api {
    let api = runtime.block_on(Api::new());
    api.stop.cancel();
    api
}

#[test]
fn headers_of_any_bytes_are_answered_by_every_operation_and_never_with_a_fault() {
    let runtime = Runtime::new().unwrap();
    let api = api(&runtime);
    let mut operations: Vec<(String, String)> =
        api.operations().into_iter().map(|(_, method, path)| (method, url_of(&path))).collect();
    // each kind of hook reads headers of its own
    for hook in ["github", "stripe", "slack", "door", "bare"] {
        operations.extend(vec![("POST".to_owned(), format!("/v1/hooks/{hook}")); 4]);
    }
    operations.extend(vec![("POST".to_owned(), "/v1/events".to_owned()); 8]);
    let bodies = ["", "{}", "[]", "7", "{", "a=b&c", "{\"source\":\"s\",\"type\":\"t\"}"];
    let asked = (prop::sample::select(operations), headers(), prop::sample::select(bodies.to_vec()), any::<bool>());
    let outcome = TestRunner::new(config(1_000)).run(&asked, |((method, path), headers, body, is_known)| {
        let mut request = Request::builder().method(method.as_str()).uri(&path).body(Body::from(body)).unwrap();
        *request.headers_mut() = written(&headers);
        if is_known {
            request.headers_mut().insert("authorization", format!("Bearer {ADMIN}").parse().unwrap());
            request.headers_mut().entry("content-type").or_insert(HeaderValue::from_static("application/json"));
        }
        request.extensions_mut().insert(Peer([192, 0, 2, 7].into()));
        let reply = runtime.block_on(api.send(request));
        prop_assert!(!reply.status.is_server_error(), "{method} {path} {headers:?}: {} {}", reply.status, reply.body);
        // so that a case does not go by what others have guessed
        api.advance(61);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn numbers_of_a_query_are_answered_at_their_extremes_and_never_with_a_fault() {
    let runtime = Runtime::new().unwrap();
    let api = api(&runtime);
    let mut asked = 0;
    for (id, method, template) in api.operations() {
        let operation = &api.reference.document["paths"][&template][method.to_lowercase()];
        for parameter in operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query") {
            let name = parameter["name"].as_str().unwrap();
            let is_number = |schema: &Value| schema["type"].to_string().contains("integer");
            for number in NUMBERS {
                let query: String = url::form_urlencoded::byte_serialize(number.as_bytes()).collect();
                let path = format!("{}?{name}={query}", url_of(&template));
                let reply = runtime.block_on(api.admin(&method, &path, None));
                assert!(!reply.status.is_server_error(), "{id} {path}: {} {}", reply.status, reply.body);
                if is_number(&parameter["schema"]) && number.parse::<u32>().is_err() {
                    assert!(reply.status.is_client_error(), "{id} {path}: {}", reply.body);
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 50, "{asked}");
}

proptest! {
    #![proptest_config(config(2_000))]

    /// Behind a proxy the client is an address, whatever is said of it.
    #[test]
    fn headers_of_proxies_of_any_bytes_name_a_client(headers in headers(), lines in prop::collection::vec(value(), 0..4)) {
        for (kind, name) in [(ForwardedHeader::XForwardedFor, "x-forwarded-for"), (ForwardedHeader::Forwarded, "forwarded")] {
            let proxies = TrustedProxies::read(&["127.0.0.0/8".into(), "::1".into()], kind).unwrap();
            let mut map = written(&headers);
            for line in &lines {
                if let Ok(line) = HeaderValue::from_bytes(line) {
                    map.append(name, line);
                }
            }
            let stranger: IpAddr = [192, 0, 2, 7].into();
            prop_assert_eq!(proxies.client(stranger, &map), stranger);
            proxies.client([127, 0, 0, 1].into(), &map);
        }
    }

    /// Another side's wish to wait has a bound, and an instant can be counted from it.
    #[test]
    fn retry_after_of_any_bytes_is_no_longer_than_thirty_days(value in value()) {
        let mut map = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            map.insert("retry-after", value);
        }
        let now = super::service::at(super::service::START);
        if let Some(wait) = retry_after(&map, now) {
            prop_assert!(wait <= std::time::Duration::from_secs(30 * 86_400), "{wait:?}");
            prop_assert!(now + chrono::TimeDelta::from_std(wait).unwrap() >= now);
        }
    }
}
