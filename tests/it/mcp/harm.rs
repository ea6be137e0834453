//! MCP servers that do all that they can to a service, beside one that keeps to everything: the real binary, its memory,
//! and the other server stay well.

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::harness::{LOOK, PATIENCE, until_listed};
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::mcp::hostile_command;

/// By how much the memory of the service may grow, far below the answer of 100 MB.
const GROWTH_KIB: u64 = 64 * 1_024;
/// Calls of the server that keeps to everything while another misbehaves.
const CALLS: usize = 5;

/// A section of the configuration with a server in this mode, about whose tool nobody is asked.
fn section(name: &str, mode: &str, tool: &str) -> String {
    let tool = format!("[mcp_servers.tools.{tool}]\ncategory = \"read\"\nconsequence = \"low\"\n");
    format!("[[mcp_servers]]\nname = \"{name}\"\ncommand = {}\n{tool}", json!(hostile_command(mode)))
}

/// Tries a tool.
async fn tried(api: &Api, tool: &str, arguments: Value) -> Value {
    let asked = json!({ "tenant_id": "ann", "arguments": arguments, "confirmed": true });
    api.post(&format!("/v1/tools/{tool}/call"), &asked).await
}

/// Calls the server that keeps to everything.
async fn plain_answers(api: &Api) {
    for number in 0..CALLS {
        let said = format!("number {number}");
        let trial = tried(api, "plain.echo", json!({ "text": said })).await;
        assert!(trial["error"].is_null() && trial["result"].to_string().contains(&said), "{trial:#}");
    }
}

/// The most memory that a process has had, in KiB.
fn most_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its state");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
async fn flood_of_stderr_and_an_answer_of_100_mb_harm_neither_another_server_nor_the_service() {
    let servers = [("loud", "flood-stderr", "echo"), ("huge", "huge-answer", "huge"), ("plain", "plain", "echo")];
    let config: String = servers.map(|(name, mode, tool)| section(name, mode, tool)).concat();
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let api = Api::of(&service);
    until_listed(&api, &["loud.echo", "huge.huge", "plain.echo"]).await;
    plain_answers(&api).await;
    let before = most_memory(service.process_id());
    let log = service.log().len();

    // the flood goes on all the time
    let (huge, ()) = tokio::join!(tried(&api, "huge.huge", json!({})), plain_answers(&api));
    let told = huge.to_string();
    assert!(huge["error"].is_object() && !told.contains("xxxx"), "{told:.500}");
    plain_answers(&api).await;
    let loud = tried(&api, "loud.echo", json!({ "text": "still there" })).await;
    assert!(loud["result"].to_string().contains("still there"), "{loud:#}");
    let ready = async {
        loop {
            let ready = api.get("/readyz").await;
            let servers = ready["mcp_servers"].as_array().cloned().unwrap_or_default();
            if servers.len() == 3 && servers.iter().all(|server| server["state"] == "connected") {
                return;
            }
            pause(LOOK).await;
        }
    };
    timeout(PATIENCE, ready).await.expect("each of them is connected");
    let grown = most_memory(service.process_id()).saturating_sub(before);
    assert!(grown < GROWTH_KIB, "the memory has grown by {grown} KiB");
    assert!(service.log().len() - log < 64 * 1_024, "the flood does not go into the log");
    assert!(service.terminate().await.success());
}
