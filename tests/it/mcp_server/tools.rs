//! The tools: which of them a token is offered, and what each does for its caller and for nobody else.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use super::harness::McpHost;
use crate::api::service::{ADMIN, Api, daily_of, on_both};

on_both! {
    token_is_offered_the_tools_of_its_permissions_and_refused_the_others
    things_of_another_tenant_are_not_there
    caller_of_all_tenants_names_one
    task_is_made_looked_at_paused_resumed_and_run
    change_keeps_what_is_set_besides_it
    call_that_is_repeated_with_a_key_takes_effect_once
    published_event_is_in_the_log_once
    events_are_listed_by_source_and_kind_page_by_page
}

/// Every tool with its permission, in their order.
const TOOLS: [(&str, &str); 26] = [
    ("create_task", "tasks:write"),
    ("list_tasks", "tasks:read"),
    ("get_task", "tasks:read"),
    ("explain_task", "tasks:read"),
    ("update_task", "tasks:write"),
    ("pause_task", "tasks:write"),
    ("resume_task", "tasks:write"),
    ("run_task", "tasks:write"),
    ("preview_schedule", "tasks:read"),
    ("list_runs", "runs:read"),
    ("get_run", "runs:read"),
    ("wait_for_run", "runs:read"),
    ("explain_run", "runs:read"),
    ("cancel_run", "runs:write"),
    ("answer_run", "runs:input"),
    ("publish_event", "events:publish"),
    ("list_events", "events:read"),
    ("test_condition", "tasks:write"),
    ("list_approvals", "approvals:read"),
    ("get_approval", "approvals:read"),
    ("list_credentials", "credentials:read"),
    ("connect_credential", "credentials:write"),
    ("remember", "facts:write"),
    ("recall", "facts:read"),
    ("list_facts", "facts:read"),
    ("forget", "facts:write"),
];

async fn host(api: &Api, tenant: &str, scopes: &[&str]) -> McpHost {
    McpHost::new(api.app.clone(), &api.token(tenant, scopes).await)
}

async fn listed(host: &McpHost) -> Vec<Value> {
    let list = host.result("tools/list", json!({})).await;
    list["tools"].as_array().expect("tools").clone()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

fn mail() -> Value {
    json!({ "name": "Mail", "instruction": "Read my mail", "cron": "0 8 * * *", "timezone": "Europe/Berlin" })
}

async fn token_is_offered_the_tools_of_its_permissions_and_refused_the_others(api: Api) {
    let scopes: BTreeSet<&str> = TOOLS.iter().map(|(_, scope)| *scope).collect();
    for held in scopes {
        let host = host(&api, "ann", &[held]).await;
        let offered: Vec<&str> = TOOLS.iter().filter(|(_, scope)| *scope == held).map(|(name, _)| *name).collect();
        assert_eq!(names(&listed(&host).await), offered, "{held}");
        for (tool, scope) in TOOLS.iter().filter(|(_, scope)| *scope != held) {
            let why = host.refused(tool, json!({})).await;
            assert!(why.contains(scope) && why.contains("do not try again"), "{tool} with {held}: {why}");
        }
    }
    let decider = host(&api, "ann", &["approvals:decide"]).await;
    assert_eq!(names(&listed(&decider).await), Vec::<&str>::new(), "nothing decides here");
}

#[tokio::test]
async fn tools_are_listed_in_one_order_and_called_with_nothing_without_a_fault() {
    let api = Api::new().await;
    let ann = host(&api, "ann", &["*"]).await;
    let all = listed(&ann).await;
    assert_eq!(names(&all), TOOLS.map(|(name, _)| name));
    assert_eq!(listed(&ann).await, all);
    for tool in &all {
        assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()), "{tool:#}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool:#}");
        assert!(tool["inputSchema"]["properties"].get("tenant_id").is_none(), "{tool:#}");
        let hints = tool["annotations"].as_object().expect("annotations");
        assert_eq!(hints["openWorldHint"], false, "{tool:#}");
        let result = ann.tool(tool["name"].as_str().unwrap(), json!({})).await;
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{result:#}");
        assert!(result["isError"].is_boolean(), "{result:#}");
    }
    let list = ann.result("tools/list", json!({})).await;
    assert_eq!((&list["cacheScope"], &list["resultType"]), (&json!("private"), &json!("complete")));
    assert!(list["ttlMs"].is_u64());
    let old = host(&api, "ann", &["*"]).await.old();
    assert_eq!(old.result("tools/list", json!({})).await, json!({ "tools": all }));
}

async fn things_of_another_tenant_are_not_there(api: Api) {
    let ann = host(&api, "ann", &["*"]).await;
    let task = ann.done("create_task", mail()).await["id"].clone();
    let run = ann.done("run_task", json!({ "id": task })).await["id"].clone();
    let fact = ann.done("remember", json!({ "text": "Likes tea" })).await["id"].clone();
    ann.done("publish_event", json!({ "source": "email", "type": "mail.new" })).await;
    let bob = host(&api, "bob", &["*"]).await;
    let before = api.written().await;
    for (tool, arguments) in [
        ("get_task", json!({ "id": task })),
        ("explain_task", json!({ "id": task })),
        ("update_task", json!({ "id": task, "name": "Mine" })),
        ("pause_task", json!({ "id": task })),
        ("resume_task", json!({ "id": task })),
        ("run_task", json!({ "id": task })),
        ("get_run", json!({ "id": run })),
        ("wait_for_run", json!({ "id": run })),
        ("explain_run", json!({ "id": run })),
        ("cancel_run", json!({ "id": run })),
        ("answer_run", json!({ "id": run, "message": "yes" })),
        ("get_approval", json!({ "id": Uuid::from_u128(7) })),
        ("forget", json!({ "id": fact })),
        ("get_task", json!({ "key": "mail" })),
        ("list_tasks", json!({ "tenant_id": "ann" })),
    ] {
        let why = bob.refused(tool, arguments).await;
        assert!(why.contains("there is no such"), "{tool}: {why}");
    }
    let mut for_ann = mail();
    for_ann["tenant_id"] = json!("ann");
    assert!(bob.refused("create_task", for_ann).await.contains("own tenant only"));
    assert_eq!(api.written().await, before, "nothing came of it");
    for list in ["list_tasks", "list_runs", "list_events", "list_approvals", "list_credentials", "list_facts"] {
        assert_eq!(bob.done(list, json!({})).await["items"], json!([]), "{list}");
    }
    let audit = api.admin("GET", "/v1/audit", None).await.expect(200);
    for entry in audit["items"].as_array().expect("a record") {
        let action = entry["action"].as_str().expect("an action");
        assert!(!["approval", "token", "grant", "override"].iter().any(|word| action.contains(word)), "{action}");
    }
}

async fn caller_of_all_tenants_names_one(api: Api) {
    let admin = McpHost::new(api.app.clone(), ADMIN);
    for tool in listed(&admin).await {
        let required =
            tool["inputSchema"]["required"].as_array().is_some_and(|names| names.contains(&json!("tenant_id")));
        assert_eq!(tool["inputSchema"]["properties"].get("tenant_id").is_some(), required, "{tool:#}");
        let takes_no_id = !tool["inputSchema"]["properties"].as_object().unwrap().contains_key("id");
        let is_of_a_tenant = takes_no_id && tool["name"] != "preview_schedule" || tool["name"] == "publish_event";
        assert_eq!(required, is_of_a_tenant, "{tool:#}");
    }
    for tool in ["create_task", "list_tasks", "publish_event"] {
        let why = admin.refused(tool, json!({ "name": "x" })).await;
        assert!(why.contains("`tenant_id`: is missing"), "{tool}: {why}");
    }
    let mut task = mail();
    task["tenant_id"] = json!("ann");
    let made = admin.done("create_task", task).await;
    assert_eq!(made["tenant_id"], "ann");
    assert_eq!(admin.done("get_task", json!({ "id": made["id"] })).await["tenant_id"], "ann");
    let of = async |tenant: &str| admin.done("list_tasks", json!({ "tenant_id": tenant })).await["items"].clone();
    assert_eq!(of("ann").await[0]["id"], made["id"]);
    assert_eq!(of("bob").await, json!([]));
}

async fn task_is_made_looked_at_paused_resumed_and_run(api: Api) {
    let ann = host(&api, "ann", &["tasks:read", "tasks:write", "runs:read"]).await;
    let previewed =
        ann.done("preview_schedule", json!({ "cron": "0 8 * * *", "timezone": "Europe/Berlin", "count": 2 })).await;
    assert_eq!(previewed["fires"].as_array().unwrap().len(), 2);
    let mut new = mail();
    new["key"] = json!("mail");
    let made = ann.done("create_task", new).await;
    assert_eq!((&made["status"], &made["next_fire_at"]), (&json!("active"), &previewed["fires"][0]), "{made:#}");
    assert!(made["next_steps"].to_string().contains("run_task"), "{made:#}");
    assert_eq!(made["instruction"], "Read my mail");
    let id = made["id"].clone();
    let found = ann.done("list_tasks", json!({ "q": "mai", "limit": 5 })).await;
    assert_eq!((&found["items"][0]["id"], &found["items"][1]), (&id, &Value::Null));
    assert_eq!(ann.done("get_task", json!({ "key": "mail" })).await["id"], id);
    assert!(ann.refused("get_task", json!({ "id": id, "key": "mail" })).await.contains("either `id` or `key`"));

    let paused = ann.done("pause_task", json!({ "id": id, "reason": "a holiday" })).await;
    assert_eq!(paused["status"], "paused");
    let explained = ann.done("explain_task", json!({ "id": id })).await;
    assert_eq!(explained["status"], "paused");
    assert!(!explained["sentences"].as_array().unwrap().is_empty(), "{explained:#}");
    assert_eq!(ann.done("resume_task", json!({ "id": id })).await["status"], "active");
    let at = ann.done("explain_task", json!({ "id": id, "at": "2026-11-22T08:00:00" })).await;
    assert!(at["instant"].is_object(), "{at:#}");

    let run = ann.done("run_task", json!({ "id": id, "input": { "folder": "inbox" } })).await;
    let stored = api.admin("GET", &format!("/v1/runs/{}", run["id"].as_str().unwrap()), None).await.expect(200);
    assert_eq!((&stored["task_id"], &stored["input"]), (&id, &json!({ "folder": "inbox" })));
    let blind = host(&api, "ann", &["tasks:write"]).await;
    let started = blind.done("run_task", json!({ "id": id })).await;
    assert!(started["next_steps"].to_string().contains("runs:read"), "{started:#}");
}

async fn change_keeps_what_is_set_besides_it(api: Api) {
    let mut task = daily_of("ann");
    task["action"]["config"] = json!({ "tools": ["http_request"] });
    task["output"] = json!({ "channel": "email", "urgency": "high" });
    task["trigger"]["jitter"] = json!("5m");
    let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    let ann = host(&api, "ann", &["tasks:read", "tasks:write"]).await;
    let id = task["id"].as_str().unwrap();
    let arguments =
        json!({ "id": id, "instruction": "Sort it", "cron": "0 9 * * *", "channel": "webhook", "max_runs": 3 });
    let told = ann.done("update_task", arguments).await;
    assert_eq!((&told["instruction"], &told["max_runs"]), (&json!("Sort it"), &json!(3)), "{told:#}");
    let changed = api.admin("GET", &format!("/v1/tasks/{id}"), None).await.expect(200);
    let mut expected = task["trigger"].clone();
    expected["cron"] = json!("0 9 * * *");
    assert_eq!(changed["trigger"], expected);
    assert_eq!(changed["action"]["config"], task["action"]["config"]);
    assert_eq!(changed["output"], json!({ "channel": "webhook", "urgency": "high" }));
    assert_eq!(changed["name"], task["name"]);
    assert!(ann.refused("update_task", json!({ "id": id })).await.contains("at least one field"));
    let blind = host(&api, "ann", &["tasks:write"]).await;
    assert!(blind.refused("update_task", json!({ "id": id, "name": "x" })).await.contains("`tasks:read`"));
}

async fn call_that_is_repeated_with_a_key_takes_effect_once(api: Api) {
    let ann = host(&api, "ann", &["tasks:read", "tasks:write", "runs:read"]).await;
    let mut new = mail();
    new["idempotency_key"] = json!("the mail task");
    let made = ann.done("create_task", new.clone()).await;
    assert_eq!(ann.done("create_task", new.clone()).await["id"], made["id"]);
    assert_eq!(ann.done("list_tasks", json!({})).await["items"].as_array().unwrap().len(), 1);
    new["name"] = json!("Another");
    ann.refused("create_task", new).await;
    let now = json!({ "id": made["id"], "idempotency_key": "once today" });
    let run = ann.done("run_task", now.clone()).await;
    assert_eq!(ann.done("run_task", now).await["id"], run["id"]);
    assert_eq!(ann.done("list_runs", json!({})).await["items"].as_array().unwrap().len(), 1);
    let long = json!({ "id": made["id"], "idempotency_key": "k".repeat(201) });
    assert!(ann.refused("run_task", long).await.contains("`idempotency_key`"));
}

async fn published_event_is_in_the_log_once(api: Api) {
    let ann = host(&api, "ann", &["events:publish"]).await;
    let event = json!({ "source": "email", "type": "mail.new", "subject": "7", "data": { "n": 1 }, "id": "e-7" });
    for _ in 0..2 {
        assert_eq!(ann.done("publish_event", event.clone()).await["ids"], json!(["e-7"]));
    }
    let log = api.admin("GET", "/v1/events?tenant_id=ann", None).await.expect(200);
    let events = log["items"].as_array().expect("events");
    assert_eq!((events.len(), &events[0]["data"], &events[0]["subject"]), (1, &json!({ "n": 1 }), &json!("7")));
}

async fn events_are_listed_by_source_and_kind_page_by_page(api: Api) {
    let ann = host(&api, "ann", &["events:publish", "events:read"]).await;
    for (id, source, kind) in [("e-1", "email", "mail.new"), ("e-2", "email", "mail.read"), ("e-3", "shop", "order")] {
        ann.done("publish_event", json!({ "source": source, "type": kind, "id": id, "data": { "of": id } })).await;
    }
    let found = async |arguments: Value| ann.done("list_events", arguments).await;
    let ids = |page: &Value| {
        let items = page["items"].as_array().expect("events").iter();
        items.map(|event| event["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let all = found(json!({})).await;
    assert_eq!(ids(&all), ["e-1", "e-2", "e-3"]);
    assert_eq!(all["items"][0]["data"], json!({ "of": "e-1" }));
    assert_eq!(ids(&found(json!({ "source": "shop" })).await), ["e-3"]);
    assert_eq!(ids(&found(json!({ "type": "mail.*" })).await), ["e-1", "e-2"]);
    assert_eq!(ids(&found(json!({ "source": "email", "type": "mail.read" })).await), ["e-2"]);
    let first = found(json!({ "limit": 2 })).await;
    assert_eq!(ids(&first), ["e-1", "e-2"]);
    assert!(first["next_steps"].to_string().contains("`list_events`"), "{first:#}");
    assert_eq!(ids(&found(json!({ "cursor": first["next_cursor"] })).await), ["e-3"]);
}

#[tokio::test]
async fn refusal_names_the_argument_and_what_would_be_right() {
    let api = Api::new().await;
    let ann = host(&api, "ann", &["*"]).await;
    let refused = async |tool: &str, more: Value| {
        let mut arguments = mail();
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ann.refused(tool, arguments).await
    };
    for (more, words) in [
        (
            json!({ "timezone": "Europe/Berln" }),
            "`timezone`: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?",
        ),
        (json!({ "cron": "0 25 * * *" }), "`cron`: "),
        (json!({ "channel": "pigeon" }), "`channel`: "),
        (json!({ "max_runs": "three" }), "`max_runs`: invalid type"),
        (json!({ "instructions": "x" }), "`instructions`: there is no such argument; did you mean `instruction`?"),
        (json!({ "instruction": null }), "`instruction`: is missing"),
        (json!({ "at": "2027-01-01T08:00:00" }), "Mend this and call again."),
        (json!({ "trigger": { "type": "event" } }), "either `trigger`"),
    ] {
        let why = refused("create_task", more.clone()).await;
        assert!(why.contains(words) && why.contains("call again"), "{more}: {why}");
    }
    assert!(ann.refused("get_task", json!({ "id": "mail" })).await.contains("`mail` is no id of a task"));
    assert!(ann.refused("get_task", json!({ "id": Uuid::nil() })).await.contains("`list_tasks`"));
    assert!(ann.refused("create_task", json!({ "name": "a", "instruction": "b" })).await.contains("exactly one of"));
    assert_eq!(ann.done("list_tasks", json!({})).await["items"], json!([]));
}

#[tokio::test]
async fn condition_that_does_more_than_look_is_refused() {
    let api = Api::new().await;
    let ann = host(&api, "ann", &["*"]).await;
    let task = ann.done("create_task", mail()).await["id"].clone();
    let condition = |poll: Value| json!({ "type": "condition", "poll": poll, "interval": "30m", "expression": "value.price < 500" });
    for poll in [
        json!({ "http": { "url": "https://a.example", "method": "POST" } }),
        json!({ "http": { "url": "https://a.example", "credential": "flights" } }),
        json!({ "tool": { "name": "http_request" } }),
    ] {
        let trigger = condition(poll);
        let new = json!({ "name": "Price", "instruction": "Tell me", "trigger": trigger });
        assert!(ann.refused("create_task", new).await.starts_with("`trigger.poll"));
        let change = json!({ "id": task, "trigger": trigger });
        assert!(ann.refused("update_task", change).await.starts_with("`trigger.poll"));
        assert!(ann.refused("test_condition", json!({ "trigger": trigger })).await.starts_with("`trigger.poll"));
    }
    let other = json!({ "trigger": { "type": "schedule", "cron": "0 8 * * *" } });
    assert!(ann.refused("test_condition", other).await.contains("only a condition can be tried"));
}
