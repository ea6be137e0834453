//! Which credentials a task names, and which tools, that may have one of their own. Pure.

use serde_json::{Map, Value};

use crate::domain::credential::Reference;
use crate::domain::task::Spec;
use crate::domain::trigger::condition::PollSpec;

/// Steps stand in steps at most so deep.
const DEPTH: usize = 16;
/// Credentials and tools that a task may name, together: each is a row that is written with it.
pub const MOST_NAMED: usize = 300;
/// Longest name of a tool, in bytes: that of an MCP server, a dot, and that of its tool.
const LONGEST_TOOL: usize = 32 + 1 + 128;

/// Every credential that the task names, in its poll, its action or its steps, in order and each once. What a model or
/// a template chooses while a run goes on is not known here.
pub fn credentials_of(spec: &Spec) -> Vec<Reference> {
    let mut named = Vec::new();
    match spec.trigger.condition().map(|condition| &condition.poll) {
        Some(PollSpec::Http(http)) => named.extend(http.credential.as_deref()),
        Some(PollSpec::Tool(tool)) => named.extend(tool.args.get("credential").and_then(Value::as_str)),
        _ => {}
    }
    let config = &spec.action.config;
    named.extend(config.get("credential").and_then(Value::as_str));
    named.extend(texts(config, "credentials"));
    if let Some(steps) = config.get("steps") {
        each_in_steps(steps, DEPTH, &mut |kind, step| match kind {
            "http" => named.extend(step.get("credential").and_then(Value::as_str)),
            "tool" => {
                let args = step.get("args");
                named.extend(args.and_then(|args| args.get("credential")).and_then(Value::as_str));
            }
            "agent" => named.extend(step.as_object().into_iter().flat_map(|agent| texts(agent, "credentials"))),
            _ => {}
        });
    }
    let mut references: Vec<Reference> = named.into_iter().filter_map(|name| Reference::parse(name).ok()).collect();
    references.sort();
    references.dedup();
    references
}

/// The credentials that a task names: service and account of each, and each tool as a service of the name `tool:NAME`,
/// which no credential can have. The operator decides which credential a tool uses, and may change it.
pub fn named_by(spec: &Spec) -> Vec<(String, String)> {
    let credentials = credentials_of(spec).into_iter().map(|reference| (reference.service, reference.account));
    credentials.chain(tools_of(spec).into_iter().map(|name| (kept_tool(&name), String::new()))).collect()
}

/// Name under which a tool is kept.
pub fn kept_tool(name: &str) -> String {
    format!("tool:{name}")
}

/// Every tool that the task calls by itself, or gives to an agent by its name, each once.
fn tools_of(spec: &Spec) -> Vec<String> {
    let mut named = Vec::new();
    if let Some(PollSpec::Tool(tool)) = spec.trigger.condition().map(|condition| &condition.poll) {
        named.push(tool.name.as_str());
    }
    let config = &spec.action.config;
    named.extend(texts(config, "tools"));
    if let Some(steps) = config.get("steps") {
        each_in_steps(steps, DEPTH, &mut |kind, step| match kind {
            "tool" => named.extend(step.get("name").and_then(Value::as_str)),
            "agent" => named.extend(step.as_object().into_iter().flat_map(|agent| texts(agent, "tools"))),
            _ => {}
        });
    }
    let mut tools: Vec<String> = named.into_iter().filter(|name| is_tool_name(name)).map(str::to_owned).collect();
    tools.sort();
    tools.dedup();
    tools
}

/// Whether a tool may have this name.
fn is_tool_name(name: &str) -> bool {
    name.len() <= LONGEST_TOOL && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// The texts of a list.
fn texts<'a>(fields: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a str> {
    fields.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Shows everything that stands under a key, however deep.
fn each_in_steps<'a>(value: &'a Value, depth: usize, see: &mut impl FnMut(&'a str, &'a Value)) {
    if depth == 0 {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| each_in_steps(item, depth - 1, see)),
        Value::Object(fields) => {
            for (key, field) in fields {
                see(key, field);
                each_in_steps(field, depth - 1, see);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(trigger: Value, config: Value) -> Spec {
        serde_json::from_value(json!({
            "trigger": trigger, "executor": "pipeline", "action": { "config": config }, "max_runs": null,
            "timeout_seconds": 600, "retry": { "max_attempts": 1, "backoff_seconds": 10 },
            "pause_after_failures": null, "metadata": {},
        }))
        .unwrap()
    }

    fn named(trigger: Value, config: Value) -> Vec<String> {
        credentials_of(&spec(trigger, config)).iter().map(Reference::to_string).collect()
    }

    #[test]
    fn task_names_tools_in_its_poll_its_steps_and_what_an_agent_may_use() {
        let hourly = json!({ "type": "schedule", "interval": "1h" });
        let steps = json!([
            { "name": "a", "tool": { "name": "look_up", "args": { "credential": "shop" } } },
            { "name": "b", "for_each": { "items": "[1]", "do": { "tool": { "name": "send_note", "args": {} } } } },
            { "name": "c", "agent": { "instruction": "look", "tools": ["look_up", "book"] } },
        ]);
        assert_eq!(tools_of(&spec(hourly.clone(), json!({ "steps": steps }))), ["book", "look_up", "send_note"]);
        assert_eq!(tools_of(&spec(hourly.clone(), json!({ "tools": ["book"] }))), ["book"]);
        let rows = named_by(&spec(hourly, json!({ "tools": ["book"], "credentials": ["google/work"] })));
        let row = |service: &str, account: &str| (service.to_owned(), account.to_owned());
        assert_eq!(rows, [row("google", "work"), row("tool:book", "")]);
        assert!(Reference::parse(&kept_tool("book")).is_err(), "it is no credential's name");
    }

    #[test]
    fn task_names_a_tool_of_a_server_by_its_full_name_up_to_the_longest() {
        let hourly = json!({ "type": "schedule", "interval": "1h" });
        let (longest, longer) = ("a".repeat(LONGEST_TOOL), "a".repeat(LONGEST_TOOL + 1));
        let config = json!({ "tools": ["github.create_issue", "a:b", longest, longer] });
        assert_eq!(tools_of(&spec(hourly, config)), [longest, "github.create_issue".to_owned()]);
    }

    #[test]
    fn task_names_credentials_in_its_poll_its_action_and_its_steps() {
        let hourly = json!({ "type": "schedule", "interval": "1h" });
        let condition = |poll: Value| {
            json!({ "type": "condition", "poll": poll, "interval": "5m", "expression": "true", "fire": "on_true",
                    "failure_notice_after": 3, "overlap": "queue_one" })
        };
        assert_eq!(named(hourly.clone(), json!({})), Vec::<String>::new());
        let http = json!({ "http": { "url": "https://a.example", "credential": "flights/ann" } });
        assert_eq!(named(condition(http), json!({})), ["flights/ann"]);
        let tool =
            json!({ "tool": { "name": "http_request", "args": { "url": "https://a.example", "credential": "t" } } });
        assert_eq!(named(condition(tool), json!({ "credential": "hook" })), ["hook", "t"]);
        let steps = json!([
            { "name": "a", "http": { "url": "https://a.example", "credential": "shop" } },
            { "name": "b", "for_each": { "items": "[1]", "do": { "http": { "url": "https://b.example", "credential": "deep/one" } } } },
            { "name": "c", "tool": { "name": "http_request", "args": { "credential": "shop" } } },
            { "name": "d", "http": { "url": "https://a.example", "credential": "{{ not a name }}" } },
            { "name": "e", "map": "credential" },
            { "name": "f", "agent": { "instruction": "look", "credentials": ["mail", "shop"] } },
        ]);
        assert_eq!(named(hourly.clone(), json!({ "steps": steps })), ["deep/one", "mail", "shop"]);
        assert_eq!(named(hourly, json!({ "credentials": ["mail", "google/work", 7] })), ["google/work", "mail"]);
    }
}
