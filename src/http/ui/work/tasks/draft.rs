//! The draft of a task as text: what the editor begins with.

use serde_json::{Map, Value};

use crate::base::compute::steps_to_write;
use crate::http::ui::frame::{UiError, Visit};

/// Fields of a task that its owner changes, in the order in which the editor has them.
pub const EDITABLE: [&str; 11] = [
    "name",
    "trigger",
    "executor",
    "action",
    "output",
    "notify",
    "max_runs",
    "timeout_seconds",
    "retry",
    "pause_after_failures",
    "metadata",
];

/// Drafts to begin with: name, label, text.
pub const STARTERS: [(&str, &str, &str); 4] = [
    ("schedule", "On a schedule", SCHEDULE),
    ("event", "When an event comes", EVENT),
    ("condition", "When a condition is met", CONDITION),
    ("pipeline", "A pipeline of steps", PIPELINE),
];

const SCHEDULE: &str = r#"{
  "name": "Morning summary",
  "trigger": {
    "type": "schedule",
    "cron": "0 8 * * *",
    "timezone": "UTC"
  },
  "action": {
    "instruction": "Summarize what is new since yesterday."
  }
}"#;

const EVENT: &str = r#"{
  "name": "Large orders",
  "trigger": {
    "type": "event",
    "source": "shop",
    "event_type": "order.paid",
    "filter": "event.data.total > 100"
  },
  "action": {
    "instruction": "Say what was ordered, and whether anything is unusual about it."
  }
}"#;

const CONDITION: &str = r#"{
  "name": "Price falls",
  "trigger": {
    "type": "condition",
    "poll": { "http": { "url": "https://api.example.org/price" } },
    "interval": "30m",
    "expression": "value.price < 500",
    "cooldown": "6h"
  },
  "action": {
    "instruction": "Tell me the price, and how it has changed."
  }
}"#;

const PIPELINE: &str = r#"{
  "name": "Order to message",
  "trigger": {
    "type": "event",
    "source": "shop",
    "event_type": "order.paid"
  },
  "executor": "pipeline",
  "action": {
    "config": {
      "steps": [
        { "name": "large", "filter": "event.data.total > 100" },
        { "name": "told", "notify": { "message": "An order of {{ event.data.total }} came in." } }
      ]
    }
  }
}"#;

/// The draft of this name; of another name, the first.
pub fn starter(name: Option<&str>) -> (&'static str, &'static str) {
    let known = STARTERS.iter().find(|(known, ..)| Some(*known) == name);
    let (name, _, text) = *known.unwrap_or(&STARTERS[0]);
    (name, text)
}

/// The fields of a stored task that its owner changes, as text that the editor begins with.
///
/// # Errors
/// It can't be written now.
pub async fn stored_draft(visit: &Visit, task: &Value) -> Result<String, UiError> {
    let (steps, task) = (steps_to_write(task), task.clone());
    visit.compute(steps, move || editable_text(&task)).await
}

fn editable_text(task: &Value) -> String {
    let to_recipient = Value::Object(Map::new());
    let written = |field: &&str| match (task.get(*field), *field) {
        (Some(value), _) => Some((field.to_string(), value)),
        // absent, it goes the recipient's own way
        (None, "output") => Some((field.to_string(), &to_recipient)),
        (None, _) => None,
    };
    let fields: Vec<String> = EDITABLE
        .iter()
        .filter_map(written)
        .map(|(field, value)| {
            let value = serde_json::to_string_pretty(value).unwrap_or_default();
            format!("  \"{field}\": {}", value.replace('\n', "\n  "))
        })
        .collect();
    format!("{{\n{}\n}}", fields.join(",\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::invalid::ValidationErrors;
    use crate::domain::trigger::Trigger;

    #[test]
    fn drafts_to_begin_with_are_json_with_triggers_that_can_be_read() {
        for (name, _, text) in STARTERS {
            let draft: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let now = "2026-11-21T08:00:00Z".parse().unwrap();
            let mut faults = ValidationErrors::new();
            let trigger = Trigger::parse(&draft["trigger"], "/trigger", now, &mut faults);
            assert!(trigger.is_some() && faults.is_empty(), "{name}: {:?}", faults.0);
            assert_eq!(starter(Some(name)), (name, text));
        }
        assert_eq!(starter(Some("novel")).0, "schedule");
        assert_eq!(starter(None).0, "schedule");
    }

    #[test]
    fn stored_task_is_edited_by_its_own_fields_in_their_order() {
        let task = json!({
            "id": "1", "version": 3, "status": "active", "name": "A \"b\"\nc", "executor": "orchestrator",
            "trigger": { "type": "schedule", "cron": "0 8 * * *" }, "action": { "instruction": "Go.", "config": {} },
            "max_runs": null, "last_run": null,
        });
        let text = editable_text(&task);
        let read: Value = serde_json::from_str(&text).unwrap();
        let mut expected = task.clone();
        for field in ["id", "version", "status", "last_run"] {
            expected.as_object_mut().unwrap().remove(field);
        }
        expected["output"] = json!({});
        assert_eq!(read, expected);
        let places: Vec<usize> = ["name", "trigger", "executor", "action", "output", "max_runs"]
            .map(|field| text.find(&format!("\n  \"{field}\": ")).unwrap())
            .to_vec();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn output_that_is_told_to_nobody_stays_so() {
        let read: Value = serde_json::from_str(&editable_text(&json!({ "output": null }))).unwrap();
        assert_eq!(read, json!({ "output": null }));
    }

    #[test]
    fn fields_of_the_editor_are_those_that_owners_decide() {
        let mut decided: Vec<&str> = crate::domain::task::DECIDED.to_vec();
        decided.retain(|field| !["tenant_id", "key"].contains(field));
        let mut editable = EDITABLE.to_vec();
        decided.sort_unstable();
        editable.sort_unstable();
        assert_eq!(editable, decided);
    }
}
