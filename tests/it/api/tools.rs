//! Tools over HTTP: definitions of MCP servers that wait for the operator, and tools that a person tries.

use reveille::domain::approval::proposal::text_hash;
use reveille::domain::approval::{PinVerdict, SeenDefinition};
use serde_json::{Value, json};

use super::service::{ADMIN, Api, Reply, daily_of, on_both};

on_both! {
    waiting_tool_is_listed_and_read_with_its_difference
    definition_that_was_looked_at_is_accepted_by_the_operator_alone
    definition_is_not_accepted_where_another_waits_or_none
    tool_that_only_reads_is_tried_at_once_and_is_on_the_record
    call_that_acts_is_made_once_it_is_confirmed_and_for_its_own_tenant_alone
    call_that_the_rules_ask_about_needs_a_token_that_may_decide
    tool_that_has_another_version_by_now_is_not_called
    nothing_is_tried_for_a_tenant_that_is_stopped_or_disabled
    policy_of_a_tool_says_whether_a_person_is_asked_and_how_often_it_is_repeated
}

const TOOL: &str = "/v1/tools/github.merge";

fn seen(description: &str) -> SeenDefinition {
    let text = json!({ "description": description, "name": "merge" }).to_string();
    SeenDefinition { tool: "merge".into(), hash: text_hash(&text), text }
}

/// A definition of `github.merge`, which its server has listed first.
pub fn accepted_definition() -> SeenDefinition {
    seen("Merges.\nAsks first.")
}

/// The definition that it lists now.
pub fn waiting_definition() -> SeenDefinition {
    seen("Merges.\nAsks nobody.")
}

/// The server of `github.merge` lists one definition, and then the other.
async fn listed(api: &Api) {
    for (definition, verdict) in
        [(accepted_definition(), PinVerdict::Accepted), (waiting_definition(), PinVerdict::Waiting)]
    {
        assert_eq!(api.store.judge_tools("github", &[definition]).await.expect("judged"), [verdict]);
    }
}

/// The entries of the record with this action.
async fn recorded(api: &Api, action: &str) -> Vec<Value> {
    let entries = api.admin("GET", "/v1/audit", None).await.expect(200);
    let entries = entries["items"].as_array().unwrap().iter();
    entries.filter(|entry| entry["action"] == action).cloned().collect()
}

async fn waiting_tool_is_listed_and_read_with_its_difference(api: Api) {
    listed(&api).await;
    let all = api.admin("GET", "/v1/tools", None).await.expect(200);
    let [.., last] = all["items"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!((&last["name"], &last["source"]), (&json!("github.merge"), &json!("mcp")));
    assert_eq!((&last["offered"], &last["reason"]), (&json!(false), &json!("not_accepted")));
    assert!(last.get("pin").is_none(), "a list has none");
    let ann = api.token("ann", &["tasks:read"]).await;
    let told = api.ask("GET", TOOL, Some(&ann), None).await.expect(200);
    assert_eq!((&told["name"], &told["reason"]), (&json!("github.merge"), &json!("not_accepted")));
    let pin = &told["pin"];
    assert_eq!(pin["state"], "changed");
    assert_eq!(pin["accepted"], json!(accepted_definition().hash));
    assert_eq!(pin["waiting"], json!(waiting_definition().hash));
    assert_eq!(pin["waiting_since"], pin["accepted_at"]);
    let difference: Vec<&str> = pin["difference"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for line in ["- Asks first.", "+ Asks nobody."] {
        assert!(difference.contains(&line), "{difference:?}");
    }
    let built_in = api.ask("GET", "/v1/tools/current_time", Some(&ann), None).await.expect(200);
    assert!(built_in.get("pin").is_none(), "no server lists it: {built_in}");
}

async fn definition_that_was_looked_at_is_accepted_by_the_operator_alone(api: Api) {
    listed(&api).await;
    let place = format!("{TOOL}/accept");
    let wanted = || Some(json!({ "definition": waiting_definition().hash }));
    let ann = api.token("ann", &["*"]).await;
    let refused = api.ask("POST", &place, Some(&ann), wanted()).await.expect(403);
    assert_eq!(refused["type"], "urn:reveille:problem:forbidden");
    assert_eq!(api.admin("GET", TOOL, None).await.expect(200)["pin"]["state"], "changed");
    api.advance(60);
    let pin = api.admin("POST", &place, wanted()).await.expect(200);
    assert_eq!((&pin["state"], &pin["difference"]), (&json!("accepted"), &json!([])));
    assert_eq!((&pin["accepted"], pin.get("waiting")), (&json!(waiting_definition().hash), None));
    assert_eq!((&pin["accepted_by"], &pin["accepted_at"]), (&json!("token:admin"), &json!("2026-11-21T00:01:00Z")));
    let to_ann = api.ask("GET", TOOL, Some(&ann), None).await.expect(200);
    assert_eq!((&to_ann["pin"]["state"], to_ann["pin"].get("accepted_by")), (&json!("accepted"), None));
    assert_eq!(api.admin("GET", TOOL, None).await.expect(200)["pin"], pin);
    // once more, by its hash and as whatever waits
    assert_eq!(api.admin("POST", &place, wanted()).await.expect(200), pin);
    assert_eq!(api.admin("POST", &place, None).await.expect(200), pin);
    let recorded = recorded(&api, "tool.accepted").await;
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0]["body"]["before"], json!(accepted_definition().hash));
}

async fn definition_is_not_accepted_where_another_waits_or_none(api: Api) {
    listed(&api).await;
    let accept = async |tool: &str, hash: &str| {
        api.admin("POST", &format!("/v1/tools/{tool}/accept"), Some(json!({ "definition": hash }))).await
    };
    let other = "0".repeat(64);
    let refused = accept("github.merge", &other).await.expect(409);
    assert_eq!(refused["type"], "urn:reveille:problem:conflict");
    assert!(refused["detail"].as_str().unwrap().contains(&waiting_definition().hash), "{refused}");
    for unknown in ["github.other", "nowhere.merge", "current_time"] {
        accept(unknown, &other).await.expect(404);
    }
    assert_eq!(api.admin("GET", TOOL, None).await.expect(200)["pin"]["state"], "changed");
    let key = [("idempotency-key", "k1")];
    let post = async |body: Option<Value>| {
        let place = format!("{TOOL}/accept");
        api.ask_with("POST", &place, Some(ADMIN), body, &key).await.expect(200)
    };
    let accepted = post(None).await;
    // the server goes back, and on again: what is repeated accepts nothing more
    let third = api.store.judge_tools("github", &[seen("Merges.\nAsks later.")]).await.expect("judged");
    assert_eq!(third, [PinVerdict::Waiting]);
    assert_eq!(post(None).await, accepted);
    assert_eq!(api.admin("GET", TOOL, None).await.expect(200)["pin"]["state"], "changed");
}

/// Tries a tool with a token.
async fn tried(api: &Api, token: &str, tool: &str, body: Value) -> Reply {
    api.ask("POST", &format!("/v1/tools/{tool}/call"), Some(token), Some(body)).await
}

async fn tool_that_only_reads_is_tried_at_once_and_is_on_the_record(api: Api) {
    let ann = api.token("ann", &["tasks:write"]).await;
    let arguments = json!({ "timezone": "Europe/Berlin" });
    let trial = tried(&api, &ann, "current_time", json!({ "arguments": arguments })).await.expect(200);
    assert_eq!((&trial["tool"], &trial["arguments"]), (&json!("current_time"), &arguments));
    assert!(trial["error"].is_null() && trial["truncated"] != true, "{trial}");
    assert!(trial["result"].to_string().contains("2026-11-21T01:00:00+01:00"), "{trial}");
    let recorded = recorded(&api, "tool.called").await;
    let [entry] = recorded.as_slice() else { panic!("{recorded:?}") };
    assert_eq!((&entry["tenant_id"], &entry["body"]["tool"]), (&json!("ann"), &json!("current_time")));
    assert!(!entry.to_string().contains("Europe/Berlin"), "the arguments are not kept: {entry}");

    let refused = tried(&api, &ann, "current_time", json!({ "arguments": { "timezone": 7 } })).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/arguments", "{refused}");
    tried(&api, &ann, "current_tim", json!({})).await.expect(404);
    for not_here in ["ask_user", "remember", "BookTable", "github.search", "github.merge"] {
        let refused = tried(&api, &ann, not_here, json!({ "confirmed": true })).await.expect(409);
        assert_eq!(refused["type"], "urn:reveille:problem:conflict", "{not_here}: {refused}");
    }
    let admin = api.admin("POST", "/v1/tools/current_time/call", Some(json!({}))).await.expect(422);
    assert_eq!(admin["errors"][0]["pointer"], "/tenant_id", "an admin token names the tenant");
    let other = json!({ "tenant_id": "bob", "confirmed": true });
    let refused = tried(&api, &ann, "current_time", other).await.expect(422);
    assert_eq!(refused["errors"][0]["pointer"], "/tenant_id", "{refused}");
}

async fn call_that_acts_is_made_once_it_is_confirmed_and_for_its_own_tenant_alone(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let id = task["id"].as_str().unwrap();
    let place = format!("/v1/tasks/{id}");
    let status = async || api.admin("GET", &place, None).await.expect(200)["status"].clone();
    let [ann, bob] = [api.token("ann", &["tasks:write"]).await, api.token("bob", &["tasks:write"]).await];
    let pause = |confirmed: bool| json!({ "arguments": { "id": id }, "confirmed": confirmed });
    let unasked = tried(&api, &ann, "pause_task", pause(false)).await.expect(409);
    assert_eq!(unasked["type"], "urn:reveille:problem:confirmation_required", "{unasked}");
    assert_eq!(status().await, "active");
    assert!(recorded(&api, "tool.called").await.is_empty(), "nothing was called");
    let of_bob = tried(&api, &bob, "pause_task", pause(true)).await.expect(200);
    assert!(of_bob["error"].is_object(), "bob has no such task: {of_bob}");
    assert_eq!(status().await, "active");
    let done = tried(&api, &ann, "pause_task", pause(true)).await.expect(200);
    assert_eq!((&done["error"], status().await), (&Value::Null, json!("paused")), "{done}");
}

async fn call_that_the_rules_ask_about_needs_a_token_that_may_decide(api: Api) {
    let rule = json!({ "tenant_id": "ann", "tool": "current_time", "gate": "confirm" });
    api.admin("POST", "/v1/approval-overrides", Some(rule)).await.expect(201);
    let writer = api.token("ann", &["tasks:write"]).await;
    let decider = api.token("ann", &["tasks:write", "approvals:decide"]).await;
    let confirmed = json!({ "confirmed": true });
    let refused = tried(&api, &writer, "current_time", confirmed.clone()).await.expect(403);
    assert_eq!(refused["detail"], "this needs a token with `approvals:decide`");
    let unasked = tried(&api, &decider, "current_time", json!({})).await.expect(409);
    assert_eq!(unasked["type"], "urn:reveille:problem:confirmation_required", "{unasked}");
    tried(&api, &decider, "current_time", confirmed).await.expect(200);
    let bob = api.token("bob", &["tasks:write"]).await;
    tried(&api, &bob, "current_time", json!({})).await.expect(200);
}

async fn tool_that_has_another_version_by_now_is_not_called(api: Api) {
    let ann = api.token("ann", &["tasks:write", "tasks:read"]).await;
    let tool = api.ask("GET", "/v1/tools/current_time", Some(&ann), None).await.expect(200);
    tried(&api, &ann, "current_time", json!({ "version": tool["version"] })).await.expect(200);
    let refused = tried(&api, &ann, "current_time", json!({ "version": "0.0.7" })).await.expect(409);
    assert_eq!(refused["type"], "urn:reveille:problem:conflict", "{refused}");
}

async fn nothing_is_tried_for_a_tenant_that_is_stopped_or_disabled(api: Api) {
    let body = || Some(json!({ "tenant_id": "ann" }));
    let tried = async || api.admin("POST", "/v1/tools/current_time/call", body()).await;
    tried().await.expect(200);
    api.admin("POST", "/v1/stop", body()).await.expect(200);
    assert_eq!(tried().await.expect(409)["type"], "urn:reveille:problem:conflict");
    api.admin("POST", "/v1/start", body()).await.expect(200);
    tried().await.expect(200);
    let ann = api.token("ann", &["tasks:write"]).await;
    api.admin("POST", "/v1/tenants/ann/disable", None).await.expect(200);
    tried().await.expect(409);
    let of_ann = api.ask("POST", "/v1/tools/current_time/call", Some(&ann), Some(json!({}))).await.expect(403);
    assert_eq!(of_ann["type"], "urn:reveille:problem:tenant_disabled");
}

async fn policy_of_a_tool_says_whether_a_person_is_asked_and_how_often_it_is_repeated(api: Api) {
    let ann = api.token("ann", &["tasks:read"]).await;
    let policy = async |tool: &str| {
        let tool = api.ask("GET", &format!("/v1/tools/{tool}"), Some(&ann), None).await.expect(200);
        tool["policy"].clone()
    };
    let reads = policy("current_time").await;
    assert_eq!((&reads["asks"], &reads["max_retries"], &reads["cache"]), (&json!(false), &json!(3), &json!(false)));
    assert_eq!(reads["retries_on"], json!(["timeout", "resource_error"]));
    assert_eq!(policy("http_send").await["asks"], true);
    let all = api.ask("GET", "/v1/tools", Some(&ann), None).await.expect(200);
    let sends = all["items"].as_array().unwrap().iter().find(|tool| tool["name"] == "http_send").expect("the tool");
    assert_eq!(sends["policy"]["asks"], true);
}
