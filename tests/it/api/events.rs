//! Publishing events in every form, and the log of the bus.

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use futures::StreamExt;
use serde_json::{Value, json};
use tracing::Level;

use super::service::{ADMIN, Api, Reply};
use crate::support::log::logged;
use crate::support::sse::events_of;

/// Published events, oldest first.
async fn log(api: &Api, query: &str) -> Vec<Value> {
    let page = api.admin("GET", &format!("/v1/events{query}"), None).await.expect(200);
    page["items"].as_array().unwrap().clone()
}

/// Posts a body as it is.
async fn post(api: &Api, token: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Reply {
    let mut request = Request::post("/v1/events").header("authorization", format!("Bearer {token}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    api.send(request.body(Body::from(body.into())).unwrap()).await
}

fn places(problem: &Value) -> Vec<&str> {
    problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect()
}

const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json; charset=utf-8");
const BATCH: (&str, &str) = ("content-type", "application/cloudevents-batch+json");

#[tokio::test]
async fn short_form_is_an_event_of_the_token_s_tenant() {
    let api = Api::new().await;
    let ann = api.token("ann", &["events:publish"]).await;
    let body = json!({ "source": "mail", "type": "new", "data": { "from": "x" } });
    let ids = api.ask("POST", "/v1/events", Some(&ann), Some(body)).await.expect(202);
    let id = ids["ids"][0].as_str().unwrap();
    assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7);
    assert_eq!(
        log(&api, "").await,
        [json!({ "specversion": "1.0", "tenantid": "ann", "id": id, "source": "mail", "type": "new",
            "time": "2026-11-21T00:00:00.000Z", "data": { "from": "x" } })]
    );
    let list = json!([{ "source": "mail", "type": "a", "id": "1" }, { "source": "mail", "type": "b", "id": "2" }]);
    let ids = api.ask("POST", "/v1/events", Some(&ann), Some(list)).await.expect(202);
    assert_eq!(ids, json!({ "ids": ["1", "2"] }));
    assert_eq!(log(&api, "").await.len(), 3);
}

#[tokio::test]
async fn log_is_read_between_two_instants_in_either_order() {
    let api = Api::new().await;
    for id in ["1", "2", "3"] {
        let event = json!({ "tenant_id": "ann", "source": "mail", "type": "new", "id": id });
        api.admin("POST", "/v1/events", Some(event)).await.expect(202);
        api.advance(60);
    }
    let ids = async |query: &str| {
        let found = log(&api, query).await;
        found.iter().map(|event| event["id"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(ids("?since=2026-11-21T00:01:00Z").await, "23");
    assert_eq!(ids("?until=2026-11-21T00:01:00Z").await, "1");
    assert_eq!(ids("?since=2026-11-21T00:01:00Z&order=newest").await, "32");
    assert_eq!(ids("?since=2026-11-21T00:01:00Z&until=2026-11-21T00:02:00Z&order=newest").await, "2");
    assert_eq!(ids("?since=2026-11-21T00:02:00Z&until=2026-11-21T00:01:00Z").await, "");
    // a page goes on within the same instants
    let first = api.admin("GET", "/v1/events?order=newest&until=2026-11-21T00:02:00Z&limit=1", None).await.expect(200);
    assert_eq!(first["items"][0]["id"], "2");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = format!("?order=newest&until=2026-11-21T00:02:00Z&since=2026-11-21T00:00:00Z&cursor={cursor}");
    assert_eq!(ids(&second).await, "1");
    let problem = api.admin("GET", "/v1/events?since=yesterday", None).await.expect(400);
    assert_eq!(places(&problem), ["/since"]);
}

#[tokio::test]
async fn log_between_two_instants_has_events_whose_instants_are_not_in_the_order_of_their_places() {
    let api = Api::new().await;
    let publish = async |id: &str| {
        let event = json!({ "tenant_id": "ann", "source": "mail", "type": "new", "id": id });
        api.admin("POST", "/v1/events", Some(event)).await.expect(202);
    };
    api.advance(60);
    publish("later").await;
    // as an instance publishes whose clock is behind, or one that has waited for its turn
    api.advance(-5);
    publish("earlier").await;
    let ids = async |query: &str| {
        let found = log(&api, query).await;
        found.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for order in ["oldest", "newest"] {
        assert_eq!(ids(&format!("?order={order}&since=2026-11-21T00:00:58Z")).await, ["later"]);
        assert_eq!(ids(&format!("?order={order}&until=2026-11-21T00:00:58Z")).await, ["earlier"]);
    }
    assert_eq!(ids("?since=2026-11-21T00:00:55Z&until=2026-11-21T00:01:01Z").await, ["later", "earlier"]);
    assert_eq!(ids("?since=0000-01-01T00:00:00Z&until=9999-12-31T23:59:59Z").await, ["later", "earlier"]);
}

#[tokio::test]
async fn admin_names_the_tenant_and_a_tenant_can_name_no_other() {
    let api = Api::new().await;
    let body = |tenant: Value| Some(json!({ "tenant_id": tenant, "source": "mail", "type": "new", "id": "1" }));
    api.admin("POST", "/v1/events", body(json!("bob"))).await.expect(202);
    let problem = api.admin("POST", "/v1/events", body(Value::Null)).await.expect(422);
    assert_eq!(problem["errors"][0]["message"], "is missing: an admin token names the tenant");
    let ann = api.token("ann", &["events:publish"]).await;
    api.ask("POST", "/v1/events", Some(&ann), body(json!("ann"))).await.expect(202);
    let other = json!({ "specversion": "1.0", "id": "1", "source": "s", "type": "t", "tenantid": "bob" });
    assert_eq!(places(&post(&api, &ann, &[STRUCTURED], other.to_string()).await.expect(422)), ["/tenantid"]);
    let list = json!([{ "source": "mail", "type": "a" }, { "tenant_id": "bob", "source": "mail", "type": "b" }]);
    let problem = api.ask("POST", "/v1/events", Some(&ann), Some(list)).await.expect(422);
    assert_eq!(places(&problem), ["/1/tenant_id"]);
    let tenants: Vec<Value> = log(&api, "").await.into_iter().map(|event| event["tenantid"].clone()).collect();
    assert_eq!(tenants, ["bob", "ann"]);
}

#[tokio::test]
async fn structured_and_batched_cloudevents_are_taken_as_they_are() {
    let api = Api::new().await;
    let event = |id: &str| {
        json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": "order.paid", "tenantid": "ann",
            "subject": "42", "time": "2026-11-20T11:00:00.000Z", "datacontenttype": "application/json",
            "dataschema": "https://example.org/s", "traceparent": "00-1", "data": [1, 2.5, "é"] })
    };
    assert_eq!(post(&api, ADMIN, &[STRUCTURED], event("1").to_string()).await.expect(202), json!({ "ids": ["1"] }));
    let batch = json!([event("2"), event("3")]);
    assert_eq!(post(&api, ADMIN, &[BATCH], batch.to_string()).await.expect(202), json!({ "ids": ["2", "3"] }));
    // a CloudEvent that is called plain JSON is one all the same
    api.admin("POST", "/v1/events", Some(event("4"))).await.expect(202);
    assert_eq!(log(&api, "").await, ["1", "2", "3", "4"].map(event));
}

#[tokio::test]
async fn binary_form_has_its_attributes_in_headers() {
    let api = Api::new().await;
    let ann = api.token("ann", &["events:publish"]).await;
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/shop"),
        ("ce-type", "order.paid"),
        ("ce-subject", "Euro%20%E2%82%AC"),
        ("ce-myext", "x"),
    ];
    let with = |more: &[(&'static str, &'static str)]| [&headers[..], more].concat();
    post(&api, &ann, &with(&[("content-type", "application/json")]), r#"{"total": 12}"#).await.expect(202);
    let mut other = with(&[("content-type", "image/png")]);
    other[1].1 = "2";
    post(&api, &ann, &other, vec![0, 159, 146, 150]).await.expect(202);
    other[1].1 = "3";
    other.pop();
    post(&api, &ann, &other, "").await.expect(202);
    let expected = |id: &str, more: Value| {
        let mut event = json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": "order.paid", "tenantid": "ann",
            "subject": "Euro €", "myext": "x" });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    };
    let png = base64::engine::general_purpose::STANDARD.encode([0, 159, 146, 150]);
    assert_eq!(
        log(&api, "").await,
        [
            expected("1", json!({ "datacontenttype": "application/json", "data": { "total": 12 } })),
            expected("2", json!({ "datacontenttype": "image/png", "data_base64": png })),
            expected("3", json!({})),
        ]
    );

    let twice = with(&[("ce-myext", "y"), ("ce-data", "x"), ("ce-bad_name", "x"), ("ce-broken", "%f")]);
    let problem = post(&api, &ann, &twice, "").await.expect(422);
    let mut found = places(&problem);
    found.sort_unstable();
    assert_eq!(found, ["/bad_name", "/broken", "/data", "/myext"]);
    post(&api, &ann, &with(&[("content-type", "application/json")]), "{").await.expect(400);
}

#[tokio::test]
async fn nothing_of_a_batch_is_published_when_one_is_not_valid_and_every_fault_is_told() {
    let api = Api::new().await;
    let batch = json!([
        { "specversion": "1.0", "id": "1", "source": "s", "type": "t", "tenantid": "ann" },
        { "specversion": "0.3", "id": 2, "source": "", "tenantid": "ann" },
        "no event",
        { "specversion": "1.0", "id": "4", "source": "s", "type": "t", "tenantid": "ann", "data": "x".repeat(262_144) },
    ]);
    let problem = post(&api, ADMIN, &[BATCH], batch.to_string()).await.expect(422);
    assert_eq!(places(&problem), ["/1/specversion", "/1/id", "/1/source", "/1/type", "/2", "/3"]);
    assert_eq!(log(&api, "").await, [Value::Null; 0]);

    for (headers, body, status) in [
        (BATCH, "{}".to_owned(), 422),
        (BATCH, "[]".into(), 422),
        (BATCH, json!(vec![json!({}); 501]).to_string(), 422),
        (STRUCTURED, "[".into(), 400),
        (STRUCTURED, "[]".into(), 422),
        (("content-type", "application/cloudevents+xml"), "<x/>".into(), 415),
        (("content-type", "text/plain"), "hello".into(), 415),
        (("content-type", "application/json"), "7".into(), 422),
        (("content-type", "application/json"), "x".repeat(1024 * 1024 + 1), 413),
    ] {
        post(&api, ADMIN, &[headers], body).await.expect(status);
    }
}

#[tokio::test]
async fn same_event_again_is_accepted_and_does_nothing() {
    let api = Api::new().await;
    let body = || Some(json!({ "tenant_id": "ann", "source": "mail", "type": "new", "id": "evt-1" }));
    for _ in 0..3 {
        assert_eq!(api.admin("POST", "/v1/events", body()).await.expect(202), json!({ "ids": ["evt-1"] }));
    }
    assert_eq!(log(&api, "").await.len(), 1);

    // without an id of its own a key makes a repetition safe
    let list = || {
        Some(
            json!([{ "tenant_id": "ann", "source": "a", "type": "t" }, { "tenant_id": "ann", "source": "a", "type": "t" }]),
        )
    };
    let ask = async || api.ask_with("POST", "/v1/events", Some(ADMIN), list(), &[("idempotency-key", "k")]).await;
    let first = ask().await.expect(202);
    assert_eq!(ask().await.expect(202), first);
    assert_eq!(log(&api, "").await.len(), 3);
}

#[tokio::test]
async fn idempotency_key_that_is_used_again_after_a_day_publishes_what_is_new() {
    let api = Api::new().await;
    let ask = async |number: u32| {
        let body = json!({ "tenant_id": "ann", "source": "a", "type": "t", "data": { "number": number } });
        api.ask_with("POST", "/v1/events", Some(ADMIN), Some(body), &[("idempotency-key", "k")]).await
    };
    let first = ask(1).await.expect(202);
    ask(2).await.expect(422);
    api.advance(24 * 3600);
    let second = ask(2).await.expect(202);
    assert_ne!(second, first);
    assert_eq!(ask(2).await.expect(202), second);
    assert_eq!(log(&api, "").await.len(), 2, "another body is not lost");
    api.advance(24 * 3600);
    assert_ne!(ask(2).await.expect(202), second);
    assert_eq!(log(&api, "").await.len(), 3, "nor is the same one, a day later");
}

#[tokio::test]
async fn repetition_publishes_what_the_bus_did_not_take_the_first_time() {
    let api = Api::new().await;
    let body = || Some(json!({ "tenant_id": "ann", "source": "a", "type": "t" }));
    let ask = async || api.ask_with("POST", "/v1/events", Some(ADMIN), body(), &[("idempotency-key", "k")]).await;
    let first = ask().await.expect(202);
    // as if the first had been broken off behind its key
    api.store.acknowledge_events(&[1]).await.unwrap();
    api.store.forget_events(api.clock.now() + chrono::TimeDelta::days(1), 10).await.unwrap();
    assert_eq!(log(&api, "").await.len(), 0);
    let again = ask().await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.expect(202), first);
    assert_eq!(log(&api, "").await.len(), 1);
}

#[tokio::test]
async fn log_is_read_by_source_type_tenant_and_page() {
    let api = Api::new().await;
    for (tenant, source, kind) in [
        ("ann", "mail", "mail.new"),
        ("bob", "mail", "mail.new"),
        ("ann", "shop", "order"),
        ("ann", "mail", "mail.gone"),
    ] {
        let body = json!({ "tenant_id": tenant, "source": source, "type": kind });
        api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    }
    let kinds = async |query: &str| {
        let events = log(&api, query).await;
        events
            .iter()
            .map(|event| format!("{}/{}", event["tenantid"].as_str().unwrap(), event["type"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds("?source=mail").await, ["ann/mail.new", "bob/mail.new", "ann/mail.gone"]);
    assert_eq!(kinds("?type=mail.*&tenant_id=ann").await, ["ann/mail.new", "ann/mail.gone"]);
    assert_eq!(kinds("?type=order").await, ["ann/order"]);
    let ann = api.token("ann", &["events:read"]).await;
    let first = api.ask("GET", "/v1/events?limit=2", Some(&ann), None).await.expect(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = api.ask("GET", &format!("/v1/events?limit=2&cursor={cursor}"), Some(&ann), None).await.expect(200);
    assert_eq!((second["items"][0]["type"].as_str().unwrap(), &second["next_cursor"]), ("mail.gone", &Value::Null));
    api.ask("GET", "/v1/events?cursor=x", Some(&ann), None).await.expect(400);
}

/// The next event of a stream: its id and its data.
async fn next(stream: &mut axum::body::BodyDataStream) -> (String, Value) {
    let mut text = String::new();
    while !text.contains("\n\n") {
        let part = tokio::time::timeout(std::time::Duration::from_secs(20), stream.next()).await;
        text.push_str(std::str::from_utf8(&part.expect("in time").expect("more").unwrap()).unwrap());
    }
    let event = events_of("GET", "/v1/events/stream", text.as_bytes()).swap_remove(0);
    assert_eq!(event.name, "event", "{text}");
    let data = event.json();
    (event.id, data)
}

async fn follow(api: &Api, query: &str, token: &str, seen: Option<&str>) -> axum::body::BodyDataStream {
    use tower::ServiceExt;
    let mut request =
        Request::get(format!("/v1/events/stream{query}")).header("authorization", format!("Bearer {token}"));
    if let Some(seen) = seen {
        request = request.header("last-event-id", seen);
    }
    let response = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().into_data_stream()
}

#[tokio::test]
async fn bus_follower_hears_events_from_now_on_or_from_its_last_position() {
    let api = Api::new().await;
    let publish = async |tenant: &str, kind: &str| {
        let body = json!({ "tenant_id": tenant, "source": "mail", "type": kind, "id": kind });
        api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    };
    publish("ann", "before").await;
    let ann = api.token("ann", &["events:read"]).await;
    let mut all = follow(&api, "", &ann, None).await;
    let mut some = follow(&api, "?type=mail.*", ADMIN, None).await;
    publish("bob", "other").await;
    publish("ann", "mail.1").await;
    publish("ann", "mail.2").await;
    let (id, first) = next(&mut all).await;
    assert_eq!(first["id"], "mail.1");
    assert_eq!(next(&mut some).await.1["id"], "mail.1");

    let mut again = follow(&api, "", &ann, Some(&id)).await;
    assert_eq!(next(&mut again).await.1["id"], "mail.2");
    let wrong = Request::get("/v1/events/stream").header("authorization", format!("Bearer {ann}"));
    api.send(wrong.header("last-event-id", "x").body(Body::empty()).unwrap()).await.expect(400);

    // a token that was revoked hears nothing more
    let id = api.store.list_tokens(&super::service::only("ann"), None, None, 1).await.map(|tokens| tokens.rows[0].id);
    api.store.revoke_token(&super::service::only("ann"), id.unwrap()).await.unwrap();
    drop(all);
    while let Some(part) = again.next().await {
        assert!(part.is_ok());
    }
}

#[tokio::test]
async fn bus_follower_that_is_behind_asks_a_bus_that_fails_once_in_a_while() {
    let api = Api::new().await;
    let publish = async |id: String| {
        let body = json!({ "tenant_id": "ann", "source": "mail", "type": "came", "id": id });
        api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    };
    let mut first = follow(&api, "", ADMIN, None).await;
    publish("first".into()).await;
    let (seen, _) = next(&mut first).await;
    drop(first);
    for id in 0..20 {
        publish(id.to_string()).await;
    }
    let mut behind = follow(&api, "", ADMIN, Some(&seen)).await;
    api.plant("alter table events rename to events_away").await;
    // what was read already
    for id in 0..16 {
        assert_eq!(next(&mut behind).await.1["id"], id.to_string());
    }
    let patience = std::time::Duration::from_millis(1200);
    let (silent, told) = logged(Level::WARN, tokio::time::timeout(patience, behind.next())).await;
    assert!(silent.is_err(), "nothing can be read");
    let failures = told.matches("can't read the bus that is followed").count();
    assert!((1..=4).contains(&failures), "{failures}: {told}");
    api.plant("alter table events_away rename to events").await;
    assert_eq!(next(&mut behind).await.1["id"], "16");
}

#[tokio::test]
async fn log_is_read_newest_first_where_that_is_asked_for() {
    let api = Api::new().await;
    for id in ["1", "2", "3"] {
        let body = json!({ "tenant_id": "ann", "source": "mail", "type": "new", "id": id });
        api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    }
    let page = async |query: &str| {
        let page = api.admin("GET", &format!("/v1/events?order=newest&limit=2{query}"), None).await.expect(200);
        let ids =
            page["items"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect::<String>();
        (ids, page["next_cursor"].as_str().map(str::to_owned))
    };
    let (first, next) = page("").await;
    assert_eq!(first, "32");
    assert_eq!(page(&format!("&cursor={}", next.unwrap())).await, ("1".to_owned(), None));
    api.admin("GET", "/v1/events?order=new", None).await.expect(400);
}

#[tokio::test]
async fn event_is_read_by_its_id_or_its_beginning_by_its_own_tenant() {
    let api = Api::new().await;
    for (source, id) in [("mail", "order-1"), ("shop", "order-1"), ("mail", "order-2")] {
        let body = json!({ "tenant_id": "ann", "source": source, "type": "new", "id": id, "data": { "from": source } });
        api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    }
    let (ann, bob) = (api.token("ann", &["events:read"]).await, api.token("bob", &["events:read"]).await);
    let ask = async |token: &str, rest: &str| api.ask("GET", &format!("/v1/events/{rest}"), Some(token), None).await;
    assert_eq!(ask(&ann, "order-1?source=mail").await.expect(200)["data"], json!({ "from": "mail" }));
    assert_eq!(ask(&ann, "order-1").await.expect(200)["source"], "shop", "the newest of any source");
    ask(&ann, "order").await.expect(409);
    assert_eq!(ask(&ann, "order-2?tenant_id=ann").await.expect(200)["id"], "order-2");
    ask(&ann, "order-3").await.expect(404);
    ask(&bob, "order-1").await.expect(404);
    ask(&bob, "order-1?tenant_id=ann").await.expect(404);
    let unnamed = ask(ADMIN, "order-1").await.expect(400);
    assert_eq!(unnamed["errors"][0]["pointer"], "/tenant_id");
}
