//! Conditions over HTTP: tried without a trace, refused with every fault, and shown with their task.

use reveille::base::id::Scope;
use reveille::store::RunFilter;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::service::{Api, on_both};

on_both! {
    trial_says_what_was_seen_and_what_each_part_says
    trial_of_a_change_compares_with_what_was_given
    poll_that_fails_is_an_answer_without_a_verdict
    condition_that_can_not_be_tried_is_refused_with_every_fault
    task_shows_where_its_condition_stands
    task_that_polls_what_it_may_not_is_refused
}

async fn shop(body: Value) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200).set_body_json(body)).mount(&server).await;
    server
}

fn trigger(server: &MockServer, more: Value) -> Value {
    let mut trigger = json!({
        "type": "condition", "poll": { "http": { "url": server.uri() } }, "interval": "5m",
        "expression": "value.price < 500",
    });
    trigger.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    trigger
}

async fn try_it(api: &Api, body: Value) -> Value {
    api.admin("POST", "/v1/conditions/test", Some(body)).await.expect(200)
}

async fn trial_says_what_was_seen_and_what_each_part_says(api: Api) {
    let shop = shop(json!({ "price": 480, "stock": 3 })).await;
    let rules =
        json!({ "expression": "value.price < 500 && value.price < previous.price", "reset": "value.price > 550" });
    let asked = json!({ "tenant_id": "ann", "trigger": trigger(&shop, rules), "previous": { "price": 510 } });
    assert_eq!(
        try_it(&api, asked).await,
        json!({
            "value": { "price": 480, "stock": 3 }, "verdict": true, "reset": false,
            "parts": [
                { "expression": "value.price < 500 && value.price < previous.price", "value": true },
                { "expression": "value.price < 500", "value": true },
                { "expression": "value.price", "value": 480 },
                { "expression": "value", "value": { "price": 480, "stock": 3 } },
                { "expression": "value.price < previous.price", "value": true },
                { "expression": "previous.price", "value": 510 },
                { "expression": "previous", "value": { "price": 510 } },
            ],
        })
    );
    assert_eq!(shop.received_requests().await.unwrap().len(), 1);
    let runs = api.store.list_runs(&Scope::Every, &RunFilter { limit: 10, ..RunFilter::default() }).await.unwrap();
    let tasks = api.store.count_tasks(&Scope::Every).await.unwrap();
    assert_eq!((runs.len(), tasks.len()), (0, 0), "nothing is saved");
}

async fn trial_of_a_change_compares_with_what_was_given(api: Api) {
    let shop = shop(json!({ "status": "open" })).await;
    let rules = json!({ "expression": null, "fire": "on_change", "watch": "value.status" });
    let asked =
        |previous: Value| json!({ "tenant_id": "ann", "trigger": trigger(&shop, rules.clone()), "previous": previous });
    let changed = try_it(&api, asked(json!({ "status": "shut" }))).await;
    assert_eq!((&changed["changed"], &changed["verdict"]), (&json!(true), &Value::Null));
    assert_eq!(try_it(&api, asked(json!({ "status": "open", "at": 9 }))).await["changed"], false);
}

async fn poll_that_fails_is_an_answer_without_a_verdict(api: Api) {
    let shop = shop(json!({ "price": "cheap" })).await;
    let wrong = try_it(&api, json!({ "tenant_id": "ann", "trigger": trigger(&shop, json!({})) })).await;
    assert_eq!((&wrong["value"]["price"], &wrong["verdict"]), (&json!("cheap"), &Value::Null));
    assert_eq!(wrong["error"]["kind"], "expression");
    assert_eq!(wrong["parts"][1], json!({ "expression": "value.price", "value": "cheap" }));
    shop.reset().await;
    let gone = try_it(&api, json!({ "tenant_id": "ann", "trigger": trigger(&shop, json!({})) })).await;
    assert_eq!(
        gone,
        json!({ "value": null, "verdict": null, "parts": [],
            "error": { "kind": "http_404", "message": "the address answered 404 Not Found" } })
    );
}

async fn condition_that_can_not_be_tried_is_refused_with_every_fault(api: Api) {
    let places = async |body: Value| -> Vec<String> {
        let body = api.admin("POST", "/v1/conditions/test", Some(body)).await.expect(422);
        let errors = body["errors"].as_array().unwrap_or_else(|| panic!("{body}"));
        errors.iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect()
    };
    let private = json!({ "http": { "url": "http://10.0.0.1/" } });
    let wrong = json!({ "type": "condition", "poll": private, "interval": "5m", "expression": "value." });
    assert_eq!(places(json!({ "trigger": wrong })).await, ["/tenant_id", "/trigger/expression"]);
    let private = json!({ "type": "condition", "poll": private, "interval": "5m", "expression": "true" });
    assert_eq!(places(json!({ "tenant_id": "ann", "trigger": private })).await, ["/trigger/poll/http/url"]);
    let schedule = json!({ "type": "schedule", "interval": "5m" });
    assert_eq!(places(json!({ "tenant_id": "ann", "trigger": schedule })).await, ["/trigger/type"]);
    assert_eq!(places(json!({ "tenant_id": "ann" })).await, ["/trigger"]);
}

async fn task_shows_where_its_condition_stands(api: Api) {
    let shop = shop(json!({ "price": 480 })).await;
    let task = json!({
        "tenant_id": "ann", "name": "Cheap flight", "trigger": trigger(&shop, json!({})),
        "action": { "instruction": "Tell me." },
    });
    let made = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    let next = made["condition"]["next_poll_at"].clone();
    assert!(next.is_string(), "{made}");
    assert_eq!(
        (&made["next_fire_at"], &made["condition"]),
        (
            &Value::Null,
            &json!({
                "verdict": null, "since": null, "value": null, "previous": null, "last_poll_at": null,
                "next_poll_at": next, "edges": 0, "cooldown_until": null, "failing": null,
            })
        )
    );
    let place = format!("/v1/tasks/{}", made["id"].as_str().unwrap());
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["condition"]["next_poll_at"], next);
    let listed = api.admin("GET", "/v1/tasks?trigger_type=condition", None).await.expect(200);
    assert_eq!(listed["items"][0]["condition"]["edges"], 0);
    let paused = api.admin("POST", &format!("{place}/pause"), None).await.expect(200);
    assert_eq!(paused["condition"]["next_poll_at"], Value::Null);
    let back = json!({ "from": "2026-11-18T00:00:00Z", "to": "2026-11-19T00:00:00Z" });
    let refused = api.admin("POST", &format!("{place}/backfill"), Some(back)).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/trigger/type");
    let asked = json!({ "trigger": made["trigger"] });
    assert_eq!(
        api.admin("POST", "/v1/schedules/preview", Some(asked)).await.expect(422)["errors"][0]["pointer"],
        "/trigger/type"
    );
    api.admin("PATCH", &place, Some(json!({ "condition": {} }))).await.expect(422);
}

async fn task_that_polls_what_it_may_not_is_refused(api: Api) {
    let poll = |poll: Value| {
        json!({
            "tenant_id": "ann", "name": "x", "action": { "instruction": "Tell me." },
            "trigger": { "type": "condition", "poll": poll, "interval": "5m", "expression": "true" },
        })
    };
    for (polled, place) in [
        (json!({ "http": { "url": "http://169.254.169.254/" } }), "/trigger/poll/http/url"),
        (json!({ "tool": { "name": "delete_task" } }), "/trigger/poll/tool/name"),
        (json!({ "sql": { "source": "shop", "query": "select 1" } }), "/trigger/poll/sql/source"),
        (json!({ "redis": { "source": "prices", "key": "k" } }), "/trigger/poll/redis/source"),
    ] {
        let refused = api.admin("POST", "/v1/tasks", Some(poll(polled))).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], place);
    }
}
