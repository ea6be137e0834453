//! Tools for tasks: to make, look at, change, hold up and start what wakes an agent.

mod changes;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::base::token::Permission;
use crate::domain::task::TaskStatus;
use crate::http::in_process::CallError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::durable;
use crate::http::mcp::outcome::{Answered, ToolRefusal, ToolResult};
use crate::http::mcp::tools::schedules::{given_trigger, in_names, needed_trigger, timezone_schema};
use crate::http::mcp::tools::tasks::changes::TaskChanges;
use crate::http::mcp::tools::{ServedTool, ToolEffect, ToolFault, ToolFuture, ToolInput, arguments};
use crate::ports::tool::builtin::tasks::task_fields;

/// How often an edit is made anew where somebody else edits the task at the same time.
const RETRIES: u32 = 3;
/// Longest instruction in a list, in characters.
const LISTED_CHARS: usize = 500;
/// Fields of a task that are told as they are, where they have a value.
const FIELDS: [&str; 14] = [
    "id",
    "tenant_id",
    "key",
    "name",
    "status",
    "status_reason",
    "trigger",
    "next_fire_at",
    "condition",
    "last_run",
    "run_count",
    "max_runs",
    "output",
    "missing",
];

/// The tools of this file.
pub fn tools() -> Vec<ServedTool> {
    use Permission::{TasksRead, TasksWrite};
    use ToolEffect::{Adds, Changes, Reads};
    // most of them are about one task, whose tenant its id says
    let tool = |name, title, description, permission, effect, schema, act| ServedTool {
        name,
        title,
        description,
        permission,
        effect,
        names_tenant: false,
        schema,
        act,
    };
    vec![
        ServedTool {
            names_tenant: true,
            ..tool(
                "create_task",
                "Create a task",
                "Creates a task that wakes an agent later with an instruction, once or again and again. Give exactly \
                 one of `cron`, `interval`, `at` and `trigger`; look at `preview_schedule` first.",
                TasksWrite,
                Adds,
                create_schema,
                create_task,
            )
        },
        ServedTool {
            names_tenant: true,
            ..tool(
                "list_tasks",
                "List tasks",
                "Lists tasks with their ids, states and next times, the newest first. Instructions are cut at 500 \
                 characters; `get_task` has the whole.",
                TasksRead,
                Reads,
                list_schema,
                list_tasks,
            )
        },
        tool("get_task", "Read a task", "Reads a task by its id or its key.", TasksRead, Reads, get_schema, get_task),
        tool(
            "explain_task",
            "Explain a task",
            "Says why a task fires or does not, what holds it up and when it fires next; with `at` also what became \
             of that instant.",
            TasksRead,
            Reads,
            explain_schema,
            explain_task,
        ),
        tool(
            "update_task",
            "Change a task",
            "Changes the fields of a task that you give, and nothing else of it. Its token reads tasks, too.",
            TasksWrite,
            Changes,
            update_schema,
            update_task,
        ),
        tool(
            "pause_task",
            "Pause a task",
            "Pauses a task: it keeps its place and does not fire until it is resumed.",
            TasksWrite,
            Changes,
            pause_schema,
            pause_task,
        ),
        tool(
            "resume_task",
            "Resume a task",
            "Resumes a paused task. What it missed meanwhile is not caught up, unless its trigger says so.",
            TasksWrite,
            Changes,
            id_schema,
            resume_task,
        ),
        tool(
            "run_task",
            "Run a task now",
            "Runs a task now, beside its own times, whatever its state. The run takes long and goes on by itself; \
             its result goes to the recipient of the task, too.",
            TasksWrite,
            Adds,
            run_schema,
            run_task,
        ),
    ]
}

fn id_property() -> Value {
    json!({ "type": "string", "format": "uuid", "description": "The id of the task, as `list_tasks` shows it" })
}

fn id_schema() -> Value {
    arguments::object(json!({ "id": id_property() }), &["id"])
}

/// The fields of a task, and these.
fn fields_and(more: &[(&str, Value)]) -> Value {
    let instruction = json!({
        "type": "string", "minLength": 1, "maxLength": 65_536,
        "description": "Instruction for the agent that the task wakes; it must make sense by itself",
    });
    let own = [("instruction", instruction), ("timezone", timezone_schema())];
    task_fields(&[&own[..], more].concat())
}

fn create_schema() -> Value {
    let key = json!({
        "type": "string", "minLength": 1,
        "description": "A name of your own for the task by which it is found again; the tenant has it once",
    });
    let more = [("key", key), ("idempotency_key", arguments::key_schema())];
    arguments::object(fields_and(&more), &["name", "instruction"])
}

fn update_schema() -> Value {
    arguments::object(fields_and(&[("id", id_property())]), &["id"])
}

fn list_schema() -> Value {
    arguments::object(
        json!({
            "status": { "type": "string", "enum": TaskStatus::WORDS },
            "q": { "type": "string", "description": "Part of the name" },
            "limit": { "type": "integer", "minimum": 1, "description": "How many at most; 20 where it is absent" },
            "cursor": { "type": "string", "description": "`next_cursor` of the page before" },
        }),
        &[],
    )
}

fn get_schema() -> Value {
    let key = json!({ "type": "string", "description": "The key of the task, in place of its id" });
    arguments::object(json!({ "id": id_property(), "key": key }), &[])
}

fn explain_schema() -> Value {
    let at = json!({
        "type": "string", "description": "An instant, RFC 3339 or local time in the zone of the task",
    });
    arguments::object(json!({ "id": id_property(), "at": at }), &["id"])
}

fn pause_schema() -> Value {
    let reason = json!({ "type": "string", "description": "Why, for people who look at the task" });
    arguments::object(json!({ "id": id_property(), "reason": reason }), &["id"])
}

fn run_schema() -> Value {
    let input = json!({ "description": "Any JSON; the agent of the task is shown it" });
    let properties = json!({ "id": id_property(), "input": input, "idempotency_key": arguments::key_schema() });
    arguments::object(properties, &["id"])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTaskArguments {
    tenant_id: Option<String>,
    name: String,
    instruction: String,
    max_runs: Option<u64>,
    channel: Option<String>,
    key: Option<String>,
    idempotency_key: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedTasks {
    tenant_id: Option<String>,
    status: Option<String>,
    q: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// A task by its id, and what some tools take besides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneTaskArguments {
    id: Option<String>,
    key: Option<String>,
    at: Option<String>,
    reason: Option<String>,
    idempotency_key: Option<String>,
}

fn create_task(call: &McpCall, mut input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let trigger = needed_trigger(&mut input)?;
        let new: NewTaskArguments = arguments::read(&input)?;
        let once = arguments::key(new.idempotency_key)?;
        let body = arguments::fields([
            ("tenant_id", new.tenant_id.map(Value::from)),
            ("key", new.key.map(Value::from)),
            ("name", Some(new.name.into())),
            ("trigger", Some(trigger)),
            ("action", Some(json!({ "instruction": new.instruction }))),
            ("max_runs", new.max_runs.map(Value::from)),
            ("output", new.channel.map(|channel| json!({ "channel": channel }))),
        ]);
        let made = call.post(&["v1", "tasks"], &[], body.into(), once.as_deref()).await.map_err(in_names)?;
        let result = told(&made).then("`run_task` tries it now.");
        Ok(Answered::Result(match made["missing"].is_null() {
            true => result,
            false => {
                result.then("No event that is kept has the field in `missing`: look whether the trigger is right.")
            }
        }))
    })
}

fn list_tasks(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ListedTasks { tenant_id, status, q, limit, cursor } = arguments::read(&input)?;
        let query = arguments::query([
            ("tenant_id", tenant_id),
            ("status", status),
            ("q", q),
            ("limit", Some(arguments::limit(limit))),
            ("cursor", cursor),
        ]);
        let mut page = call.get(&["v1", "tasks"], &query).await?;
        if let Some(items) = page["items"].as_array_mut() {
            items.iter_mut().for_each(|task| *task = shown(task, LISTED_CHARS).into());
        }
        Ok(Answered::Result(ToolResult::of_page("list_tasks", page)))
    })
}

fn get_task(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let OneTaskArguments { id, key, .. } = arguments::read(&input)?;
        let task = match (id, key) {
            (Some(id), None) => read_task(call, &arguments::id(&id, "task")?.to_string()).await?,
            (None, Some(key)) => task_with_key(call, key).await?,
            _ => return Err(ToolRefusal::new("Give either `id` or `key`, and call again.").into()),
        };
        Ok(Answered::Result(told(&task)))
    })
}

fn explain_task(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let (id, asked) = one_task(&input)?;
        let query = arguments::query([("at", asked.at)]);
        Ok(Answered::Result(ToolResult::of(call.get(&["v1", "tasks", &id, "explain"], &query).await?)))
    })
}

fn update_task(call: &McpCall, mut input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let trigger = given_trigger(&mut input)?;
        let mut changes: TaskChanges = arguments::read(&input)?;
        changes.trigger = trigger;
        let id = arguments::id(&changes.id, "task")?.to_string();
        let mut retries = 0..RETRIES;
        loop {
            let patch = changes.patch_of(read_task(call, &id).await?)?;
            match call.patch(&["v1", "tasks", &id], patch.into()).await {
                // somebody else was faster: the fields that stay are read anew
                Err(error) if error.status == 409 && retries.next().is_some() => {}
                changed => return Ok(Answered::Result(told(&changed.map_err(in_names)?))),
            }
        }
    })
}

fn pause_task(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let (id, asked) = one_task(&input)?;
        let body = arguments::fields([("reason", asked.reason.map(Value::from))]);
        let paused = call.post(&["v1", "tasks", &id, "pause"], &[], body.into(), None).await?;
        Ok(Answered::Result(told(&paused).then("`resume_task` lets it fire again.")))
    })
}

fn resume_task(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let (id, _) = one_task(&input)?;
        let resumed = call.post(&["v1", "tasks", &id, "resume"], &[], json!({}), None).await?;
        Ok(Answered::Result(told(&resumed)))
    })
}

fn run_task(call: &McpCall, mut input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let body = arguments::fields([("input", input.arguments.remove("input"))]);
        let (id, asked) = one_task(&input)?;
        let once = arguments::key(asked.idempotency_key)?;
        let run = call.post(&["v1", "tasks", &id, "run"], &[], body.into(), once.as_deref()).await?;
        Ok(durable::started(call, &run))
    })
}

/// The id of a task, and what was given with it.
fn one_task(input: &ToolInput) -> Result<(String, OneTaskArguments), ToolRefusal> {
    let asked: OneTaskArguments = arguments::read(input)?;
    let id = arguments::id(asked.id.as_deref().unwrap_or_default(), "task")?;
    Ok((id.to_string(), asked))
}

async fn read_task(call: &McpCall, id: &str) -> Result<Value, CallError> {
    call.get(&["v1", "tasks", id], &[]).await
}

/// The task with this key, which a caller of all tenants may see several of.
async fn task_with_key(call: &McpCall, key: String) -> Result<Value, ToolFault> {
    let mut page = call.get(&["v1", "tasks"], &[("key", key), ("limit", "2".to_owned())]).await?;
    match page["items"].as_array_mut().map(std::mem::take).unwrap_or_default() {
        mut found if found.len() == 1 => Ok(found.remove(0)),
        found if found.is_empty() => {
            Err(ToolRefusal::new("there is no such task. Look it up with `list_tasks`.").into())
        }
        _ => Err(ToolRefusal::new("Several tenants have a task with this key: give its `id`, and call again.").into()),
    }
}

/// A task, and when it fires.
fn told(task: &Value) -> ToolResult {
    let result = ToolResult::of(shown(task, usize::MAX).into());
    match task["next_fire_at"].as_str() {
        Some(at) if task["status"] == "active" => result.then(format!("It fires next at {at}.")),
        _ => result,
    }
}

/// A task in short, with so many characters of its instruction.
fn shown(task: &Value, chars: usize) -> Map<String, Value> {
    let told = |name: &&str| Some(((*name).to_owned(), task.get(*name).filter(|value| !value.is_null())?.clone()));
    let mut shown: Map<String, Value> = FIELDS.iter().filter_map(told).collect();
    if let Some(text) = task["action"]["instruction"].as_str() {
        let text = match text.char_indices().nth(chars) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        };
        shown.insert("instruction".into(), text.into());
    }
    shown
}
