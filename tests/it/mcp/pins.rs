//! Definitions of tools that change while the service runs: what is new or changed waits until the operator accepts it,
//! on whichever instance, and runs call nothing that nobody has accepted.

use std::collections::BTreeSet;
use std::sync::Arc;

use reveille::base::clock::{Clock, pause};
use reveille::domain::approval::PinState;
use reveille::executor::host::tool_pins::StorePins;
use reveille::ports::tool::absence::ToolAbsence;
use reveille::ports::vault::credentials::Credentials;
use reveille::store::{Settings, Store};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::agents::{config, model};
use super::harness::{LOOK, McpHarness, PATIENCE, by_command, by_url, code, egress, text, until_listed, with};
use crate::agent::wire::fakes::Wire;
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir};
use crate::support::mcp::McpFixture;
use crate::support::sqlite::migrated_copy;

/// The pins of one test, which all its instances share.
struct SharedPins {
    store: Store,
    _dir: TempDir,
}

impl SharedPins {
    async fn new() -> SharedPins {
        let dir = TempDir::new();
        migrated_copy(dir.path());
        let store = Store::open(&Settings::default(), dir.path(), Clock::system(), |_| {}).await.expect("a store");
        SharedPins { store, _dir: dir }
    }

    /// An instance with these servers.
    async fn start(&self, servers: &[Value]) -> McpHarness {
        let pins = Arc::new(StorePins(self.store.clone()));
        McpHarness::start_pinned(servers, Credentials::none(egress()), Some(pins)).await
    }

    async fn state(&self, server: &str, tool: &str) -> PinState {
        self.store.find_tool_pin(server, tool).await.expect("an answer").expect("a pin").state()
    }

    /// Accepts the definition that waits. No instance is told.
    async fn accept(&self, server: &str, tool: &str) {
        let accepted = self.store.accept_tool(server, tool, None, "token:test").await.expect("it is accepted");
        assert_eq!(accepted.state(), PinState::Accepted);
    }
}

/// Returns once a tool waits to be accepted; it is offered to nobody then.
async fn until_waiting(harness: &McpHarness, tool: &str) {
    harness.until(|tools| tools.find_waiting(tool).map(|_| assert!(tools.find(tool).is_none()))).await;
}

#[tokio::test]
async fn changed_tool_is_not_offered_until_it_is_accepted() {
    let (pins, local, remote) = (SharedPins::new().await, McpFixture::new(), McpFixture::new());
    let over_http = remote.start_http().await;
    let harness = pins.start(&[by_command("local", &local.command()), by_url("remote", &over_http.url)]).await;
    for (name, fixture) in [("local", &local), ("remote", &remote)] {
        let full = format!("{name}.echo");
        assert_eq!(text(harness.call(&full, json!({ "text": "before" })).await), "before");
        assert_eq!(pins.state(name, "echo").await, PinState::Accepted, "the first list is accepted");
        fixture.set_plan(&json!({ "echo": "Shouts." }));
        until_waiting(&harness, &full).await;
        assert_eq!(pins.state(name, "echo").await, PinState::Changed);
        assert_eq!(harness.catalog.current().absence(&full), Some(ToolAbsence::NotAccepted));
        assert!(harness.names().contains(&format!("{name}.measure")), "the others are offered");
        let waiting = format!("mcp_tools{{server=\"{name}\",state=\"waiting\"}} 1");
        assert!(harness.metrics.text().contains(&waiting), "{}", harness.metrics.text());
        assert_eq!(harness.health(name).waiting_tools, Some(1));
        pins.accept(name, "echo").await;
        harness.servers.tools_accepted();
        assert_eq!(harness.tool(&full).await.definition().description, "Shouts.");
        assert_eq!(text(harness.call(&full, json!({ "text": "after" })).await), "after");
        assert_eq!(harness.health(name).waiting_tools, None);
    }
    harness.stop().await;
}

#[tokio::test]
async fn tool_that_appears_waits() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let harness = pins.start(&[by_command("one", &fixture.command())]).await;
    harness.tool("one.echo").await;
    fixture.set_plan(&json!({ "more": { "fresh": "Is new." } }));
    until_waiting(&harness, "one.fresh").await;
    assert_eq!(pins.state("one", "fresh").await, PinState::New);
    pins.accept("one", "fresh").await;
    harness.servers.tools_accepted();
    assert_eq!(text(harness.call("one.fresh", json!({})).await), "fresh");
    harness.stop().await;
}

#[tokio::test]
async fn tool_that_goes_and_comes_back_is_offered_and_one_that_comes_back_changed_is_not() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let harness = pins.start(&[by_command("one", &fixture.command())]).await;
    harness.tool("one.measure").await;
    fixture.set_plan(&json!({ "hide": ["measure", "echo"] }));
    harness.until(|tools| tools.find("one.measure").is_none().then_some(())).await;
    assert_eq!(harness.catalog.current().absence("one.measure"), Some(ToolAbsence::Unlisted));
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    harness.tool("one.measure").await;
    until_waiting(&harness, "one.echo").await;
    fixture.set_plan(&json!({}));
    harness.tool("one.echo").await;
    harness.stop().await;
}

#[tokio::test]
async fn run_that_began_before_a_change_calls_nothing_by_it() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let harness = pins.start(&[by_command("one", &fixture.command())]).await;
    let of_run = harness.tool("one.echo").await;
    let context = harness.context("ann");
    let called = async || of_run.tool.call(&context, json!({ "text": "by the run" })).await;
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    until_waiting(&harness, "one.echo").await;
    assert_eq!(code(called().await), "mcp_tool_changed");
    pins.accept("one", "echo").await;
    harness.servers.tools_accepted();
    assert_eq!(text(harness.call("one.echo", json!({ "text": "by another" })).await), "by another");
    assert_eq!(code(called().await), "mcp_tool_changed", "the run was told of another definition");
    assert_eq!(fixture.noted("echo"), ["by another"]);
    harness.stop().await;
}

#[tokio::test]
async fn acceptance_on_one_instance_reaches_the_other() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let servers = [by_command("one", &fixture.command())];
    let (here, there) = (pins.start(&servers).await, pins.start(&servers).await);
    for instance in [&here, &there] {
        instance.tool("one.echo").await;
    }
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    for instance in [&here, &there] {
        until_waiting(instance, "one.echo").await;
    }
    pins.accept("one", "echo").await;
    here.servers.tools_accepted();
    for instance in [&here, &there] {
        assert_eq!(instance.tool("one.echo").await.definition().description, "Shouts.");
    }
    here.stop().await;
    there.stop().await;
}

#[tokio::test]
async fn restart_keeps_what_was_accepted() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let servers = [by_command("one", &fixture.command())];
    let first = pins.start(&servers).await;
    first.tool("one.echo").await;
    first.stop().await;
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    let second = pins.start(&servers).await;
    until_waiting(&second, "one.echo").await;
    assert!(second.names().contains(&"one.measure".to_owned()), "no list but the first is accepted as it is");
    pins.accept("one", "echo").await;
    second.stop().await;
    let third = pins.start(&servers).await;
    assert_eq!(third.tool("one.echo").await.definition().description, "Shouts.");
    assert!(third.catalog.current().waiting().next().is_none());
    third.stop().await;
}

#[tokio::test]
async fn tool_that_is_allowed_later_waits() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let allowing = |tools: &[&str]| with(by_command("one", &fixture.command()), json!({ "allow": tools }));
    let harness = pins.start(&[allowing(&["echo"])]).await;
    harness.tool("one.echo").await;
    assert_eq!((harness.names(), harness.catalog.current().waiting().count()), (vec!["one.echo".to_owned()], 0));
    harness.stop().await;
    let harness = pins.start(&[allowing(&["echo", "measure"])]).await;
    harness.tool("one.echo").await;
    until_waiting(&harness, "one.measure").await;
    assert_eq!(pins.state("one", "measure").await, PinState::New);
    harness.stop().await;
}

#[tokio::test]
async fn another_command_of_the_same_name_re_accepts_nothing() {
    let (pins, first, other) = (SharedPins::new().await, McpFixture::new(), McpFixture::new());
    other.set_plan(&json!({ "echo": "Shouts." }));
    let harness = pins.start(&[by_command("one", &first.command())]).await;
    harness.tool("one.echo").await;
    harness.stop().await;
    let harness = pins.start(&[by_command("one", &other.command())]).await;
    harness.tool("one.measure").await;
    until_waiting(&harness, "one.echo").await;
    harness.stop().await;
}

#[tokio::test]
async fn server_that_is_away_at_the_start_has_no_tools_and_its_runs_wait() {
    let (pins, fixture) = (SharedPins::new().await, McpFixture::new());
    let harness = pins.start(&[by_command("one", &fixture.command())]).await;
    harness.tool("one.echo").await;
    harness.stop().await;
    let away = ["sh", "-c", "exit 1"].map(str::to_owned);
    let harness = pins.start(&[by_command("one", &away)]).await;
    assert!(harness.names().is_empty(), "what was accepted does not stand in for the server");
    let tools = harness.catalog.current();
    assert_eq!((tools.absence("one.echo"), tools.waiting().count()), (Some(ToolAbsence::Unlisted), 0));
    harness.stop().await;
}

/// The server as readiness tells of it, once this many of its tools wait.
async fn until_waiting_tools(api: &Api, count: Value) -> Value {
    let told = async {
        loop {
            let ready = api.get("/readyz").await;
            match &ready["mcp_servers"][0] {
                server if server["waiting_tools"] == count => return server.clone(),
                _ => pause(LOOK).await,
            }
        }
    };
    timeout(PATIENCE, told).await.expect("the change is seen in time")
}

#[tokio::test]
async fn readiness_counts_tools_that_wait() {
    let fixture = McpFixture::new();
    let config = format!("[[mcp_servers]]\nname = \"one\"\ncommand = {}\n", json!(fixture.command()));
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let api = Api::of(&service);
    until_listed(&api, &["one.echo"]).await;
    assert!(api.get("/readyz").await["mcp_servers"][0].get("waiting_tools").is_none(), "none waits");
    fixture.set_plan(&json!({ "echo": "Shouts.", "more": { "fresh": "Is new." } }));
    let server = until_waiting_tools(&api, json!(2)).await;
    let names: BTreeSet<&str> = server.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["name", "state", "since", "waiting_tools"]), "nothing that tells of the setup");
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn run_that_names_a_waiting_tool_goes_on_once_it_is_accepted() {
    let (model, fixture) = (model(Wire::Chat).await, McpFixture::new());
    let mut service = Service::new().with_config(&config(Wire::Chat, &model, &fixture.command()));
    service.start().await;
    let api = Api::of(&service);
    until_listed(&api, &["one.echo"]).await;
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    until_waiting_tools(&api, json!(1)).await;
    let task = json!({
        "tenant_id": "ann", "name": "Echo", "trigger": { "type": "schedule", "cron": "0 0 1 1 *" },
        "action": { "instruction": "Echo hello.", "config": { "tools": ["one.echo"] } },
    });
    let task = api.post("/v1/tasks", &task).await;
    let run = api.post(&format!("/v1/tasks/{}/run", task["id"].as_str().unwrap()), &json!({})).await;
    let place = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    let held_up = async {
        loop {
            let run = api.get(&place).await;
            match run["error"]["code"].as_str() {
                Some("mcp_tool_not_accepted") => return run,
                _ => pause(LOOK).await,
            }
        }
    };
    let run = timeout(PATIENCE, held_up).await.expect("it is tried in time");
    assert!(matches!(run["state"].as_str(), Some("queued" | "running")), "{run:#}");
    assert!(model.received_requests().await.expect("requests are recorded").is_empty(), "it has not begun");
    api.post("/v1/tools/one.echo/accept", &json!({})).await;
    api.until_run(task["id"].as_str().unwrap(), "succeeded", PATIENCE).await;
    let run = api.get(&place).await;
    assert_eq!(run["output"], "It said hello.", "{run:#}");
    assert_eq!(fixture.noted("echo"), ["hello"]);
    assert!(service.terminate().await.success());
}
