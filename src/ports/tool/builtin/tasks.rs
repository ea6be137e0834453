//! `create_task`, `list_tasks`, `update_task`, `run_task`, `pause_task`, `resume_task`, `delete_task`: the tenant's own
//! tasks, through the host.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, TaskQuery, ToolError};

/// Tasks that `list_tasks` shows when it is not told how many.
const LISTED: u32 = 20;
/// The arguments that say when a task fires.
const WHEN: [&str; 5] = ["cron", "interval", "at", "timezone", "trigger"];
/// The fields of a schedule that say when: another instant takes the place of all of them.
const INSTANTS: [&str; 4] = ["cron", "interval", "at", "rrule"];

/// When a task fires: one of the four.
#[derive(Default, Deserialize)]
pub(super) struct TriggerArguments {
    cron: Option<String>,
    interval: Option<String>,
    at: Option<String>,
    timezone: Option<String>,
    trigger: Option<Value>,
}

/// Arguments of `create_task`.
#[derive(Deserialize)]
pub(super) struct CreateArguments {
    name: String,
    instruction: String,
    #[serde(flatten)]
    when: TriggerArguments,
    max_runs: Option<u64>,
    channel: Option<String>,
}

/// Arguments of `update_task`; what is absent stays as it is.
#[derive(Deserialize)]
pub(super) struct UpdateArguments {
    id: Uuid,
    name: Option<String>,
    instruction: Option<String>,
    #[serde(flatten)]
    when: TriggerArguments,
    max_runs: Option<u64>,
    channel: Option<String>,
}

/// Arguments of `run_task`.
#[derive(Deserialize)]
pub(super) struct RunArguments {
    id: Uuid,
    input: Option<Value>,
}

/// Arguments of `list_tasks`.
#[derive(Deserialize)]
pub(super) struct ListArguments {
    status: Option<String>,
    q: Option<String>,
    limit: Option<u32>,
}

/// Arguments of `pause_task`, `resume_task` and `delete_task`.
#[derive(Deserialize)]
pub(super) struct NamedTask {
    id: Uuid,
}

/// The fields that a task has for models, and those of `more`, which may take the place of one.
pub fn task_fields(more: &[(&str, Value)]) -> Value {
    let mut properties = json!({
        "name": { "type": "string", "minLength": 1, "maxLength": 200 },
        "instruction": {
            "type": "string", "minLength": 1, "maxLength": 65_536,
            "description": "Instruction that you will be given when the task fires; it must make sense by itself",
        },
        "cron": { "type": "string", "description": "Five fields, such as `0 8 * * *`" },
        "interval": { "type": "string", "description": "Such as `90m` or `P1D`" },
        "at": { "type": "string", "description": "One instant, such as `2026-12-24T15:00:00`" },
        "timezone": { "type": "string", "description": "IANA name; absent: the recipient's" },
        "trigger": {
            "type": "object",
            "description": "For events and conditions, in place of `cron`, `interval` and `at`. An event: \
                            {\"type\": \"event\", \"source\": \"email\", \"event_type\": \"new_email\", \
                            \"filter\": \"event.data.amount > 100\"}. A condition, looked at with GET again and again: \
                            {\"type\": \"condition\", \"poll\": {\"http\": {\"url\": \"https://…\"}}, \
                            \"interval\": \"30m\", \"expression\": \"value.price < 500\"}",
            "properties": { "type": { "enum": ["event", "condition", "schedule"] } },
            "required": ["type"],
        },
        "max_runs": { "type": "integer", "minimum": 1 },
        "channel": { "type": "string", "description": "Where the result is told; absent: as preferred" },
    });
    more.iter().for_each(|(name, schema)| properties[*name] = schema.clone());
    properties
}

pub(super) fn create_task() -> BuiltinTool<CreateArguments> {
    let definition = Definition::new(
        "create_task",
        "Create a task that wakes you later with an instruction, once or again and again. \
             Give exactly one of `cron`, `interval`, `at` and `trigger`.",
        json!({
            "type": "object",
            "properties": task_fields(&[]),
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
                let draft = draft(new, context.timezone.name(), &context.limits)?;
                Ok(context.host.create_task(&context.tenant, draft, &context.idempotency_key).await?)
            })
        },
    }
}

impl TriggerArguments {
    fn is_empty(&self) -> bool {
        let TriggerArguments { cron, interval, at, timezone, trigger } = self;
        [cron, interval, at, timezone].iter().all(|given| given.is_none()) && trigger.is_none()
    }

    /// The trigger in the form of the API. Whether it makes sense is judged where all tasks are judged.
    fn into_trigger(self, zone: Option<&str>) -> Result<Value, &'static str> {
        let TriggerArguments { cron, interval, at, timezone, trigger } = self;
        let schedule = [("cron", cron), ("interval", interval), ("at", at)];
        if let Some(trigger) = trigger {
            if timezone.is_some() || schedule.iter().any(|(_, given)| given.is_some()) {
                return Err("give either `trigger`, or `cron`, `interval` or `at` with their `timezone`");
            }
            return Ok(trigger);
        }
        let mut made = Map::from_iter([("type".to_owned(), json!("schedule"))]);
        made.extend(schedule.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
        made.extend(timezone.as_deref().or(zone).map(|zone| ("timezone".to_owned(), json!(zone))));
        Ok(Value::Object(made))
    }
}

/// The trigger that arguments say, taken out of them, in the form of the API. `None`: they say none.
///
/// # Errors
/// They say it in two ways, or one of them is of another type; the sentence names it.
pub fn trigger_of(arguments: &mut Map<String, Value>) -> Result<Option<Value>, String> {
    let said = WHEN.into_iter().filter_map(|name| Some((name.to_owned(), arguments.remove(name)?)));
    let said = Value::Object(said.collect());
    let read = serde_path_to_error::deserialize::<_, TriggerArguments>(said);
    let when = read.map_err(|error| format!("`{}`: {}", error.path(), error.inner()))?;
    match when.is_empty() {
        true => Ok(None),
        false => Ok(Some(when.into_trigger(None)?)),
    }
}

/// A changed trigger as a whole, as an edit of a task has to send it: of a schedule the rest stays.
pub fn whole_trigger(before: Value, changed: Value) -> Value {
    match (before, changed) {
        (Value::Object(mut whole), Value::Object(mut new)) if is_schedule(&whole) && is_schedule(&new) => {
            if INSTANTS.iter().any(|field| new.contains_key(*field)) {
                INSTANTS.iter().for_each(|field| drop(whole.remove(*field)));
            }
            whole.append(&mut new);
            whole.into()
        }
        (_, changed) => changed,
    }
}

fn is_schedule(trigger: &Map<String, Value>) -> bool {
    trigger.get("type").is_some_and(|kind| kind == "schedule")
}

/// The JSON form of the API. The agent that it wakes has no more tools than the one that makes it.
fn draft(new: CreateArguments, recipient_zone: &str, limits: &ToolLimits) -> Result<Value, ToolError> {
    let trigger = new.when.into_trigger(Some(recipient_zone)).map_err(ToolError::arguments)?;
    let mut draft = json!({ "name": new.name, "trigger": trigger, "action": { "instruction": new.instruction } });
    if !limits.is_empty() {
        draft["action"]["config"] = json!({ "tools": limits.allow, "deny_tools": limits.deny });
    }
    if let Some(limit) = new.max_runs {
        draft["max_runs"] = json!(limit);
    }
    if let Some(channel) = new.channel {
        draft["output"] = json!({ "channel": channel });
    }
    Ok(draft)
}

pub(super) fn update_task() -> BuiltinTool<UpdateArguments> {
    let id = json!({ "type": "string", "description": "The task's id, as `list_tasks` shows it" });
    let definition = Definition::new(
        "update_task",
        "Change a task of the person you work for: the fields that you give, and nothing else.",
        json!({
            "type": "object",
            "properties": task_fields(&[("id", id)]),
            "required": ["id"],
            "minProperties": 2,
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Medium,
    );
    BuiltinTool {
        definition,
        act: |context, update| {
            Box::pin(async move {
                let (id, changes) = changes(update)?;
                Ok(context.host.update_task(&context.tenant, id, changes, &context.limits).await?)
            })
        },
    }
}

/// The fields that change, in the form of the API.
fn changes(update: UpdateArguments) -> Result<(Uuid, Value), ToolError> {
    let UpdateArguments { id, name, instruction, when, max_runs, channel } = update;
    let trigger = (!when.is_empty()).then(|| when.into_trigger(None)).transpose().map_err(ToolError::arguments)?;
    let fields = [
        ("name", name.map(Value::from)),
        ("instruction", instruction.map(Value::from)),
        ("trigger", trigger),
        ("max_runs", max_runs.map(Value::from)),
        ("output", channel.map(|channel| json!({ "channel": channel }))),
    ];
    Ok((id, fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()))
}

pub(super) fn run_task() -> BuiltinTool<RunArguments> {
    let definition = Definition::new(
        "run_task",
        "Run a task now, beside its own times. It runs by itself; its result goes to the person you work for.",
        json!({
            "type": "object",
            "properties": {
                "id": { "type": "string", "description": "The task's id, as `list_tasks` shows it" },
                "input": { "description": "Any JSON; the task's agent is shown it" },
            },
            "required": ["id"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Medium,
    );
    BuiltinTool {
        definition,
        act: |context, RunArguments { id, input }| {
            Box::pin(async move {
                // it would never end
                if context.task_id == Some(id) {
                    return Err(ToolError::arguments("a run can't run its own task"));
                }
                // its agent may have tools that this one has not
                if input.is_some() && !context.limits.is_empty() {
                    return Err(ToolError::arguments("give no `input`: your own tools are limited"));
                }
                Ok(context.host.run_task(&context.tenant, id, input, &context.idempotency_key).await?)
            })
        },
    }
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
    let description = "Pause a task: it keeps its place and does not fire until it is resumed.";
    let definition = Definition::new("pause_task", description, one_task(), Category::Internal, Consequence::Low);
    BuiltinTool {
        definition,
        act: |context, NamedTask { id }| {
            Box::pin(async move { Ok(context.host.pause_task(&context.tenant, id).await?) })
        },
    }
}

pub(super) fn resume_task() -> BuiltinTool<NamedTask> {
    let description = "Resume a task that you have paused. One that a person has paused waits for a person.";
    let definition = Definition::new("resume_task", description, one_task(), Category::Internal, Consequence::Low);
    BuiltinTool {
        definition,
        act: |context, NamedTask { id }| {
            Box::pin(async move { Ok(context.host.resume_task(&context.tenant, id).await?) })
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
            draft(plain, "Asia/Shanghai", &ToolLimits::default()).unwrap(),
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
            draft(full, "Asia/Shanghai", &ToolLimits::default()).unwrap(),
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
    fn trigger_in_the_form_of_the_api_takes_the_place_of_a_schedule_and_is_not_mixed_with_one() {
        let event = json!({ "type": "event", "event_type": "new_email" });
        let new = json!({ "name": "Mail", "instruction": "Read it", "trigger": event });
        assert_eq!(draft(read(new.clone()).unwrap(), "UTC", &ToolLimits::default()).unwrap()["trigger"], event);
        let mut mixed = new;
        mixed["cron"] = json!("* * * * *");
        let error = draft(read(mixed).unwrap(), "UTC", &ToolLimits::default()).unwrap_err();
        assert!(error.to_string().contains("either `trigger`"), "{error}");
    }

    #[test]
    fn changes_are_the_fields_that_are_given() {
        let id = Uuid::from_u128(7);
        let all = json!({ "id": id, "name": "Post", "instruction": "Sort it", "cron": "0 9 * * *", "max_runs": 3, "channel": "sms" });
        let trigger = json!({ "type": "schedule", "cron": "0 9 * * *" });
        let fields = json!({
            "name": "Post", "instruction": "Sort it", "trigger": trigger, "max_runs": 3, "output": { "channel": "sms" },
        });
        assert_eq!(changes(read(all).unwrap()).unwrap(), (id, fields));
        let zone = changes(read(json!({ "id": id, "timezone": "UTC" })).unwrap()).unwrap();
        assert_eq!(zone.1, json!({ "trigger": { "type": "schedule", "timezone": "UTC" } }));
    }

    #[test]
    fn trigger_is_taken_out_of_the_arguments_that_say_it() {
        let of = |said: Value| {
            let Value::Object(mut arguments) = said else { unreachable!() };
            let trigger = trigger_of(&mut arguments)?;
            Ok::<_, String>((trigger, arguments.len()))
        };
        let daily = json!({ "type": "schedule", "cron": "0 9 * * *", "timezone": "UTC" });
        let said = json!({ "name": "Mail", "cron": "0 9 * * *", "timezone": "UTC", "at": null });
        assert_eq!(of(said), Ok((Some(daily.clone()), 1)));
        assert_eq!(of(json!({ "trigger": daily })), Ok((Some(daily.clone()), 0)));
        assert_eq!(of(json!({ "name": "Mail", "cron": null })), Ok((None, 1)));
        assert!(of(json!({ "trigger": daily, "at": "2027-01-01" })).unwrap_err().contains("either `trigger`"));
        assert!(of(json!({ "cron": 8 })).unwrap_err().starts_with("`cron`: invalid type"));
    }

    #[test]
    fn changed_schedule_keeps_the_rest_of_it() {
        let before = json!({ "type": "schedule", "rrule": "FREQ=DAILY", "timezone": "UTC", "jitter": "5m" });
        let cron = json!({ "type": "schedule", "cron": "0 9 * * *" });
        let whole = json!({ "type": "schedule", "cron": "0 9 * * *", "timezone": "UTC", "jitter": "5m" });
        assert_eq!(whole_trigger(before.clone(), cron), whole);
        let zone = whole_trigger(before.clone(), json!({ "type": "schedule", "timezone": "Asia/Shanghai" }));
        assert_eq!((&zone["rrule"], &zone["timezone"]), (&json!("FREQ=DAILY"), &json!("Asia/Shanghai")));
        let event = json!({ "type": "event", "event_type": "mail" });
        assert_eq!(whole_trigger(before, event.clone()), event);
        assert_eq!(whole_trigger(event, json!({ "type": "schedule" })), json!({ "type": "schedule" }));
    }

    #[test]
    fn id_that_is_none_is_an_argument_at_fault() {
        let error = read::<NamedTask>(json!({ "id": "task-7" })).err().unwrap();
        assert!(error.to_string().starts_with("invalid_parameters: "), "{error}");
    }
}
