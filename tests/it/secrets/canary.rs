//! Secrets are planted over HTTP, used by an agent, a declared tool, a poll, pipelines and webhooks against a server
//! that sends them back in every way, renewed by a provider that repeats what it was sent, and then looked for in
//! everything that the service has written or said.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request as Asked;
use futures::StreamExt;
use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::domain::run::RunState;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tracing::Level;
use wiremock::matchers::{any, method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::{echo, encodings, open, received, sent, traces};
use crate::support::app::Instance;
use crate::support::log::Log;
use crate::support::sse::events_of;
use crate::support::world::{ADMIN, World, on_both};

on_both! { planted_secret_is_found_nowhere_but_encrypted }

const CANARY: &str = "Kan4rie/+&=%7E\"<x>'zQ8w";
/// Of an account at a provider: as they are planted, and as they are renewed.
const ACCESS: [&str; 2] = ["acc3ss/Kan4rie+0ne&x", "acc3ss/Kan4rie+tw0&y"];
const REFRESH: [&str; 2] = ["r3fresh/Kan4rie+0ne&x", "r3fresh/Kan4rie+tw0&y"];
const CLIENT_SECRET: &str = "cl1ent/s3cret+Kan4rie&z";
const PLANTED: [&str; 6] = [CANARY, ACCESS[0], ACCESS[1], REFRESH[0], REFRESH[1], CLIENT_SECRET];
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A token endpoint that renews, or at `/gone` refuses, and repeats what it was sent.
struct Provider;

impl Respond for Provider {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let sent = String::from_utf8_lossy(&request.body).into_owned();
        let form: Vec<String> =
            url::form_urlencoded::parse(sent.as_bytes()).map(|(_, value)| value.into_owned()).collect();
        let said = format!("{sent} {}", form.join(" "));
        match request.url.path() {
            "/gone" => {
                ResponseTemplate::new(400).set_body_json(json!({ "error": "invalid_grant", "error_description": said }))
            }
            _ => ResponseTemplate::new(200).set_body_json(json!({
                "access_token": ACCESS[1], "refresh_token": REFRESH[1], "token_type": "Bearer", "expires_in": 3600,
                "scope": said,
            })),
        }
    }
}

/// Keeps what it is sent with a credential, and says it to whoever comes without one; of a run that it takes on it says
/// nothing yet.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<String>>);

impl Respond for Keeper {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let sent = sent(request);
        if !sent.is_empty() {
            *self.0.lock().unwrap() = sent;
            return ResponseTemplate::new(if request.url.path() == "/later" { 202 } else { 200 });
        }
        let kept = self.0.lock().unwrap().clone();
        // longer than a model is shown
        let more = "x".repeat(4_000);
        ResponseTemplate::new(200).set_body_json(json!({ "kept": kept, "all": encodings(&kept), "more": more }))
    }
}

/// Every trace of what was planted.
fn found(text: &[u8]) -> Vec<String> {
    PLANTED.iter().flat_map(|secret| traces(secret, text)).collect()
}

/// Writes a credential of ann's as a person does; what is answered.
async fn plant(instance: &Instance, name: &str, body: Value) -> String {
    let path = format!("/v1/credentials/{}?tenant_id=ann", address(name));
    let (status, answer) = instance.ask("PUT", &path, ADMIN, Some(body)).await;
    assert_eq!(status, 200, "{name}: {answer}");
    answer.to_string()
}

/// `shop` is `shop/primary`.
fn address(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("{name}/primary") }
}

/// All that a stream says, kept in `heard` while it comes, until it ends.
async fn listen(instance: &Instance, path: &str, heard: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let asked = Asked::get(path).header("authorization", format!("Bearer {ADMIN}")).body(Body::empty()).unwrap();
    let router = instance.router();
    let answer = instance.on(|_| async move { router.oneshot(asked).await.expect("an answer") }).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"text/event-stream".parse().unwrap())
    );
    let mut parts = answer.into_body().into_data_stream();
    let listening = async move {
        while let Some(Ok(part)) = parts.next().await {
            heard.lock().unwrap().extend_from_slice(&part);
        }
    };
    let spawned = instance.on(|_| async move { (tokio::spawn(listening),) });
    spawned.await.0
}

/// A model that looks at four places with the credential, calls a tool of the operator's, and then repeats all that it
/// was told.
struct Model {
    server: String,
    keeper: String,
}

impl Respond for Model {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let body: Value = request.body_json().expect("a JSON body");
        let told: Vec<String> = body["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .filter(|message| message["role"] == "tool")
            .map(|message| message["content"].to_string())
            .collect();
        let places = ["/echo", "/refuse", "/fail", "/carry", "look_up", "keep", "kept"];
        let delta = match places.get(told.len()) {
            Some(place) => {
                let (name, arguments) = match *place {
                    "look_up" => (*place, json!({ "q": "x" })),
                    "keep" => ("http_request", json!({ "url": self.keeper, "credential": "shop" })),
                    "kept" => ("http_request", json!({ "url": self.keeper })),
                    place => {
                        ("http_request", json!({ "url": format!("{}{place}", self.server), "credential": "shop" }))
                    }
                };
                let call = json!({ "name": name, "arguments": arguments.to_string() });
                let id = format!("call_{}", told.len());
                json!({ "role": "assistant", "tool_calls": [{ "index": 0, "id": id, "type": "function", "function": call }] })
            }
            None => json!({ "role": "assistant", "content": told.join("\n") }),
        };
        let reason = if delta.get("content").is_some() { "stop" } else { "tool_calls" };
        let events = [
            json!({ "choices": [{ "index": 0, "delta": delta }] }),
            json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11 } }),
        ];
        let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        ResponseTemplate::new(200).set_body_raw(events + "data: [DONE]\n\n", "text/event-stream")
    }
}

async fn planted_secret_is_found_nowhere_but_encrypted(world: World) {
    let log = Log::of_process(Level::TRACE);
    let mut world = open(world);
    let elsewhere = echo("").await;
    let server = echo(&elsewhere.uri()).await;
    let model = MockServer::start().await;
    let kept = MockServer::start().await;
    Mock::given(any()).respond_with(Keeper::default()).mount(&kept).await;
    let brain = Model { server: server.uri(), keeper: kept.uri() };
    Mock::given(method("POST")).and(path("/v1/chat/completions")).respond_with(brain).mount(&model).await;
    let main = json!({ "provider": "openai", "model": "m", "base_url": format!("{}/v1", model.uri()), "api_key": "k" });
    world.llm = serde_json::from_value(json!({ "models": { "main": main } })).unwrap();
    let provider = MockServer::start().await;
    Mock::given(method("POST")).respond_with(Provider).mount(&provider).await;
    let look_up = json!([{
        "name": "look_up", "description": "Looks something up.", "category": "read", "consequence": "low",
        "requires_confirmation": false, "summary": "Look {q} up",
        "parameters": {
            "type": "object", "required": ["q"], "additionalProperties": false,
            "properties": { "q": { "type": "string" } },
        },
        "http": {
            "method": "POST", "url": format!("{}/echo", server.uri()), "credential": "shop/field",
            "body": { "q": "{{ args.q }}" },
        },
    }]);
    world.declared = serde_json::from_value(look_up).unwrap();
    // results that are longer are in data files
    world.react.max_tool_result_chars = 2_000;
    let instance = world.instance();
    let addresses = Addresses { email: Some("ann@example.org".into()), live: true, ..Addresses::default() };
    let fallback = vec!["live".into(), "email".into()];
    let ann =
        Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), addresses, fallback, ..Recipient::default() };
    instance.on(|store| async move { store.put_recipient(&Scope::Every, "ann", &ann, None).await }).await.unwrap();
    let key = json!({ "key": CANARY, "note": "nothing" });
    let account = |path: &str| {
        let document = json!({
            "access_token": ACCESS[0], "refresh_token": REFRESH[0], "client_secret": CLIENT_SECRET,
            "expires_at": "2027-03-01T07:00:00Z",
        });
        let oauth =
            json!({ "token_url": format!("{}{path}", provider.uri()), "client_id": "reveille", "client_auth": "body" });
        json!({ "document": document, "inject": { "as": "bearer", "from": "/access_token" }, "oauth": oauth })
    };
    let mut said: Vec<(String, String)> = Vec::new();
    let mut names = vec![];
    for (name, mut body) in [
        ("shop", json!({ "document": key, "inject": { "as": "header", "name": "X-Key", "from": "/key" } })),
        ("shop/query", json!({ "document": key, "inject": { "as": "query", "name": "key", "from": "/key" } })),
        ("shop/basic", json!({ "document": key, "inject": { "as": "basic", "template": "ann:{/key}" } })),
        ("shop/field", json!({ "document": key, "inject": { "as": "field", "name": "key", "from": "/key" } })),
        ("mail", account("/token")),
        ("gone", account("/gone")),
    ] {
        body["hosts"] = json!(["127.0.0.1"]);
        said.push((format!("the answer to {name}"), plant(&instance, name, body).await));
        names.push(name);
    }
    let live = Arc::new(Mutex::new(Vec::new()));
    let session = listen(&instance, "/v1/live?tenant_id=ann", live.clone()).await;
    while live.lock().unwrap().is_empty() {
        pause(Duration::from_millis(5)).await;
    }
    let place = |path: &str| format!("{}{path}", server.uri());

    let mut tasks = Vec::new();
    for credential in ["shop", "shop/query", "shop/basic", "shop/field", "mail"] {
        let in_body = credential == "shop/field";
        let http = |path: &str| match in_body {
            true => json!({ "method": "POST", "url": place(path), "body": { "x": 1 }, "credential": credential }),
            false => json!({ "url": place(path), "credential": credential }),
        };
        let step = |name: &str, path: &str| json!({ "name": name, "http": http(path), "on_error": "continue" });
        let steps = json!([
            step("a", "/echo"), step("b", "/fail"), step("c", "/refuse"), step("d", "/moved"), step("e", "/carry"),
            { "name": "put", "http": { "method": "POST", "url": kept.uri(), "body": { "x": 1 }, "credential": credential } },
            { "name": "got", "http": { "url": kept.uri() } },
            { "name": "asked", "tool": { "name": "http_request", "args": { "url": kept.uri() } } },
            { "name": "keep", "store": { "name": "seen", "expression": "steps.a" } },
            { "name": "say", "publish": { "type": "seen", "data": { "all": "{{ steps.a }}", "fault": "{{ steps.b }}" } } },
            { "name": "tell", "notify": { "message": "{{ steps.a }} {{ steps.c }} {{ steps.d }} {{ steps.e }}" } },
            { "name": "all", "map": "[steps.a, steps.b, steps.c, steps.d, steps.e, steps.got, steps.asked]" },
        ]);
        tasks.push(instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await);
        let fails = json!([{ "name": "f", "http": http("/odd") }]);
        tasks.push(instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": fails } } })).await);
        for path in ["/hook", "/fail"].into_iter().filter(|_| !in_body) {
            let config = json!({ "url": place(path), "secret": SECRET, "credential": credential });
            tasks.push(instance.task(json!({ "executor": "webhook", "action": { "config": config } })).await);
        }
    }
    let gone = json!([{ "name": "g", "http": { "url": place("/echo"), "credential": "gone" } }]);
    tasks.push(instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": gone } } })).await);
    tasks.push(instance.task(json!({ "executor": "orchestrator", "action": { "instruction": "Look.", "config": { "credentials": ["shop"] } } })).await);
    for task in &tasks {
        let id = instance.run_now(task).await;
        let (path, stream) = (format!("/v1/runs/{id}/stream"), Arc::new(Mutex::new(Vec::new())));
        let following = listen(&instance, &path, stream.clone()).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        let expected = match &run.error {
            None => RunState::Succeeded,
            Some(fault) => {
                let known = ["http_404", "webhook_500", "credential_needs_consent"];
                assert!(known.contains(&fault.code.as_str()), "{fault:?}");
                RunState::Failed
            }
        };
        assert_eq!(run.state, expected);
        tokio::time::timeout(Duration::from_secs(30), following).await.expect("its end").expect("a listener");
        let told = String::from_utf8_lossy(&stream.lock().unwrap()).into_owned();
        assert!(!events_of("GET", &path, told.as_bytes()).is_empty(), "{told}");
        said.push((path, told));
    }
    // runtimes that take a run on, and repeat later what they were sent with it
    for (credential, state) in [("shop", "succeeded"), ("mail", "failed")] {
        let config = json!({ "url": format!("{}/later", kept.uri()), "secret": SECRET, "credential": credential });
        let task = instance.task(json!({ "executor": "webhook", "action": { "config": config } })).await;
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        instance.until(id, |run| run.state == RunState::WaitingForCompletion).await;
        let request = received(&kept).await.into_iter().rev().find(|request| request.url.path() == "/later");
        let echo = encodings(&sent(&request.expect("it was sent"))).join(" ");
        let report = match state {
            "succeeded" => json!({ "state": state, "output": { "echo": echo } }),
            _ => json!({ "state": state, "error": { "code": echo[..20], "message": echo } }),
        };
        let path = format!("/v1/runs/{id}/complete");
        let (status, answer) = instance.ask("POST", &path, ADMIN, Some(report)).await;
        assert_eq!(status, 200, "{answer}");
        assert!(answer.to_string().contains("[redacted]"), "{answer}");
        said.push((path, answer.to_string()));
        tasks.push(task);
    }
    for (credential, path) in [("shop", "/echo"), ("shop/query", "/echo"), ("shop/basic", "/fail")] {
        let trigger = json!({
            "type": "condition", "interval": "1m", "expression": "value.status == 'ok'", "failure_notice_after": 1,
            "poll": { "http": { "url": place(path), "credential": credential } },
        });
        let body = json!({ "tenant_id": "ann", "trigger": trigger });
        let (status, tried) =
            instance.ask("POST", "/v1/conditions/test", crate::support::world::ADMIN, Some(body)).await;
        assert_eq!(status, 200, "{tried}");
        said.push(("a trial".into(), tried.to_string()));
        tasks.push(instance.task(json!({ "trigger": trigger })).await);
    }
    // tools that a person tries
    for (tool, arguments) in [
        ("http_request", json!({ "url": place("/echo"), "credential": "shop" })),
        ("http_request", json!({ "url": place("/echo"), "credential": "shop/query" })),
        ("look_up", json!({ "q": "x" })),
        ("look_up", json!({ "q": CANARY })),
    ] {
        let path = format!("/v1/tools/{tool}/call");
        let body = json!({ "tenant_id": "ann", "arguments": arguments, "confirmed": true });
        let (status, tried) = instance.ask("POST", &path, ADMIN, Some(body.clone())).await;
        assert_eq!(status, 200, "{tool}: {tried}");
        assert!(tried.to_string().contains("[redacted]"), "{tool}: {tried}");
        let request = &tried["request"];
        match tool {
            "look_up" => {
                let expected = (json!("POST"), json!(place("/echo")), json!("shop/field"));
                let named = (request["method"].clone(), request["address"].clone(), request["credential"].clone());
                assert_eq!(named, expected, "{tried}");
                assert!(request["headers"].as_array().unwrap().contains(&json!("content-type")), "{tried}");
                let sends = if body["arguments"]["q"] == "x" { "\"x\"" } else { "[redacted]" };
                assert!(request["body"].as_str().unwrap().contains(sends), "{tried}");
            }
            _ => assert!(request.is_null(), "its arguments say all: {tried}"),
        }
        said.push((path, tried.to_string()));
    }
    world.advance(75.0);
    instance.poll().await;
    instance.settle(0).await;
    instance.notify().await;

    // it was sent, and came back
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    assert!(arrived.len() > 25 && arrived.iter().filter(|sent| *sent == CANARY).count() > 15, "{arrived:?}");
    assert!(arrived.iter().all(|sent| !sent.is_empty()), "each request carried it");
    assert!(
        arrived.iter().any(|sent| sent == ACCESS[1]) && !arrived.iter().any(|sent| sent == ACCESS[0]),
        "{arrived:?}"
    );
    let in_bodies =
        received(&server).await.iter().filter(|request| !request.body.is_empty() && sent(request) == CANARY).count();
    assert!(in_bodies > 5, "{in_bodies}");
    assert_eq!(received(&provider).await.len(), 2, "one renewal, and one that was refused");
    let without = received(&kept).await.iter().filter(|request| sent(request).is_empty()).count();
    assert!(without > 10, "what it keeps was asked for: {without}");
    assert_eq!(received(&elsewhere).await.len(), 0, "no place that is named with the secret is visited");

    for path in [
        "/v1/tasks",
        "/v1/runs",
        "/v1/deliveries",
        "/v1/events?tenant_id=ann",
        "/v1/audit",
        "/v1/tools",
        "/v1/credentials?tenant_id=ann",
        "/v1/stats",
        "/metrics",
    ] {
        said.push((path.to_owned(), instance.page(path).await));
    }
    for name in &names {
        for path in [address(name), format!("{}/uses", address(name))] {
            let path = format!("/v1/credentials/{path}?tenant_id=ann");
            said.push((path.clone(), instance.page(&path).await));
        }
    }
    session.abort();
    let told = String::from_utf8_lossy(&live.lock().unwrap()).into_owned();
    assert!(told.contains("Please connect gone again") && told.contains("\"event\":\"run.finished\""), "{told}");
    assert!(!events_of("GET", "/v1/live", told.as_bytes()).is_empty(), "{told}");
    said.push(("/v1/live".into(), told));
    let mut redacted = 0;
    for task in &tasks {
        said.push(("the task".into(), instance.page(&format!("/v1/tasks/{}", task.id)).await));
        for run in instance.runs(task).await {
            let (shown, transcript) = (format!("/v1/runs/{}", run.id), format!("/v1/runs/{}/transcript", run.id));
            said.push((shown.clone(), instance.page(&shown).await));
            said.push((transcript.clone(), instance.page(&transcript).await));
        }
    }
    for request in received(&model).await {
        said.push(("a prompt".into(), String::from_utf8_lossy(&request.body).into_owned()));
    }
    for (place, text) in &said {
        assert_eq!(found(text.as_bytes()), Vec::<String>::new(), "in {place}: {text}");
        redacted += text.matches("[redacted]").count();
    }
    assert!(redacted > 100, "what came back was looked at: {redacted}");
    assert!(said.iter().any(|(place, text)| place == "a prompt" && text.contains("[redacted]")), "the model was told");
    assert!(instance.on(|store| async move { store.data_file_bytes().await }).await.unwrap() > 0, "some are in files");
    instance.finish(&world).await;

    let dump = world.dump().await;
    assert!(dump.windows(10).any(|part| part == b"[redacted]"), "the dump is of this database");
    assert_eq!(found(&dump), Vec::<String>::new(), "in the database");
    let logged = log.text();
    assert!(logged.contains("TRACE"), "the log is at trace level");
    assert_eq!(found(logged.as_bytes()), Vec::<String>::new(), "in the log");
}
