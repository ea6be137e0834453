//! MCP servers on the command line: `reveille check` tells of each, and `reveille tool show` shows one of their tools.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::harness::until_listed;
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir, reveille};
use crate::support::mcp::{McpFixture, hostile_command};

fn command_section(name: &str, command: &[String]) -> String {
    format!("[[mcp_servers]]\nname = \"{name}\"\ncommand = {}\n", json!(command))
}

fn url_section(name: &str, url: &str) -> String {
    format!("[[mcp_servers]]\nname = \"{name}\"\nurl = \"{url}\"\n")
}

/// The findings of `reveille check` about MCP servers with this configuration: verdict, message and hint.
async fn checked(dir: &Path, config: &[String]) -> Vec<(String, Value, String, Value)> {
    std::fs::write(dir.join("reveille.toml"), config.concat()).unwrap();
    let done = reveille(dir).args(["check", "--json"]).output().await.unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let finding = |check: &Value| {
        let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
        (text("name"), check["verdict"].clone(), text("message"), check["hint"].clone())
    };
    let findings = answer["checks"].as_array().unwrap().iter().map(finding);
    findings.filter(|(name, ..)| name.starts_with("mcp ")).collect()
}

#[tokio::test]
async fn check_tells_of_servers_that_answer_and_of_those_that_do_not() {
    let (dir, open, closed) = (TempDir::new(), McpFixture::new(), McpFixture::new());
    closed.set_plan(&json!({ "tokens": ["canary"] }));
    let closed = closed.start_http().await;
    let shell = |script: &str| ["sh", "-c", script].map(str::to_owned);
    let config = [
        "[egress]\nallow = [\"127.0.0.1:*\"]\n".to_owned(),
        command_section("open", &open.command()),
        url_section("closed", &closed.url),
        command_section("broken", &shell("echo 'no token is set' >&2; exit 1")),
        command_section("absent", &["/nowhere/at/all".to_owned()]),
        url_section("away", "http://127.0.0.1:1/mcp"),
    ];
    let findings = checked(dir.path(), &config).await;
    let [open, closed, broken, absent, away] = findings.as_slice() else { panic!("{findings:?}") };
    assert!(open.0 == "mcp open" && open.1 == "fine" && open.3.is_null(), "{open:?}");
    assert!(open.2.starts_with("2026-07-28, 13 tools in ") && open.2.ends_with(" s"), "{open:?}");
    assert_eq!((closed.0.as_str(), &closed.1), ("mcp closed", &json!("odd")), "{closed:?}");
    assert_eq!(closed.2, "it asks for authorisation, which is not tried here");
    assert!(broken.1 == "wrong" && broken.2.contains("no token is set"), "{broken:?}");
    assert!(broken.3.as_str().unwrap().starts_with("does command start a server"), "{broken:?}");
    assert!(absent.1 == "wrong" && absent.2.contains("`/nowhere/at/all` can't be started"), "{absent:?}");
    assert!(away.1 == "wrong" && away.3.as_str().unwrap().contains("does [egress] allow it?"), "{away:?}");
}

#[tokio::test]
async fn check_tells_of_tools_that_cannot_be_used() {
    let dir = TempDir::new();
    let findings = checked(dir.path(), &[command_section("many", &hostile_command("many-tools"))]).await;
    assert_eq!(findings.len(), 7, "the server, five of its tools, and how many more: {findings:?}");
    assert!(findings[0].1 == "fine" && findings[0].2.contains("256 tools"), "{findings:?}");
    assert!(findings[1..].iter().all(|(name, verdict, ..)| name == "mcp many" && verdict == "odd"), "{findings:?}");
    assert!(findings[1].2.starts_with("the tool `tool_"), "{findings:?}");
    assert_eq!(findings[6].2, "39 more tools can't be used");
}

#[tokio::test]
async fn check_names_what_is_wrong_with_the_settings_of_a_server() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("reveille.toml"), "[[mcp_servers]]\nname = \"a\"\n").unwrap();
    let done = reveille(dir.path()).args(["check", "--json"]).output().await.unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let names: Vec<&str> = answer["checks"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.contains(&"mcp_servers") && !names.iter().any(|name| name.starts_with("mcp ")), "{answer:#}");
}

/// `reveille` beside a service, as its admin.
async fn typed(service: &Service, arguments: &[&str]) -> Output {
    let token = service.admin_token().expect("an admin token");
    let mut command = service.command();
    command.args(arguments).env("REVEILLE_URL", service.url()).env("REVEILLE_TOKEN", token);
    command.output().await.unwrap()
}

#[tokio::test]
async fn tool_show_shows_a_tool_of_a_server_with_its_parameters() {
    let fixture = McpFixture::new();
    let echo = "[mcp_servers.tools.echo]\ncategory = \"read\"\nconsequence = \"low\"\n";
    let mut service = Service::new().with_config(&format!("{}{echo}", command_section("one", &fixture.command())));
    service.start().await;
    until_listed(&Api::of(&service), &["one.echo"]).await;

    let done = typed(&service, &["tool", "show", "one.echo"]).await;
    let shown = String::from_utf8(done.stdout).unwrap();
    let fact = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in:\n{shown}")).trim().to_owned()
    };
    assert_eq!([fact("name"), fact("source"), fact("offered")], ["one.echo", "mcp", "yes"]);
    assert_eq!([fact("category"), fact("consequence"), fact("repeatable")], ["read", "low", "yes"]);
    assert_eq!(fact("description"), "Echoes a text.");
    assert!(shown.contains("\"text\": {"), "{shown}");

    let done = typed(&service, &["tool", "show", "one.echo", "--tenant", "ann", "--json"]).await;
    let tool: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&tool["name"], &tool["source"], &tool["offered"]), (&json!("one.echo"), &json!("mcp"), &json!(true)));

    let done = typed(&service, &["tool", "show", "one.nothing"]).await;
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && said.contains("there is no such tool"), "{said}");
    assert!(service.terminate().await.success());
}
