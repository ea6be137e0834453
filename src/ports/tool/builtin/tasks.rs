//! `create_task`, `list_tasks`, `pause_task`, `delete_task`: the tenant's own tasks, through the host.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, TaskQuery};

/// Tasks that `list_tasks` shows when it is not told how many.
const LISTED: u32 = 20;

#[derive(Deserialize)]
pub(super) struct CreateArguments {
    name: String,
    instruction: String,
    cron: Option<String>,
    interval: Option<String>,
    at: Option<String>,
    timezone: Option<String>,
    max_runs: Option<u64>,
    channel: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ListArguments {
    status: Option<String>,
    q: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct NamedTask {
    id: Uuid,
}

pub(super) fn create_task() -> BuiltinTool<CreateArguments> {
    let definition = Definition::new(
        "create_task",
        "Create a task that wakes you later with an instruction, once or again and again. \
             Give exactly one of `cron`, `interval` and `at`.",
        json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "minLength": 1, "maxLength": 200 },
                "instruction": {
                    "type": "string", "minLength": 1, "maxLength": 65_536,
                    "description": "Instruction that you will be given when the task fires; it must make sense by itself",
                },
                "cron": { "type": "string", "description": "Five fields, such as `0 8 * * *`" },
                "interval": { "type": "string", "description": "Such as `90m` or `P1D`" },
                "at": { "type": "string", "description": "One instant, such as `2026-12-24T15:00:00`" },
                "timezone": { "type": "string", "description": "IANA name; absent: the recipient's" },
                "max_runs": { "type": "integer", "minimum": 1 },
                "channel": { "type": "string", "description": "Where the result is told; absent: as preferred" },
            },
            "required": ["name", "instruction"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Medium,
    );
    BuiltinTool {
        definition,
        act: |context, new| {
            Box::pin(async move {
                let draft = draft(new, context.timezone.name());
                Ok(context.host.create_task(&context.tenant, draft, &context.idempotency_key).await?)
            })
        },
    }
}

/// The JSON form of the API. Whether it makes sense is judged where all tasks are judged.
fn draft(new: CreateArguments, recipient_zone: &str) -> Value {
    let mut trigger = Map::new();
    trigger.insert("type".into(), json!("schedule"));
    for (key, value) in [("cron", new.cron), ("interval", new.interval), ("at", new.at)] {
        if let Some(value) = value {
            trigger.insert(key.into(), json!(value));
        }
    }
    trigger.insert("timezone".into(), json!(new.timezone.as_deref().unwrap_or(recipient_zone)));
    let mut draft = json!({ "name": new.name, "trigger": trigger, "action": { "instruction": new.instruction } });
    if let Some(limit) = new.max_runs {
        draft["max_runs"] = json!(limit);
    }
    if let Some(channel) = new.channel {
        draft["output"] = json!({ "channel": channel });
    }
    draft
}

pub(super) fn list_tasks() -> BuiltinTool<ListArguments> {
    let definition = Definition::new(
        "list_tasks",
        "List the tasks of the person you work for, with their ids, states and next times.",
        json!({
            "type": "object",
            "properties": {
                "status": { "enum": ["active", "paused", "disabled", "completed"] },
                "q": { "type": "string", "description": "Part of the name" },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100 },
            },
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Low,
    );
    BuiltinTool {
        definition,
        act: |context, ListArguments { status, q, limit }| {
            Box::pin(async move {
                let filter = TaskQuery { status, q, limit: limit.unwrap_or(LISTED) };
                Ok(context.host.list_tasks(&context.tenant, filter).await?)
            })
        },
    }
}

/// The arguments of a tool that acts on one task.
fn one_task() -> Value {
    json!({
        "type": "object",
        "properties": { "id": { "type": "string", "description": "The task's id, as `list_tasks` shows it" } },
        "required": ["id"],
        "additionalProperties": false,
    })
}

pub(super) fn pause_task() -> BuiltinTool<NamedTask> {
    let description = "Pause a task: it keeps its place and does not fire until a person resumes it.";
    let definition = Definition::new("pause_task", description, one_task(), Category::Internal, Consequence::Low);
    BuiltinTool {
        definition,
        act: |context, NamedTask { id }| {
            Box::pin(async move { Ok(context.host.pause_task(&context.tenant, id).await?) })
        },
    }
}

pub(super) fn delete_task() -> BuiltinTool<NamedTask> {
    let description = "Delete a task for good. Only when the person asked for it; else use `pause_task`.";
    let definition = Definition::new("delete_task", description, one_task(), Category::Internal, Consequence::Medium);
    BuiltinTool {
        definition,
        act: |context, NamedTask { id }| {
            Box::pin(async move { Ok(context.host.delete_task(&context.tenant, id).await?) })
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::tool::builtin::read;

    #[test]
    fn new_task_has_the_form_of_the_api_and_the_recipient_s_zone() {
        let plain = read(json!({ "name": "Mail", "instruction": "Read it", "cron": "0 8 * * *" })).unwrap();
        assert_eq!(
            draft(plain, "Asia/Shanghai"),
            json!({
                "name": "Mail",
                "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai" },
                "action": { "instruction": "Read it" },
            })
        );
        let full = read(json!({
            "name": "Mail", "instruction": "Read it", "at": "2026-12-24T15:00:00", "interval": "5m",
            "timezone": "UTC", "max_runs": 1, "channel": "email",
        }))
        .unwrap();
        assert_eq!(
            draft(full, "Asia/Shanghai"),
            json!({
                "name": "Mail",
                "trigger": { "type": "schedule", "interval": "5m", "at": "2026-12-24T15:00:00", "timezone": "UTC" },
                "action": { "instruction": "Read it" },
                "max_runs": 1,
                "output": { "channel": "email" },
            })
        );
    }

    #[test]
    fn id_that_is_none_is_an_argument_at_fault() {
        let error = read::<NamedTask>(json!({ "id": "task-7" })).err().unwrap();
        assert!(error.to_string().starts_with("invalid_parameters: "), "{error}");
    }
}
