//! A run as a model reads it: in short, and as the result of what has ended.

use serde_json::{Map, Value, json};

use crate::domain::run::RunState;
use crate::http::mcp::outcome::{ToolResult, cut};

/// Fields of a run that are told as they are, where they have a value.
const FIELDS: [&str; 9] =
    ["id", "task_id", "state", "scheduled_for", "started_at", "finished_at", "reason", "missed", "retry_of"];
/// Stands for the output of a run that has none.
const NO_OUTPUT: &str = "(no output)";

/// A run in short, for models; a long output is cut.
pub fn shown(run: &Value) -> Value {
    let told = |value: &Value| Some(value).filter(|value| !value.is_null()).cloned();
    let fields = FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), told(run.get(*name)?)?)));
    let mut shown: Map<String, Value> = fields.collect();
    shown.extend(run["output"].as_str().map(|output| ("output".to_owned(), cut(output).into())));
    shown.extend(error_of(run).map(|error| ("error".to_owned(), error)));
    let waits_for = waits_for(run);
    if !waits_for.is_empty() {
        shown.insert("waits_for".into(), waits_for.into());
    }
    shown.into()
}

/// The result of a run that has ended: its output, and an error where it did not end well.
pub fn ended(run: &Value) -> ToolResult {
    let mut data = shown(run);
    if data["output"].as_str().is_none_or(str::is_empty) {
        data["output"] = NO_OUTPUT.into();
    }
    let is_error = state_of(run) != Some(RunState::Succeeded);
    let result = ToolResult { is_error, ..ToolResult::of(data) };
    match is_error {
        true => result.then("The run did not end well. `explain_run` says why; `run_task` runs its task anew."),
        false => result,
    }
}

/// Where a run of the API stands.
pub fn state_of(run: &Value) -> Option<RunState> {
    run["state"].as_str().and_then(RunState::parse)
}

/// The open questions to people for which it waits, in the order in which they were put.
fn waits_for(run: &Value) -> Vec<Value> {
    let inputs = list(&run["inputs"]);
    let open = list(&run["approvals"]).iter().filter(|question| question["status"] == "pending");
    let told = |question: &Value| {
        let input = inputs.iter().find(|input| input["id"] == question["id"]);
        let summary = match input {
            Some(input) => cut(&words_of(input)),
            None => format!("whether `{}` may be called", question["tool"].as_str().unwrap_or_default()),
        };
        let mut told = json!({ "kind": question["kind"], "id": question["id"], "summary": summary });
        let links = input.map_or(&[][..], |input| list(&input["server"]["links"]));
        if !links.is_empty() {
            told["sends_to"] = links.iter().map(|link| link["host"].clone()).collect();
        }
        told
    };
    open.map(told).collect()
}

/// The words of a question for input; those of an MCP server are led by who asks.
fn words_of(input: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (words, server) = (text(&input["question"]), &input["server"]);
    match server.is_object() {
        true => format!("{} ({}) asks: {words}", text(&server["server"]), text(&server["tool"])),
        false => words,
    }
}

fn error_of(run: &Value) -> Option<Value> {
    let mut error = run.get("error").filter(|error| !error.is_null())?.clone();
    if let Some(message) = error.get_mut("message") {
        let text = message.as_str().map(cut);
        *message = text.map_or(Value::Null, Value::String);
    }
    Some(error)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::mcp::outcome::SHOWN_CHARS;

    #[test]
    fn run_is_told_in_short_with_what_it_waits_for() {
        let run = json!({
            "id": "r", "task_id": null, "tenant_id": "ann", "state": "waiting_for_input", "fire_key": "f",
            "scheduled_for": "2027-03-01T08:00:00Z", "output": null, "error": null, "usage": {},
            "approvals": [
                { "id": "a", "status": "approved", "kind": "approval", "tool": "pay" },
                { "id": "b", "status": "pending", "kind": "approval", "tool": "pay" },
                { "id": "c", "status": "pending", "kind": "input", "tool": "Booker" },
                { "id": "d", "status": "pending", "kind": "input", "tool": "github.issue" },
            ],
            "inputs": [
                { "id": "c", "question": "Booker needs to know: airport", "server": null },
                { "id": "d", "question": "Log in.", "server": {
                    "server": "github", "tool": "issue", "links": [{ "url": "https://a.example/", "host": "a.example" }],
                } },
            ],
        });
        let expected = json!({
            "id": "r", "state": "waiting_for_input", "scheduled_for": "2027-03-01T08:00:00Z", "waits_for": [
                { "kind": "approval", "id": "b", "summary": "whether `pay` may be called" },
                { "kind": "input", "id": "c", "summary": "Booker needs to know: airport" },
                { "kind": "input", "id": "d", "summary": "github (issue) asks: Log in.", "sends_to": ["a.example"] },
            ],
        });
        assert_eq!(shown(&run), expected);
    }

    #[test]
    fn end_is_told_with_an_output_always_and_as_an_error_unless_it_succeeded() {
        for state in RunState::ALL.into_iter().filter(|state| state.is_final()) {
            let result = ended(&json!({ "id": "r", "state": state.as_str(), "output": null }));
            assert_eq!(result.is_error, state != RunState::Succeeded, "{state:?}");
            assert_eq!(result.data["output"], NO_OUTPUT);
        }
        let long = "ä".repeat(SHOWN_CHARS + 1);
        let failed = json!({ "state": "failed", "output": long, "error": { "code": "x", "message": long } });
        let told = Value::from(ended(&failed).data);
        for text in [&told["output"], &told["error"]["message"]] {
            let text = text.as_str().unwrap();
            assert!(text.ends_with("(cut; the API has the whole)") && text.starts_with(&long[..2 * SHOWN_CHARS]));
        }
        assert_eq!(told["error"]["code"], "x");
        let whole = ended(&json!({ "state": "succeeded", "output": "ä".repeat(SHOWN_CHARS) }));
        assert_eq!(whole.data["output"].as_str().unwrap().chars().count(), SHOWN_CHARS);
    }
}
