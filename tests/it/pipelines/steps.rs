//! Every kind of step, and what a failure of one means for the run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reveille::agent::Agent;
use reveille::base::compute::Compute;
use reveille::base::template::untrusted::{RULE, fenced};
use reveille::domain::approval::matrix::Category;
use reveille::domain::approval::policy::Policy;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::run::{TranscriptMessage, Usage};
use reveille::executor::Executor;
use reveille::ports::tool::access::ToolAccess;
use reveille::ports::tool::policy::ToolPolicy;
use reveille::ports::tool::registry::RegisteredTool;
use reveille::ports::tool::{HostError, ToolCatalog, ToolContext, ToolError, ToolFailure, ToolOutput, ToolRegistry};
use serde_json::{Value, json};
use wiremock::matchers::{body_json, header, method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{answer, event, failure, job, ledger, pipeline_with, run};
use crate::agent::harness::{AgentHarness, FakeTool, RUN, passing, says};
use crate::agent::skills::SkillFolder;
use crate::agent::tool_life::{counting, governed};
use crate::support::computing::{HeldThreads, until_waiting};

fn stage() -> AgentHarness {
    AgentHarness::new(vec![], vec![FakeTool::echo("echo")])
}

async fn answering(verb: &str, template: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method(verb)).respond_with(template).mount(&server).await;
    server
}

#[tokio::test]
async fn pipeline_of_the_contract_runs_from_event_to_message() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .and(path("/orders/7"))
        .and(query_param("full", "a b&c"))
        .and(header("x-who", "Ann"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "id": 7, "total": 120.5 })))
        .expect(1)
        .mount(&server)
        .await;
    let stage = stage();
    let steps = json!([
        { "name": "order", "timeout_seconds": 10, "retry": 2, "http": {
            "url": format!("{}/orders/{{{{ event.data.id }}}}", server.uri()), "query": { "full": "{{ event.data.q }}" },
            "headers": { "x-who": "{{ input.who }}" } } },
        { "name": "large", "filter": "steps.order.body.total > 100.0" },
        { "name": "text", "map": "'Order ' + string(steps.order.body.id)" },
        { "name": "tell", "notify": { "channel": "email", "message": "{{ steps.text }} of {{ task.metadata.team }}" },
          "on_error": "continue" },
    ]);
    let ended = run(&stage, json!({ "steps": steps }), Some(event(json!({ "id": 7, "q": "a b&c" })))).await;
    let told = RunOutcome::Quiet { reason: "told".into(), finish: None, usage: Usage::default() };
    assert_eq!(ended, Ok(told), "nobody is told twice");
    let words = json!(["Order 7 of sales", "Order 7 of sales", "email", format!("step:{RUN}:tell:0")]);
    assert_eq!(*stage.host.asked.lock().unwrap(), [json!({ "notify": words, "run": RUN, "tenant": "ann" })]);
    assert_eq!(ledger(&stage.store).len(), 6, "an intent and a result where there is an effect, else a result");
}

#[tokio::test]
async fn long_answer_of_an_http_step_is_read_on_a_computing_thread() {
    let page = ResponseTemplate::new(200).set_body_json(json!({ "text": "x".repeat(20_000) }));
    let server = answering("GET", page).await;
    let (stage, compute) = (stage(), Compute::of_machine());
    let steps = json!([{ "name": "page", "http": { "url": server.uri() } }]);
    let job = job(&stage, stage.store.clone(), json!({ "steps": steps }), None);
    let pipeline = pipeline_with(&stage, compute.clone());
    let threads = HeldThreads::all(&compute).await;
    let meanwhile = async {
        until_waiting(&compute, 1).await;
        let recorded = ledger(&stage.store);
        assert!(!recorded.iter().any(|line| line.starts_with("page=")), "{recorded:?}");
        drop(threads);
    };
    let (ended, ()) = tokio::join!(pipeline.execute(job), meanwhile);
    assert!(matches!(&ended, Ok(RunOutcome::Succeeded { output, .. }) if output.len() > 20_000), "{ended:?}");
    stage.store.end();
}

#[tokio::test]
async fn field_that_a_step_misses_is_told_once_in_a_run_with_its_place() {
    let total = Some(event(json!({ "total": 120 })));
    let missed = |step: &str, expression: &str, field: &str, near: Option<&str>| {
        let mut field = json!({ "expression": expression, "field": field });
        if let Some(near) = near {
            field["did_you_mean"] = json!(near);
        }
        json!({ "missed": [step, field], "tenant": "ann" })
    };
    let expected = missed("a", "event.data.totl > 100", "event.data.totl", Some("total"));
    for step in [
        json!({ "filter": "event.data.totl > 100" }),
        json!({ "map": "event.data.totl > 100", "on_error": "stop" }),
        json!({ "store": { "name": "n", "expression": "event.data.totl > 100" }, "on_error": "stop" }),
        json!({ "for_each": { "items": "event.data.totl > 100", "do": { "map": "item" } }, "on_error": "stop" }),
        json!({ "for_each": { "items": "[1, 2, 3]", "do": { "map": "event.data.totl > 100" } }, "on_error": "stop" }),
    ] {
        let stage = stage();
        let mut first = step;
        first["name"] = json!("a");
        let steps = json!([first, { "name": "b", "map": "event.data.ttl" }]);
        let ended = run(&stage, json!({ "steps": steps }), total.clone()).await;
        assert!(matches!(ended, Ok(RunOutcome::Quiet { .. })), "{ended:?}");
        assert_eq!(*stage.host.asked.lock().unwrap(), std::slice::from_ref(&expected));
    }
    // a guard misses nothing; and a run goes on where its owner can't be told
    let stage = stage();
    *stage.host.failure.lock().unwrap() = Some(HostError::Unavailable);
    let steps = json!([
        { "name": "a", "filter": "!has(event.data.vip) || event.data.vip" },
        { "name": "b", "map": "event.data.vip", "on_error": "continue" },
        { "name": "c", "map": "event.data.total" },
    ]);
    assert_eq!(answer(&stage, steps, total).await, "120");
    assert_eq!(*stage.host.asked.lock().unwrap(), [missed("b", "event.data.vip", "event.data.vip", None)]);
}

#[tokio::test]
async fn false_filter_ends_the_run_quietly() {
    let stage = stage();
    let steps = json!([
        { "name": "small", "filter": "event.data.total < 100" },
        { "name": "never", "notify": { "message": "no" } },
    ]);
    let ended = run(&stage, json!({ "steps": steps }), Some(event(json!({ "total": 120 })))).await;
    assert_eq!(ended, Ok(RunOutcome::Quiet { reason: "filtered".into(), finish: None, usage: Usage::default() }));
    assert_eq!(*stage.host.asked.lock().unwrap(), Vec::<Value>::new());
}

#[tokio::test]
async fn answer_of_a_run_is_its_output_or_the_last_value() {
    let steps = json!([{ "name": "one", "map": "{'a': 1}" }, { "name": "two", "map": "2" }]);
    assert_eq!(answer(&stage(), steps.clone(), None).await, "2");
    let whole = run(&stage(), json!({ "steps": steps, "output": { "a": "{{ steps.one.a }}" } }), None).await;
    assert_eq!(whole, Ok(RunOutcome::Succeeded { output: r#"{"a":1}"#.into(), finish: None, usage: Usage::default() }));
}

#[tokio::test]
async fn body_keeps_its_types_and_the_key_is_the_step_s_own() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(body_json(json!({ "id": 7, "tags": ["a"], "note": "id 7" })))
        .and(header("content-type", "application/json"))
        .respond_with(ResponseTemplate::new(201).set_body_string("made"))
        .mount(&server)
        .await;
    let stage = stage();
    let body =
        json!({ "id": "{{ event.data.id }}", "tags": "{{ event.data.tags }}", "note": "id {{ event.data.id }}" });
    let post = json!({ "method": "POST", "url": server.uri(), "body": body });
    let steps = json!([{ "name": "make", "http": post }, { "name": "again", "http": post }, { "name": "got", "map": "steps.make.body" }]);
    assert_eq!(answer(&stage, steps, Some(event(json!({ "id": 7, "tags": ["a"] })))).await, "made");
    let keys: Vec<String> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|r| r.headers["idempotency-key"].to_str().unwrap().into())
        .collect();
    assert_eq!((keys.len(), keys[0].len()), (2, 64));
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn failure_that_may_pass_is_tried_again_in_the_run_and_then_by_the_run() {
    let server = answering("GET", ResponseTemplate::new(500)).await;
    let step = |more: Value| {
        let mut step =
            json!({ "name": "read", "http": { "url": server.uri() }, "retry": { "count": 2, "backoff_seconds": 0 } });
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "steps": [step, { "name": "after", "map": "steps.read.error.code" }] })
    };
    let failing = stage();
    assert_eq!(failure(run(&failing, step(json!({})), None).await), "retry http_500 None");
    assert_eq!(server.received_requests().await.unwrap().len(), 3);
    let tries = ["read?", "read~http_500", "read?", "read~http_500", "read?", "read~http_500"];
    assert_eq!(ledger(&failing.store), tries);
    // the next attempt goes on at the step
    server.reset().await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200).set_body_string("ok")).mount(&server).await;
    let output = run(&failing, json!({ "steps": [step(json!({}))["steps"][0]] }), None).await;
    assert_eq!(failure(output), "fail pipeline_changed", "other steps can't go on with this ledger");

    server.reset().await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(500)).mount(&server).await;
    let continued = run(&stage(), step(json!({ "on_error": "continue" })), None).await;
    assert!(matches!(continued, Ok(RunOutcome::Succeeded { output, .. }) if output == "http_500"));
    let stopped = run(&stage(), step(json!({ "on_error": "stop" })), None).await;
    assert!(matches!(stopped, Ok(RunOutcome::Quiet { reason, .. }) if reason == "stopped"));
}

#[tokio::test]
async fn next_attempt_goes_on_at_the_step_that_failed() {
    let server = MockServer::start().await;
    Mock::given(method("PUT")).respond_with(ResponseTemplate::new(200)).expect(1).mount(&server).await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(503)).up_to_n_times(1).mount(&server).await;
    Mock::given(method("GET")).respond_with(ResponseTemplate::new(200).set_body_string("ok")).mount(&server).await;
    let config = json!({ "steps": [
        { "name": "write", "http": { "method": "PUT", "url": server.uri() } },
        { "name": "read", "http": { "url": server.uri() } },
        { "name": "said", "map": "steps.read.body" },
    ] });
    let stage = stage();
    assert_eq!(failure(run(&stage, config.clone(), None).await), "retry http_503 None");
    let again = run(&stage, config, None).await;
    assert!(matches!(again, Ok(RunOutcome::Succeeded { output, .. }) if output == "ok"));
}

#[tokio::test]
async fn unsafe_request_is_repeated_only_where_the_other_side_did_nothing() {
    let post = |url: String| json!({ "steps": [{ "name": "pay", "http": { "method": "POST", "url": url }, "retry": { "count": 1, "backoff_seconds": 0 } }] });
    for (template, sent, told) in [
        (ResponseTemplate::new(500), 1, "fail http_500"),
        (ResponseTemplate::new(503), 1, "fail http_503"),
        (ResponseTemplate::new(503).insert_header("retry-after", "0"), 2, "retry http_503 None"),
        (ResponseTemplate::new(429), 2, "retry http_429 None"),
        (ResponseTemplate::new(429).insert_header("retry-after", "300"), 1, "retry http_429 Some(300s)"),
        (ResponseTemplate::new(400), 1, "fail http_400"),
        (ResponseTemplate::new(307).insert_header("location", "/elsewhere"), 1, "fail http_307"),
    ] {
        let server = answering("POST", template).await;
        assert_eq!(failure(run(&stage(), post(server.uri()), None).await), told);
        assert_eq!(server.received_requests().await.unwrap().len(), sent, "{told}");
    }
    let slow = answering("POST", ResponseTemplate::new(200).set_delay(Duration::from_secs(20))).await;
    let mut config = post(slow.uri());
    config["steps"][0]["timeout_seconds"] = json!(1);
    assert_eq!(failure(run(&stage(), config, None).await), "fail outcome_unknown");
    assert_eq!(slow.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn status_that_is_expected_is_no_failure_and_addresses_inside_are_denied() {
    let server = answering("GET", ResponseTemplate::new(404)).await;
    let step = json!([
        { "name": "read", "http": { "url": server.uri(), "accept_status": [404] } },
        { "name": "status", "map": "steps.read.status" },
    ]);
    assert_eq!(answer(&stage(), step, None).await, "404");
    let away = ResponseTemplate::new(302).insert_header("location", "http://10.0.0.1/");
    let inside = json!({ "steps": [{ "name": "read", "http": { "url": answering("GET", away).await.uri() } }] });
    assert_eq!(failure(run(&stage(), inside, None).await), "fail address_denied");
}

#[tokio::test]
async fn each_item_has_its_own_request_key_and_place() {
    let server = MockServer::start().await;
    Mock::given(path("/b")).respond_with(ResponseTemplate::new(404)).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_string("ok")).mount(&server).await;
    let each = |more: Value| {
        let mut inner = json!({ "http": { "method": "POST", "url": format!("{}/{{{{ item }}}}", server.uri()) } });
        inner.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "steps": [
            { "name": "all", "for_each": { "items": "event.data.list", "concurrency": 2, "do": inner } },
            { "name": "codes", "map": "steps.all.map(one, has(one.error) ? one.error.code : one.body)" },
        ] })
    };
    let cause = || Some(event(json!({ "list": ["a", "b", "c"] })));
    let going = stage();
    let output = run(&going, each(json!({ "on_error": "continue" })), cause()).await;
    assert!(matches!(output, Ok(RunOutcome::Succeeded { output, .. }) if output == r#"["ok","http_404","ok"]"#));
    let keys: std::collections::HashSet<String> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|r| r.headers["idempotency-key"].to_str().unwrap().into())
        .collect();
    assert_eq!(keys.len(), 3);

    let failing = stage();
    assert_eq!(failure(run(&failing, each(json!({})), cause()).await), "fail http_404");
    let entries = ledger(&failing.store);
    assert!(entries.contains(&"all[1]!http_404".to_owned()), "{entries:?}");
    assert!(entries.iter().any(|entry| entry.starts_with("all[0]={")), "what had begun came to its end: {entries:?}");
    assert!(!entries.iter().any(|entry| entry.starts_with("all[2]=")) || entries.contains(&"all[2]?".to_owned()));
}

#[tokio::test]
async fn tools_are_called_and_their_json_has_parts() {
    let tool = FakeTool::echo("echo");
    let stage = AgentHarness::new(
        vec![],
        vec![
            tool,
            FakeTool::new("broken", |_, _| async {
                Err(ToolError::for_model(ToolFailure::NotFound, "no_such_thing", "it is not there"))
            }),
        ],
    );
    let steps = json!([
        { "name": "call", "tool": { "name": "echo", "args": { "n": "{{ event.data.n }}" } } },
        { "name": "n", "map": "steps.call.n + 1" },
    ]);
    assert_eq!(answer(&stage, steps, Some(event(json!({ "n": 41 })))).await, "42");
    let fresh = AgentHarness::new(
        vec![],
        vec![FakeTool::new("broken", |_, _| async {
            Err(ToolError::for_model(ToolFailure::NotFound, "no_such_thing", "it is not there"))
        })],
    );
    let broken = json!({ "steps": [{ "name": "call", "tool": { "name": "broken" } }] });
    assert_eq!(failure(run(&fresh, broken, None).await), "fail no_such_thing");
}

#[tokio::test]
async fn events_are_published_under_the_step_s_own_id_and_circles_end() {
    let stage = stage();
    let config = json!({ "steps": [{ "name": "tell", "publish": { "type": "order.large", "data": { "id": "{{ event.data.id }}" } } }] });
    run(&stage, config.clone(), Some(event(json!({ "id": 7 })))).await.unwrap();
    let published = json!({
        "specversion": "1.0", "id": format!("{RUN}:tell"), "source": "reveille/pipeline", "type": "order.large",
        "tenantid": "ann", "reveillehops": 1, "data": { "id": 7 },
    });
    assert_eq!(*stage.host.asked.lock().unwrap(), [json!({ "publish": published, "tenant": "ann" })]);
    let circling = |hops: i64| {
        let mut circling = event(json!({ "id": 7 }));
        if let reveille::domain::run::cause::Cause::Event { event, .. } = &mut circling {
            event["reveillehops"] = json!(hops);
        }
        circling
    };
    run(&self::stage(), config.clone(), Some(circling(15))).await.unwrap();
    assert_eq!(failure(run(&self::stage(), config, Some(circling(16))).await), "fail circle");
}

#[tokio::test]
async fn stored_value_is_there_for_later_steps_and_later_runs() {
    let stage = stage();
    stage.host.state.lock().unwrap().insert("seen".into(), json!(3));
    stage.host.state.lock().unwrap().insert("old".into(), json!("x"));
    let steps = json!([
        { "name": "count", "store": { "name": "seen", "expression": "state.seen + 1" } },
        { "name": "note", "store": { "name": "note", "value": { "who": "{{ input.who }}" } } },
        { "name": "forget", "store": { "name": "old", "delete": true } },
        { "name": "all", "map": "[state.seen, state.note.who, has(state.old)]" },
    ]);
    assert_eq!(answer(&stage, steps, None).await, r#"[4,"Ann",false]"#);
    let kept = json!({ "seen": 4, "note": { "who": "Ann" } });
    assert_eq!(json!(*stage.host.state.lock().unwrap()), kept);
}

#[tokio::test]
async fn one_completion_and_an_agent_are_steps_and_what_they_use_is_counted() {
    let stage = AgentHarness::new(vec![says("a short text"), says("found it")], vec![]);
    let config = json!({ "steps": [
        { "name": "short", "llm": { "prompt": "Summarise: {{ input.who }}", "system": "Be brief." } },
        { "name": "look", "agent": { "name": "librarian", "instruction": "Look for {{ steps.short }}" } },
        { "name": "both", "map": "steps.short + '; ' + steps.look" },
    ] });
    let Ok(RunOutcome::Succeeded { output, usage, .. }) = run(&stage, config, None).await else { panic!("no answer") };
    assert_eq!((output.as_str(), usage.turns), ("a short text; found it", 2));
    assert!(usage.input_tokens > 0 && usage.cost_micros > 0, "{usage:?}");
    let requests = stage.model.requests.lock().unwrap();
    let system = TranscriptMessage::system(format!("Be brief.\n\n{RULE}"));
    let prompt = TranscriptMessage::user(format!("Summarise: {}", fenced("value", "Ann")));
    assert_eq!(requests[0].messages, [system, prompt], "a value is labelled as data");
    let TranscriptMessage::User { text, .. } = &requests[1].messages[1] else { panic!("no prompt") };
    assert_eq!(*text, format!("Look for {}", fenced("value", "a short text")));
    assert!(format!("{:?}", requests[1].messages).contains("You look things up."));
    assert_eq!(requests[1].messages.len(), 2, "the ledger is no part of the conversation");
}

#[tokio::test]
async fn agent_in_a_step_sees_the_skills_that_it_names() {
    let folder = SkillFolder::new();
    let stage = AgentHarness::with_skills(vec![says("found it")], vec![], folder.path());
    let agent = json!({ "name": "librarian", "instruction": "Look it up." });
    answer(&stage, json!([{ "name": "look", "agent": agent }]), None).await;
    let asked = format!("{:?}", stage.model.requests.lock().unwrap()[0].messages);
    assert!(asked.contains("- dates: For dates.") && !asked.contains("- places"), "{asked}");
}

#[tokio::test]
async fn agent_that_hangs_ends_at_the_limit_that_the_configuration_sets_for_agents() {
    for (seconds, own, limit) in [(7, json!(null), 7_000), (7, json!(20), 20_000), (40, json!(null), 40_000)] {
        let settings = reveille::agent::Settings { agent_tool_execution_timeout: seconds, ..Default::default() };
        let stage = AgentHarness::with_settings(vec![], vec![], settings);
        let agent = json!({ "name": "librarian", "instruction": "Look it up." });
        let step = json!({ "name": "s", "agent": agent, "timeout_seconds": own });
        let failed = passing(&stage.clock, run(&stage, json!({ "steps": [step] }), None)).await;
        assert!(matches!(failed, Err(RunError::Fail { .. } | RunError::Retry { .. })), "{failed:?}");
        assert!((limit..limit + 500).contains(&stage.elapsed()), "{} of {limit}", stage.elapsed());
    }
}

#[tokio::test]
async fn items_and_values_are_taken_at_their_bounds_and_fail_the_step_one_beyond_them() {
    let text = |bytes: usize| json!({ "it": "x".repeat(bytes - "\"\"".len()) });
    let items = |count: usize| json!({ "it": vec![0; count] });
    let each = json!([{ "name": "s", "for_each": { "items": "event.data.it", "do": { "map": "item" } } }]);
    let value = json!([{ "name": "s", "map": "event.data.it" }]);
    let stored = json!([{ "name": "s", "store": { "name": "kept", "expression": "event.data.it" } }]);
    for (steps, most, beyond, code) in [
        (each, items(1_000), items(1_001), "too_many_items"),
        (value, text(262_144), text(262_145), "value_too_large"),
        (stored, text(65_536), text(65_537), "value_too_large"),
    ] {
        let config = json!({ "steps": steps });
        let taken = run(&stage(), config.clone(), Some(event(most))).await;
        assert!(matches!(taken, Ok(RunOutcome::Succeeded { .. })), "{code}: {taken:?}");
        assert_eq!(failure(run(&stage(), config, Some(event(beyond))).await), format!("fail {code}"));
    }
}

#[tokio::test]
async fn values_of_all_steps_are_taken_up_to_their_bytes_together_and_fail_the_step_one_beyond_them() {
    let largest = event(json!({ "it": "x".repeat(262_144 - "\"\"".len()) }));
    let steps = |count: usize| {
        let each = (0..count).map(|n| json!({ "name": format!("s{n}"), "map": "event.data.it" }));
        each.collect::<Vec<Value>>()
    };
    // as many of the largest as have 4_194_304 bytes
    let config = json!({ "steps": steps(16) });
    let taken = run(&stage(), config, Some(largest.clone())).await;
    assert!(matches!(taken, Ok(RunOutcome::Succeeded { .. })), "{taken:?}");
    let beyond: Vec<Value> = steps(16).into_iter().chain([json!({ "name": "one", "map": "1" })]).collect();
    let config = json!({ "steps": beyond });
    assert_eq!(failure(run(&stage(), config, Some(largest)).await), "fail value_too_large");
}

#[tokio::test]
async fn result_that_a_tool_keeps_is_given_to_the_same_call_of_a_later_step_and_run() {
    let look = |n: u64| json!({ "name": "look", "args": { "n": n } });
    let steps = json!([
        { "name": "one", "tool": look(1) },
        { "name": "again", "tool": look(1) },
        { "name": "other", "tool": look(2) },
        { "name": "all", "map": "[steps.one, steps.again, steps.other]" },
    ]);
    for (cache, looked) in [(true, [1, 1, 2, 1, 1, 2]), (false, [1, 2, 3, 4, 5, 6])] {
        let (tool, count) = counting("look", |number| Ok(number.to_string()));
        let stage = governed(vec![], vec![tool], json!({ "look": { "cache": cache } }), ToolAccess::default());
        let first = answer(&stage, steps.clone(), None).await;
        stage.store.entries.lock().unwrap().clear();
        let second = answer(&stage, steps.clone(), None).await;
        let given: Vec<Vec<u64>> = [first, second].iter().map(|all| serde_json::from_str(all).unwrap()).collect();
        assert_eq!(
            (given.concat(), count.load(Ordering::SeqCst)),
            (looked.to_vec(), *looked.iter().max().unwrap() as usize)
        );
    }
}

/// A tool that an MCP server lists. It counts its calls, of which each hangs, or is not answered in time.
fn search(category: Category, hangs: bool, count: &Arc<AtomicUsize>) -> Arc<RegisteredTool> {
    let count = Arc::clone(count);
    let search = FakeTool::new("github.search", move |_: ToolContext, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Err(ToolError::for_model(ToolFailure::Timeout, "timeout", "no answer"))
        }
    });
    let search = search.with(|tool| {
        tool.category = category;
        tool.idempotent = category == Category::Read;
    });
    Arc::new(RegisteredTool::new(Arc::new(search), ToolPolicy::default()).unwrap())
}

#[tokio::test]
async fn call_of_a_tool_that_its_server_has_made_a_side_effect_meanwhile_is_not_repeated() {
    let rules = json!({ "tools": { "github.search": { "gate": "auto" } } });
    let config = json!({ "steps": [
        { "name": "change", "tool": { "name": "change" } },
        { "name": "s", "timeout_seconds": 1, "retry": { "count": 1, "backoff_seconds": 0 },
          "tool": { "name": "github.search" } },
    ] });
    for hangs in [false, true] {
        let (held, count) = (Arc::<OnceLock<ToolCatalog>>::default(), Arc::<AtomicUsize>::default());
        let (changing, counted) = (held.clone(), count.clone());
        let change = FakeTool::new("change", move |_: ToolContext, _| {
            changing.get().unwrap().replace("github", vec![search(Category::SideEffect, hangs, &counted)]);
            async { Ok(ToolOutput::text("changed")) }
        });
        let tools = ToolRegistry::new(vec![Arc::new(change)]).unwrap().with_servers(["github"]);
        let catalog = held.get_or_init(|| ToolCatalog::new(tools)).clone();
        catalog.replace("github", vec![search(Category::Read, hangs, &count)]);
        let mut stage = AgentHarness::new(vec![], vec![]);
        stage.agent = Agent { tools: catalog.current(), catalog: Some(catalog), ..stage.agent };
        stage.agent.policy = Policy::new(&serde_json::from_value(rules.clone()).unwrap()).unwrap();
        let ended = passing(&stage.clock, run(&stage, config.clone(), None)).await;
        assert_eq!((failure(ended).as_str(), count.load(Ordering::SeqCst)), ("fail outcome_unknown", 1), "{hangs}");
    }
}
