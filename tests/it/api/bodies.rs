//! The reference against the readers: what the schema of a body allows is taken, or refused with the reason in words,
//! and what it forbids is refused at its place.
//!
//! From bodies that are taken, one for each shape of each object, others are made: each field null, missing, of another
//! type, with its example, at the extremes of its number, and at its bounds and one beyond; and each object with a
//! field that nobody knows. Whether such a body is allowed says the schema; the service has to agree.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use jsonschema::Validator;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::service::{ADMIN, Api, daily_of};
use super::tools::{accepted_definition, waiting_definition};
use crate::approvals::harness::{ask, note};
use crate::support::computing::{HeldThreads, until_waiting};

/// Why the form of Open Responses is not seen here.
const VENDORS: &str = "the vendors' form; tests/clients/responses.py is a client of theirs";

/// Operations whose body is not held against a schema here.
const ELSEWHERE: [(&str, &str); 6] = [
    ("answer_approvals", "a form of the page, which sends it"),
    ("make_connection", "a form of the page, which sends it"),
    ("receive_receipt", "a provider's own form"),
    ("receive_hook", "any JSON"),
    ("create_response", VENDORS),
    ("import_tasks", "each line is a body of `create_task`, and a bad one is told in the answer"),
];

/// Objects that no body here has, and why not.
const UNSEEN: [(&str, &str); 4] =
    [("ChosenConversation", VENDORS), ("InputMessage", VENDORS), ("InputPart", VENDORS), ("NewResponse", VENDORS)];

/// A body that is taken.
struct Base {
    operation: &'static str,
    kind: &'static str,
    body: Value,
}

fn base(operation: &'static str, body: Value) -> Base {
    Base { operation, kind: "application/json", body }
}

fn task(trigger: Value, more: Value) -> Value {
    let mut task = json!({
        "name": "All of it", "trigger": trigger, "action": { "instruction": "Go.", "config": {} }, "metadata": { "a": 1 },
        "executor": "orchestrator", "output": { "channel": ["email"], "urgency": "high" }, "notify": "on_change",
        "max_runs": 7, "timeout_seconds": 60, "retry": { "max_attempts": 2, "backoff_seconds": 1 },
        "pause_after_failures": 3, "tenant_id": "ann",
    });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

fn schedule() -> Value {
    json!({
        "type": "schedule", "cron": "0 8 * * *", "timezone": "Europe/Berlin", "start_at": "2026-12-01T00:00:00Z",
        "end_at": "2027-12-01T00:00:00Z", "jitter": "30s", "exclude": ["2026-12-24"], "catch_up": "latest",
        "catch_up_window": "1h", "overlap": "skip", "dst_gap": "run_after", "dst_fold": "first", "on_resume": "skip",
        "overlap_counts_waiting": true,
    })
}

fn on_events(rule: Value) -> Value {
    let mut trigger = json!({
        "type": "event", "source": "shop", "event_type": "order", "filter": "event.data.n > 1",
        "filters": { "data.n": 1 }, "buffer_while_paused": true, "max_age": "1h", "overlap": "allow", "overlap_counts_waiting": false,
    });
    trigger.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
    trigger
}

fn condition(poll: Value, more: Value) -> Value {
    let mut trigger = json!({
        "type": "condition", "poll": poll, "interval": "30m", "expression": "value != null", "fire": "on_true",
        "overlap": "queue_one", "timeout": "10s", "failure_notice_after": 3, "start_at": "2026-12-01T00:00:00Z",
        "end_at": "2027-12-01T00:00:00Z", "overlap_counts_waiting": true,
    });
    trigger.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    trigger
}

fn tasks() -> Vec<Value> {
    let now = json!({ "tool": { "name": "current_time", "args": {} } });
    let page = json!({ "http": { "url": "http://127.0.0.1:9/", "method": "GET", "headers": { "X-A": "b" } } });
    [
        schedule(),
        on_events(json!({ "throttle": { "limit": 5, "per": "1h", "key": "event.source" } })),
        on_events(json!({ "debounce": { "quiet": "1m", "max_wait": "5m", "key": "event.source" } })),
        on_events(json!({ "batch": { "size": 5, "wait": "1m", "key": "event.source" } })),
        on_events(json!({ "dedup": { "key": "event.source", "window": "1h" } })),
        condition(now.clone(), json!({ "reset": "value == null", "hold_for": "10m", "cooldown": "6h" })),
        condition(page, json!({ "fire": "on_change", "watch": "value.status" })),
    ]
    .into_iter()
    .map(|trigger| task(trigger, json!({})))
    .collect()
}

/// A pipeline with a step of each kind.
fn every_kind() -> Value {
    let retry = json!({ "count": 2, "backoff_seconds": 5 });
    let all = json!({ "timeout_seconds": 30, "retry": retry, "on_error": "continue" });
    let mut steps = vec![
        json!({ "http": {
            "method": "POST", "url": "http://127.0.0.1:9/{{ input }}", "headers": { "X-A": "b" }, "query": { "q": "{{ input }}" },
            "body": { "a": "{{ input }}" }, "credential": "shop", "accept_status": [404],
        } }),
        json!({ "tool": { "name": "current_time", "args": { "timezone": "UTC" } } }),
        json!({ "filter": "true" }),
        json!({ "map": "1" }),
        json!({ "publish": { "type": "a", "source": "b", "subject": "c", "data": { "n": 1 } } }),
        json!({ "notify": { "channel": "email", "urgency": "high", "subject": "s", "message": "m" } }),
        json!({ "store": { "name": "a", "value": { "n": 1 } } }),
        json!({ "store": { "name": "a", "expression": "1" } }),
        json!({ "store": { "name": "a", "delete": true } }),
        json!({ "agent": {
            "instruction": "Go.", "system_prompt": "p", "max_turns": 3, "tools": ["current_time"], "credentials": ["shop"],
        } }),
        json!({ "llm": { "prompt": "p", "system": "s", "max_tokens": 10 } }),
        json!({ "for_each": { "items": "[1]", "concurrency": 2, "do": {
            "map": "item", "timeout_seconds": 30, "retry": retry, "on_error": "continue",
        } } }),
    ];
    for (step, number) in steps.iter_mut().zip(1..) {
        step["name"] = json!(format!("step_{number}"));
        step.as_object_mut().unwrap().extend(all.as_object().unwrap().clone());
    }
    let budget = json!({
        "turns": 9, "wall_time": 600, "tokens": 9_000, "cost_usd": 0.5, "tokens_per_day": 9_000, "cost_usd_per_day": 0.5,
    });
    json!({ "steps": steps, "output": "{{ input }}", "budget": budget })
}

/// Results of the steps of [`every_kind`], so that none is executed.
fn mocks() -> Value {
    (1..=12).map(|number| (format!("step_{number}"), json!(1))).collect()
}

fn credentials() -> Vec<Value> {
    let document =
        json!({ "access_token": "a-canary-1", "refresh_token": "a-canary-2", "client_secret": "a-canary-3" });
    let with = |more: Value| {
        let mut body = json!({ "document": document, "hosts": ["api.example.org"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let bearer = json!({ "as": "bearer", "from": "/access_token" });
    let oauth = json!({
        "token_url": "https://id.example.org/token", "client_id": "reveille", "client_auth": "basic", "scopes": ["a"],
    });
    vec![
        with(json!({ "inject": { "as": "header", "name": "X-Key", "template": "Token {/access_token}" } })),
        with(json!({ "inject": { "as": "header", "name": "X-Key", "from": "/access_token" } })),
        with(json!({ "inject": bearer, "oauth": oauth })),
        with(json!({ "inject": bearer, "oauth": { "provider": "google" } })),
    ]
}

fn recipients() -> Vec<Value> {
    let keys = json!({
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth": "BTBZMqHH6r4Tts7J_aSIgg",
    });
    let with = |addresses: Value| {
        json!({
            "timezone": "Europe/Berlin", "locale": "en", "fallback": ["email"], "addresses": addresses,
            "quiet_hours": [{
                "from": "22:00", "to": "07:00", "days": ["mon"], "channels": ["email"], "breaks_through": "urgent",
            }],
            "digest": { "at": ["08:00"], "channels": ["email"] }, "budget": { "per_day": 20 },
        })
    };
    vec![
        with(json!({
            "email": "ann@example.org", "sms": "+4915123456789", "telegram": "-1001234567890", "live": true,
            "slack": { "channel": "C0123ABCD" }, "push": [{ "topic": "ann", "server": "https://ntfy.example.org" }],
            "webhook": { "url": "https://hooks.example.org/a", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" },
        })),
        with(json!({
            "email": "ann@example.org", "slack": { "webhook_url": "https://hooks.slack.com/services/T0/B0/x" },
            "push": { "endpoint": "https://push.example.org/send/1", "expirationTime": null, "keys": keys },
            "webhook": { "url": "https://hooks.example.org/a", "secret": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] },
        })),
    ]
}

fn bases() -> Vec<Base> {
    let rule = json!({ "gate": "confirm", "when": "args.amount > 1" });
    let event = json!({
        "source": "email", "type": "new", "id": "1", "subject": "s", "data": { "a": 1 }, "tenant_id": "ann",
        "time": "2026-11-21T00:00:00Z",
    });
    let cloud = json!({
        "specversion": "1.0", "id": "1", "source": "email", "type": "new", "tenantid": "ann", "subject": "s",
        "time": "2026-11-21T00:00:00Z", "datacontenttype": "application/json", "dataschema": "https://example.org/s",
        "data": { "a": 1 }, "extension": 7,
    });
    let binary = json!({ "specversion": "1.0", "id": "2", "source": "e", "type": "n", "data_base64": "AAAA", "tenantid": "ann" });
    let letters = json!({
        "tenant_id": "ann", "source": "mail", "type": "mail.*", "error": "broke", "limit": 10, "cursor": Uuid::nil(),
    });
    let now = json!({ "tool": { "name": "current_time", "args": {} } });
    let (redis, sql) = (
        json!({ "redis": { "source": "prices", "key": "k", "read": "get" } }),
        json!({ "sql": { "source": "shop", "query": "select 1 as n" } }),
    );
    let mut bases = vec![
        base(
            "decide_approval",
            json!({ "decision": "edit", "digest": "d", "comment": "c", "modifications": { "text": "t" } }),
        ),
        base(
            "decide_approval",
            json!({
                "decision": "approve", "digest": "d", "grant": { "args": ["text"], "days": 30, "uses": 5 },
            }),
        ),
        base("test_condition", json!({ "trigger": condition(now, json!({})), "tenant_id": "ann", "previous": 1 })),
        base("test_condition", json!({ "trigger": condition(redis, json!({})), "tenant_id": "ann" })),
        base("test_condition", json!({ "trigger": condition(sql, json!({})), "tenant_id": "ann" })),
        base("rotate_key", json!({})),
        base("send_message", json!({ "tenant_id": "ann", "message": "Hello", "conversation_id": Uuid::nil() })),
        base("send_message", json!({ "tenant_id": "ann", "message": "Hello" })),
        base("drop_dead_letters", letters.clone()),
        base("replay_dead_letters", letters),
        base("publish_events", event.clone()),
        base("publish_events", json!([event])),
        Base { operation: "publish_events", kind: "application/cloudevents+json", body: cloud.clone() },
        Base { operation: "publish_events", kind: "application/cloudevents+json", body: binary.clone() },
        Base { operation: "publish_events", kind: "application/cloudevents-batch+json", body: json!([cloud, binary]) },
        base(
            "dry_run_pipeline",
            json!({
                "config": { "steps": [{ "name": "one", "map": "1" }], "approvals": { "http_send": rule } },
                "event": { "data": {} }, "input": 1, "previous": 1, "value": 1, "state": { "a": 1 }, "mocks": { "one": 1 }, "live": false, "tenant_id": "ann",
            }),
        ),
        base("dry_run_pipeline", json!({ "tenant_id": "ann", "config": every_kind(), "mocks": mocks() })),
        base("test_recipient", json!({ "channel": "email" })),
        base("verify_recipient", json!({ "channel": "email" })),
        base("answer_run", json!({ "input_id": Uuid::nil(), "fields": { "party": 4 } })),
        base("answer_run", json!({ "message": "four" })),
        base("answer_run", json!({ "action": "cancel" })),
        base("complete_run", json!({ "state": "succeeded", "output": "done" })),
        base("complete_run", json!({ "state": "failed", "error": { "code": "no", "message": "No." } })),
        base("preview_schedule", json!({ "trigger": schedule(), "count": 5, "from": "2026-12-01T00:00:00Z" })),
        base("update_task", task(schedule(), json!({}))),
        base("backfill_task", json!({ "from": "2026-11-18T00:00:00Z", "to": "2026-11-19T00:00:00Z" })),
        base("pause_task", json!({ "reason": "later" })),
        base("resume_task", json!({ "buffered_events": "run" })),
        base("disable_task", json!({ "reason": "it costs too much" })),
        base("disable_tenant", json!({ "reason": "it has not paid" })),
        base("accept_tool", json!({ "definition": waiting_definition().hash })),
        base(
            "call_tool",
            json!({
                "tenant_id": "ann", "arguments": { "timezone": "UTC" }, "version": "1.0.0", "confirmed": true,
            }),
        ),
        base("stop_work", json!({ "tenant_id": "ann", "reason": "it runs wild" })),
        base("start_work", json!({ "tenant_id": "ann", "reason": "it is mended" })),
        base("run_task", json!({ "input": { "a": 1 } })),
        base(
            "put_budgets",
            json!({
                "run": { "turns": 50, "wall_time": 600, "tokens": 200_000, "cost_usd": 0.5 },
                "task": { "tokens_per_day": 1_000_000, "cost_usd_per_day": 2.5 },
                "tenant": { "tokens_per_day": 5_000_000, "cost_usd_per_day": 10.0 },
            }),
        ),
        base(
            "put_task_budget",
            json!({
                "turns": 50, "wall_time": 600, "tokens": 200_000, "cost_usd": 0.5, "tokens_per_day": 1_000_000,
                "cost_usd_per_day": 2.5,
            }),
        ),
        base(
            "put_quotas",
            json!({
                "tasks": 9999, "event_tasks_per_source": 9999, "events_per_minute": 99999, "fires_per_minute": 99999,
                "polls": 9999, "streams": 9,
            }),
        ),
        base(
            "set_approval_override",
            json!({
                "tenant_id": "ann", "tool": "http_request", "gate": "auto", "when": "args.method == 'GET'",
                "agent": "booker", "expires_at": "2026-12-01T00:00:00Z",
            }),
        ),
        base(
            "add_fact",
            json!({ "tenant_id": "ann", "text": "Prefers window seats.", "collection": "preferences/travel" }),
        ),
        base("correct_fact", json!({ "text": "Prefers aisle seats.", "collection": "preferences" })),
        base(
            "create_token",
            json!({
                "name": "x", "scopes": ["tasks:read"], "tenant_id": "ann", "expires_at": "2027-01-01T00:00:00Z",
            }),
        ),
    ];
    bases.extend(tasks().into_iter().map(|body| base("create_task", body)));
    bases.extend(credentials().into_iter().map(|body| base("put_credential", body)));
    bases.extend(recipients().into_iter().map(|body| base("put_recipient", body)));
    for base in bases.iter_mut().filter(|base| base.operation == "update_task") {
        base.body.as_object_mut().unwrap().remove("tenant_id");
    }
    bases
}

/// The published document.
struct Reference(Value);

impl Reference {
    /// The schema of the bodies of an operation that are of this media type. Those of CloudEvents have no place of
    /// their own in the document: a body of JSON may have the same form.
    fn schema_of(&self, (_, method, template): &(String, String, String), kind: &str) -> Value {
        let event = json!({ "$ref": "#/components/schemas/CloudEvent" });
        match kind {
            "application/cloudevents+json" => event,
            "application/cloudevents-batch+json" => json!({ "type": "array", "items": event }),
            kind => {
                let operation = &self.0["paths"][template][method.to_lowercase()];
                operation["requestBody"]["content"][kind]["schema"].clone()
            }
        }
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut root = schema.clone();
        root["components"] = self.0["components"].clone();
        jsonschema::validator_for(&root).expect("a schema")
    }

    /// The schema, and the name by which it was referred to.
    fn resolved<'a>(&'a self, mut schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        let mut name = None;
        while let Some(place) = schema["$ref"].as_str() {
            let place = place.strip_prefix('#').expect("a place in the document");
            schema = self.0.pointer(place).expect("a schema that is there");
            name = place.rsplit('/').next();
        }
        (schema, name)
    }

    /// All places of the fields of a body, whether they are there or not, each with its schema.
    fn places<'a>(&'a self, schema: &'a Value, value: &Value, at: &str, found: &mut FoundFields<'a>) {
        let (schema, name) = self.resolved(schema);
        found.seen.extend(name.filter(|_| value.is_object()));
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.places(part, value, at, found);
        }
        for branch in schema["oneOf"].as_array().into_iter().flatten() {
            if self.validator(branch).is_valid(value) {
                self.places(branch, value, at, found);
            }
        }
        if value.is_object() && schema["additionalProperties"] == false {
            found.closed.push(at.to_owned());
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten().filter(|_| value.is_object()) {
            let place = format!("{at}/{name}");
            if let Some(value) = value.get(name) {
                self.places(field, value, &place, found);
            }
            found.fields.push((place, field));
        }
        let named = &schema["additionalProperties"];
        for (name, item) in value.as_object().into_iter().flatten().filter(|_| named["$ref"].is_string()) {
            let place = format!("{at}/{name}");
            self.places(named, item, &place, found);
            found.fields.push((place, named));
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate().filter(|_| schema["items"].is_object())
        {
            let place = format!("{at}/{index}");
            self.places(&schema["items"], item, &place, found);
            found.fields.push((place, &schema["items"]));
        }
    }
}

#[derive(Default)]
struct FoundFields<'a> {
    fields: Vec<(String, &'a Value)>,
    /// Objects that take no other fields.
    closed: Vec<String>,
    /// The names of the objects that were met.
    seen: BTreeSet<&'a str>,
}

/// The body with this at a place, or without what is there.
fn with(body: &Value, place: &str, value: Option<Value>) -> Value {
    let mut body = body.clone();
    let (parent, name) = place.rsplit_once('/').expect("a place");
    match (body.pointer_mut(parent), value) {
        (Some(Value::Object(fields)), Some(value)) => drop(fields.insert(name.to_owned(), value)),
        (Some(Value::Object(fields)), None) => drop(fields.remove(name)),
        (Some(Value::Array(items)), Some(value)) => items[name.parse::<usize>().unwrap()] = value,
        (Some(Value::Array(items)), None) => drop(items.remove(name.parse::<usize>().unwrap())),
        (other, _) => panic!("{place}: {other:?}"),
    }
    body
}

/// Numbers at the ends of what JSON and its readers have.
fn extremes() -> [Value; 9] {
    [
        json!(i64::MIN),
        json!(-1),
        json!(0),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.0),
        json!(0.5),
        json!(4_294_967_296_u64),
    ]
}

/// Name of the values that are sent of a field with bounds.
const BOUND: &str = "at its bound";

/// Values at the bounds of a number or of a text, and one beyond each; where a number has no bound, a large one.
fn at_bounds(schema: &Value) -> impl Iterator<Item = Value> {
    let is =
        |kind: &str| schema["type"] == kind || schema["type"].as_array().is_some_and(|all| all.contains(&json!(kind)));
    let ends = |least: &str, most: &str| [schema[least].as_i64(), schema[most].as_i64()];
    let [least, most] = if is("integer") { ends("minimum", "maximum") } else { [None, None] };
    let large = is("integer").then_some(1_000_000_000_000).filter(|_| most.is_none());
    let numbers = least.map(|least| [least - 1, least]).into_iter().chain(most.map(|most| [most, most + 1]));
    let numbers: Vec<i64> = numbers.flatten().chain(large).collect();
    let [least, most] = if is("string") { ends("minLength", "maxLength") } else { [None, None] };
    let lengths = least.map(|least| [least - 1, least]).into_iter().chain(most.map(|most| [most, most + 1]));
    let texts: Vec<String> = lengths.flatten().map(|length| "x".repeat(usize::try_from(length).unwrap())).collect();
    numbers.into_iter().map(Value::from).chain(texts.into_iter().map(Value::from))
}

/// Things of ann's, and who asks for them.
struct BodyHarness {
    api: Api,
    task: String,
    /// Another one, to be changed.
    edited: String,
    run: String,
    approval: String,
}

impl BodyHarness {
    async fn new() -> BodyHarness {
        let api = Api::new().await;
        let id = |body: Value| body["id"].as_str().unwrap().to_owned();
        let task = id(api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201));
        let edited = id(api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201));
        let run = id(api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201));
        let address = json!({ "addresses": { "email": "ann@example.org" } });
        api.admin("PUT", "/v1/recipients/ann", Some(address)).await.expect(200);
        let approval = ask(&api, "ann", vec![note()]).await.approvals[0].id.to_string();
        for definition in [accepted_definition(), waiting_definition()] {
            api.store.judge_tools("github", &[definition]).await.expect("judged");
        }
        BodyHarness { api, task, edited, run, approval }
    }

    fn request(&self, operation: &(String, String, String), kind: &str, body: String) -> Request<Body> {
        let (_, method, template) = operation;
        let id = match template.split('/').nth(2).unwrap_or_default() {
            "tasks" if method == "PATCH" => &self.edited,
            "tasks" => &self.task,
            "runs" => &self.run,
            _ => &self.approval,
        };
        let path = template.replace("{id}", id).replace("{tenant_id}", "ann").replace("{task_id}", &self.task);
        let path = path.replace("{service}", "google").replace("{account_name}", "work").replace("{source}", "shop");
        let tool = if template.ends_with("/accept") { "github.merge" } else { "current_time" };
        let path = path.replace("{name}", tool);
        let in_query = ["/v1/credentials/google", "/v1/hooks/"].into_iter().any(|start| path.starts_with(start));
        let path = if in_query { format!("{path}?tenant_id=ann") } else { path };
        let request = Request::builder().method(method.as_str()).uri(path);
        let request = request.header("authorization", format!("Bearer {ADMIN}")).header("content-type", kind);
        request.body(Body::from(body)).unwrap()
    }

    async fn send(&self, operation: &(String, String, String), kind: &str, body: &Value) -> (u16, Vec<String>, String) {
        let reply = self.api.send(self.request(operation, kind, body.to_string())).await;
        let errors = reply.body["errors"].as_array().cloned().unwrap_or_default();
        let pointers = errors.iter().map(|error| error["pointer"].as_str().unwrap_or_default().to_owned()).collect();
        (reply.status.as_u16(), pointers, reply.body.to_string())
    }
}

fn is_taken(status: u16) -> bool {
    status < 500 && !matches!(status, 400 | 415 | 422)
}

/// Whether a fault names a field, or the object that it is in, or what is in it; the whole body is no place.
fn names(pointers: &[String], place: &str) -> bool {
    let is_near = |pointer: &String| place.starts_with(pointer.as_str()) || pointer.starts_with(place);
    pointers.iter().any(|pointer| !pointer.is_empty() && is_near(pointer))
}

#[tokio::test]
async fn bodies_that_the_reference_allows_are_taken_and_others_are_refused_at_their_place() {
    let stage = BodyHarness::new().await;
    let reference = Reference(stage.api.reference.document.clone());
    let operations = stage.api.operations();
    let (mut wrong, mut seen, mut asked): (Vec<String>, BTreeSet<String>, usize) = Default::default();
    let bases = bases();
    for base in &bases {
        let operation = operations.iter().find(|(id, ..)| id == base.operation).expect("an operation");
        let schema = reference.schema_of(operation, base.kind);
        let validator = reference.validator(&schema);
        let name = format!("{} {}", base.operation, base.kind);
        let taken = stage.send(operation, base.kind, &base.body).await;
        // a source that is not configured is told by its place, and the rest is read all the same
        let is_elsewhere = taken.1.iter().all(|pointer| pointer.ends_with("/source")) && !taken.1.is_empty();
        if !validator.is_valid(&base.body) || !(is_taken(taken.0) || is_elsewhere) {
            let why: Vec<String> = validator.iter_errors(&base.body).map(|fault| fault.to_string()).collect();
            wrong.push(format!("{name}: the base is not taken: {} {why:?}", taken.2));
            continue;
        }
        // the whole body is no place, so its refusal is looked at by itself
        for odd in [json!([]), json!([[]]), json!(7), json!("x")] {
            let (status, _, said) = stage.send(operation, base.kind, &odd).await;
            if !validator.is_valid(&odd) && is_taken(status) {
                wrong.push(format!("{name}: {odd} is taken, and the schema forbids it: {status} {said}"));
            }
        }
        let mut found = FoundFields::default();
        reference.places(&schema, &base.body, "", &mut found);
        seen.extend(found.seen.iter().map(|name| (*name).to_owned()));
        let mut made: Vec<(String, &str, Value)> = Vec::new();
        for (place, field) in &found.fields {
            let (resolved, _) = reference.resolved(field);
            made.push((place.clone(), "null", with(&base.body, place, Some(Value::Null))));
            made.push((place.clone(), "another type", with(&base.body, place, Some(json!([[7.5]])))));
            if base.body.pointer(place).is_some() {
                made.push((place.clone(), "missing", with(&base.body, place, None)));
            }
            if let Some(example) = field.get("example").or(resolved.get("example")) {
                made.push((place.clone(), "its example", with(&base.body, place, Some(example.clone()))));
            }
            if resolved["type"].to_string().contains("integer") || resolved["type"].to_string().contains("number") {
                let numbers =
                    extremes().map(|number| (place.clone(), "a number", with(&base.body, place, Some(number))));
                made.extend(numbers);
            }
            // the numbers of a list have no bounds of their own in its schema
            let named = !place.ends_with(|last: char| last.is_ascii_digit());
            made.extend(
                at_bounds(resolved)
                    .filter(|_| named)
                    .map(|value| (place.clone(), BOUND, with(&base.body, place, Some(value)))),
            );
        }
        for object in &found.closed {
            let place = format!("{object}/nobody_knows_this");
            made.push((place.clone(), "unknown", with(&base.body, &place, Some(json!(1)))));
        }
        for (place, what, body) in made {
            asked += 1;
            let (status, pointers, said) = stage.send(operation, base.kind, &body).await;
            let line = format!("{name} {place} {what}: {status} {said}");
            match validator.is_valid(&body) {
                _ if status >= 500 => wrong.push(line),
                false if status == 422 && names(&pointers, &place) => {}
                // of two fields that exclude each other one is named
                false if said.contains("can't stand beside") => {}
                // that the question has changed is said before the grant for it is judged
                false if base.operation == "decide_approval" && status == 409 => {}
                false => wrong.push(format!("the schema forbids, the service does not: {line}")),
                true if is_taken(status) || status == taken.0 && pointers == taken.1 => {}
                true if what == BOUND && pointers.contains(&place) => {
                    wrong.push(format!("the service has a closer bound than the schema: {line}"));
                }
                // in a patch null stands for the default, which may be none for this task
                true if base.operation == "update_task" && names(&pointers, &place) => {}
                // null is as good as absent, where the rest asks for the field as well
                true if what == "null" => {
                    let without = stage.send(operation, base.kind, &with(&base.body, &place, None)).await;
                    if (without.0, &without.1) != (status, &pointers) {
                        wrong.push(format!("the schema allows null, the service does not: {line}"));
                    }
                }
                // what fields mean together no schema says, so it is said in words
                true if status == 422 && !pointers.is_empty() => {}
                true => wrong.push(format!("the schema allows, the service does not: {line}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {asked}:\n{}", wrong.len(), wrong.join("\n"));
    let held: BTreeSet<&str> =
        bases.iter().map(|base| base.operation).chain(ELSEWHERE.iter().map(|one| one.0)).collect();
    for (id, method, template) in &operations {
        let has_body = !reference.0["paths"][template][method.to_lowercase()]["requestBody"].is_null();
        assert_eq!(held.contains(id.as_str()), has_body, "{id} has a body, or is held against one");
    }
    let all = objects(&reference);
    let unseen: Vec<&String> = all.iter().filter(|name| !seen.contains(*name)).collect();
    assert_eq!(unseen, UNSEEN.map(|(name, _)| name), "no body has these objects");
}

/// A body that is as long as this, by spaces at its end.
fn padded(body: &Value, bytes: usize) -> String {
    let text = body.to_string();
    let spaces = " ".repeat(bytes - text.len());
    text + &spaces
}

#[tokio::test]
async fn body_of_each_operation_is_read_on_a_computing_thread_where_it_is_long() {
    let stage = BodyHarness::new().await;
    let operations = stage.api.operations();
    let operation = |id: &str| operations.iter().find(|(known, ..)| known == id).expect("an operation");
    let computing = stage.api.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let bodies = bases().into_iter().chain([
        base("create_response", json!({ "tenant_id": "ann", "input": "Hello" })),
        base("receive_hook", json!({ "type": "order" })),
        base("cancel_run", json!({})),
        base("retry_run", json!({})),
    ]);
    for Base { operation: id, kind, body } in bodies {
        let long = stage.request(operation(id), kind, padded(&body, 16_385));
        tokio::select! {
            reply = stage.api.send(long) => panic!("{id} was answered: {reply:?}"),
            () = until_waiting(&computing, 1) => {}
        }
        assert_eq!(computing.queued(), 0, "{id}: its request is gone");
    }
    let token = json!({ "name": "x", "scopes": ["tasks:read"], "tenant_id": "ann" });
    let short = stage.request(operation("create_token"), "application/json", padded(&token, 16_384));
    tokio::select! {
        reply = stage.api.send(short) => drop(reply.expect(201)),
        () = until_waiting(&computing, 1) => panic!("a short body is read where it comes"),
    }
    drop(threads);
}

/// The names of all objects with fields that bodies may have.
fn objects(reference: &Reference) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, item) in reference.0["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            collect(reference, &operation["requestBody"], &mut names);
        }
    }
    names.retain(|name| reference.0["components"]["schemas"][name]["properties"].is_object());
    names
}

fn collect(reference: &Reference, value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(reference, item, names)),
        Value::Object(fields) => collect_fields(reference, fields, names),
        _ => {}
    }
}

fn collect_fields(reference: &Reference, fields: &Map<String, Value>, names: &mut BTreeSet<String>) {
    if let Some(name) = fields.get("$ref").and_then(Value::as_str).and_then(|place| place.rsplit('/').next())
        && names.insert(name.to_owned())
    {
        collect(reference, &reference.0["components"]["schemas"][name], names);
    }
    fields.values().for_each(|value| collect(reference, value, names));
}
