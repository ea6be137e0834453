//! Bounds of `docs/limits.md` as a client meets them: a value at its bound is taken, and one beyond it is refused with
//! its place.

use chrono::{NaiveDate, TimeDelta};
use reveille::domain::conversation::MESSAGE_LENGTH;
use serde_json::{Map, Value, json};

use super::service::{Api, daily, on_both};

on_both!(
    tasks_are_taken_at_each_bound_and_refused_one_beyond_it
    tokens_are_taken_at_each_bound_and_refused_one_beyond_it
    message_is_taken_at_its_longest_and_refused_one_beyond_it
    instant_is_explained_at_its_longest_and_refused_one_beyond_it
    events_of_a_request_are_taken_up_to_their_number_and_refused_one_beyond_it
    instants_of_a_backfill_are_run_up_to_their_number_and_refused_one_beyond_it
    body_is_read_at_its_deepest_and_refused_one_level_beyond_it
);

async fn body_is_read_at_its_deepest_and_refused_one_level_beyond_it(api: Api) {
    // the body itself is one level
    let nested = |levels: usize| (1..levels).fold(json!({}), |inside, _| json!({ "a": inside }));
    api.admin("POST", "/v1/tasks", Some(nested(127))).await.expect(422);
    let refused = api.admin("POST", "/v1/tasks", Some(nested(128))).await.expect(400);
    assert_eq!(refused["detail"], "the body has more than 127 arrays and objects inside each other");
}

async fn message_is_taken_at_its_longest_and_refused_one_beyond_it(api: Api) {
    let said = |length: usize| json!({ "tenant_id": "ann", "message": "é".repeat(length) });
    api.admin("POST", "/v1/chat", Some(said(MESSAGE_LENGTH))).await.expect(202);
    let refused = api.admin("POST", "/v1/chat", Some(said(MESSAGE_LENGTH + 1))).await;
    assert_eq!(refused.expect(422)["errors"][0]["pointer"], "/message");
}

/// A task whose parts are these, besides the usual ones.
fn task(parts: Value) -> Value {
    let mut task = daily();
    task.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    task
}

fn scheduled(trigger: Value) -> Value {
    let mut schedule = json!({ "type": "schedule", "cron": "0 8 * * *" });
    schedule.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    task(json!({ "trigger": schedule }))
}

fn listening(trigger: Value) -> Value {
    let mut event = json!({ "type": "event", "source": "shop" });
    event.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    task(json!({ "trigger": event }))
}

fn cron(length: usize) -> Value {
    let rest = "8 * * *";
    scheduled(json!({ "cron": format!("0{}{rest}", " ".repeat(length - rest.len() - 1)) }))
}

/// Dates that are left out.
fn days(count: i64) -> Value {
    let first = NaiveDate::from_ymd_opt(2027, 1, 1).unwrap();
    let days: Vec<String> = (0..count).map(|day| (first + TimeDelta::days(day)).to_string()).collect();
    scheduled(json!({ "exclude": days }))
}

/// Expressions that are left out, each so long.
fn hours(count: usize, length: usize) -> Value {
    let rest = "9 * * *";
    let hour = format!("0{}{rest}", " ".repeat(length - rest.len() - 1));
    scheduled(json!({ "exclude": vec![hour; count] }))
}

/// An instant ahead, written so long.
fn instant(bytes: usize) -> String {
    let start = "2036-12-24T15:00:00.";
    format!("{start}{}Z", "0".repeat(bytes - start.len() - 1))
}

/// A place, and the largest task of its kind with the one that is too large.
fn tasks() -> Vec<(&'static str, Value, Value)> {
    let metadata = |bytes: usize| task(json!({ "metadata": { "m": "x".repeat(bytes - r#"{"m":""}"#.len()) } }));
    let filters = |count: usize| {
        let filters: Map<String, Value> = (0..count).map(|n| (format!("k{n}"), json!(n))).collect();
        listening(json!({ "filters": filters }))
    };
    let wanted = |bytes: usize| listening(json!({ "filters": { "from": "x".repeat(bytes) } }));
    let filter = |bytes: usize| listening(json!({ "filter": format!("'{}' == 'x'", "a".repeat(bytes - 9)) }));
    let only = |field: &str, text: String| task(json!({ "trigger": { "type": "schedule", field: text } }));
    let length = |bytes: usize| format!("1{}h", " ".repeat(bytes - 2));
    let interval = |bytes: usize| only("interval", length(bytes));
    let values = |count: usize| only("rrule", format!("FREQ=YEARLY;BYYEARDAY={}", vec!["1"; count].join(",")));
    let count = |count: u32| {
        let counted = json!({
            "type": "schedule", "rrule": format!("FREQ=DAILY;COUNT={count}"), "start_at": "2026-11-22T00:00:00Z" });
        task(json!({ "trigger": counted }))
    };
    let price = |url: String| {
        let poll = json!({ "http": { "url": url } });
        task(json!({ "trigger": {
            "type": "condition", "interval": "5m", "poll": poll, "fire": "every_time", "expression": "value > 1" } }))
    };
    let url = |bytes: usize| price(format!("https://example.org/{}", "a".repeat(bytes - "https://example.org/".len())));
    let held = |bytes: usize| listening(json!({ "max_age": length(bytes) }));
    let instruction = |length: usize| task(json!({ "action": { "instruction": "é".repeat(length) } }));
    vec![
        ("/action/instruction", instruction(65_536), instruction(65_537)),
        ("/trigger/rrule", values(366), values(367)),
        ("/trigger/rrule", count(10_000), count(10_001)),
        ("/trigger/at", only("at", instant(100)), only("at", instant(101))),
        (
            "/trigger/start_at",
            scheduled(json!({ "start_at": instant(100) })),
            scheduled(json!({ "start_at": instant(101) })),
        ),
        ("/trigger/jitter", scheduled(json!({ "jitter": length(100) })), scheduled(json!({ "jitter": length(101) }))),
        ("/trigger/max_age", held(100), held(101)),
        ("/trigger/poll/http/url", url(16_384), url(16_385)),
        ("/trigger/interval", interval(100), interval(101)),
        ("/trigger/cron", cron(1_000), cron(1_001)),
        ("/trigger/exclude", days(200), days(201)),
        ("/trigger/exclude/0", hours(1, 1_000), hours(1, 1_001)),
        ("/trigger/exclude", hours(20, 1_000), hours(21, 1_000)),
        ("/trigger/filters", filters(20), filters(21)),
        ("/trigger/filters/from", wanted(1_024), wanted(1_025)),
        ("/trigger/filter", filter(1_024), filter(1_025)),
        ("/metadata", metadata(16_384), metadata(16_385)),
    ]
}

async fn tasks_are_taken_at_each_bound_and_refused_one_beyond_it(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let ask = async |task: Value| api.ask("POST", "/v1/tasks?dry_run=true", Some(&ann), Some(task)).await;
    for (place, largest, beyond) in tasks() {
        ask(largest).await.expect(200);
        let problem = ask(beyond).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], place, "{problem}");
    }
}

async fn tokens_are_taken_at_each_bound_and_refused_one_beyond_it(api: Api) {
    let token = |tenant: usize, scopes: usize| json!({ "tenant_id": "t".repeat(tenant), "name": "a client", "scopes": vec!["tasks:read"; scopes] });
    api.admin("POST", "/v1/tokens", Some(token(200, 100))).await.expect(201);
    for (place, beyond) in [("/tenant_id", token(201, 1)), ("/scopes", token(1, 101))] {
        let problem = api.admin("POST", "/v1/tokens", Some(beyond)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], place, "{problem}");
    }
}

async fn instant_is_explained_at_its_longest_and_refused_one_beyond_it(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let id = api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201)["id"].clone();
    let place = format!("/v1/tasks/{}/explain", id.as_str().unwrap());
    let ask = async |characters: usize| {
        api.ask("GET", &format!("{place}?at={}", instant(characters)), Some(&ann), None).await
    };
    ask(64).await.expect(200);
    let problem = ask(65).await.expect(400);
    assert_eq!(problem["errors"][0], json!({ "pointer": "/at", "message": "must be at most 64 characters" }));
}

async fn events_of_a_request_are_taken_up_to_their_number_and_refused_one_beyond_it(api: Api) {
    let events = |count: usize| {
        let event = |id: usize| json!({ "tenant_id": "ann", "source": "shop", "type": "order", "id": id.to_string() });
        Value::Array((0..count).map(event).collect())
    };
    let taken = api.admin("POST", "/v1/events", Some(events(500))).await.expect(202);
    assert_eq!(taken["ids"].as_array().unwrap().len(), 500);
    let problem = api.admin("POST", "/v1/events", Some(events(501))).await.expect(422);
    let fault = json!({ "pointer": "", "message": "must have 1 to 500 events, has 501" });
    assert_eq!(problem["errors"][0], fault);
}

async fn instants_of_a_backfill_are_run_up_to_their_number_and_refused_one_beyond_it(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let task = scheduled(json!({ "cron": "* * * * *" }));
    let id = api.ask("POST", "/v1/tasks", Some(&ann), Some(task)).await.expect(201)["id"].clone();
    let place = format!("/v1/tasks/{}/backfill", id.as_str().unwrap());
    let run = async |to: &str| {
        let range = json!({ "from": "2026-11-18T00:00:00Z", "to": to });
        api.ask("POST", &place, Some(&ann), Some(range)).await
    };
    let problem = run("2026-11-18T16:41:00Z").await.expect(422);
    let fault = json!({ "pointer": "/to", "message": "there are more than 1000 instants; take a shorter range" });
    assert_eq!(problem["errors"][0], fault);
    let backfill = run("2026-11-18T16:40:00Z").await.expect(202);
    assert_eq!(backfill["fires"].as_array().unwrap().len(), 1_000);
}
