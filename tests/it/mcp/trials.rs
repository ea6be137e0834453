//! Tools that a person tries: what keeps a call from being made, what ends it, and what is shown and recorded of it.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use reveille::agent::Agent;
use reveille::base::id::{Scope, Tenant};
use reveille::domain::approval::{Category, Consequence};
use reveille::domain::halt::HaltKind;
use reveille::domain::quota::{Overrides, Quota};
use reveille::executor::tool_trial::{ToolTrials, TrialOutcome, TrialRefusal, TrialRequest};
use reveille::ports::tool::access::ToolAccess;
use reveille::ports::tool::{Tool, ToolCaller, ToolError, ToolOutput, ToolRegistry};
use reveille::store::{AuditEntry, AuditFilter};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::harness::{McpHarness, by_command};
use crate::agent::harness::{AgentHarness, FakeTool};
use crate::conformance::world::StoreHarness;
use crate::support::mcp::McpFixture;

/// Trials that are under way at once, those of one tenant, and the longest call.
const AT_ONCE: usize = 16;
const OF_ONE: usize = 12;
const LIMIT: TimeDelta = TimeDelta::seconds(25);

/// Trials of these tools, of which one person agrees to a call.
fn trials(world: &StoreHarness, tools: Vec<FakeTool>) -> ToolTrials {
    let AgentHarness { agent, host, .. } = AgentHarness::new(vec![], tools);
    ToolTrials::new(agent, host, world.store.clone(), 1)
}

/// A call that a person who may decide has agreed to.
fn asked(tenant: &str, tool: &str, arguments: Value) -> TrialRequest {
    TrialRequest {
        tenant: Tenant::new(tenant).expect("a tenant"),
        tool: tool.into(),
        arguments,
        version: None,
        confirmed: true,
        may_decide: true,
        by: "token:ann".into(),
    }
}

async fn outcome(trials: &ToolTrials, asked: TrialRequest) -> TrialOutcome {
    trials.call(asked).await.unwrap_or_else(|why| panic!("{why:?}"))
}

/// A tool of this category that tells of each call, and never answers.
fn endless(name: &str, category: Category) -> (FakeTool, UnboundedReceiver<()>) {
    let (began, begun): (UnboundedSender<()>, _) = unbounded_channel();
    let tool = FakeTool::new(name, move |_, _| {
        began.send(()).expect("a test that listens");
        std::future::pending()
    });
    (tool.with(|definition| definition.category = category), begun)
}

/// A call that breaks down.
async fn broken() -> Result<ToolOutput, ToolError> {
    panic!("as told")
}

fn begin(trials: &ToolTrials, asked: TrialRequest) -> JoinHandle<Result<TrialOutcome, TrialRefusal>> {
    let trials = trials.clone();
    tokio::spawn(async move { trials.call(asked).await })
}

async fn recorded(world: &StoreHarness) -> Vec<AuditEntry> {
    let filter = AuditFilter { action: Some("tool.called".into()), limit: 99, ..AuditFilter::default() };
    world.store.audit_page(&Scope::Every, &filter).await.expect("the record").rows
}

#[tokio::test]
async fn secret_that_a_call_has_used_is_nowhere_in_its_answer() {
    let world = StoreHarness::sqlite().await;
    let leaks = FakeTool::new("leaks", |context, _| async move {
        assert!(context.called_by == ToolCaller::Trial && context.run_id.is_nil() && context.task_id.is_none());
        context.used_secrets.add(["s3cret-key"]);
        Ok(ToolOutput::json(json!({ "told": "the key is s3cret-key" })))
    });
    let told = outcome(&trials(&world, vec![leaks]), asked("ann", "leaks", json!({ "note": "s3cret-key" }))).await;
    assert_eq!(told.result, Some(json!({ "told": "the key is [redacted]" })));
    assert_eq!(told.arguments, json!({ "note": "[redacted]" }));
    let recorded = recorded(&world).await;
    assert!(recorded.len() == 1 && !format!("{recorded:?}").contains("s3cret"), "{recorded:?}");
    world.leave().await;
}

#[tokio::test]
async fn call_that_takes_too_long_is_given_up_and_may_have_acted() {
    let world = StoreHarness::sqlite().await;
    for (category, code) in [(Category::Read, "timeout"), (Category::SideEffect, "outcome_unknown")] {
        let (tool, mut begun) = endless("endless", category);
        let tried = begin(&trials(&world, vec![tool]), asked("ann", "endless", json!({})));
        begun.recv().await.expect("it begins");
        world.clock.advance(LIMIT - TimeDelta::milliseconds(1));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(!tried.is_finished(), "its time is not over");
        world.clock.advance(TimeDelta::milliseconds(1));
        let told = tried.await.expect("no panic").expect("it was made");
        assert_eq!(told.error.expect("an error").code, code);
        assert_eq!((told.result, told.duration_ms), (None, LIMIT.num_milliseconds()));
    }
    world.leave().await;
}

#[tokio::test]
async fn time_of_a_call_is_no_longer_than_its_tool_says() {
    let world = StoreHarness::sqlite().await;
    let (tool, mut begun) = endless("endless", Category::Read);
    let tool = tool.with(|definition| definition.timeout = Some(Duration::from_secs(2)));
    let tried = begin(&trials(&world, vec![tool]), asked("ann", "endless", json!({})));
    begun.recv().await.expect("it begins");
    world.clock.advance(TimeDelta::seconds(2));
    assert_eq!(tried.await.expect("no panic").expect("it was made").duration_ms, 2_000);
    world.leave().await;
}

#[tokio::test]
async fn call_ends_once_its_tenant_is_halted() {
    let world = StoreHarness::sqlite().await;
    let (tool, mut begun) = endless("endless", Category::Write);
    let trials = trials(&world, vec![tool]);
    let tried = begin(&trials, asked("ann", "endless", json!({})));
    begun.recv().await.expect("it begins");
    world.store.halt(HaltKind::Stopped, Some("ann"), None, "token:admin").await.expect("it is halted");
    let told = tried.await.expect("no panic").expect("it was made");
    assert_eq!(told.error.expect("an error").code, "outcome_unknown");
    let refused = trials.call(asked("ann", "endless", json!({}))).await;
    assert!(matches!(refused, Err(TrialRefusal::Conflict(why)) if why.ends_with(": stopped")));
    world.leave().await;
}

#[tokio::test]
async fn call_that_panics_is_an_error_and_takes_no_place() {
    let world = StoreHarness::sqlite().await;
    let trials = trials(&world, vec![FakeTool::new("breaks", |_, _| broken())]);
    for _ in 0..=AT_ONCE {
        let told = outcome(&trials, asked("ann", "breaks", json!({}))).await;
        assert_eq!(told.error.expect("an error").code, "panicked");
    }
    world.leave().await;
}

#[tokio::test]
async fn call_is_on_the_record_though_whoever_asked_has_gone() {
    let world = StoreHarness::sqlite().await;
    let (tool, mut begun) = endless("endless", Category::Write);
    let tried = begin(&trials(&world, vec![tool]), asked("ann", "endless", json!({ "to": "bob" })));
    begun.recv().await.expect("it begins");
    tried.abort();
    assert!(tried.await.is_err_and(|ended| ended.is_cancelled()));
    let recorded = recorded(&world).await;
    let [entry] = recorded.as_slice() else { panic!("{recorded:?}") };
    assert_eq!((entry.tenant_id.as_str(), entry.actor.as_str()), ("ann", "token:ann"));
    assert_eq!((&entry.body["tool"], &entry.body["confirmed"]), (&json!("endless"), &json!(true)));
    assert_eq!(entry.body["arguments"].as_str().map(str::len), Some(64), "their digest: {entry:?}");
    world.leave().await;
}

#[tokio::test]
async fn no_more_are_under_way_than_the_most_and_a_tenant_leaves_some_to_others() {
    let world = StoreHarness::sqlite().await;
    let (tool, mut begun) = endless("endless", Category::Read);
    let trials = trials(&world, vec![tool]);
    let mut under_way = Vec::new();
    let others = ["bob", "cem", "dov", "eva"];
    for tenant in std::iter::repeat_n("ann", OF_ONE).chain(others) {
        under_way.push(begin(&trials, asked(tenant, "endless", json!({}))));
        begun.recv().await.expect("it begins");
        if under_way.len() == OF_ONE {
            let refused = trials.call(asked("ann", "endless", json!({}))).await;
            assert!(matches!(refused, Err(TrialRefusal::Busy)), "{refused:?}");
        }
    }
    assert_eq!(under_way.len(), AT_ONCE);
    let refused = trials.call(asked("fay", "endless", json!({}))).await;
    assert!(matches!(refused, Err(TrialRefusal::Busy)), "{refused:?}");
    assert_eq!(recorded(&world).await.len(), AT_ONCE, "what was refused is on no record");
    for tried in under_way {
        tried.abort();
        let _ = tried.await;
    }
    world.leave().await;
}

#[tokio::test]
async fn call_is_a_fire_of_its_tenant_and_of_what_it_stores() {
    let world = StoreHarness::sqlite().await;
    let trials = trials(&world, vec![FakeTool::echo("echo")]);
    let limit = async |tenant: &str, overrides: &Overrides| {
        world.store.put_quotas(tenant, overrides, "token:admin").await.expect("quotas");
    };
    let refused = async |tenant: &str| match trials.call(asked(tenant, "echo", json!({}))).await {
        Err(TrialRefusal::Quota(exceeded)) => exceeded.quota,
        other => panic!("{other:?}"),
    };
    limit("ann", &Overrides { fires_per_minute: Some(1), ..Overrides::default() }).await;
    outcome(&trials, asked("ann", "echo", json!({}))).await;
    assert_eq!(refused("ann").await, Quota::FiresPerMinute);
    limit("cem", &Overrides { stored_bytes: Some(1), ..Overrides::default() }).await;
    assert_eq!(refused("cem").await, Quota::StoredBytes);
    assert_eq!(recorded(&world).await.len(), 1);
    outcome(&trials, asked("bob", "echo", json!({}))).await;
    world.leave().await;
}

#[tokio::test]
async fn call_about_which_several_people_agree_is_made_by_none() {
    let world = StoreHarness::sqlite().await;
    let pay = FakeTool::echo("pay").with(|definition| {
        (definition.category, definition.consequence) = (Category::SideEffect, Consequence::High);
    });
    let AgentHarness { agent, host, .. } = AgentHarness::new(vec![], vec![pay, FakeTool::echo("look")]);
    let trials = ToolTrials::new(agent, host, world.store.clone(), 2);
    let refused = trials.call(asked("ann", "pay", json!({}))).await;
    assert!(matches!(refused, Err(TrialRefusal::Conflict(why)) if why.contains("make a task")));
    // nobody is asked about one that only reads
    outcome(&trials, TrialRequest { confirmed: false, ..asked("ann", "look", json!({})) }).await;
    world.leave().await;
}

#[tokio::test]
async fn tool_that_the_operator_withholds_is_not_called() {
    let world = StoreHarness::sqlite().await;
    let access: ToolAccess =
        serde_json::from_value(json!({ "deny": ["nobodys"], "tenants": { "ann": { "deny": ["not_anns"] } } })).unwrap();
    let tools = ["nobodys", "not_anns"].map(|name| Arc::new(FakeTool::echo(name)) as Arc<dyn Tool>);
    let tools = ToolRegistry::new(tools.into()).expect("tools").governed(&Default::default(), &access);
    let AgentHarness { agent, host, .. } = AgentHarness::new(vec![], vec![]);
    let trials = ToolTrials::new(Agent { tools: Arc::new(tools), ..agent }, host, world.store.clone(), 1);
    for (tenant, tool) in [("ann", "nobodys"), ("bob", "nobodys"), ("ann", "not_anns")] {
        let refused = trials.call(asked(tenant, tool, json!({}))).await;
        assert!(matches!(&refused, Err(TrialRefusal::Conflict(why)) if why.contains("[tool_access")), "{refused:?}");
    }
    outcome(&trials, asked("bob", "not_anns", json!({}))).await;
    world.leave().await;
}

#[tokio::test]
async fn tool_of_a_server_is_called_once_a_person_has_agreed() {
    let (world, fixture) = (StoreHarness::sqlite().await, McpFixture::new());
    let servers = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    let version = servers.tool("one.echo").await.definition().version.clone();
    let AgentHarness { agent, host, .. } = AgentHarness::new(vec![], vec![]);
    let agent = Agent { catalog: Some(servers.catalog.clone()), ..agent };
    let trials = ToolTrials::new(agent, host, world.store.clone(), 1);
    let echo = || asked("ann", "one.echo", json!({ "text": "hello" }));
    let refused = trials.call(TrialRequest { confirmed: false, ..echo() }).await;
    assert!(
        matches!(&refused, Err(TrialRefusal::NeedsConfirmation(why)) if why.contains("side_effect")),
        "{refused:?}"
    );
    let refused = trials.call(TrialRequest { may_decide: false, ..echo() }).await;
    assert!(matches!(refused, Err(TrialRefusal::NeedsDecider)), "{refused:?}");
    let refused = trials.call(TrialRequest { version: Some("0".into()), ..echo() }).await;
    assert!(matches!(&refused, Err(TrialRefusal::Conflict(why)) if why.contains(&version)), "{refused:?}");
    assert!(fixture.noted("echo").is_empty());
    let told = outcome(&trials, TrialRequest { version: Some(version), ..echo() }).await;
    assert_eq!((told.result, told.error), (Some(json!("hello")), None));
    assert_eq!(told.request, Some(json!({ "server": "one", "tool": "echo" })));
    assert_eq!(fixture.noted("echo"), ["hello"]);
    let told = outcome(&trials, asked("ann", "one.confirm", json!({ "env": "prod" }))).await;
    assert_eq!(told.error.map(|error| error.code).as_deref(), Some("mcp_needs_input"), "nobody is asked");
    let refused = trials.call(asked("ann", "one.gone", json!({}))).await;
    assert!(matches!(refused, Err(TrialRefusal::Conflict(_))), "{refused:?}");
    servers.stop().await;
    world.leave().await;
}
