//! A secret is planted, used by an agent, a poll, a pipeline and a webhook against a server that sends it back in every
//! way, and then looked for in everything that the service has written or said.

use std::io::Write;
use std::sync::{Arc, Mutex};

use reveille::run::RunState;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::{echo, open, received, save, sent, traces};
use crate::support::world::{World, on_both};

on_both! { a_planted_secret_is_found_nowhere_but_encrypted }

const CANARY: &str = "Kan4rie/+&=%7E\"<x>'zQ8w";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// All that is logged, at trace level, by whoever logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// A model that looks at three places with the credential, and then repeats all that it was told.
struct Model {
    server: String,
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
        let delta = match ["/echo", "/refuse", "/fail", "/carry"].get(told.len()) {
            Some(place) => {
                let arguments = json!({ "url": format!("{}{place}", self.server), "credential": "shop" });
                let call = json!({ "name": "http_request", "arguments": arguments.to_string() });
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

async fn a_planted_secret_is_found_nowhere_but_encrypted(world: World) {
    let log = Log::default();
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).try_init().ok();
    let mut world = open(world);
    let elsewhere = echo("").await;
    let server = echo(&elsewhere.uri()).await;
    let model = MockServer::start().await;
    let brain = Model { server: server.uri() };
    Mock::given(method("POST")).and(path("/v1/chat/completions")).respond_with(brain).mount(&model).await;
    let main = json!({ "provider": "openai", "model": "m", "base_url": format!("{}/v1", model.uri()), "api_key": "k" });
    world.llm = serde_json::from_value(json!({ "models": { "main": main } })).unwrap();
    let instance = world.instance();
    instance.recipient().await;
    let document = json!({ "key": CANARY, "note": "nothing" });
    save(&world, &instance, "shop", json!({ "as": "header", "name": "X-Key", "from": "/key" }), document.clone()).await;
    save(&world, &instance, "shop/query", json!({ "as": "query", "name": "key", "from": "/key" }), document.clone())
        .await;
    save(&world, &instance, "shop/basic", json!({ "as": "basic", "template": "ann:{/key}" }), document).await;
    let place = |path: &str| format!("{}{path}", server.uri());

    let mut tasks = Vec::new();
    for credential in ["shop", "shop/query", "shop/basic"] {
        let step = |name: &str, path: &str| json!({ "name": name, "http": { "url": place(path), "credential": credential }, "on_error": "continue" });
        let steps = json!([
            step("a", "/echo"), step("b", "/fail"), step("c", "/refuse"), step("d", "/moved"), step("e", "/carry"),
            { "name": "keep", "store": { "name": "seen", "expression": "steps.a" } },
            { "name": "say", "publish": { "type": "seen", "data": { "all": "{{ steps.a }}", "fault": "{{ steps.b }}" } } },
            { "name": "tell", "notify": { "message": "{{ steps.a }} {{ steps.c }} {{ steps.d }} {{ steps.e }}" } },
            { "name": "all", "map": "[steps.a, steps.b, steps.c, steps.d, steps.e]" },
        ]);
        tasks.push(instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await);
        let fails = json!([{ "name": "f", "http": { "url": place("/odd"), "credential": credential } }]);
        tasks.push(instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": fails } } })).await);
        for path in ["/hook", "/fail"] {
            let config = json!({ "url": place(path), "secret": SECRET, "credential": credential });
            tasks.push(instance.task(json!({ "executor": "webhook", "action": { "config": config } })).await);
        }
    }
    tasks.push(instance.task(json!({ "executor": "orchestrator", "action": { "instruction": "Look.", "config": { "credentials": ["shop"] } } })).await);
    for task in &tasks {
        let id = instance.run_now(task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        let expected = match &run.error {
            None => RunState::Succeeded,
            Some(fault) => {
                assert!(["http_404", "webhook_500"].contains(&fault.code.as_str()), "{fault:?}");
                RunState::Failed
            }
        };
        assert_eq!(run.state, expected);
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
        assert_eq!(traces(CANARY, tried.to_string().as_bytes()), Vec::<String>::new());
        tasks.push(instance.task(json!({ "trigger": trigger })).await);
    }
    world.advance(75.0);
    instance.poll().await;
    instance.settle(0).await;
    instance.notify().await;

    // it was sent, and came back
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    assert!(arrived.len() > 25 && arrived.iter().filter(|sent| *sent == CANARY).count() > 15, "{arrived:?}");
    assert!(arrived.iter().all(|sent| !sent.is_empty()), "each request carried it");
    assert_eq!(received(&elsewhere).await.len(), 0, "no place that is named with the secret is visited");

    let mut said = Vec::new();
    for path in [
        "/v1/tasks",
        "/v1/runs",
        "/v1/deliveries",
        "/v1/events?tenant_id=ann",
        "/v1/audit",
        "/v1/tools",
        "/v1/stats",
        "/metrics",
    ] {
        said.push((path.to_owned(), instance.page(path).await));
    }
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
        assert_eq!(traces(CANARY, text.as_bytes()), Vec::<String>::new(), "in {place}: {text}");
        redacted += text.matches("[redacted]").count();
    }
    assert!(redacted > 100, "what came back was looked at: {redacted}");
    assert!(said.iter().any(|(place, text)| place == "a prompt" && text.contains("[redacted]")), "the model was told");
    instance.finish(&world).await;

    let dump = world.dump().await;
    assert!(dump.windows(10).any(|part| part == b"[redacted]"), "the dump is of this database");
    assert_eq!(traces(CANARY, &dump), Vec::<String>::new(), "in the database");
    let logged = log.0.lock().unwrap().clone();
    assert!(logged.windows(5).any(|part| part == b"TRACE"), "the log is at trace level");
    assert_eq!(traces(CANARY, &logged), Vec::<String>::new(), "in the log");
}
