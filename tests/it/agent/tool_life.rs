//! Tools as the operator governs them: how often calls are repeated, which results are kept, and who may use which.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reveille::agent::{Agent, AgentOverrides, StopSignal, TranscriptSlice};
use reveille::base::id::Tenant;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{LlmError, ModelAnswer};
use reveille::ports::tool::access::{ToolAccess, ToolLimits};
use reveille::ports::tool::policy::ToolPolicy;
use reveille::ports::tool::{Tool, ToolContext, ToolError, ToolFailure, ToolOutput, ToolRegistry};
use serde_json::{Value, json};

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, says};

type Answers = Vec<Result<ModelAnswer, LlmError>>;

/// A harness whose tools are under these policies and limits.
pub fn governed(answers: Answers, tools: Vec<FakeTool>, policies: Value, access: ToolAccess) -> AgentHarness {
    let mut stage = AgentHarness::new(answers, vec![]);
    let tools = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
    let policies: BTreeMap<String, ToolPolicy> = serde_json::from_value(policies).unwrap();
    let tools = ToolRegistry::new(tools).unwrap().governed(&policies, &access);
    stage.agent = Agent { tools: Arc::new(tools), ..stage.agent };
    stage
}

/// A tool that counts its calls and answers, or fails, by their number.
pub fn counting(name: &str, answer: fn(usize) -> Result<String, ToolError>) -> (FakeTool, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let tool = FakeTool::new(name, move |_: ToolContext, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        async move { answer(number).map(ToolOutput::text) }
    });
    (tool, count)
}

fn failed(kind: ToolFailure) -> ToolError {
    ToolError::for_model(kind, "odd", "not now")
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[tokio::test]
async fn call_is_repeated_as_the_policy_of_its_tool_says() {
    let limited = |number| match number {
        1..=4 => Err(failed(ToolFailure::RateLimit)),
        number => Ok(format!("try {number}")),
    };
    let (tool, count) = counting("look", limited);
    let retry =
        json!({ "max_retries": 5, "on": ["rate_limit"], "first_wait": 2.0, "wait_factor": 3.0, "longest_wait": 7.0 });
    let policies = json!({ "look": { "retry": retry } });
    let answers = vec![calls(vec![call("c1", "look", json!({}))]), says("done")];
    let stage = governed(answers, vec![tool], policies, ToolAccess::default());
    let before = stage.clock.elapsed();
    stage.answer("go").await;
    assert_eq!(stage.results(), [("c1".into(), "try 5".into(), false)]);
    assert_eq!(count.load(Ordering::SeqCst), 5);
    let waited = stage.clock.elapsed() - before;
    assert!(waited >= Duration::from_secs(2 + 6 + 7 + 7), "{waited:?}");

    // a failure that is not among them is told at once, though it is repeated where nothing is said
    let (tool, count) = counting("look", |_| Err(failed(ToolFailure::Timeout)));
    let answers = vec![calls(vec![call("c1", "look", json!({}))]), says("done")];
    let stage =
        governed(answers, vec![tool], json!({ "look": { "retry": { "on": ["rate_limit"] } } }), ToolAccess::default());
    stage.answer("go").await;
    assert_eq!((count.load(Ordering::SeqCst), stage.results()[0].2), (1, true));
}

#[tokio::test]
async fn call_that_has_failed_is_not_made_again_once_the_run_is_to_stop() {
    let stop = StopSignal::new();
    let halting = stop.clone();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let tool = FakeTool::new("look", move |_: ToolContext, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        halting.halt();
        async { Err(failed(ToolFailure::RateLimit)) }
    });
    let retry = json!({ "max_retries": 5, "on": ["rate_limit"], "first_wait": 5.0 });
    let answers = vec![calls(vec![call("c1", "look", json!({}))])];
    let stage = governed(answers, vec![tool], json!({ "look": { "retry": retry } }), ToolAccess::default());
    let mut incoming = stage.incoming("go");
    incoming.stop = stop;
    assert_eq!(stage.agent.handle_message(&incoming).await, Err(RunError::HandBack));
    assert_eq!((count.load(Ordering::SeqCst), stage.results()[0].2), (1, true), "its failure is on the record");
}

#[tokio::test]
async fn result_that_is_kept_is_given_to_the_same_tenant_s_same_call_for_an_hour() {
    let (tool, count) = counting("look", |number| Ok(format!("look {number}")));
    let again = |id: &str| calls(vec![call(id, "look", json!({ "at": 7, "b": null }))]);
    let answers = vec![again("c1"), says("1"), again("c2"), says("2"), again("c3"), says("3"), again("c4"), says("4")];
    let stage = governed(answers, vec![tool], json!({ "look": { "cache": true } }), ToolAccess::default());
    let ask = async |tenant: &str| {
        let store = Memory::of(vec![]);
        let mut incoming = stage.incoming("go");
        incoming.tenant = Tenant::new(tenant).unwrap();
        incoming.store = Arc::new(TranscriptSlice::of_run(store.clone()));
        stage.agent.handle_message(&incoming).await.unwrap();
        let results = store.messages().into_iter().find_map(|message| match message {
            TranscriptMessage::Tool { content, is_error, .. } => Some((content, is_error)),
            _ => None,
        });
        results.unwrap()
    };
    assert_eq!(ask("ann").await, ("look 1".into(), false));
    assert_eq!(ask("ann").await, ("look 1".into(), false));
    assert_eq!(ask("bob").await, ("look 2".into(), false), "another tenant looks for itself");
    stage.clock.advance(chrono::TimeDelta::hours(1));
    assert_eq!(ask("ann").await, ("look 3".into(), false));
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn failure_and_a_result_with_a_secret_are_not_kept_nor_anything_where_nothing_is_said() {
    let once = |id: &str| calls(vec![call(id, "look", json!({}))]);
    let answers = || vec![once("c1"), once("c2"), says("done")];
    let odd = |number| if number == 1 { Err(failed(ToolFailure::NotFound)) } else { Ok(format!("look {number}")) };
    let (tool, _) = counting("look", odd);
    let stage = governed(answers(), vec![tool], json!({ "look": { "cache": true } }), ToolAccess::default());
    stage.answer("go").await;
    let results: Vec<bool> = stage.results().into_iter().map(|(.., is_error)| is_error).collect();
    assert_eq!(results, [true, false]);

    let (tool, count) = counting("look", |_| Ok("the key is s3cret-4711".into()));
    let stage = governed(answers(), vec![tool], json!({ "look": { "cache": true } }), ToolAccess::default());
    let incoming = stage.incoming("go");
    incoming.used_secrets.add(["s3cret-4711"].into_iter());
    stage.agent.handle_message(&incoming).await.unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2);

    let (tool, count) = counting("look", |number| Ok(format!("look {number}")));
    let stage = governed(answers(), vec![tool], json!({}), ToolAccess::default());
    stage.answer("go").await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn tool_that_any_layer_denies_is_neither_offered_nor_called() {
    let access = ToolAccess {
        deny: names(&["by_operator"]),
        tenants: [("ann".to_owned(), ToolLimits { deny: names(&["by_tenant"]), ..Default::default() })].into(),
        ..ToolAccess::default()
    };
    let all = ["by_operator", "by_tenant", "by_task", "free"];
    let asked = || all.iter().map(|name| call(name, name, json!({}))).collect::<Vec<_>>();
    for (tenant, allowed) in [("ann", vec!["free"]), ("bob", vec!["by_tenant", "free"])] {
        let tools = all.map(FakeTool::echo).into();
        let stage = governed(vec![calls(asked()), says("done")], tools, json!({}), access.clone());
        let mut incoming = stage.incoming("go");
        incoming.tenant = Tenant::new(tenant).unwrap();
        // a task that names a tool widens nothing
        let tools = Arc::new(ToolLimits { allow: Some(names(&all)), deny: names(&["by_task"]) });
        incoming.overrides = AgentOverrides { tools, ..AgentOverrides::default() };
        stage.agent.handle_message(&incoming).await.unwrap();
        let requests = stage.model.requests.lock().unwrap();
        let offered: Vec<String> = requests[0].tools.iter().map(|tool| tool.name.clone()).collect();
        assert_eq!(offered, allowed, "{tenant}");
        let called: Vec<String> =
            stage.results().into_iter().filter(|(.., is_error)| !is_error).map(|(call, ..)| call).collect();
        assert_eq!(called, allowed, "{tenant}");
    }
}
