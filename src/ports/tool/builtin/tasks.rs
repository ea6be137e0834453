//! `create_task`, `list_tasks`, `pause_task`, `delete_task`: the tenant's own tasks, through the host.

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::builtin::{definition, read};
use crate::ports::tool::{Definition, TaskQuery, Tool, ToolContext, ToolError, ToolOutput};

/// Tasks that `list_tasks` shows when it is not told how many.
const LISTED: u32 = 20;

pub struct CreateTask(Definition);
pub struct ListTasks(Definition);
pub struct PauseTask(Definition);
pub struct DeleteTask(Definition);

#[derive(Deserialize)]
struct CreateArguments {
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
struct ListArguments {
    status: Option<String>,
    q: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct NamedTask {
    id: Uuid,
}

impl CreateTask {
    pub fn new() -> CreateTask {
        CreateTask(definition(
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
        ))
    }
}

impl Tool for CreateTask {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let draft = draft(read(arguments)?, context.timezone.name());
            let task = context.host.create_task(&context.tenant, draft, &context.idempotency_key).await?;
            Ok(ToolOutput::json(&task))
        })
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

impl ListTasks {
    pub fn new() -> ListTasks {
        ListTasks(definition(
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
        ))
    }
}

impl Tool for ListTasks {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let ListArguments { status, q, limit } = read(arguments)?;
            let filter = TaskQuery { status, q, limit: limit.unwrap_or(LISTED) };
            Ok(ToolOutput::json(&context.host.list_tasks(&context.tenant, filter).await?))
        })
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

impl PauseTask {
    pub fn new() -> PauseTask {
        let description = "Pause a task: it keeps its place and does not fire until a person resumes it.";
        PauseTask(definition("pause_task", description, one_task(), Category::Internal, Consequence::Low))
    }
}

impl Tool for PauseTask {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let NamedTask { id } = read(arguments)?;
            Ok(ToolOutput::json(&context.host.pause_task(&context.tenant, id).await?))
        })
    }
}

impl DeleteTask {
    pub fn new() -> DeleteTask {
        let description = "Delete a task for good. Only when the person asked for it; else use `pause_task`.";
        DeleteTask(definition("delete_task", description, one_task(), Category::Internal, Consequence::Medium))
    }
}

impl Tool for DeleteTask {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let NamedTask { id } = read(arguments)?;
            Ok(ToolOutput::json(&context.host.delete_task(&context.tenant, id).await?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
