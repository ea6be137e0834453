//! MCP servers that run here, over their standard input and output: of each era, and of every kind of misbehaviour.

use std::path::Path;
use std::time::Duration;

use reveille::base::clock::pause;
use reveille::ports::tool::ToolContext;
use reveille::ports::tool::mcp::McpState;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::harness::{McpHarness, PATIENCE, by_command, code, text, with};
use crate::support::binary::TempDir;
use crate::support::mcp::{McpFixture, alive, everything_command, hostile_command};

/// How often a journal is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Variables of the service that every server has, where they are set.
const INHERITED: [&str; 11] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "NODE_EXTRA_CA_CERTS"];

/// A server of the old era that writes down the methods of what it is sent, and ends in the middle of its only tool.
const MORTAL: &str = r#"
const { appendFileSync } = require('node:fs');
const { createInterface } = require('node:readline');
const RESULTS = {
  initialize: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'mortal', version: '1' } },
  'tools/list': { tools: [{ name: 'die', description: 'Ends the server.', inputSchema: { type: 'object' } }] },
};
createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method } = JSON.parse(line);
  appendFileSync(process.argv[1], method + '\n');
  if (method === 'tools/call') process.exit(3);
  if (id === undefined) return;
  const result = RESULTS[method];
  const answer = result ? { result } : { error: { code: -32601, message: 'unknown' } };
  console.log(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
});
"#;

/// The lines of a file, none where it is not there.
fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns once so many of the lines are this one.
async fn until_written(file: &Path, line: &str, count: usize) {
    let waited = timeout(PATIENCE, async {
        while lines(file).iter().filter(|written| *written == line).count() < count {
            pause(LOOK).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("no {count} times {line}: {:?}", lines(file)));
}

#[tokio::test]
async fn stdio_server_of_each_era_lists_and_answers() {
    let fixture = McpFixture::new();
    let harness =
        McpHarness::start(&[by_command("new", &fixture.command()), by_command("old", &everything_command())]).await;
    assert_eq!(text(harness.call("new.echo", json!({ "text": "hello" })).await), "hello");
    assert_eq!(text(harness.call("old.echo", json!({ "message": "hello" })).await), "Echo: hello");
    for name in ["new", "old"] {
        assert_eq!(harness.health(name).state, McpState::Connected);
        let up = format!(r#"reveille_mcp_server_up{{server="{name}"}} 1"#);
        let called = format!(r#"reveille_mcp_calls_total{{server="{name}",outcome="ok"}} 1"#);
        let metrics = harness.metrics.text();
        assert!(metrics.contains(&up) && metrics.contains(&called), "{metrics}");
    }
    harness.stop().await;
}

#[tokio::test]
async fn era_of_a_server_is_remembered() {
    let dir = TempDir::new();
    let journal = dir.path().join("methods");
    let command = ["node", "-e", MORTAL, journal.to_str().unwrap()].map(str::to_owned);
    let harness = McpHarness::start(&[by_command("mortal", &command)]).await;
    assert_eq!(code(harness.call("mortal.die", json!({})).await), "outcome_unknown");
    until_written(&journal, "initialize", 2).await;
    until_written(&journal, "tools/list", 2).await;
    let asked = lines(&journal).iter().filter(|method| *method == "server/discover").count();
    assert_eq!(asked, 1, "{:?}", lines(&journal));
    harness.stop().await;
}

#[tokio::test]
async fn server_that_ignores_discovery_is_greeted_the_old_way() {
    let harness = McpHarness::start(&[by_command("silent", &hostile_command("silent"))]).await;
    assert_eq!(text(harness.call("silent.echo", json!({ "text": "hello" })).await), "hello");
    harness.stop().await;
}

#[tokio::test]
async fn server_that_does_not_connect_in_its_time_is_given_up_and_tried_again() {
    let dir = TempDir::new();
    let journal = dir.path().join("pids");
    let script = "echo $$ >> \"$0\"; exec sleep 1000";
    let command = ["sh", "-c", script, journal.to_str().unwrap()].map(str::to_owned);
    let server = with(by_command("mute", &command), json!({ "connect_seconds": 1 }));
    let harness = McpHarness::start(&[server]).await;
    let health = harness.health("mute");
    assert_eq!((health.state, health.fault), (McpState::Unavailable, Some("slow")));
    let waited = timeout(PATIENCE, async {
        loop {
            match lines(&journal).as_slice() {
                [first, _, ..] if !alive(first.parse().unwrap()) => return,
                _ => pause(LOOK).await,
            }
        }
    });
    waited.await.unwrap_or_else(|_| panic!("it is not started again, or is left behind: {:?}", lines(&journal)));
    harness.stop().await;
}

#[tokio::test]
async fn server_that_dies_in_mid_call_leaves_the_outcome_unknown_and_is_started_again() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    assert_eq!(code(harness.call("one.die", json!({})).await), "outcome_unknown");
    assert_eq!(text(harness.call_patiently("one.echo", json!({ "text": "again" })).await), "again");
    assert_eq!((fixture.noted("died").len(), fixture.pids().len()), (1, 2));
    harness.stop().await;
}

#[tokio::test]
async fn call_whose_time_is_over_is_cancelled_at_the_server() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    let context = ToolContext { time_limit: Duration::from_secs(1), ..harness.context("ann") };
    assert_eq!(code(harness.call_in(&context, "one.hang", json!({})).await), "timeout");
    fixture.wait_for("cancelled", 1).await;
    // the agent drops a call whose time is over
    let long = harness.context("ann");
    tokio::select! {
        called = harness.call_in(&long, "one.hang", json!({})) => panic!("{called:?}"),
        _ = fixture.wait_for("hangs", 2) => {}
    }
    fixture.wait_for("cancelled", 2).await;
    assert_eq!(text(harness.call("one.echo", json!({ "text": "still there" })).await), "still there");
    harness.stop().await;
}

#[tokio::test]
async fn answer_beyond_the_bound_is_an_error_at_once() {
    let harness = McpHarness::start(&[by_command("huge", &hostile_command("huge-answer"))]).await;
    let context = ToolContext { time_limit: Duration::from_secs(300), ..harness.context("ann") };
    assert_eq!(code(harness.call_in(&context, "huge.huge", json!({})).await), "mcp_error_32603");
    assert_eq!(text(harness.call("huge.echo", json!({ "text": "still there" })).await), "still there");
    harness.stop().await;
}

#[tokio::test]
async fn flood_of_stderr_keeps_nobody_waiting() {
    let harness = McpHarness::start(&[by_command("loud", &hostile_command("flood-stderr"))]).await;
    for number in 0..10 {
        let said = format!("number {number}");
        assert_eq!(text(harness.call("loud.echo", json!({ "text": said })).await), said);
    }
    harness.stop().await;
}

#[tokio::test]
async fn server_that_floods_its_output_is_let_go_and_harms_no_other() {
    let loud = by_command("loud", &hostile_command("flood-stdout"));
    let harness = McpHarness::start(&[loud, by_command("plain", &hostile_command("plain"))]).await;
    let let_go = async {
        while harness.health("loud").fault != Some("flood") {
            assert_eq!(text(harness.call("plain.echo", json!({ "text": "hello" })).await), "hello");
        }
    };
    timeout(PATIENCE, let_go).await.expect("it is let go in time");
    harness.stop().await;
}

#[tokio::test]
async fn request_for_a_sample_or_roots_is_refused_as_unknown_and_one_for_a_person_told_that_nobody_chose() {
    let dir = TempDir::new();
    let journal = dir.path().join("journal.jsonl");
    let command = hostile_command(&format!("nagging={}", journal.display()));
    let harness = McpHarness::start(&[by_command("nagging", &command)]).await;
    assert_eq!(text(harness.call("nagging.echo", json!({ "text": "hello" })).await), "hello");
    until_written(&journal, r#"{"refused":-32601}"#, 2).await;
    until_written(&journal, r#"{"answered":"cancel"}"#, 1).await;
    harness.stop().await;
}

#[tokio::test]
async fn environment_of_the_service_does_not_reach_a_server() {
    let given = with(by_command("every", &everything_command()), json!({ "env": { "LEVEL": "low" } }));
    let harness = McpHarness::start(&[given]).await;
    let environment: Value = serde_json::from_str(&text(harness.call("every.get-env", json!({})).await)).unwrap();
    let environment = environment.as_object().unwrap();
    assert_eq!(environment["LEVEL"], "low");
    let foreign: Vec<&String> =
        environment.keys().filter(|name| *name != "LEVEL" && !INHERITED.contains(&name.as_str())).collect();
    assert_eq!(foreign, [""; 0]);
    let own = std::env::vars_os().filter(|(name, _)| !INHERITED.iter().any(|inherited| *name == **inherited));
    assert!(own.count() > 0, "this process has variables that a server could have");
    harness.stop().await;
}

#[tokio::test]
async fn secret_of_the_environment_is_taken_out_of_results() {
    let env = json!({ "env": { "TOKEN": "canary-canary" } });
    let harness = McpHarness::start(&[with(by_command("every", &everything_command()), env)]).await;
    let told = text(harness.call("every.get-env", json!({})).await);
    assert!(told.contains(r#""TOKEN": "[redacted]""#) && !told.contains("canary"), "{told}");
    harness.stop().await;
}

#[tokio::test]
async fn calls_at_once_share_one_process() {
    let fixture = McpFixture::new();
    let harness = McpHarness::start(&[by_command("one", &fixture.command())]).await;
    let calls = (0..100).map(|number| {
        let (harness, tenant) = (&harness, format!("tenant-{}", number % 5));
        async move {
            let context = harness.context(&tenant);
            text(harness.call_in(&context, "one.echo", json!({ "text": number.to_string() })).await)
        }
    });
    let answers = futures::future::join_all(calls).await;
    assert_eq!(answers, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!((fixture.noted("echo").len(), fixture.pids().len()), (100, 1));
    harness.stop().await;
}
