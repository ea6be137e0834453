//! Lists of tools that change while the service runs, and servers that come and go: it is told which one is away, and
//! its tools stay.

use std::collections::BTreeSet;

use reveille::base::clock::pause;
use reveille::ports::tool::mcp::McpState;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::harness::{LOOK, McpHarness, PATIENCE, by_command, by_url, code, text};
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir};
use crate::support::mcp::McpFixture;
use crate::support::servers::lasting_port;

/// A section of the configuration with a server that ends before it answers.
const BROKEN: &str = "[[mcp_servers]]\nname = \"broken\"\ncommand = [\"sh\", \"-c\", \"exit 1\"]\n";

fn descriptions(harness: &McpHarness) -> BTreeSet<(String, String)> {
    let tools = harness.catalog.current();
    let definitions = tools.definitions().filter(|tool| tools.is_of_server(&tool.name));
    definitions.map(|tool| (tool.name.clone(), tool.description.clone())).collect()
}

#[tokio::test]
async fn changed_list_is_taken() {
    let (local, remote) = (McpFixture::new(), McpFixture::new());
    let over_http = remote.start_http().await;
    let harness = McpHarness::start(&[by_command("local", &local.command()), by_url("remote", &over_http.url)]).await;
    for (name, fixture) in [("local", &local), ("remote", &remote)] {
        let full = |tool: &str| format!("{name}.{tool}");
        let hang = harness.tool(&full("hang")).await;
        harness.tool(&full("measure")).await;
        fixture.set_plan(&json!({ "echo": "Says it again.", "hide": ["measure"], "more": { "fresh": "Is new." } }));
        harness
            .until(|tools| {
                let echo = tools.find(&full("echo"))?;
                let is_taken = tools.find(&full("fresh")).is_some() && tools.find(&full("measure")).is_none();
                (is_taken && echo.definition().description == "Says it again.").then_some(())
            })
            .await;
        assert!(descriptions(&harness).contains(&(full("fresh"), "Is new.".to_owned())));
        assert_eq!(text(harness.call(&full("fresh"), json!({})).await), "fresh");
        let same = harness.tool(&full("hang")).await;
        assert!(std::sync::Arc::ptr_eq(&hang, &same), "one that has not changed is the one that it was");
    }
    harness.stop().await;
}

#[tokio::test]
async fn run_keeps_the_tools_with_which_it_began() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    harness.tool("one.measure").await;
    let begun_with = harness.catalog.current();
    fixture.set_plan(&json!({ "hide": ["measure"] }));
    harness.until(|tools| tools.find("one.measure").is_none().then_some(())).await;
    assert!(begun_with.find("one.measure").is_some());
    harness.stop().await;
}

#[tokio::test]
async fn server_that_has_gone_keeps_its_tools_and_its_calls_say_so() {
    let fixture = McpFixture::new();
    let server = fixture.start_http().await;
    let harness = McpHarness::start(&[by_url("remote", &server.url)]).await;
    assert_eq!(text(harness.call("remote.echo", json!({ "text": "hello" })).await), "hello");
    drop(server);
    // until its process has ended calls may be answered, or break
    let called = async {
        loop {
            match harness.call("remote.echo", json!({ "text": "hello" })).await {
                Err(error) if error.is_unsent() => return error,
                _ => {}
            }
        }
    };
    let unsent = timeout(PATIENCE, called).await.expect("the server ends in time");
    assert!(["connect", "mcp_unavailable"].contains(&unsent.code()), "{unsent:?}");
    assert!(harness.names().contains(&"remote.echo".to_owned()));
    harness.stop().await;
}

#[tokio::test]
async fn server_over_http_that_dies_in_mid_call_and_comes_back_is_called_again() {
    let (fixture, port) = (McpFixture::new(), lasting_port());
    let server = fixture.start_http_at(port).await;
    let harness = McpHarness::start(&[by_url("remote", &server.url)]).await;
    assert_eq!(code(harness.call("remote.die", json!({})).await), "outcome_unknown");
    // it has ended by itself; a call over a connection of before may break
    let away = async {
        while !harness.call("remote.echo", json!({ "text": "lost" })).await.is_err_and(|error| error.is_unsent()) {
            pause(LOOK).await;
        }
    };
    timeout(PATIENCE, away).await.expect("nobody is there");
    assert!(fixture.noted("echo").is_empty());
    drop(server);
    let _again = fixture.start_http_at(port).await;
    assert_eq!(text(harness.call_patiently("remote.echo", json!({ "text": "again" })).await), "again");
    assert_eq!((fixture.noted("died").len(), fixture.pids().len()), (1, 2));
    harness.stop().await;
}

#[tokio::test]
async fn server_that_is_away_at_the_start_is_taken_once_it_is_there() {
    let (fixture, dir) = (McpFixture::new(), TempDir::new());
    let sign = dir.path().join("sign");
    let mut command = ["sh", "-c", "test -e \"$0\" && exec \"$@\"", sign.to_str().unwrap()].map(str::to_owned).to_vec();
    command.extend(fixture.command());
    let harness = McpHarness::start(&[by_command("late", &command)]).await;
    let health = harness.health("late");
    assert_eq!((health.state, health.fault), (McpState::Unavailable, Some("away")));
    assert!(harness.names().is_empty() && harness.catalog.current().is_of_server("late.echo"));
    std::fs::write(&sign, "").unwrap();
    assert_eq!(text(harness.call_patiently("late.echo", json!({ "text": "here" })).await), "here");
    assert_eq!(harness.health("late").state, McpState::Connected);
    harness.stop().await;
}

#[tokio::test]
async fn call_after_the_end_of_the_servers_is_not_sent() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    harness.tool("one.echo").await;
    harness.servers.stop().await;
    assert_eq!(harness.health("one").state, McpState::Stopped);
    assert_eq!(code(harness.call("one.echo", json!({ "text": "late" })).await), "mcp_unavailable");
    assert!(fixture.noted("echo").is_empty());
}

#[tokio::test]
async fn readiness_names_a_server_that_is_away() {
    let mut service = Service::new().with_config(BROKEN);
    service.start().await;
    let api = Api::of(&service);
    let tried = async {
        loop {
            let ready = api.get("/readyz").await;
            assert_eq!(ready["ready"], true, "{ready:#}");
            match ready["mcp_servers"][0]["state"].as_str() {
                Some("connecting") => pause(LOOK).await,
                _ => return ready,
            }
        }
    };
    let ready = timeout(PATIENCE, tried).await.expect("the server is tried in time");
    let [server] = ready["mcp_servers"].as_array().unwrap().as_slice() else { panic!("{ready:#}") };
    assert_eq!((&server["name"], &server["fault"]), (&json!("broken"), &json!("away")));
    assert_eq!(server["state"], "unavailable", "{ready:#}");
    let names: BTreeSet<&str> = server.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["name", "state", "fault", "since"]), "nothing that tells of the setup");
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn start_of_the_service_waits_for_no_server() {
    let silent = ["sh", "-c", "sleep 1000"];
    let config = format!("[[mcp_servers]]\nname = \"silent\"\ncommand = {}\nconnect_seconds = 300\n", json!(silent));
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let ready = Api::of(&service).get("/readyz").await;
    assert_eq!(ready["ready"], true, "{ready:#}");
    assert_eq!(ready["mcp_servers"][0]["state"], "connecting", "{ready:#}");
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn task_may_name_a_tool_of_a_server_that_is_away() {
    let mut service = Service::new().with_config(BROKEN);
    service.start().await;
    let api = Api::of(&service);
    let task = |tool: &str| {
        json!({
            "tenant_id": "ann", "name": "Look", "executor": "orchestrator",
            "trigger": { "type": "schedule", "cron": "0 0 1 1 *" },
            "action": { "instruction": "Look.", "config": { "tools": [tool] } },
        })
    };
    let stored: Value = api.post("/v1/tasks", &task("broken.echo")).await;
    assert_eq!(stored["action"]["config"]["tools"], json!(["broken.echo"]));
    assert!(service.terminate().await.success());
}
