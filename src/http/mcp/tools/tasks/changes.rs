//! Changes of a task, as tools are told them and as the API takes them.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::mcp::outcome::ToolRefusal;
use crate::http::mcp::tools::arguments;
use crate::ports::tool::builtin::tasks::whole_trigger;

/// Arguments of `update_task`; what is absent stays as it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskChanges {
    /// The id of the task.
    pub id: String,
    name: Option<String>,
    instruction: Option<String>,
    max_runs: Option<u64>,
    channel: Option<String>,
    /// The trigger, which is said by several arguments.
    #[serde(skip)]
    pub trigger: Option<Value>,
}

impl TaskChanges {
    /// The changes as an edit of the API has them. It replaces whole fields, so each is sent as it was read, with the
    /// one value changed: what is set besides it stays. With the version that was read it undoes nobody's edit.
    ///
    /// # Errors
    /// Nothing is to change.
    pub fn patch_of(&self, mut task: Value) -> Result<Map<String, Value>, ToolRefusal> {
        let mut read = |field: &str| task[field].take();
        let mut patch = arguments::fields([
            ("name", self.name.clone().map(Value::from)),
            ("trigger", self.trigger.clone().map(|changed| whole_trigger(read("trigger"), changed))),
            ("action", self.instruction.as_deref().map(|text| with(read("action"), "instruction", text))),
            ("max_runs", self.max_runs.map(Value::from)),
            ("output", self.channel.as_deref().map(|channel| with(read("output"), "channel", channel))),
        ]);
        if patch.is_empty() {
            return Err(ToolRefusal::new("Give at least one field that is to change, and call again."));
        }
        patch.insert("version".into(), read("version"));
        Ok(patch)
    }
}

/// An object with this value in place of the one that it has.
fn with(object: Value, name: &str, value: &str) -> Value {
    let mut object = if object.is_object() { object } else { json!({}) };
    object[name] = value.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(fields: Value) -> TaskChanges {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn edit_has_whole_fields_in_which_one_value_is_another() {
        let task = json!({
            "id": "a", "name": "Mail", "version": 7, "max_runs": 3,
            "action": { "instruction": "Read it", "config": { "approvals": { "ask": "always" }, "tools": ["look"] } },
            "output": { "channel": "email", "urgency": "high" },
            "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai", "jitter": "5m" },
        });
        let some = changes(json!({ "id": "a", "instruction": "Sort it", "channel": "sms" }));
        let expected = json!({
            "version": 7,
            "action": { "instruction": "Sort it", "config": { "approvals": { "ask": "always" }, "tools": ["look"] } },
            "output": { "channel": "sms", "urgency": "high" },
        });
        assert_eq!(some.patch_of(task.clone()).map(Value::from), Ok(expected));
        let trigger = Some(json!({ "type": "schedule", "interval": "1h" }));
        let other = TaskChanges { trigger, ..changes(json!({ "id": "a", "name": "Post", "max_runs": 4 })) };
        let trigger = json!({ "type": "schedule", "interval": "1h", "timezone": "Asia/Shanghai", "jitter": "5m" });
        let expected = json!({ "version": 7, "name": "Post", "max_runs": 4, "trigger": trigger });
        assert_eq!(other.patch_of(task).map(Value::from), Ok(expected));
        for output in [json!({}), json!({ "output": null })] {
            let patch = changes(json!({ "id": "a", "channel": "sms" })).patch_of(output).unwrap();
            assert_eq!(patch["output"], json!({ "channel": "sms" }), "it had none");
        }
        assert!(changes(json!({ "id": "a" })).patch_of(json!({ "version": 7 })).is_err());
    }
}
