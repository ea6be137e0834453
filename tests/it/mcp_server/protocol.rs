//! The protocol itself over the router: which messages are taken, in which order they are checked, and what each fault
//! answers.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request};
use chrono::TimeDelta;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::api::service::{ADMIN, Api, on_both};
use crate::support::computing::{HeldThreads, until_waiting};

on_both! {
    disabled_tenant_reads_and_changes_nothing
    call_with_a_key_of_its_client_takes_effect_once
}

const NEWEST: &str = "2026-07-28";
const OLD: &str = "2025-11-25";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// An answer, as it came.
struct Sent {
    status: u16,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Sent {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("{}: {:?}", self.status, self.bytes))
    }

    /// Status, code, and id of an error of JSON-RPC.
    #[track_caller]
    fn fault(&self) -> (u16, i64, Option<Value>) {
        let message = self.json();
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        assert!(message["error"]["message"].is_string() && message.get("result").is_none(), "{message}");
        (self.status, message["error"]["code"].as_i64().expect("a code"), message.get("id").cloned())
    }

    #[track_caller]
    fn result(&self) -> Value {
        let message = self.json();
        assert_eq!((self.status, message.get("error")), (200, None), "{message}");
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message["result"].clone()
    }
}

/// Sends a body of JSON with these headers and no more.
async fn send(app: &Router, headers: &[(&str, &str)], body: impl Into<Body>) -> Sent {
    let mut request = Request::builder().method("POST").uri("/mcp").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = app.clone().oneshot(request.body(body.into()).expect("a request")).await.expect("an answer");
    let (parts, body) = answer.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.expect("a whole answer");
    Sent { status: parts.status.as_u16(), headers: parts.headers, bytes }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// The parameters of the new era, with these besides.
fn params(more: Value) -> Value {
    let mut params = json!({ "_meta": { VERSION: NEWEST, CAPABILITIES: {} } });
    params.as_object_mut().unwrap().extend(more.as_object().expect("an object").clone());
    params
}

fn message(id: Value, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// A request of the new era as the revision wants it; `name` is what `Mcp-Name` says.
async fn modern(api: &Api, token: &str, method: &str, name: Option<&str>, more: Value) -> Sent {
    let bearer = bearer(token);
    let mut headers =
        vec![("authorization", bearer.as_str()), ("mcp-protocol-version", NEWEST), ("mcp-method", method)];
    headers.extend(name.map(|name| ("mcp-name", name)));
    send(&api.app, &headers, message(json!(method), method, params(more))).await
}

/// A request of the old era.
async fn ancient(api: &Api, token: &str, method: &str, params: Value) -> Sent {
    let bearer = bearer(token);
    let headers = [("authorization", bearer.as_str()), ("mcp-protocol-version", OLD)];
    send(&api.app, &headers, message(json!(1), method, params)).await
}

/// A request of the new era with these versions, in the header and in `_meta`.
async fn versioned(api: &Api, header: Option<&str>, method: &str, params: Value) -> Sent {
    let bearer = bearer(ADMIN);
    let mut headers = vec![("authorization", bearer.as_str()), ("mcp-method", method)];
    headers.extend(header.map(|header| ("mcp-protocol-version", header)));
    send(&api.app, &headers, message(json!("an id"), method, params)).await
}

fn meta(version: &str) -> Value {
    json!({ "_meta": { VERSION: version, CAPABILITIES: {} } })
}

#[tokio::test]
async fn fields_and_versions_of_a_request_are_checked_in_their_order() {
    let api = Api::new().await;
    let id = || Some(json!("an id"));
    let strange = "v999.0.0";
    for (header, params, code) in [
        (Some(NEWEST), json!({}), -32602),
        (Some(NEWEST), json!({ "_meta": { CAPABILITIES: {} } }), -32602),
        (Some(NEWEST), json!({ "_meta": { VERSION: NEWEST } }), -32602),
        (Some(NEWEST), meta(strange), -32020),
        (None, meta(NEWEST), -32020),
        (Some(OLD), meta(NEWEST), -32020),
        (Some(strange), meta(strange), -32022),
        (Some(strange), json!({}), -32022),
    ] {
        let answer = versioned(&api, header, "tools/list", params.clone()).await;
        assert_eq!(answer.fault(), (400, code, id()), "{header:?} {params}");
    }
    let refused = versioned(&api, Some(strange), "server/discover", meta(strange)).await.json();
    assert_eq!(refused["error"]["data"]["requested"], strange);
    let discovered = versioned(&api, Some(NEWEST), "server/discover", meta(NEWEST)).await.result();
    assert_eq!(refused["error"]["data"]["supported"], discovered["supportedVersions"]);
    // a name of the client is never needed
    versioned(&api, Some(NEWEST), "tools/list", meta(NEWEST)).await.result();
    // the headers are read before the method is looked for
    let bearer = bearer(ADMIN);
    let headers = [("authorization", bearer.as_str()), ("mcp-protocol-version", NEWEST)];
    let without = send(&api.app, &headers, message(json!(7), "unknown/method", params(json!({})))).await;
    assert_eq!(without.fault(), (400, -32020, Some(json!(7))));
}

#[tokio::test]
async fn headers_of_a_request_repeat_its_method_and_its_name() {
    let api = Api::new().await;
    let bearer = bearer(ADMIN);
    let of = async |headers: &[(&str, &str)], method: &str, more: Value| {
        let mut all = vec![("authorization", bearer.as_str()), ("MCP-Protocol-Version", NEWEST)];
        all.extend(headers);
        send(&api.app, &all, message(json!(3), method, params(more))).await
    };
    for wrong in [&[][..], &[("mcp-method", "prompts/list")], &[("mcp-method", "TOOLS/LIST")]] {
        assert_eq!(of(wrong, "tools/list", json!({})).await.fault(), (400, -32020, Some(json!(3))), "{wrong:?}");
    }
    of(&[("MCP-METHOD", "  tools/list ")], "tools/list", json!({})).await.result();

    let listed = of(&[("mcp-method", "tools/list")], "tools/list", json!({})).await.result();
    let first = listed["tools"][0]["name"].as_str().expect("a tool").to_owned();
    let call = json!({ "name": first, "arguments": {} });
    for wrong in [&[("mcp-method", "tools/call")][..], &[("mcp-method", "tools/call"), ("mcp-name", "wrong_tool_name")]]
    {
        assert_eq!(of(wrong, "tools/call", call.clone()).await.fault(), (400, -32020, Some(json!(3))), "{wrong:?}");
    }
    let padded = format!("  {first}  ");
    let called = of(&[("mcp-method", "tools/call"), ("Mcp-Name", &padded)], "tools/call", call).await.result();
    assert_eq!(called["resultType"], "complete");
    let task = json!({ "taskId": "8f0f6e1a-0000-7000-8000-000000000000" });
    let answer = of(&[("mcp-method", "tasks/get"), ("mcp-name", "another")], "tasks/get", task).await;
    assert_eq!(answer.fault(), (400, -32020, Some(json!(3))));
}

#[tokio::test]
async fn each_era_has_its_methods() {
    let api = Api::new().await;
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "subscriptions/listen",
        "prompts/list",
        "completion/complete",
        "tasks/list",
        "tasks/result",
        "unknown/method",
    ] {
        // methods of tasks have a name in their header
        let more = json!({ "taskId": "x" });
        let answer = modern(&api, ADMIN, method, Some("x"), more).await;
        assert_eq!(answer.fault(), (404, -32601, Some(json!(method))));
    }
    for method in ["tasks/get", "tasks/update", "tasks/cancel", "logging/setLevel", "prompts/list", "unknown/method"] {
        let answer = ancient(&api, ADMIN, method, json!({ "taskId": "x" })).await;
        assert_eq!(answer.fault(), (200, -32601, Some(json!(1))), "{method}");
    }
}

#[tokio::test]
async fn discovery_says_what_is_served() {
    let api = Api::new().await;
    let answer = modern(&api, ADMIN, "server/discover", None, json!({})).await.result();
    assert_eq!((&answer["resultType"], &answer["cacheScope"]), (&json!("complete"), &json!("private")));
    assert!(answer["ttlMs"].is_u64(), "{answer}");
    assert_eq!(answer["supportedVersions"][0], NEWEST);
    let capabilities = answer["capabilities"].as_object().expect("capabilities");
    assert_eq!(capabilities.keys().collect::<Vec<_>>().len(), 3, "{capabilities:?}");
    assert_eq!((&capabilities["tools"], &capabilities["resources"]), (&json!({}), &json!({})));
    assert_eq!(capabilities["extensions"][TASKS], json!({}));
    let server = &answer["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!((&server["name"], &server["version"]), (&json!("reveille"), &json!(env!("CARGO_PKG_VERSION"))));
}

#[tokio::test]
async fn lists_say_how_long_they_may_be_kept_in_the_new_era_alone() {
    let api = Api::new().await;
    let listed = modern(&api, ADMIN, "tools/list", None, json!({})).await.result();
    assert_eq!((&listed["resultType"], &listed["cacheScope"]), (&json!("complete"), &json!("private")));
    assert!(listed["ttlMs"].is_u64() && listed.get("ttl").is_none(), "{listed}");
    for _ in 0..2 {
        assert_eq!(modern(&api, ADMIN, "tools/list", None, json!({})).await.result(), listed);
    }
    let old = ancient(&api, ADMIN, "tools/list", json!({})).await.result();
    assert_eq!(old, json!({ "tools": listed["tools"] }));
    let templates = modern(&api, ADMIN, "resources/templates/list", None, json!({})).await.result();
    assert_eq!(templates["resourceTemplates"], json!([]));
    for method in ["tools/list", "resources/templates/list"] {
        let answer = modern(&api, ADMIN, method, None, json!({ "cursor": "x" })).await;
        assert_eq!(answer.fault(), (200, -32602, Some(json!(method))));
    }
}

#[tokio::test]
async fn client_of_the_old_era_begins_with_initialize_and_has_no_session() {
    let api = Api::new().await;
    let bearer = bearer(ADMIN);
    let asked = json!({ "protocolVersion": OLD, "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } });
    let without = [("authorization", bearer.as_str())];
    let with = [("authorization", bearer.as_str()), ("mcp-protocol-version", OLD)];
    for headers in [&without[..], &with] {
        let answer = send(&api.app, headers, message(json!(0), "initialize", asked.clone())).await;
        assert!(!answer.headers.contains_key("mcp-session-id"));
        let result = answer.result();
        assert_eq!(result["protocolVersion"], OLD);
        assert_eq!(result["capabilities"], json!({ "tools": {}, "resources": {} }));
        assert_eq!(result["serverInfo"]["name"], "reveille");
        assert!(result.get("resultType").is_none(), "{result}");
    }
    let notified = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    let answer = send(&api.app, &with, notified).await;
    assert_eq!((answer.status, answer.bytes.len()), (202, 0));
    assert_eq!(ancient(&api, ADMIN, "ping", json!({})).await.result(), json!({}));
}

#[tokio::test]
async fn body_that_is_no_request_is_refused() {
    let api = Api::new().await;
    let bearer = bearer(ADMIN);
    let headers = [("authorization", bearer.as_str())];
    let of = async |body: &str| send(&api.app, &headers, body.to_owned()).await.fault();
    assert_eq!(of("{").await, (400, -32700, None));
    assert_eq!(of("").await, (400, -32700, None));
    assert_eq!(of(r#"[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]"#).await, (400, -32600, None));
    assert_eq!(of(r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#).await, (400, -32600, None));
    assert_eq!(of(r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#).await, (400, -32600, Some(json!(1))));
    assert_eq!(of(r#"{"jsonrpc": "1.0", "id": "a", "method": "ping"}"#).await, (400, -32600, Some(json!("a"))));
    assert_eq!(of(r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#).await, (400, -32600, None));

    let unknown = json!({ "jsonrpc": "2.0", "method": "notifications/unheard_of", "params": {} }).to_string();
    assert_eq!(send(&api.app, &headers, unknown).await.status, 202);

    let long = send(&api.app, &headers, " ".repeat(1024 * 1024 + 1)).await;
    assert_eq!((long.status, &long.json()["type"]), (413, &json!("urn:reveille:problem:too-large")));
    let mut request = Request::builder().method("POST").uri("/mcp").header("content-type", "text/plain");
    request = request.header("authorization", &bearer);
    let answer = api.app.clone().oneshot(request.body(Body::from("{}")).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 415);
}

#[tokio::test]
async fn page_of_a_foreign_site_is_refused_before_its_token_is_looked_at() {
    let api = Api::new().await;
    let bearer = bearer(ADMIN);
    let ping = message(json!(1), "ping", json!({}));
    let evil = [("host", "evil.example.com"), ("origin", "http://evil.example.com")];
    let ours = [("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7700")];
    let refused = send(&api.app, &evil, ping.clone()).await;
    assert_eq!((refused.status, &refused.json()["type"]), (403, &json!("urn:reveille:problem:foreign-origin")));
    let with_token = |sent: [(&'static str, &'static str); 2]| [sent[0], sent[1], ("authorization", bearer.as_str())];
    assert_eq!(send(&api.app, &with_token(evil), ping.clone()).await.status, 403);
    assert_eq!(send(&api.app, &with_token(ours), ping.clone()).await.result(), json!({}));

    let nobody = send(&api.app, &ours, ping.clone()).await;
    assert_eq!(nobody.status, 401);
    assert!(nobody.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer "));
    assert_eq!(send(&api.app, &[("authorization", "Bearer wrong")], ping).await.status, 401);
}

#[tokio::test]
async fn messages_are_posted_and_nothing_is_streamed() {
    let api = Api::new().await;
    for method in ["GET", "DELETE", "PUT"] {
        let request = Request::builder().method(method).uri("/mcp").header("authorization", bearer(ADMIN));
        let answer = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 405, "{method}");
        assert_eq!(answer.headers()["allow"], "POST", "{method}");
    }
}

#[tokio::test]
async fn token_that_sends_too_much_waits_for_the_next_minute() {
    let api = Api::new().await;
    let (loud, quiet) = (api.token("ann", &["*"]).await, api.token("ann", &["*"]).await);
    for _ in 0..600 {
        assert_eq!(ancient(&api, &loud, "ping", json!({})).await.status, 200);
    }
    let refused = ancient(&api, &loud, "ping", json!({})).await;
    assert_eq!((refused.status, refused.headers["retry-after"].to_str().unwrap()), (429, "60"));
    assert_eq!(refused.json()["type"], "urn:reveille:problem:too-many-requests");
    assert_eq!(ancient(&api, &quiet, "ping", json!({})).await.status, 200);
    api.ask("GET", "/v1/tasks", Some(&loud), None).await.expect(200);
    api.clock.advance(TimeDelta::seconds(60));
    assert_eq!(ancient(&api, &loud, "ping", json!({})).await.status, 200);
}

#[tokio::test]
async fn messages_are_counted_by_method_and_outcome() {
    let api = Api::new().await;
    modern(&api, ADMIN, "server/discover", None, json!({})).await.result();
    modern(&api, ADMIN, "unknown/method", None, json!({})).await.fault();
    versioned(&api, Some(NEWEST), "tools/list", json!({})).await.fault();
    modern(&api, ADMIN, "tools/call", Some("create_task"), json!({ "name": "create_task", "arguments": {} })).await;
    let text = api.metrics.text();
    for line in [
        r#"{method="server/discover",outcome="ok"} 1"#,
        r#"{method="other",outcome="error"} 1"#,
        r#"{method="tools/list",outcome="error"} 1"#,
        r#"{method="tools/call",outcome="tool_error"} 1"#,
    ] {
        let line = format!("reveille_mcp_requests_total{line}");
        assert!(text.lines().any(|found| found == line), "no `{line}` in:\n{text}");
    }
}

#[tokio::test]
async fn long_message_is_read_on_a_computing_thread_and_a_short_one_where_it_is() {
    let api = Api::new().await;
    let ann = api.token("ann", &["*"]).await;
    let computing = api.store.computing().clone();
    let threads = HeldThreads::all_of(&computing, "ann").await;
    assert_eq!(ancient(&api, &ann, "ping", json!({ "a": "short" })).await.result(), json!({}));
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        assert_eq!(ancient(&api, &ann, "ping", json!({})).await.result(), json!({}));
        drop(threads);
    };
    let long = ancient(&api, &ann, "ping", json!({ "a": "x".repeat(17_000) }));
    let (answer, ()) = tokio::join!(long, meanwhile);
    assert_eq!(answer.result(), json!({}));
}

/// A call of a tool by a client of the old era; the result says whether it failed.
async fn called(api: &Api, token: &str, name: &str, arguments: Value, more: Value) -> Value {
    let mut params = json!({ "name": name, "arguments": arguments });
    params.as_object_mut().unwrap().extend(more.as_object().expect("an object").clone());
    ancient(api, token, "tools/call", params).await.result()
}

fn daily() -> Value {
    json!({ "name": "Mail", "instruction": "Read my mail", "cron": "0 8 * * *", "timezone": "Europe/Berlin" })
}

async fn tasks_of(api: &Api, token: &str) -> usize {
    let listed = api.ask("GET", "/v1/tasks", Some(token), None).await.expect(200);
    listed["items"].as_array().expect("tasks").len()
}

async fn disabled_tenant_reads_and_changes_nothing(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let made = called(&api, &ann, "create_task", daily(), json!({})).await;
    assert_eq!(made["isError"], false, "{made}");
    api.admin("POST", "/v1/tenants/ann/disable", Some(json!({ "reason": "no" }))).await.expect(200);
    let listed = called(&api, &ann, "list_tasks", json!({}), json!({})).await;
    assert_eq!(listed["isError"], false, "{listed}");
    let refused = called(&api, &ann, "create_task", daily(), json!({})).await;
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(tasks_of(&api, &ann).await, 1);
}

async fn call_with_a_key_of_its_client_takes_effect_once(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let key = json!({ "_meta": { "reveille/idempotency-key": "a call" } });
    let first = called(&api, &ann, "create_task", daily(), key.clone()).await;
    assert_eq!(first["isError"], false, "{first}");
    let again = called(&api, &ann, "create_task", daily(), key).await;
    assert_eq!(again["structuredContent"], first["structuredContent"]);
    assert_eq!(tasks_of(&api, &ann).await, 1);
    called(&api, &ann, "create_task", daily(), json!({ "_meta": { "reveille/idempotency-key": "another" } })).await;
    assert_eq!(tasks_of(&api, &ann).await, 2);
}
