//! Traces as a collector gets them, from the real binary over OTLP: names, parents, figures, and what they leave out. A
//! collector that is away, or never answers, delays nothing.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::routing::post;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use prost::Message;
use reveille::base::clock::pause;
use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::model::{ANSWERING_MODEL, AnthropicFormat, ModelServer, OpenAiFormat, ResponsesFormat, WireFormat};
use crate::support::tls::TlsServer;

const PATIENCE: Duration = Duration::from_secs(60);

/// A collector, and the spans that it got.
struct Collector {
    address: std::net::SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    async fn start() -> Collector {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let routes = axum::Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&spans));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Collector { address, spans }
    }

    /// All spans, in the order in which they began; the process has ended.
    fn spans(&self) -> Vec<Span> {
        let mut spans = self.spans.lock().unwrap().clone();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }
}

async fn take(State(spans): State<Arc<Mutex<Vec<Span>>>>, body: Bytes) -> StatusCode {
    let request = ExportTraceServiceRequest::decode(body).expect("spans in protobuf");
    let all = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    spans.lock().unwrap().extend(all.flat_map(|scope| scope.spans));
    StatusCode::OK
}

fn attribute(span: &Span, name: &str) -> Value {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.clone()) {
        Some(AnyValue::StringValue(text)) => json!(text),
        Some(AnyValue::IntValue(number)) => json!(number),
        None => Value::Null,
        other => panic!("{name}: {other:?}"),
    }
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

/// A service that asks this model and exports to this address.
fn service_of(model: &ModelServer, endpoint: &str, more: &str) -> Service {
    Service::new().with_config(&format!(
        "[llm.models.main]\nprovider = \"{}\"\nbase_url = \"{}\"\nmodel = \"test-model\"\napi_key = \"sk-test-0123456789\"\n\
         [telemetry]\notlp_endpoint = \"{endpoint}\"\n{more}\n",
        model.provider(),
        model.url(),
    ))
}

async fn run_now(api: &Api, task: &Value) -> Value {
    let task = api.post("/v1/tasks", task).await;
    let id = task["id"].as_str().unwrap();
    api.post(&format!("/v1/tasks/{id}/run"), &json!({})).await;
    api.until_run(id, "succeeded", PATIENCE).await
}

fn agent_task() -> Value {
    json!({ "tenant_id": "ann", "name": "Morning", "output": null, "trigger": { "type": "schedule", "interval": "1h" },
            "action": { "instruction": "Say what time it is.", "config": { "tools": ["current_time"] } } })
}

/// The spans of one run of an agent that calls a tool, and the run.
async fn traced(more: &str) -> (Vec<Span>, Value) {
    traced_on::<OpenAiFormat>(more).await
}

async fn traced_on<F: WireFormat>(more: &str) -> (Vec<Span>, Value) {
    let (model, collector) = (ModelServer::start::<F>().await, Collector::start().await);
    let mut service = service_of(&model, &format!("http://{}", collector.address), more);
    service.start().await;
    let run = run_now(&Api::of(&service), &agent_task()).await;
    assert!(service.terminate().await.success());
    (collector.spans(), run)
}

#[tokio::test]
async fn run_of_an_agent_is_a_trace_of_its_calls_with_what_they_came_to() {
    let (spans, run) = traced("").await;
    let expected = ["invoke_agent orchestrator", "chat test-model", "execute_tool current_time", "chat test-model"];
    assert_eq!(names(&spans), expected);
    let root = &spans[0];
    let run_id = run["id"].as_str().unwrap();
    assert!(spans.iter().all(|span| hex::encode(&span.trace_id) == run_id.replace('-', "")), "the run names its trace");
    assert!(root.parent_span_id.is_empty() && root.links.is_empty(), "{root:?}");
    assert!(spans[1..].iter().all(|span| span.parent_span_id == root.span_id), "{spans:?}");
    assert!(spans.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    let is_exact = |time: u64| !time.is_multiple_of(1_000_000);
    assert!(spans.iter().any(|span| is_exact(span.start_time_unix_nano)), "spans of one millisecond keep their order");
    for (name, value) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "orchestrator"),
        ("gen_ai.conversation.id", run_id),
        ("reveille.run_id", run_id),
        ("reveille.task_id", run["task_id"].as_str().unwrap()),
        ("reveille.tenant_id", "ann"),
    ] {
        assert_eq!(attribute(root, name), value, "{name}");
    }
    assert!(spans.iter().all(|span| attribute(span, "gen_ai.conversation.id") == run_id), "{spans:?}");
    let model = ["gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "reveille.model"];
    let model = model.map(|name| attribute(&spans[1], name));
    assert_eq!(model, ["openai", "test-model", ANSWERING_MODEL, "main"].map(|name| json!(name)));
    let tokens = |span: &Span| {
        ["input", "output"].map(|kind| attribute(span, &format!("gen_ai.usage.{kind}_tokens")).as_i64().unwrap())
    };
    assert_eq!([tokens(&spans[1]), tokens(&spans[3])], [[100, 10], [120, 5]]);
    let (tool, call) = (attribute(&spans[2], "gen_ai.tool.name"), attribute(&spans[2], "gen_ai.tool.call.id"));
    assert_eq!((tool, call), (json!("current_time"), json!("call_1")));
    let told = format!("{spans:?}");
    assert!(!told.contains("Say what time") && !told.contains("It is late") && !told.contains("weekday"), "{told}");
    assert!(!told.contains("is_first"), "{told}");
}

/// A model that has read some of what it is sent from its cache, and written some to it.
struct CachingFormat;

impl WireFormat for CachingFormat {
    const PROVIDER: &'static str = OpenAiFormat::PROVIDER;
    const PATH: &'static str = OpenAiFormat::PATH;
    const BASE: &'static str = OpenAiFormat::BASE;

    fn asks_for_the_time() -> String {
        let details = json!({ "cached_tokens": 60, "cache_write_tokens": 30 });
        let with_cache = format!("\"prompt_tokens\":100,\"prompt_tokens_details\":{details}");
        OpenAiFormat::asks_for_the_time().replace("\"prompt_tokens\":100", &with_cache)
    }

    fn answers() -> String {
        OpenAiFormat::answers()
    }

    fn ends_with_a_tool_result(body: &Value) -> bool {
        OpenAiFormat::ends_with_a_tool_result(body)
    }
}

#[tokio::test]
async fn tokens_that_a_model_has_cached_are_on_the_span_of_its_call() {
    let (spans, _) = traced_on::<CachingFormat>("").await;
    let cached = |span: &Span| {
        ["cache_read", "cache_creation"].map(|kind| attribute(span, &format!("gen_ai.usage.{kind}.input_tokens")))
    };
    assert_eq!(attribute(&spans[1], "gen_ai.usage.input_tokens"), 100, "they are among those that it has read");
    assert_eq!([cached(&spans[1]), cached(&spans[3])], [[json!(60), json!(30)], [json!(0), json!(0)]]);
}

#[tokio::test]
async fn conversation_of_a_message_is_on_all_spans_of_its_run() {
    let (model, collector) = (ModelServer::start::<OpenAiFormat>().await, Collector::start().await);
    let mut service = service_of(&model, &format!("http://{}", collector.address), "");
    service.start().await;
    let message = json!({ "tenant_id": "ann", "message": "Say what time it is." });
    let answer = Api::of(&service).post("/v1/chat", &message).await;
    assert_eq!(answer["state"], "succeeded", "{answer}");
    assert!(service.terminate().await.success());
    let (run, conversation) = (&answer["run_id"], &answer["conversation_id"]);
    assert!(conversation.is_string() && run != conversation, "{answer}");
    let spans = collector.spans();
    assert!(spans.len() > 1 && attribute(&spans[0], "reveille.run_id") == *run, "{spans:?}");
    assert!(spans.iter().all(|span| attribute(span, "gen_ai.conversation.id") == *conversation), "{spans:?}");
    let trace = run.as_str().unwrap().replace('-', "");
    assert!(spans.iter().all(|span| hex::encode(&span.trace_id) == trace), "the run names its trace");
}

#[tokio::test]
async fn agent_that_was_called_has_the_chain_of_calls_on_its_span() {
    let collector = Collector::start().await;
    let mut service = Service::new().with_config(&format!(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n\
         [telemetry]\notlp_endpoint = \"http://{}\"\n{AGENTS}",
        collector.address
    ));
    std::fs::write(service.dir.path().join("scenario.toml"), EVENING).expect("write the scenario");
    service.start().await;
    let mut task = agent_task();
    task["action"]["config"] = json!({ "tools": ["Evening"] });
    run_now(&Api::of(&service), &task).await;
    assert!(service.terminate().await.success());
    let spans = collector.spans();
    let chain = |agent: &str| {
        let span = spans.iter().find(|span| span.name == format!("invoke_agent {agent}"));
        attribute(span.unwrap_or_else(|| panic!("no {agent}: {:?}", names(&spans))), "reveille.delegation_chain")
    };
    assert_eq!([chain("Evening"), chain("BookTable")], [json!("Evening"), json!("Evening > BookTable")]);
    assert_eq!(chain("orchestrator"), Value::Null, "nobody has called it");
}

/// An agent that calls another one.
const AGENTS: &str = r#"
[[agents]]
name = "Evening"
description = "Plan an evening."
instruction = "You plan."
tools = ["BookTable"]
[[agents]]
name = "BookTable"
description = "Book a table."
instruction = "You book."
tools = []
"#;
const EVENING: &str = r#"
[[steps]]
when = "[Agent Call] BookTable"
text = "Table 7."
[[steps]]
when = "[Agent Call] Evening"
turn = 1
[[steps.calls]]
tool = "BookTable"
args = {}
[[steps]]
when = "[Agent Call] Evening"
text = "Dinner at 7."
[[steps]]
turn = 1
[[steps.calls]]
tool = "Evening"
args = {}
[[steps]]
text = "All is planned."
"#;

#[tokio::test]
async fn model_that_answers_is_on_the_spans_of_every_wire() {
    for (spans, _) in [traced_on::<AnthropicFormat>("").await, traced_on::<ResponsesFormat>("").await] {
        for chat in [1, 3] {
            assert_eq!(attribute(&spans[chat], "gen_ai.request.model"), "test-model", "{:?}", names(&spans));
            assert_eq!(attribute(&spans[chat], "gen_ai.response.model"), ANSWERING_MODEL);
        }
    }
}

#[tokio::test]
async fn collector_behind_https_takes_spans_and_they_are_counted() {
    let (model, tls) = (ModelServer::start::<OpenAiFormat>().await, TlsServer::new("http/1.1"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("https://{}", listener.local_addr().expect("an address"));
    let spans = Arc::<Mutex<Vec<Span>>>::default();
    let (acceptor, taken) = (tls.acceptor.clone(), Arc::clone(&spans));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let taken = Arc::clone(&taken);
            let service = hyper::service::service_fn(move |request| take_over_tls(request, Arc::clone(&taken)));
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    let mut service = tls.trusted_by(service_of(&model, &endpoint, ""));
    service.start().await;
    let api = Api::of(&service);
    run_now(&api, &agent_task()).await;
    let deadline = Instant::now() + PATIENCE;
    while api.metric("reveille_spans_total{outcome=\"exported\"}").await < 4.0 {
        assert!(Instant::now() < deadline, "they do not arrive\n{}", service.log());
        pause(Duration::from_millis(50)).await;
    }
    assert_eq!(spans.lock().unwrap().len(), 4);
}

async fn take_over_tls(request: Request<Incoming>, spans: Arc<Mutex<Vec<Span>>>) -> Result<Response<Body>, Infallible> {
    assert_eq!(request.uri().path(), "/v1/traces");
    let body = axum::body::to_bytes(Body::new(request.into_body()), usize::MAX).await.expect("a body");
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = take(State(spans), body).await;
    Ok(answer)
}

#[tokio::test]
async fn content_is_on_spans_where_it_is_asked_for() {
    let (spans, _) = traced("trace_content = true").await;
    let text = |span: usize, name: &str| attribute(&spans[span], name).as_str().unwrap_or_default().to_owned();
    assert!(text(0, "gen_ai.input.messages").contains("Say what time it is."), "{spans:?}");
    assert_eq!(text(0, "gen_ai.output.messages"), "It is late.");
    assert_eq!(text(2, "gen_ai.tool.call.arguments"), "{}");
    assert!(text(2, "gen_ai.tool.call.result").contains("\"weekday\""), "{spans:?}");
}

/// A tool is sent a credential and says it back.
#[tokio::test]
async fn secrets_are_on_no_span_where_spans_have_content() {
    const SECRET: &str = "Kan4rie-of-the-traces";
    let (server, collector) = (MockServer::start().await, Collector::start().await);
    let say = |request: &wiremock::Request| {
        ResponseTemplate::new(200).set_body_string(request.headers["authorization"].to_str().unwrap_or_default())
    };
    Mock::given(method("GET")).respond_with(say).mount(&server).await;
    let mut service = Service::new().with_config(&format!(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n[egress]\nallow = [\"127.0.0.1:*\"]\n\
         [telemetry]\notlp_endpoint = \"http://{}\"\ntrace_content = true\n",
        collector.address
    ));
    let scenario = format!(
        "[[steps]]\nturn = 1\n[[steps.calls]]\ntool = \"http_request\"\n\
         args = {{ url = \"{}/\", credential = \"shop\" }}\n[[steps]]\ntext = \"Done.\"\n",
        server.uri()
    );
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).expect("write the scenario");
    service.start().await;
    let api = Api::of(&service);
    let inject = json!({ "as": "bearer", "from": "/key" });
    let credential = json!({ "document": { "key": SECRET }, "hosts": ["127.0.0.1"], "inject": inject });
    api.put("/v1/credentials/shop/primary?tenant_id=ann", &credential).await;
    let mut task = agent_task();
    task["action"]["config"] = json!({ "tools": ["http_request"], "credentials": ["shop"] });
    run_now(&api, &task).await;
    assert!(service.terminate().await.success());
    let spans = collector.spans();
    let result = attribute(&spans[2], "gen_ai.tool.call.result").to_string();
    assert!(result.contains("[redacted]"), "{spans:?}");
    assert!(!format!("{spans:?}").contains(SECRET), "{spans:?}");
}

#[tokio::test]
async fn nothing_is_exported_of_runs_that_are_not_sampled() {
    assert_eq!(names(&traced("trace_sampling = 0.0").await.0), [""; 0]);
}

/// A person is asked about a call; then a pipeline, one step of which fails.
#[tokio::test]
async fn run_that_goes_on_has_a_trace_of_its_own_with_a_link_and_a_failure_has_its_code() {
    let (sink, collector) = (MockServer::start().await, Collector::start().await);
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&sink).await;
    let mut service = Service::new().with_config(&format!(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n[egress]\nallow = [\"127.0.0.1:*\"]\n\
         [telemetry]\notlp_endpoint = \"http://{}/v1/traces\"\n",
        collector.address
    ));
    let scenario = format!(
        "[[steps]]\nwhen = \"order\"\nturn = 1\ntext = \"I order.\"\n[[steps.calls]]\ntool = \"http_send\"\n\
         args = {{ url = \"{}/orders\", method = \"POST\", body = {{ amount = 5 }} }}\n[[steps]]\ntext = \"Done.\"\n",
        sink.uri()
    );
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).expect("write the scenario");
    service.start().await;
    let api = Api::of(&service);
    let mut order = agent_task();
    order["action"] = json!({ "instruction": "Place the order" });
    let task = api.post("/v1/tasks", &order).await;
    let id = task["id"].as_str().unwrap();
    api.post(&format!("/v1/tasks/{id}/run"), &json!({})).await;
    api.until_run(id, "pending_approval", PATIENCE).await;
    let asked = api.get(&format!("/v1/approvals?task_id={id}&status=pending")).await["items"][0].clone();
    let decision = json!({ "decision": "approve", "digest": asked["digest"] });
    api.post(&format!("/v1/approvals/{}/decision", asked["id"].as_str().unwrap()), &decision).await;
    let run = api.until_run(id, "succeeded", PATIENCE).await;
    let steps = json!([{ "name": "a", "agent": { "instruction": "Say it.", "tools": [] } },
                       { "name": "b", "http": { "url": format!("{}/none", sink.uri()) } }]);
    let pipeline = json!({ "tenant_id": "ann", "name": "Nightly", "executor": "pipeline", "output": null,
                           "trigger": { "type": "schedule", "interval": "1h" },
                           "action": { "config": { "steps": steps } } });
    let task = api.post("/v1/tasks", &pipeline).await;
    let id = task["id"].as_str().unwrap();
    api.post(&format!("/v1/tasks/{id}/run"), &json!({})).await;
    api.until_run(id, "failed", PATIENCE).await;
    assert!(service.terminate().await.success());

    let spans = collector.spans();
    let roots: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    let [first, second, workflow] = roots[..] else { panic!("{roots:#?}") };
    assert_eq!(hex::encode(&first.trace_id), run["id"].as_str().unwrap().replace('-', ""));
    assert_ne!(second.trace_id, first.trace_id);
    let linked: Vec<_> = second.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
    assert_eq!(linked, [(&first.trace_id, &first.span_id)]);
    assert_eq!(attribute(second, "reveille.run_id"), run["id"]);
    let of = |root: &Span| -> Vec<&str> {
        spans.iter().filter(|span| span.trace_id == root.trace_id).map(|span| span.name.as_str()).collect()
    };
    assert_eq!(of(second), ["invoke_agent orchestrator", "execute_tool http_send", "chat main"]);
    assert_eq!(of(workflow), ["invoke_workflow Nightly", "invoke_agent agent", "chat main"]);
    assert_eq!(workflow.status.as_ref().unwrap().code(), SpanStatus::Error);
    assert_ne!(attribute(workflow, "error.type"), Value::Null);
}

/// One that nobody listens for, and one that takes connections and never answers.
#[tokio::test]
async fn collector_that_is_away_or_silent_delays_neither_runs_nor_the_end_of_the_process() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            held.push(connection);
        }
    });
    for endpoint in [format!("http://{address}"), "http://127.0.0.1:9".to_owned()] {
        let model = ModelServer::start::<OpenAiFormat>().await;
        let mut service = service_of(&model, &endpoint, "");
        service.start().await;
        let api = Api::of(&service);
        for _ in 0..3 {
            let run = run_now(&api, &agent_task()).await;
            let run = api.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).await;
            // a request to the collector has five seconds, and a batch goes out each second
            let took = run["result"]["duration_ms"].as_i64().unwrap_or_else(|| panic!("{run}"));
            assert!(took < 5_000, "{took} ms");
        }
        if !endpoint.contains(&address.to_string()) {
            service.until_logged("spans are lost").await;
            assert!(api.metric("reveille_spans_total{outcome=\"lost\"}").await > 0.0, "they are counted");
        }
        let stopping = Instant::now();
        assert!(service.terminate().await.success());
        assert!(stopping.elapsed() < Duration::from_secs(10), "{:?}", stopping.elapsed());
        assert!(service.log().matches("spans are lost").count() <= 1, "{}", service.log());
    }
}
