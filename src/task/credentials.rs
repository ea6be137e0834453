//! Which credentials a task names. Pure.

use serde_json::{Map, Value};

use crate::credential::Reference;
use crate::task::Spec;
use crate::trigger::condition::Poll;

/// Steps stand in steps at most so deep.
const DEPTH: usize = 16;

/// Every credential that the task names, in its poll, its action or its steps, in order and each once. What a model or
/// a template chooses while a run goes on is not known here.
pub fn credentials_of(spec: &Spec) -> Vec<Reference> {
    let mut named = Vec::new();
    match spec.trigger.condition().map(|condition| &condition.poll) {
        Some(Poll::Http(http)) => named.extend(http.credential.as_deref()),
        Some(Poll::Tool(tool)) => named.extend(tool.args.get("credential").and_then(Value::as_str)),
        _ => {}
    }
    let config = &spec.action.config;
    named.extend(config.get("credential").and_then(Value::as_str));
    named.extend(listed(config));
    if let Some(steps) = config.get("steps") {
        in_steps(steps, DEPTH, &mut named);
    }
    let mut references: Vec<Reference> = named.into_iter().filter_map(|name| Reference::parse(name).ok()).collect();
    references.sort();
    references.dedup();
    references
}

/// Those in the list of what an agent may use.
fn listed(config: &Map<String, Value>) -> impl Iterator<Item = &str> {
    config.get("credentials").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn in_steps<'a>(value: &'a Value, depth: usize, named: &mut Vec<&'a str>) {
    if depth == 0 {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| in_steps(item, depth - 1, named)),
        Value::Object(fields) => {
            for (key, field) in fields {
                let credential = match key.as_str() {
                    "http" => field.get("credential"),
                    "tool" => field.get("arguments").and_then(|arguments| arguments.get("credential")),
                    _ => None,
                };
                named.extend(credential.and_then(Value::as_str));
                if key == "agent" {
                    named.extend(field.as_object().into_iter().flat_map(listed));
                }
                in_steps(field, depth - 1, named);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(trigger: Value, config: Value) -> Vec<String> {
        let spec: Spec = serde_json::from_value(json!({
            "trigger": trigger, "executor": "pipeline", "action": { "config": config }, "max_runs": null,
            "timeout_seconds": 600, "retry": { "max_attempts": 1, "backoff_seconds": 10 },
            "pause_after_failures": null, "metadata": {},
        }))
        .unwrap();
        credentials_of(&spec).iter().map(Reference::to_string).collect()
    }

    #[test]
    fn a_task_names_credentials_in_its_poll_its_action_and_its_steps() {
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
            { "name": "c", "tool": { "name": "http_request", "arguments": { "credential": "shop" } } },
            { "name": "d", "http": { "url": "https://a.example", "credential": "{{ not a name }}" } },
            { "name": "e", "map": "credential" },
            { "name": "f", "agent": { "instruction": "look", "credentials": ["mail", "shop"] } },
        ]);
        assert_eq!(named(hourly.clone(), json!({ "steps": steps })), ["deep/one", "mail", "shop"]);
        assert_eq!(named(hourly, json!({ "credentials": ["mail", "google/work", 7] })), ["google/work", "mail"]);
    }
}
