//! `reveille tool` and `reveille agent` beside a real service: what a model is offered, where, and why not.

use serde_json::{Value, json};

use super::Shell;
use crate::support::binary::Service;

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
