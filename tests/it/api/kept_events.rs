//! A trigger that looks for a field which no kept event has: it is told when the task is made, and when its trigger is
//! edited.

use reveille::domain::event::Event;
use serde_json::{Value, json};

use super::service::{ADMIN, Api, daily_of, on_both};

on_both! {
    missing_field_is_told_when_a_task_is_made
    nothing_is_told_where_an_event_has_the_field_or_none_is_kept
    missing_field_is_told_when_a_trigger_is_edited
    trigger_is_held_against_the_newest_events_of_its_own
    token_that_may_not_read_events_is_told_nothing_of_them
}

/// A trigger with a slip in it.
const SLIP: &str = "event.data.totl > 100";

fn told() -> Value {
    json!({ "expression": SLIP, "field": "event.data.totl", "did_you_mean": "total" })
}

fn task(trigger: Value) -> Value {
    let mut event = json!({ "type": "event", "source": "shop", "event_type": "order.*" });
    event.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    let mut task = daily_of("ann");
    task["trigger"] = event;
    task
}

/// Puts events of `ann` on the bus: what differs from source `shop`, type `order.paid` and a total.
async fn publish(api: &Api, events: impl IntoIterator<Item = Value>) {
    let event = |fields: Value| {
        let mut event = json!({ "specversion": "1.0", "id": format!("{:x}", fastrand::u64(..)), "source": "shop",
            "type": "order.paid", "tenantid": "ann", "data": { "total": 7 } });
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Event::try_from(event).unwrap()
    };
    let events: Vec<Event> = events.into_iter().map(event).collect();
    api.store.publish_events(&events).await.unwrap();
}

async fn create(api: &Api, trigger: Value) -> Value {
    api.admin("POST", "/v1/tasks", Some(task(trigger))).await.expect(201)
}

async fn missing_field_is_told_when_a_task_is_made(api: Api) {
    publish(&api, [json!({}), json!({ "type": "order.sent" })]).await;
    let tried = api.admin("POST", "/v1/tasks?dry_run=true", Some(task(json!({ "filter": SLIP })))).await.expect(200);
    assert_eq!(tried["missing"], told());
    let made = create(&api, json!({ "filter": SLIP })).await;
    assert_eq!(made["missing"], told());
    let read = api.admin("GET", &format!("/v1/tasks/{}", made["id"].as_str().unwrap()), None).await.expect(200);
    assert_eq!(read.get("missing"), None, "it is told once");
    let key = "event.data.order";
    let keyed = create(&api, json!({ "dedup": { "key": key, "window": "1h" } })).await;
    assert_eq!(keyed["missing"], json!({ "expression": key, "field": key }));
    let ask = async || {
        let key = [("idempotency-key", "k")];
        api.ask_with("POST", "/v1/tasks", Some(ADMIN), Some(task(json!({ "filter": SLIP }))), &key).await.expect(201)
    };
    assert_eq!((ask().await["missing"].clone(), ask().await["missing"].clone()), (told(), told()));
}

async fn nothing_is_told_where_an_event_has_the_field_or_none_is_kept(api: Api) {
    let silent = async |trigger: Value| {
        let made = create(&api, trigger.clone()).await;
        assert_eq!(made.get("missing"), None, "{trigger}");
    };
    silent(json!({ "filter": SLIP })).await;
    publish(&api, [json!({ "tenantid": "bob" }), json!({ "source": "mail" }), json!({ "type": "refund" })]).await;
    silent(json!({ "filter": SLIP })).await;
    publish(&api, [json!({}), json!({ "data": { "totl": 1 } }), json!({})]).await;
    silent(json!({ "filter": SLIP })).await;
    silent(json!({ "filter": "event.data.total > 100" })).await;
    silent(json!({ "filter": "has(event.data.vip) && event.data.vip" })).await;
    silent(json!({ "filters": { "from": "amazon" }, "filter": "event.data.vip" })).await;
    silent(json!({})).await;
}

async fn missing_field_is_told_when_a_trigger_is_edited(api: Api) {
    let made = create(&api, json!({ "filter": "event.data.total > 100" })).await;
    publish(&api, [json!({})]).await;
    let path = format!("/v1/tasks/{}", made["id"].as_str().unwrap());
    let slip = task(json!({ "filter": SLIP }))["trigger"].clone();
    let edit = async |query: &str, patch: Value| {
        api.admin("PATCH", &format!("{path}{query}"), Some(patch)).await.expect(200)["missing"].clone()
    };
    assert_eq!(edit("?dry_run=true", json!({ "trigger": slip })).await, told());
    assert_eq!(edit("", json!({ "trigger": slip })).await, told());
    assert_eq!(edit("", json!({ "name": "Orders" })).await, Value::Null, "its trigger is what it was");
    assert_eq!(edit("", json!({ "trigger": slip })).await, Value::Null);
    let right = task(json!({ "filter": "event.data.total > 5" }))["trigger"].clone();
    assert_eq!(edit("", json!({ "trigger": right })).await, Value::Null);
    let problem = api.admin("PATCH", &path, Some(json!({ "missing": null }))).await.expect(422);
    assert_eq!(problem["errors"][0], json!({ "pointer": "/missing", "message": "can't be set" }));
}

async fn trigger_is_held_against_the_newest_events_of_its_own(api: Api) {
    let missing = async || create(&api, json!({ "filter": SLIP })).await["missing"].clone();
    let with_it = json!({ "data": { "totl": 1 } });
    publish(&api, std::iter::once(with_it).chain(vec![json!({}); 4])).await;
    assert_eq!(missing().await, Value::Null, "it is one of the newest 5");
    publish(&api, [json!({})]).await;
    assert_eq!(missing().await, told());
    // 200 events are looked at
    publish(&api, vec![json!({ "source": "mail" }); 199]).await;
    assert_eq!(missing().await, told());
    publish(&api, [json!({ "source": "mail" })]).await;
    assert_eq!(missing().await, Value::Null);
}

async fn token_that_may_not_read_events_is_told_nothing_of_them(api: Api) {
    publish(&api, [json!({})]).await;
    for (scopes, expected) in [(&["tasks:write"][..], Value::Null), (&["tasks:write", "events:read"], told())] {
        let token = api.token("ann", scopes).await;
        let made = api.ask("POST", "/v1/tasks", Some(&token), Some(task(json!({ "filter": SLIP })))).await.expect(201);
        assert_eq!(made["missing"], expected);
    }
}
