//! `reveille tool` and `reveille agent` beside a real service: what a model is offered, where, and why not.

use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Shell;
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir};
use crate::support::mcp::McpFixture;

const CONFIG: &str = r#"
[tool_access]
deny = ["http_send"]

[tool_access.tenants.ann]
deny = ["run_task"]

[[tools]]
name = "send_note"
description = "Send a note."
category = "side_effect"
consequence = "high"
status = "deprecated"
http = { method = "POST", url = "https://notes.example.org" }

[[agents]]
name = "booker"
description = "Books rooms."
instruction = "Book."
tools = ["current_time", "send_note"]
"#;

/// The cells of the row that begins with a name, which stand two blanks or more apart.
fn row<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no row of {name} in:\n{table}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[tokio::test]
async fn tools_are_listed_with_whether_they_are_offered_and_why_not() {
    let mut service = Service::new().with_config(CONFIG);
    service.start().await;
    let shell = Shell::beside(&service);

    let table = shell.ok(&["tool", "list"]).await;
    assert!(table.starts_with("NAME"), "{table}");
    assert_eq!(row(&table, "current_time"), ["current_time", "active", "builtin", "yes"]);
    assert_eq!(row(&table, "run_task")[3], "yes", "ann is not asked for");
    assert_eq!(row(&table, "http_send")[..5], ["http_send", "active", "builtin", "no", "denied_by_operator"]);
    assert_eq!(row(&table, "send_note")[..5], ["send_note", "deprecated", "declared", "no", "deprecated"]);

    let of_ann = shell.ok(&["tool", "ls", "--tenant", "ann"]).await;
    assert_eq!(row(&of_ann, "run_task")[3..5], ["no", "denied_for_tenant"]);
    let of_booker = shell.ok(&["tool", "list", "--agent", "booker"]).await;
    assert_eq!(row(&of_booker, "send_note"), ["send_note", "deprecated", "declared", "yes"]);
    assert_eq!(row(&of_booker, "list_tasks")[3..5], ["no", "denied_by_limits"]);

    let create = [
        "task",
        "create",
        "--tenant",
        "ann",
        "--key",
        "daily",
        "--name",
        "Daily",
        "--cron",
        "@daily",
        "--instruction",
        "x",
    ];
    shell.json(&create).await;
    let of_task = shell.json(&["tool", "list", "--task", "daily"]).await;
    let offered = |name: &str| of_task["items"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(offered("run_task")["reason"], json!("denied_for_tenant"), "its tenant counts");
    assert_eq!(offered("current_time")["offered"], json!(true));
    assert!(of_task.get("next_cursor").is_none(), "as other lists");

    let said = shell.refused(&["tool", "list", "--agent", "boker"]).await;
    assert!(said.contains("--agent: ") && said.contains("did you mean `booker`?"), "{said}");
    let both = shell.run(&["tool", "list", "--agent", "booker", "--task", "daily"]).await;
    assert_eq!(both.code, 2, "{}", both.err);
}

#[tokio::test]
async fn agents_are_listed_with_whether_they_can_be_asked_and_what_they_are_offered() {
    let mut service = Service::new().with_config(CONFIG);
    service.start().await;
    let shell = Shell::beside(&service);
    let table = shell.ok(&["agent", "list"]).await;
    let cells = row(&table, "booker");
    assert_eq!(cells[0], "booker");
    assert!(cells.contains(&"no"), "no model is configured: {table}");
    assert!(cells.contains(&"current_time, send_note") && cells.contains(&"Books rooms."), "{table}");

    let listed = shell.json(&["agent", "list", "--tenant", "ann"]).await;
    let tools: &Vec<Value> = listed["items"][0]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "run_task" && tool["offered"] == false), "{listed}");
}

/// Returns once a tool is as it is looked for.
async fn until(shell: &Shell<'_>, name: &str, is_found: impl Fn(&Value) -> bool) {
    let found = async {
        loop {
            let shown = shell.run(&["tool", "show", name, "--json"]).await;
            if serde_json::from_str::<Value>(&shown.out).is_ok_and(|tool| is_found(&tool)) {
                return;
            }
            pause(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), found).await.unwrap_or_else(|_| panic!("not in time: {name}"));
}

/// A service with the MCP server `one`, whose tools are listed.
async fn with_server(fixture: &McpFixture) -> Service {
    let config = format!("[[mcp_servers]]\nname = \"one\"\ncommand = {}\n", json!(fixture.command()));
    let mut service = Service::new().with_config(&config);
    service.start().await;
    until(&Shell::beside(&service), "one.echo", |tool| tool["offered"] == true).await;
    service
}

#[tokio::test]
async fn definition_that_waits_is_shown_and_accepted_as_it_was_shown() {
    let fixture = McpFixture::new();
    let service = with_server(&fixture).await;
    let shell = Shell::beside(&service);
    fixture.set_plan(&json!({ "echo": "Shouts.\u{202e}", "more": { "fresh": "Is new." } }));
    let waits = |tool: &Value| tool["reason"] == "not_accepted";
    until(&shell, "one.echo", waits).await;
    until(&shell, "one.fresh", waits).await;
    assert_eq!(row(&shell.ok(&["tool", "list"]).await, "one.echo")[3..5], ["no", "not_accepted"]);
    let shown = shell.ok(&["tool", "show", "one.echo"]).await;
    assert!(shown.contains("changed") && shown.contains("\n- Echoes a text.\n"), "{shown}");
    assert!(shown.contains("\n+ Shouts.⟦U+202E⟧\n"), "nothing is hidden: {shown}");

    let said = shell.refused(&["tool", "accept", "one.echo"]).await;
    assert!(said.contains("no terminal to ask on") && said.contains("hint: --yes"), "{said}");
    let said = shell.refused(&["tool", "accept", "one.echo", "--json"]).await;
    assert!(said.contains("--json does not show what is accepted") && said.contains("give --yes"), "{said}");
    let other = "0".repeat(64);
    let said = shell.refused(&["tool", "accept", "one.echo", "--definition", &other, "--yes"]).await;
    assert!(said.contains("another definition of `one.echo` waits"), "{said}");
    let said = shell.refused(&["tool", "accept", "current_time", "--yes"]).await;
    assert!(said.contains("only tools of MCP servers"), "{said}");
    until(&shell, "one.echo", waits).await;

    let said = shell.ok(&["tool", "accept", "--server", "one", "--yes"]).await;
    for told in ["+ Shouts.", "+ Is new.", "accepted one.echo", "accepted one.fresh"] {
        assert!(said.contains(told), "{told}: {said}");
    }
    until(&shell, "one.echo", |tool| tool["offered"] == true && tool["pin"]["state"] == "accepted").await;
    let said = shell.ok(&["tool", "accept", "one.echo", "--yes"]).await;
    assert!(said.ends_with("no definition waits to be accepted\n"), "{said}");
    let bare = shell.run(&["tool", "accept"]).await;
    assert_eq!(bare.code, 2, "{}", bare.err);
}

#[tokio::test]
async fn tool_is_tried_and_its_result_or_error_is_shown() {
    let fixture = McpFixture::new();
    let service = with_server(&fixture).await;
    let shell = Shell::beside(&service);
    let call =
        |tool: &'static str, arguments: &'static str| ["tool", "call", tool, "--tenant", "ann", "--args", arguments];
    let said = shell.ok(&call("current_time", r#"{"timezone": "Europe/Berlin"}"#)).await;
    assert!(said.contains("result") && said.contains("Europe/Berlin") && said.contains("weekday"), "{said}");

    let echo = call("one.echo", r#"{"text": "hello"}"#);
    let unconfirmed = shell.run(&echo).await;
    assert_eq!(unconfirmed.code, 1, "{}", unconfirmed.out);
    assert!(unconfirmed.out.contains("side_effect") && unconfirmed.out.contains("hello"), "{}", unconfirmed.out);
    let said = shell.refused(&[&echo[..], &["--json"]].concat()).await;
    assert!(said.contains("--json does not show the call that is made"), "{said}");
    assert_eq!(fixture.noted("echo"), Vec::<Value>::new(), "nothing is called by itself");
    let trial = shell.json(&[&echo[..], &["--yes"]].concat()).await;
    assert!(trial["result"].to_string().contains("hello"), "{trial}");
    let read = shell.fed(&[&call("one.echo", "@-")[..], &["--yes"]].concat(), r#"{"text": "again"}"#).await;
    assert_eq!(read.code, 0, "{}", read.err);
    assert_eq!(fixture.noted("echo"), ["hello", "again"], "each once");

    let failed = shell.run(&call("http_request", r#"{"url": "http://127.0.0.1:1/"}"#)).await;
    assert_eq!((failed.code, failed.err.as_str()), (1, "error: the tool failed\n"), "{}", failed.out);
    assert!(failed.out.contains("error"), "{}", failed.out);
    let said = shell.refused(&["tool", "call", "current_time"]).await;
    assert!(said.contains("--tenant: is missing"), "{said}");
    let said = shell.refused(&call("current_time", r#"{"timezone": 7}"#)).await;
    assert!(said.contains("--args: /timezone: "), "{said}");
    let said = shell.refused(&call("current_time", "[]")).await;
    assert!(said.contains("--args: must be a JSON object"), "{said}");
}

/// A skill whose names are of no tool and no model, an agent that names one that is not there, and a folder without a
/// skill.
fn odd_skills(dir: &TempDir) {
    let write = |path: &str, text: &str| {
        let file = dir.path().join(path);
        std::fs::create_dir_all(file.parent().expect("its folder")).expect("make it");
        std::fs::write(file, text).expect("write it");
    };
    let config =
        "[skills]\ndir = \"skills\"\n[[agents]]\nname = \"booker\"\ninstruction = \"Book.\"\nskills = [\"bookin\"]\n";
    write("reveille.toml", config);
    let odd = "allowed-tools: Read Bash(git:*)\nmetadata:\n  model: chaep\n";
    write("skills/booking/SKILL.md", &format!("---\nname: booking\ndescription: For trips.\n{odd}---\nLook first."));
    write("skills/bad/SKILL.md", "Look first.");
}

const UNKNOWN_TOOLS: &str =
    "its `allowed-tools` has no tool that there is here, so it may call none: `Read`, `Bash(git:*)`";
const UNKNOWN_MODEL: &str =
    "the agent's own model answers: its `metadata.model` is `chaep`, which is not in [llm.models]";
const NO_PROPERTIES: &str = "it does not begin with `---`, its properties, and `---`";

#[tokio::test]
async fn skills_are_listed_with_what_is_wrong_with_them() {
    let mut service = Service::new();
    odd_skills(&service.dir);
    service.start().await;
    let listed = Api::of(&service).get("/v1/skills").await;
    let [booking, bad] = listed["items"].as_array().unwrap().as_slice() else { panic!("{listed:#}") };
    assert_eq!((&booking["name"], &booking["usable"]), (&json!("booking"), &json!(true)));
    assert_eq!(booking["findings"], json!([UNKNOWN_TOOLS, UNKNOWN_MODEL]));
    assert_eq!((&bad["usable"], &bad["findings"]), (&json!(false), &json!([NO_PROPERTIES])));

    let shell = Shell::beside(&service);
    let table = shell.ok(&["skill", "list"]).await;
    assert_eq!(row(&table, "booking")[..3], ["booking", "yes", "For trips."], "{table}");
    assert!(table.contains(UNKNOWN_TOOLS) && table.contains(UNKNOWN_MODEL) && table.contains(NO_PROPERTIES), "{table}");
    assert_eq!(shell.json(&["skill", "list"]).await["items"], listed["items"]);
    let shown = shell.ok(&["skill", "show", "booking"]).await;
    for part in ["booking", "For trips.", "Read, Bash(git:*)", UNKNOWN_MODEL, "\n\nLook first.\n"] {
        assert!(shown.contains(part), "`{part}` is not in\n{shown}");
    }
    assert_eq!(shell.json(&["skill", "show", "booking"]).await["instructions"], "Look first.");
    let said = shell.refused(&["skill", "show", "bad"]).await;
    assert!(said.contains("there is no such skill"), "{said}");
    let missing = "the agent `booker` names the skill `bookin`, which is not in [skills] dir; did you mean `booking`?";
    assert!(service.log().contains(missing), "{}", service.log());
}

#[tokio::test]
async fn folders_of_skills_are_checked_without_a_service() {
    let dir = TempDir::new();
    odd_skills(&dir);
    let shell = Shell::in_dir(&dir);
    let answer = shell.json(&["check"]).await;
    let checks = answer["checks"].as_array().unwrap().iter().filter(|check| check["name"] == "skills");
    assert!(checks.clone().all(|check| check["verdict"] == "odd"), "{answer:#}");
    let odd: Vec<&str> = checks.map(|check| check["message"].as_str().unwrap()).collect();
    let missing = "the agent `booker` names the skill `bookin`, which is not in [skills] dir; did you mean `booking`?";
    let [tools, model] = [UNKNOWN_TOOLS, UNKNOWN_MODEL].map(|finding| format!("booking: {finding}"));
    assert_eq!(odd, [tools, model, format!("skills/bad holds no skill: {NO_PROPERTIES}"), missing.to_owned()]);

    let done = shell.run(&["skill", "check", "skills"]).await;
    assert_eq!((done.code, done.err.as_str()), (1, "error: 1 skill folder is invalid\n"), "{}", done.out);
    let told = format!("✓ booking\n  ! {UNKNOWN_TOOLS}\n  ! {UNKNOWN_MODEL}\n✗ skills/bad\n  {NO_PROPERTIES}\n");
    assert_eq!(done.out, told);

    // a name is known once the configuration has it
    let file = dir.path().join("reveille.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let model = "[llm.models.chaep]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n[llm]\ndefault = \"chaep\"\n";
    std::fs::write(&file, format!("{config}{model}")).unwrap();
    let done = shell.run(&["skill", "check", "skills"]).await;
    assert!(done.out.contains(UNKNOWN_TOOLS) && !done.out.contains("metadata.model"), "{}", done.out);
    std::fs::write(&file, format!("{config}[react]\nmax_turn = 1\n")).unwrap();
    let done = shell.run(&["skill", "check", "skills"]).await;
    let unjudged = "! the configuration is not valid, so names of tools and models in skills are not judged";
    assert!(done.out.contains(unjudged) && !done.out.contains("allowed-tools"), "{}", done.out);
}
