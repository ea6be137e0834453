//! The work of a task as its page shows it: the instruction, the steps of a pipeline, and the settings.

use serde_json::{Map, Value, json};

/// The executor whose settings are steps.
const PIPELINE: &str = "pipeline";
/// Fields of a step beside its kind.
const OF_EVERY_STEP: [&str; 4] = ["name", "timeout_seconds", "retry", "on_error"];

/// The work of a task of the API: `{instruction, steps: [{name, kind, work, rules}], settings}`; `settings` is what
/// stands beside the steps, and null where there is nothing.
pub fn action_view(task: &Value) -> Value {
    let action = &task["action"];
    let mut settings = action["config"].as_object().cloned().unwrap_or_default();
    let steps = if task["executor"] == PIPELINE { settings.remove("steps") } else { None };
    let steps: Vec<Value> = steps.as_ref().and_then(Value::as_array).into_iter().flatten().map(step_view).collect();
    json!({ "instruction": action["instruction"], "steps": steps, "settings": filled(settings) })
}

fn step_view(step: &Value) -> Value {
    let Some(fields) = step.as_object() else { return json!({ "work": step }) };
    let (rules, work): (Map<String, Value>, Map<String, Value>) = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .partition(|(name, _)| OF_EVERY_STEP.contains(&name.as_str()));
    let kind = work.keys().next().cloned();
    let work = kind.as_ref().and_then(|kind| work.get(kind));
    let rules: Map<String, Value> = rules.into_iter().filter(|(name, _)| name != "name").collect();
    json!({ "name": fields.get("name"), "kind": kind, "work": work, "rules": filled(rules) })
}

/// Null in the place of an empty object.
fn filled(fields: Map<String, Value>) -> Value {
    if fields.is_empty() { Value::Null } else { Value::Object(fields) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_pipeline_are_told_by_name_kind_and_rules() {
        let task = json!({ "executor": "pipeline", "action": { "instruction": "", "config": {
            "steps": [
                { "name": "read", "http": { "url": "https://a.test" }, "retry": { "count": 2 }, "on_error": null },
                { "name": "large", "filter": "steps.read.n > 1" },
            ],
            "output": "done",
        } } });
        assert_eq!(
            action_view(&task),
            json!({
                "instruction": "",
                "steps": [
                    { "name": "read", "kind": "http", "work": { "url": "https://a.test" },
                        "rules": { "retry": { "count": 2 } } },
                    { "name": "large", "kind": "filter", "work": "steps.read.n > 1", "rules": null },
                ],
                "settings": { "output": "done" },
            })
        );
    }

    #[test]
    fn settings_of_other_executors_stay_whole() {
        let config = json!({ "steps": ["not", "of a pipeline"] });
        let task = json!({ "executor": "own", "action": { "instruction": "Go.", "config": config } });
        assert_eq!(action_view(&task), json!({ "instruction": "Go.", "steps": [], "settings": config }));
        assert_eq!(action_view(&json!({}))["settings"], Value::Null);
    }
}
