//! Trials: what each step would do, with its effects off.

use reveille::base::id::Tenant;
use reveille::executor::pipeline::{DryRun, Sample};
use serde_json::{Map, Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::pipeline;
use crate::agent::harness::AgentHarness;

/// Bytes of JSON that a value of a step may have.
const VALUE_BYTES: usize = 262_144;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

async fn tried(stage: &AgentHarness, steps: Value, sample: Sample) -> DryRun {
    let config = object(json!({ "steps": steps }));
    let tenant = Tenant::new("ann").unwrap();
    pipeline(stage).dry_run(&tenant, &config, sample, &stage.clock).await.unwrap_or_else(|faults| panic!("{faults}"))
}

fn sample() -> Sample {
    Sample { event: json!({ "data": { "id": 7 } }), ..Sample::default() }
}

fn steps(url: &str) -> Value {
    json!([
        { "name": "read", "http": { "url": format!("{url}/{{{{ event.data.id }}}}") } },
        { "name": "large", "filter": "steps.read.body.total > 100" },
        { "name": "pay", "http": { "method": "POST", "url": url, "body": { "id": "{{ event.data.id }}" } } },
        { "name": "keep", "store": { "name": "last", "value": "{{ event.data.id }}" } },
        { "name": "last", "map": "state.last" },
    ])
}

async fn server() -> MockServer {
    let server = MockServer::start().await;
    let order = ResponseTemplate::new(200).set_body_json(json!({ "total": 120 }));
    Mock::given(method("GET")).respond_with(order).mount(&server).await;
    server
}

#[tokio::test]
async fn dry_run_sends_nothing_and_shows_every_request() {
    let (server, stage) = (server().await, AgentHarness::new(vec![], vec![]));
    let mocks = object(json!({ "read": { "status": 200, "body": { "total": 120 } } }));
    let done = tried(&stage, steps(&server.uri()), Sample { mocks, ..sample() }).await;
    let request = json!({
        "method": "POST", "url": server.uri(), "headers": { "content-type": "application/json" }, "body": { "id": 7 },
    });
    assert_eq!(
        done.steps,
        [
            json!({ "name": "read", "kind": "http", "mocked": true, "value": { "status": 200, "body": { "total": 120 } } }),
            json!({ "name": "large", "kind": "filter", "value": true }),
            json!({ "name": "pay", "kind": "http", "skipped": true, "request": request }),
            json!({ "name": "keep", "kind": "store", "skipped": true, "request": { "name": "last", "value": 7 } }),
            json!({ "name": "last", "kind": "map", "value": 7 }),
        ]
    );
    assert_eq!((done.outcome.as_str(), done.output), ("succeeded", Some(json!(7))));
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
    assert!(stage.host.asked.lock().unwrap().is_empty() && stage.store.messages().is_empty());
}

#[tokio::test]
async fn live_reads_and_changes_nothing() {
    let (server, stage) = (server().await, AgentHarness::new(vec![], vec![]));
    let done = tried(&stage, steps(&server.uri()), Sample { live: true, ..sample() }).await;
    assert_eq!(done.steps[0]["value"]["body"], json!({ "total": 120 }));
    assert_eq!(done.steps[2]["skipped"], json!(true));
    let methods: Vec<String> =
        server.received_requests().await.unwrap().iter().map(|request| request.method.to_string()).collect();
    assert_eq!(methods, ["GET"]);
}

#[tokio::test]
async fn dry_run_names_unknown_values_and_ends_at_a_filter() {
    let (server, stage) = (server().await, AgentHarness::new(vec![], vec![]));
    let needs = json!([
        { "name": "read", "http": { "url": server.uri() } },
        { "name": "total", "map": "steps.read.body.total" },
    ]);
    let done = tried(&stage, needs, sample()).await;
    assert_eq!((done.outcome.as_str(), done.output), ("unknown", None));
    assert!(done.steps[1]["hint"].as_str().unwrap().contains("mocks"), "{:?}", done.steps);
    let small =
        tried(&stage, json!([{ "name": "f", "filter": "event.data.id > 7" }, { "name": "x", "map": "1" }]), sample());
    let small = small.await;
    assert_eq!((small.outcome.as_str(), small.steps.len()), ("filtered", 1));
    let broken = tried(&stage, json!([{ "name": "m", "map": "event.data.nothing" }]), sample()).await;
    assert_eq!((broken.outcome.as_str(), &broken.steps[0]["error"]["code"]), ("failed", &json!("missing")));
}

#[tokio::test]
async fn values_of_a_trial_are_bounded_as_those_of_a_run() {
    let stage = AgentHarness::new(vec![], vec![]);
    let of = |length: usize| Sample { event: json!({ "data": { "text": "x".repeat(length) } }), ..Sample::default() };
    let code = |done: &DryRun| (done.outcome.clone(), done.steps[0]["error"]["code"].clone());
    let one = json!([{ "name": "one", "map": "event.data.text" }]);
    let each = json!([{ "name": "all", "for_each": { "items": "[1, 2, 3, 4]", "do": { "map": "event.data.text" } } }]);
    // a text of JSON has two quotes; of four items each has a quarter
    for (steps, most) in [(one, VALUE_BYTES - 2), (each, VALUE_BYTES / 4 - 2)] {
        assert_eq!(code(&tried(&stage, steps.clone(), of(most)).await), ("succeeded".into(), Value::Null));
        let beyond = tried(&stage, steps, of(most + 1)).await;
        assert_eq!(code(&beyond), ("failed".into(), json!("value_too_large")));
    }
}

#[tokio::test]
async fn templates_of_a_step_share_what_they_take_and_a_long_request_is_shown_by_its_length() {
    let (server, stage) = (server().await, AgentHarness::new(vec![], vec![]));
    let sample = || Sample { event: json!({ "data": { "text": "x".repeat(200_000) } }), ..Sample::default() };
    let sending = async |texts: usize| {
        let body = vec!["{{ event.data.text }}"; texts];
        let send = json!([{ "name": "send", "http": { "method": "POST", "url": server.uri(), "body": body } }]);
        tried(&stage, send, sample()).await.steps[0].clone()
    };
    assert_eq!(sending(1).await["request"]["body"][0].as_str().unwrap().len(), 200_000);
    // each alone may give so much; the steps of all together are bounded, and a byte that is given counts for ten
    let shown = sending(20).await;
    assert!(shown["request"]["too_long_to_show"].as_u64().unwrap() > 4_000_000, "{shown}");
    let refused = sending(30).await;
    assert_eq!(refused["error"]["code"], "template");
    assert!(refused["error"]["message"].as_str().unwrap().contains("templates together take too much"), "{refused}");
    let each = json!({ "http": { "method": "POST", "url": server.uri(), "body": "{{ event.data.text }}" } });
    let all = json!([{ "name": "all", "for_each": { "items": "[1, 2, 3, 4, 5]", "do": each } }]);
    let done = tried(&stage, all, sample()).await;
    let first = &done.steps[0]["request"];
    assert_eq!((&first["items"], first["first"].as_array().unwrap().len()), (&json!(5), 2), "as many as have room");
}

#[tokio::test]
async fn dry_run_names_the_field_that_the_sample_does_not_have() {
    let stage = AgentHarness::new(vec![], vec![]);
    let event = json!({ "data": { "total": 7 } });
    let tried = async |step: Value| {
        let done = tried(&stage, json!([step]), Sample { event: event.clone(), ..Sample::default() }).await;
        done.steps[0]["missing"].clone()
    };
    let missing =
        |expression: &str| json!({ "expression": expression, "field": "event.data.totl", "did_you_mean": "total" });
    let filter = json!({ "name": "f", "filter": "event.data.totl > 100" });
    assert_eq!(tried(filter).await, missing("event.data.totl > 100"));
    assert_eq!(tried(json!({ "name": "m", "map": "event.data.totl + 1" })).await, missing("event.data.totl + 1"));
    let guarded = json!({ "name": "f", "filter": "has(event.data.totl) && event.data.totl > 100" });
    assert_eq!(tried(guarded).await, Value::Null);
    assert_eq!(tried(json!({ "name": "f", "filter": "event.data.total > 100" })).await, Value::Null);
}

#[tokio::test]
async fn items_are_shown_up_to_ten() {
    let (server, stage) = (server().await, AgentHarness::new(vec![], vec![]));
    let post = json!({ "http": { "method": "POST", "url": format!("{}/{{{{ item }}}}", server.uri()) } });
    let items = "[1,2,3,4,5,6,7,8,9,10,11,12]";
    let done = tried(&stage, json!([{ "name": "all", "for_each": { "items": items, "do": post } }]), sample()).await;
    let request = &done.steps[0]["request"];
    assert_eq!((&request["items"], request["first"].as_array().unwrap().len()), (&json!(12), 10));
    assert_eq!(request["first"][2]["url"], json!(format!("{}/3", server.uri())));
}

#[tokio::test]
async fn faults_stand_below_config_and_mocks_name_steps() {
    let stage = AgentHarness::new(vec![], vec![]);
    let tenant = Tenant::new("ann").unwrap();
    let config = object(json!({ "steps": [{ "name": "a", "map": "1 +" }] }));
    let faults = pipeline(&stage).dry_run(&tenant, &config, Sample::default(), &stage.clock).await.unwrap_err();
    assert_eq!(faults.0[0].pointer, "/config/steps/0/map");
    let config = object(json!({ "steps": [{ "name": "a", "map": "1" }] }));
    let mocks = object(json!({ "b": 1 }));
    let sample = Sample { mocks, ..Sample::default() };
    let faults = pipeline(&stage).dry_run(&tenant, &config, sample, &stage.clock).await.unwrap_err();
    assert_eq!(faults.0[0].pointer, "/mocks/b");
}
