//! The tool that previews a schedule, and how tools read when a task fires.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::in_process::CallError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::{Answered, ToolRefusal, ToolResult};
use crate::http::mcp::tools::conditions::only_reads;
use crate::http::mcp::tools::{ServedTool, ToolEffect, ToolFault, ToolFuture, ToolInput, arguments};
use crate::ports::tool::builtin::tasks::{task_fields, trigger_of};

/// Instants of a preview where no number is asked for.
const SHOWN_BY_DEFAULT: u32 = 5;
/// Arguments of tasks whose place in the API is another.
const NAMES: [(&str, &str); 6] = [
    ("/trigger/cron", "cron"),
    ("/trigger/interval", "interval"),
    ("/trigger/at", "at"),
    ("/trigger/timezone", "timezone"),
    ("/action/instruction", "instruction"),
    ("/output/channel", "channel"),
];

/// The tools of this file.
pub fn tools() -> Vec<ServedTool> {
    vec![ServedTool {
        name: "preview_schedule",
        title: "Preview a schedule",
        description: "Lists the next instants at which a task with this schedule would fire, in UTC. Give exactly one \
            of `cron`, `interval` and `at`, or a whole `trigger`. Call it before you create or change a task.",
        permission: Permission::TasksRead,
        effect: ToolEffect::Reads,
        names_tenant: false,
        schema,
        act: preview_schedule,
    }]
}

/// The schema of the zone in which a schedule runs.
pub fn timezone_schema() -> Value {
    json!({
        "type": "string",
        "description": "IANA name, such as `Europe/Berlin`: the person's own; absent: UTC",
    })
}

fn schema() -> Value {
    let fields = task_fields(&[("timezone", timezone_schema())]);
    let when = ["cron", "interval", "at", "timezone", "trigger"].map(|name| (name, Some(fields[name].clone())));
    let mut properties = arguments::fields(when);
    properties.insert(
        "count".into(),
        json!({
            "type": "integer", "minimum": 1, "maximum": arguments::LISTED,
            "description": "How many instants; 5 where it is absent",
        }),
    );
    let from = json!({ "type": "string", "format": "date-time", "description": "After this instant; absent: now" });
    properties.insert("from".into(), from);
    arguments::object(properties.into(), &[])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PreviewArguments {
    count: Option<u32>,
    from: Option<String>,
}

fn preview_schedule(call: &McpCall, mut input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let trigger = needed_trigger(&mut input)?;
        let PreviewArguments { count, from } = arguments::read(&input)?;
        let count = count.unwrap_or(SHOWN_BY_DEFAULT).min(arguments::LISTED);
        let body = arguments::fields([
            ("trigger", Some(trigger)),
            ("count", Some(count.into())),
            ("from", from.map(Value::from)),
        ]);
        let shown = call.post(&["v1", "schedules", "preview"], &[], body.into(), None).await.map_err(in_names)?;
        let never = shown["fires"].as_array().is_some_and(Vec::is_empty);
        let result = ToolResult::of(shown);
        Ok(Answered::Result(match never {
            true => result.then("It never fires from then on: look whether its time has passed."),
            false => result,
        }))
    })
}

/// The trigger that the arguments say, taken out of them; `None`: they say none.
pub fn given_trigger(input: &mut ToolInput) -> Result<Option<Value>, ToolRefusal> {
    let given = trigger_of(&mut input.arguments);
    let given = given.map_err(|why| ToolRefusal::new(format!("{why}. Mend this and call again.")))?;
    given.as_ref().map_or(Ok(()), only_reads)?;
    Ok(given)
}

/// As [`given_trigger`], which has to be there.
pub fn needed_trigger(input: &mut ToolInput) -> Result<Value, ToolRefusal> {
    let missing = || ToolRefusal::new("Give exactly one of `cron`, `interval`, `at` and `trigger`, and call again.");
    given_trigger(input)?.ok_or_else(missing)
}

/// A refusal of the API in the names of arguments.
pub fn in_names(error: CallError) -> ToolFault {
    ToolRefusal::from(error).with_names(&NAMES).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigger_has_to_be_there_in_one_way_and_to_look_only() {
        let of = |said: Value| {
            let Value::Object(arguments) = said else { unreachable!() };
            let mut input = ToolInput { arguments, ..ToolInput::default() };
            needed_trigger(&mut input).map_err(|why| why.message)
        };
        assert_eq!(of(json!({ "at": "2027-01-01" })), Ok(json!({ "type": "schedule", "at": "2027-01-01" })));
        assert!(of(json!({ "name": "x" })).unwrap_err().contains("exactly one of"));
        let mixed = json!({ "cron": "* * * * *", "trigger": { "type": "event" } });
        assert!(of(mixed).unwrap_err().contains("either `trigger`"));
        let posting =
            json!({ "type": "condition", "poll": { "http": { "url": "https://a.example", "method": "POST" } } });
        assert!(of(json!({ "trigger": posting })).unwrap_err().starts_with("`trigger.poll`"));
    }
}
