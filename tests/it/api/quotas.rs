//! Quotas as a client meets them: refused with what to do, raised by an admin, seen in the figures.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::service::{Api, daily, on_both};

on_both!(
    task_beyond_the_quota_is_refused_with_what_to_do
    admin_says_for_one_tenant_what_it_may_have
    numbers_that_are_no_quotas_are_refused_with_their_place
    events_beyond_the_minute_are_refused_whole_until_the_next
    figures_of_a_tenant_show_its_quotas
    tenant_that_has_stored_all_it_may_is_refused_what_is_new
    request_with_a_key_of_a_full_tenant_is_refused_or_its_answer_is_not_kept
    override_of_streams_holds_for_the_next_stream
    stream_beyond_the_quota_is_refused_with_what_to_do
);

const QUOTAS: &str = "/v1/tenants/ann/quotas";

async fn limit(api: &Api, overrides: Value) -> Value {
    api.admin("PUT", QUOTAS, Some(overrides)).await.expect(200)
}

fn event(n: usize) -> Value {
    json!({ "source": "shop", "type": "order", "id": format!("{n}"), "data": {} })
}

async fn task_beyond_the_quota_is_refused_with_what_to_do(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    limit(&api, json!({ "tasks": 1 })).await;
    api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201);
    let reply = api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await;
    assert_eq!(reply.header("retry-after"), "60");
    let problem = reply.expect(429);
    assert_eq!(
        problem,
        json!({
            "type": "urn:reveille:problem:quota_exceeded", "title": "The tenant has as much as it may have", "status": 429,
            "detail": "the quota `tasks` is 1, and 1 are used: delete tasks that are not needed any more, or ask the \
                       operator for more",
            "quota": "tasks", "limit": 1, "usage": 1,
        })
    );
    // a repetition with a key is refused as well, and done once there is room
    let listed = api.ask("GET", "/v1/tasks", Some(&ann), None).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let bob = api.token("bob", &["*"]).await;
    api.ask("POST", "/v1/tasks", Some(&bob), Some(daily())).await.expect(201);
    api.store.show_counts(&api.metrics);
    let metrics = api.metrics.text();
    assert!(metrics.contains("reveille_quota_refusals_total{quota=\"tasks\"} 1"), "{metrics}");
}

async fn admin_says_for_one_tenant_what_it_may_have(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let before = api.ask("GET", QUOTAS, Some(&ann), None).await.expect(200);
    assert_eq!(before["quotas"]["tasks"], json!({ "limit": 100_000, "usage": 0 }));
    assert_eq!(before["quotas"]["streams"], json!({ "limit": 50, "usage": 0 }));
    assert_eq!(before["overrides"]["tasks"], Value::Null);
    let said = limit(&api, json!({ "tasks": 7, "streams": 3, "polls": null })).await;
    assert_eq!(said["tenant_id"], "ann");
    assert_eq!(said["quotas"]["tasks"]["limit"], 7);
    assert_eq!(said["overrides"]["streams"], 3);
    assert_eq!(said["overrides"]["polls"], Value::Null);
    assert_eq!(api.ask("GET", QUOTAS, Some(&ann), None).await.expect(200), said);
    // a tenant has no say in it
    api.ask("PUT", QUOTAS, Some(&ann), Some(json!({ "tasks": 8 }))).await.expect(403);
    api.ask("DELETE", QUOTAS, Some(&ann), None).await.expect(403);
    assert_eq!(api.ask("GET", QUOTAS, Some(&ann), None).await.expect(200), said);
    api.admin("DELETE", QUOTAS, None).await.expect(204);
    assert_eq!(api.ask("GET", QUOTAS, Some(&ann), None).await.expect(200), before);
    let audit = api.admin("GET", "/v1/audit", None).await.expect(200);
    let actions: Vec<&Value> = audit["items"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["quotas.reset", "quotas.set"]);
}

async fn numbers_that_are_no_quotas_are_refused_with_their_place(api: Api) {
    for (body, pointer) in [
        (json!({ "tasks": 0 }), "/tasks"),
        (json!({ "polls": 1_000_000_000_000_001_u64 }), "/polls"),
        (json!({ "streams": -1 }), "/streams"),
        (json!({ "tasks": "many" }), "/tasks"),
        (json!({ "taks": 1 }), "/taks"),
    ] {
        let problem = api.admin("PUT", QUOTAS, Some(body.clone())).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
    }
}

async fn events_beyond_the_minute_are_refused_whole_until_the_next(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    limit(&api, json!({ "events_per_minute": 5 })).await;
    api.advance(20);
    let publish = async |events: Value| api.ask("POST", "/v1/events", Some(&ann), Some(events)).await;
    publish(json!([event(1), event(2), event(3)])).await.expect(202);
    let reply = publish(json!([event(4), event(5), event(6)])).await;
    assert_eq!(reply.header("retry-after"), "40");
    let problem = reply.expect(429);
    assert_eq!(
        (&problem["quota"], &problem["limit"], &problem["usage"]),
        (&json!("events_per_minute"), &json!(5), &json!(3))
    );
    let stored = api.ask("GET", "/v1/events", Some(&ann), None).await.expect(200);
    assert_eq!(stored["items"].as_array().unwrap().len(), 3, "nothing of what was refused");
    publish(json!([event(4), event(5)])).await.expect(202);
    publish(event(6)).await.expect(429);
    assert_eq!(
        api.ask("GET", "/v1/stats", Some(&ann), None).await.expect(200)["quotas"]["events_per_minute"]["usage"],
        5
    );
    // an admin who publishes for two tenants publishes for both or none
    let for_both = json!([
        { "tenant_id": "bob", "source": "shop", "type": "order", "data": {} },
        { "tenant_id": "ann", "source": "shop", "type": "order", "data": {} },
    ]);
    api.admin("POST", "/v1/events", Some(for_both)).await.expect(429);
    let bobs = api.admin("GET", "/v1/events?tenant_id=bob", None).await.expect(200);
    assert_eq!(bobs["items"], json!([]));
    api.advance(40);
    publish(event(6)).await.expect(202);
}

async fn figures_of_a_tenant_show_its_quotas(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201);
    let own = api.ask("GET", "/v1/stats", Some(&ann), None).await.expect(200);
    assert_eq!(own["quotas"]["tasks"], json!({ "limit": 100_000, "usage": 1 }));
    assert_eq!(own["quotas"]["polls"], json!({ "limit": 1_000, "usage": 0 }));
    assert_eq!(api.admin("GET", "/v1/stats?tenant_id=ann", None).await.expect(200)["quotas"], own["quotas"]);
    assert_eq!(api.admin("GET", "/v1/stats", None).await.expect(200)["quotas"], Value::Null);
}

async fn tenant_that_has_stored_all_it_may_is_refused_what_is_new(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let made = api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201);
    while api.store.count_stored_bytes(100).await.unwrap() > 0 {}
    let used = api.ask("GET", "/v1/stats", Some(&ann), None).await.expect(200)["quotas"]["stored_bytes"].clone();
    assert_eq!(used["limit"], 10_u64 << 30);
    let used = used["usage"].as_u64().unwrap();
    assert!(used > 100, "{used}");
    limit(&api, json!({ "stored_bytes": used })).await;
    let task = format!("/v1/tasks/{}", made["id"].as_str().unwrap());
    let renamed = json!({ "name": "Evening mail" });
    let credential = json!({ "hosts": ["shop.example"], "document": { "key": "secret" } });
    let recipient = json!({ "addresses": { "email": "ann@example.org" } });
    for (method, path, body) in [
        ("POST", "/v1/tasks", daily()),
        ("PATCH", &*task, renamed),
        ("POST", &*format!("{task}/run"), json!({})),
        ("POST", "/v1/events", event(1)),
        ("POST", "/v1/events", json!([event(1), event(2)])),
        ("PUT", "/v1/credentials/shop/work", credential),
        ("POST", "/v1/facts", json!({ "text": "Lives in Vienna." })),
        ("POST", "/v1/approval-overrides", json!({ "tool": "http_request", "gate": "confirm" })),
        ("PUT", "/v1/recipients/ann", recipient),
        ("POST", "/v1/tasks/import", daily()),
    ] {
        let reply = api.ask(method, path, Some(&ann), Some(body)).await;
        assert_eq!(reply.header("retry-after"), "60", "{method} {path}");
        let problem = reply.expect(429);
        assert_eq!(
            (&problem["type"], &problem["quota"], &problem["limit"], &problem["usage"]),
            (&json!("urn:reveille:problem:quota_exceeded"), &json!("stored_bytes"), &json!(used), &json!(used)),
            "{method} {path}: {problem}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("delete tasks, credentials, facts and dead letters"), "{detail}");
    }
    assert_eq!(api.ask("GET", "/v1/events", Some(&ann), None).await.expect(200)["items"], json!([]));
    let bob = api.token("bob", &["*"]).await;
    api.ask("POST", "/v1/tasks", Some(&bob), Some(daily())).await.expect(201);
    // what frees is done, and makes room
    api.ask("DELETE", &task, Some(&ann), None).await.expect(204);
    while api.store.count_stored_bytes(100).await.unwrap() > 0 {}
    api.advance(1);
    api.ask("POST", "/v1/events", Some(&ann), Some(event(1))).await.expect(202);
}

async fn request_with_a_key_of_a_full_tenant_is_refused_or_its_answer_is_not_kept(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let made = api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201);
    while api.store.count_stored_bytes(100).await.unwrap() > 0 {}
    let pause = format!("/v1/tasks/{}/pause", made["id"].as_str().unwrap());
    let post = async |path: &str, key: &str, body: Value| {
        let reply = api.ask_with("POST", path, Some(&ann), Some(body), &[("idempotency-key", key)]).await;
        (reply.status.as_u16(), reply.header("idempotency-replayed").to_owned())
    };
    let anew = |status: u16| (status, String::new());
    let fact = json!({ "text": "Lives in Vienna." });
    limit(&api, json!({ "stored_bytes": 1 })).await;
    for _ in 0..2 {
        assert_eq!(post(&pause, "p", json!({})).await, anew(200), "a pause is never refused");
        assert_eq!(post("/v1/events", "e", event(1)).await, anew(429));
        assert_eq!(post("/v1/facts", "f", fact.clone()).await, anew(429));
    }
    limit(&api, json!({ "stored_bytes": 1_000_000 })).await;
    assert_eq!(post(&pause, "p", json!({})).await, anew(200), "its answer was not kept");
    assert_eq!(post("/v1/events", "e", event(1)).await, anew(202), "what is refused uses up no key");
    assert_eq!(post("/v1/facts", "f", fact).await, anew(201));
    for (path, key, body, status) in [(&*pause, "p", json!({}), 200), ("/v1/events", "e", event(1), 202)] {
        assert_eq!(post(path, key, body).await, (status, "true".to_owned()), "it is kept where there is room");
    }
    // what it was answered before is answered still
    while api.store.count_stored_bytes(100).await.unwrap() > 0 {}
    limit(&api, json!({ "stored_bytes": 1 })).await;
    assert_eq!(post(&pause, "p", json!({})).await, (200, "true".to_owned()));
}

async fn override_of_streams_holds_for_the_next_stream(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let open = async || {
        let request = Request::get("/v1/events/stream").header("authorization", format!("Bearer {ann}"));
        api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    // a token has half of what its tenant has
    limit(&api, json!({ "streams": 4 })).await;
    let streams = [open().await, open().await];
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(open().await.status(), 429);
    limit(&api, json!({ "streams": 6 })).await;
    let third = open().await;
    assert_eq!((third.status().as_u16(), open().await.status().as_u16()), (200, 429));
    // those that are open stay, whatever the number
    limit(&api, json!({ "streams": 1 })).await;
    drop((third, streams));
    let one = open().await;
    assert_eq!((one.status().as_u16(), open().await.status().as_u16()), (200, 429));
    drop(one);
    api.admin("DELETE", QUOTAS, None).await.expect(204);
    let many = futures::future::join_all((0..25).map(|_| open())).await;
    assert!(many.iter().all(|stream| stream.status() == 200), "everybody's are 50");
    assert_eq!(open().await.status(), 429);
}

async fn stream_beyond_the_quota_is_refused_with_what_to_do(api: Api) {
    limit(&api, json!({ "streams": 2 })).await;
    let (first, second) = (api.token("ann", &["*"]).await, api.token("ann", &["*"]).await);
    let open = async |token: &str| {
        let request = Request::get("/v1/events/stream").header("authorization", format!("Bearer {token}"));
        api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let one = open(&first).await;
    // a token has half of what its tenant has: that is no quota
    let half = api.ask("GET", "/v1/events/stream", Some(&first), None).await.expect(429);
    assert_eq!(
        (&half["type"], &half["quota"]),
        (&json!("urn:reveille:problem:too-many-requests"), &Value::Null),
        "{half}"
    );
    let two = open(&second).await;
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    let reply = api.ask("GET", "/v1/events/stream", Some(&second), None).await;
    assert_eq!(reply.header("retry-after"), "5");
    assert_eq!(
        reply.expect(429),
        json!({
            "type": "urn:reveille:problem:quota_exceeded", "title": "The tenant has as much as it may have", "status": 429,
            "detail": "the quota `streams` is 2, and 2 are used: close streams that nobody reads, or ask the operator for more",
            "quota": "streams", "limit": 2, "usage": 2,
        })
    );
    // those of this instance are told among the other quotas
    let standing = json!({ "limit": 2, "usage": 2 });
    assert_eq!(api.ask("GET", QUOTAS, Some(&first), None).await.expect(200)["quotas"]["streams"], standing);
    let stats = api.ask("GET", "/v1/stats", Some(&first), None).await.expect(200);
    assert_eq!(stats["quotas"]["streams"], standing);
    let bob = api.admin("GET", "/v1/tenants/bob/quotas", None).await.expect(200);
    assert_eq!(bob["quotas"]["streams"], json!({ "limit": 50, "usage": 0 }));
    api.store.show_counts(&api.metrics);
    let metrics = api.metrics.text();
    assert!(metrics.contains("reveille_quota_refusals_total{quota=\"streams\"} 1"), "{metrics}");
    drop((one, two));
    let standing = json!({ "limit": 2, "usage": 0 });
    assert_eq!(api.ask("GET", QUOTAS, Some(&first), None).await.expect(200)["quotas"]["streams"], standing);
}
