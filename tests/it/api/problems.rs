//! One envelope for everything that goes wrong, and words that help.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::service::{ADMIN, Api, daily_of};

#[tokio::test]
async fn address_that_is_not_there_and_a_method_it_does_not_take() {
    let api = Api::new().await;
    let reply = api.ask("GET", "/v1/taks", None, None).await;
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(
        reply.expect(404),
        json!({
            "type": "urn:reveille:problem:not-found", "title": "Nothing is here", "status": 404,
            "detail": "there is no address /v1/taks; see /openapi.json",
        })
    );
    let reply = api.admin("PUT", "/v1/tasks", Some(json!({}))).await;
    let mut allowed: Vec<&str> = reply.header("allow").split(',').collect();
    allowed.sort();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
    assert_eq!(reply.expect(405)["type"], "urn:reveille:problem:method-not-allowed");
}

#[tokio::test]
async fn body_that_can_not_be_read_is_told_with_line_and_column() {
    let api = Api::new().await;
    let post = async |kind: &str, body: &'static str| {
        let request = Request::post("/v1/tasks").header("authorization", format!("Bearer {ADMIN}"));
        let request = request.header("content-type", kind).body(Body::from(body)).unwrap();
        let reply = api.send(request).await;
        (reply.status.as_u16(), reply.body["detail"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        post("application/json", "{\n  \"name\": }").await,
        (400, "the body is not JSON: expected value at line 2 column 11".into())
    );
    assert_eq!(
        post("application/json", "").await,
        (400, "the body is not JSON: EOF while parsing a value at line 1 column 0".into())
    );
    assert_eq!(
        post("text/plain", "{}").await,
        (415, "send the body as JSON, with `Content-Type: application/json`".into())
    );
    assert_eq!(post("application/json", "[]").await.0, 422);
    let deep: &'static str = Box::leak("[".repeat(100_000).into_boxed_str());
    assert_eq!(post("application/json", deep).await.0, 400, "nesting must not reach the stack's end");
}

#[tokio::test]
async fn query_is_held_to_what_is_known_there() {
    let api = Api::new().await;
    for (path, pointer, message) in [
        ("/v1/runs?state=quued", "/state", "did you mean `queued`?"),
        ("/v1/runs?sate=queued", "/sate", "did you mean `state`?"),
        ("/v1/runs?since=yesterday", "/since", "must be an RFC 3339 time"),
        ("/v1/runs?task_id=7", "/task_id", "must be a UUID"),
        ("/v1/tasks?limit=1000", "/limit", "must be from 1 to 200"),
        ("/v1/tasks?cursor=x", "/cursor", "must be the next_cursor of an earlier answer"),
        ("/v1/tasks?trigger_type=shedule", "/trigger_type", "did you mean `schedule`?"),
        ("/v1/deliveries?state=sent&state=sent", "/state", "must be given once"),
        ("/v1/stats?x=1", "/x", "unknown parameter"),
    ] {
        let problem = api.admin("GET", path, None).await.expect(400);
        assert_eq!(problem["type"], "urn:reveille:problem:invalid-query");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{path}: {problem}");
        assert!(problem["errors"][0]["message"].as_str().unwrap().contains(message), "{path}: {problem}");
    }
}

#[tokio::test]
async fn id_that_can_not_be_one_is_not_found() {
    let api = Api::new().await;
    for path in ["/v1/tasks/7", "/v1/runs/%00", "/v1/runs/..%2f..", "/v1/runs/7/stream", "/v1/recipients/%0a"] {
        assert_eq!(api.admin("GET", path, None).await.expect(404)["title"], "Nothing is here", "{path}");
    }
}

#[tokio::test]
async fn token_is_sent_once_and_as_a_bearer() {
    let api = Api::new().await;
    let ask = async |headers: &[&str]| {
        let mut request = Request::get("/v1/tasks");
        for header in headers {
            request = request.header("authorization", *header);
        }
        api.send(request.body(Body::empty()).unwrap()).await.status.as_u16()
    };
    let admin = format!("bearer {ADMIN}");
    assert_eq!(ask(&[&admin]).await, 200);
    for bad in [&["Bearer"][..], &["Bearer "], &["Basic YTpi"], &[&admin, &admin], &[ADMIN], &["Bearer \u{7f}"]] {
        if bad.iter().all(|value| value.parse::<axum::http::HeaderValue>().is_ok()) {
            assert_eq!(ask(bad).await, 401, "{bad:?}");
        }
    }
}

#[tokio::test]
async fn every_answer_has_an_id_and_is_kept_by_no_cache() {
    let api = Api::new().await;
    let first = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await;
    let second = api.ask("GET", "/nowhere", None, None).await;
    for reply in [&first, &second] {
        assert!(reply.header("x-request-id").parse::<uuid::Uuid>().is_ok());
        assert_eq!(reply.header("cache-control"), "no-store");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

#[tokio::test]
async fn readiness_follows_the_services_and_the_stop() {
    let api = Api::new().await;
    let ready = json!({
        "ready": true, "database": true, "bus": true, "clock": true, "warnings": [], "late_services": [], "stopping": false,
        "work_stopped": false,
    });
    assert_eq!(api.ask("GET", "/readyz", None, None).await.expect(200), ready);
    api.metrics.expect_ticks("scheduler", std::time::Duration::from_secs(10));
    api.metrics.ticked("scheduler", true, api.clock.now());
    api.advance(11);
    let late = json!([{ "service": "scheduler", "last_success": "2026-11-21T00:00:00Z" }]);
    assert_eq!(api.ask("GET", "/readyz", None, None).await.expect(503)["late_services"], late);
    api.metrics.ticked("scheduler", true, api.clock.now());
    api.ask("GET", "/readyz", None, None).await.expect(200);
    api.stopping.cancel();
    assert_eq!(api.ask("GET", "/readyz", None, None).await.expect(503)["stopping"], true);
    assert_eq!(api.ask("GET", "/healthz", None, None).await.expect(200), json!({ "status": "ok" }));
}

#[tokio::test]
async fn requests_are_counted_by_their_route_and_not_by_their_address() {
    let api = Api::new().await;
    for id in [uuid::Uuid::nil(), uuid::Uuid::max()] {
        api.admin("GET", &format!("/v1/tasks/{id}"), None).await.expect(404);
    }
    let line = r#"reveille_http_requests_total{method="GET",route="/v1/tasks/{id}",status="404"} 2"#;
    let text = api.metrics.text();
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(!text.contains(&uuid::Uuid::max().to_string()));
}

/// A text of 390 KB: what it names is nothing, and nothing looks at it for long.
#[tokio::test]
async fn long_text_is_refused_wherever_it_is_written_and_never_echoed() {
    let api = Api::new().await;
    let long = "Europe/Berlin".repeat(30_000);
    let schedule = |field: &str| json!({ "type": "schedule", "cron": "0 8 * * *", field: long });
    let with = |field: &str, value: serde_json::Value| {
        let mut task = daily_of("ann");
        task[field] = value;
        task
    };
    let mut bodies = vec![
        ("PUT", "/v1/recipients/ann", json!({ "timezone": long, "addresses": { "sms": long } })),
        ("PUT", "/v1/recipients/ann", json!({ "addresses": { "email": long, long.as_str(): 1 } })),
        ("PUT", "/v1/recipients/ann", json!({ "addresses": { "webhook": { "url": long } }, "locale": long })),
        ("POST", "/v1/tokens", json!({ "tenant_id": long, "name": "x", "scopes": [long] })),
        ("POST", "/v1/events", json!({ "tenant_id": "ann", "source": "s", "type": "t", "time": long })),
        ("POST", "/v1/events", json!({ "tenant_id": long, "source": "s", "type": "t" })),
        ("POST", "/v1/schedules/preview", json!({ "trigger": { "type": long } })),
        ("POST", "/v1/tasks", json!({ "name": "x", "trigger": { "type": "schedule", "interval": long } })),
        ("POST", "/v1/tasks", with("output", json!({ "channel": long, "urgency": long }))),
        ("POST", "/v1/tasks", with("notify", json!(long))),
        ("POST", "/v1/tasks", with("executor", json!(long))),
        ("POST", "/v1/tasks", with(&long, json!(1))),
    ];
    for field in ["timezone", "start_at", "end_at", "jitter", "catch_up", "catch_up_window", "overlap", "dst_gap"] {
        bodies.push(("POST", "/v1/tasks", with("trigger", schedule(field))));
        bodies.push(("POST", "/v1/schedules/preview", json!({ "trigger": schedule(field) })));
    }
    for field in ["cron", "interval", "at", "rrule"] {
        bodies.push(("POST", "/v1/tasks", with("trigger", json!({ "type": "schedule", field: long }))));
    }
    bodies.push((
        "POST",
        "/v1/tasks",
        with("trigger", json!({ "type": "schedule", "cron": "* * * * *", "exclude": [long] })),
    ));
    for (method, path, body) in bodies {
        let reply = api.admin(method, path, Some(body)).await;
        let answer = serde_json::to_string(&reply.expect(422)).unwrap();
        assert!(answer.len() < 8_000, "{method} {path} answers {} bytes: {}", answer.len(), &answer[..300]);
    }
}
