//! Tools for runs: to list, read, wait, ask why, cancel, and hand on what a person has said.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::token::Permission;
use crate::domain::run::{Run, RunState};
use crate::http::api::runs::missing;
use crate::http::api::runs::settling::{RunWait, is_settled};
use crate::http::error::ApiError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::{Answered, ToolRefusal, ToolResult};
use crate::http::mcp::questions;
use crate::http::mcp::request_state::WaitState;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::mcp::run_result::{ended, shown, state_of};
use crate::http::mcp::tools::{ServedTool, ToolEffect, ToolFault, ToolFuture, ToolInput, arguments};
use crate::http::streaming::limiter;

/// The longest that one call waits, in seconds.
const LONGEST_WAIT: u64 = 25;
/// The ways to deal with a question other than an answer.
const REFUSALS: [&str; 2] = ["decline", "cancel"];

/// The tools of this file.
pub fn tools() -> Vec<ServedTool> {
    vec![
        ServedTool {
            name: "list_runs",
            title: "List runs",
            description: "Lists runs, the newest first: of one task, in one state, or recorded in a range of time. \
                Outputs are cut at 1,000 characters; `get_run` has more.",
            permission: Permission::RunsRead,
            effect: ToolEffect::Reads,
            names_tenant: true,
            schema: list_schema,
            act: list_runs,
        },
        ServedTool {
            name: "get_run",
            title: "Read a run",
            description: "Reads a run: its state, its output or error, and what it waits for.",
            permission: Permission::RunsRead,
            effect: ToolEffect::Reads,
            names_tenant: false,
            schema: id_schema,
            act: get_run,
        },
        ServedTool {
            name: "wait_for_run",
            title: "Wait for a run",
            description: "Waits until a run has ended, or until a person is asked, for 25 seconds at most, and returns \
                its result. Where it still runs then, call it again.",
            permission: Permission::RunsRead,
            effect: ToolEffect::Reads,
            names_tenant: false,
            schema: wait_schema,
            act: wait_for_run,
        },
        ServedTool {
            name: "explain_run",
            title: "Explain a run",
            description: "Says why a run was recorded, what it did, what held it up and why it ended as it did.",
            permission: Permission::RunsRead,
            effect: ToolEffect::Reads,
            names_tenant: false,
            schema: id_schema,
            act: explain_run,
        },
        ServedTool {
            name: "cancel_run",
            title: "Cancel a run",
            description: "Cancels a run that has not ended. What it has done already stays done.",
            permission: Permission::RunsWrite,
            effect: ToolEffect::Ends,
            names_tenant: false,
            schema: id_schema,
            act: cancel_run,
        },
        ServedTool {
            name: "answer_run",
            title: "Answer a run that waits for input",
            description: "Answers a question for input of a run, only with what the PERSON said about it; never make \
                an answer up. Give `fields`, or `message`: the value of the one field that is awaited, or a line \
                `name: value` for each; or an `action`, where the person wants no answer given. Approvals can't be \
                answered, and questions with `sends_to` only declined or cancelled.",
            permission: Permission::RunsInput,
            effect: ToolEffect::Changes,
            names_tenant: false,
            schema: answer_schema,
            act: answer_run,
        },
    ]
}

/// The refusal of an answer to a question whose server sends the person to a page.
const SENT_TO_PAGE: &str = "An MCP server sends the person to a page of its own, which nobody has seen here. Tell the \
    person: they answer by the message that they were sent. Where they want none of it, call again with `action`.";

fn id_property() -> Value {
    json!({ "type": "string", "format": "uuid", "description": "The id of the run" })
}

fn id_schema() -> Value {
    arguments::object(json!({ "id": id_property() }), &["id"])
}

fn list_schema() -> Value {
    let instant = |what: &str| json!({ "type": "string", "format": "date-time", "description": what });
    arguments::object(
        json!({
            "task_id": { "type": "string", "format": "uuid", "description": "Runs of this task alone" },
            "state": { "type": "string", "enum": RunState::WORDS },
            "since": instant("Recorded at or after this instant"),
            "until": instant("Recorded before this instant"),
            "limit": { "type": "integer", "minimum": 1, "description": "How many at most; 20 where it is absent" },
            "cursor": { "type": "string", "description": "`next_cursor` of the page before" },
        }),
        &[],
    )
}

fn wait_schema() -> Value {
    let seconds = json!({
        "type": "integer", "minimum": 1, "maximum": LONGEST_WAIT,
        "description": "How long to wait at most; 25 where it is absent",
    });
    arguments::object(json!({ "id": id_property(), "seconds": seconds }), &["id"])
}

fn answer_schema() -> Value {
    arguments::object(
        json!({
            "id": id_property(),
            "input_id": {
                "type": "string", "format": "uuid",
                "description": "The id of the question in `waits_for`; needed where several are open",
            },
            "fields": { "type": "object", "description": "The values by the names of the fields" },
            "message": { "type": "string", "description": "What the person said, in place of `fields`" },
            "action": {
                "type": "string", "enum": REFUSALS,
                "description": "In place of both: `decline` tells the MCP server that asks no, and the call goes on; \
                                `cancel` stops the call, and the run goes on without it",
            },
        }),
        &["id"],
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunId {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedRuns {
    tenant_id: Option<String>,
    task_id: Option<String>,
    state: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AwaitedRun {
    id: String,
    seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenRunInput {
    id: String,
    input_id: Option<String>,
    fields: Option<Map<String, Value>>,
    message: Option<String>,
    action: Option<String>,
}

fn list_runs(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ListedRuns { tenant_id, task_id, state, since, until, limit, cursor } = arguments::read(&input)?;
        let task_id = task_id.map(|id| arguments::id(&id, "task")).transpose()?.map(|id| id.to_string());
        let fields = [
            ("tenant_id", tenant_id),
            ("task_id", task_id),
            ("state", state),
            ("since", since),
            ("until", until),
            ("limit", Some(arguments::limit(limit))),
            ("cursor", cursor),
        ];
        let query: Vec<(&str, String)> = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut page = call.get(&["v1", "runs"], &query).await?;
        if let Some(items) = page["items"].as_array_mut() {
            items.iter_mut().for_each(|run| *run = shown(run));
        }
        Ok(Answered::Result(ToolResult::of_page("list_runs", page)))
    })
}

fn get_run(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let RunId { id } = arguments::read(&input)?;
        let run = read_run(call, arguments::id(&id, "run")?).await?;
        Ok(Answered::Result(so_far(call, &run)))
    })
}

fn explain_run(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let RunId { id } = arguments::read(&input)?;
        let id = arguments::id(&id, "run")?.to_string();
        Ok(Answered::Result(ToolResult::of(call.get(&["v1", "runs", &id, "explain"], &[]).await?)))
    })
}

fn cancel_run(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let RunId { id } = arguments::read(&input)?;
        let id = arguments::id(&id, "run")?.to_string();
        let run = call.post(&["v1", "runs", &id, "cancel"], &[], json!({}), None).await?;
        let result = ToolResult::of(shown(&run));
        Ok(Answered::Result(match state_of(&run) {
            Some(RunState::Cancelled) => result,
            _ => result.then("It was asked to end, and ends soon; `get_run` shows when."),
        }))
    })
}

fn answer_run(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let GivenRunInput { id, input_id, fields, message, action } = arguments::read(&input)?;
        let id = arguments::id(&id, "run")?;
        let input_id = input_id.map(|input_id| arguments::id(&input_id, "question")).transpose()?;
        let is_refusal = action.is_some();
        let given: (&str, Value) = match (fields, message, action) {
            (Some(fields), None, None) => ("fields", fields.into()),
            (None, Some(message), None) => ("message", message.into()),
            (None, None, Some(action)) if REFUSALS.contains(&action.as_str()) => ("action", action.into()),
            _ => {
                let why = "Give one of `fields`, `message` and `action` (`decline` or `cancel`), and call again.";
                return Err(ToolRefusal::new(why).into());
            }
        };
        if !is_refusal && questions::is_answered_on_page(call, id, input_id).await? {
            return Err(ToolRefusal::new(SENT_TO_PAGE).into());
        }
        let input_id = input_id.map(|input_id| input_id.to_string().into());
        let body = arguments::fields([("input_id", input_id), (given.0, Some(given.1))]);
        let answered = call.post(&["v1", "runs", &id.to_string(), "input"], &[], body.into(), None).await;
        let names = [("/input_id", "input_id"), ("/fields", "fields"), ("/message", "message"), ("/action", "action")];
        let run = answered.map_err(|error| ToolRefusal::from(error).with_names(&names))?;
        Ok(Answered::Result(ToolResult::of(shown(&run)).then("The run goes on; `wait_for_run` waits for its end.")))
    })
}

fn wait_for_run(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let AwaitedRun { id, seconds } = arguments::read(&input)?;
        let id = arguments::id(&id, "run")?;
        let seconds = seconds.unwrap_or(LONGEST_WAIT);
        if !(1..=LONGEST_WAIT).contains(&seconds) {
            let why = format!("`seconds` must be 1 to {LONGEST_WAIT}, is {seconds}; mend it and call again.");
            return Err(ToolRefusal::new(why).into());
        }
        let before = state_before(call, &input, id)?;
        let run = run_now(call, id).await?;
        let tenant = Tenant::stored(run.tenant_id).map_err(|log| refusal(ApiError::Internal { log }))?;
        let permit = limiter::acquire_stream(&call.state, &call.caller, &Scope::Only(tenant)).await;
        let _permit = permit.map_err(refusal)?;
        if let Some(responses) = &input.input_responses {
            questions::take(call, id, responses).await?;
        }
        let patience = Duration::from_secs(seconds).min(call.state.limits.answer_time);
        let fresh = wait_for_news(call, id, before.as_ref(), patience).await?;
        if !fresh.requests.is_empty() {
            return Ok(Answered::Other(input_required(call, id, fresh)));
        }
        let run = read_run(call, id).await?;
        Ok(Answered::Result(so_far(call, &run)))
    })
}

/// How far the call had come when the client was asked; `None`: it was not. Answers without it are a repetition of a
/// call that has lost it.
fn state_before(call: &McpCall, input: &ToolInput, id: Uuid) -> Result<Option<WaitState>, RpcError> {
    let Some(written) = &input.request_state else {
        let answered = input.input_responses.as_ref().map(|responses| responses.keys().cloned().collect());
        return Ok(answered.map(|asked| WaitState { run: id, asked }));
    };
    let state = WaitState::read(call, written).filter(|state| state.run == id);
    let fault = "`requestState` must be the one that this call was answered with; leave it out to begin anew";
    state.map(Some).ok_or_else(|| RpcError::invalid_params(fault))
}

/// Requests that the client was not sent yet, and those it was sent that are still open.
#[derive(Default)]
struct OpenRequests {
    requests: Map<String, Value>,
    asked: Vec<String>,
}

/// Waits until the run has ended or there is something to tell of it: a person is asked, or, where the client was asked
/// already, it can be asked for more.
async fn wait_for_news(
    call: &McpCall,
    id: Uuid,
    before: Option<&WaitState>,
    patience: Duration,
) -> Result<OpenRequests, ToolFault> {
    let mut wait = RunWait::new(&call.state, call.state.hub.subscribe(id), patience);
    loop {
        let state = run_now(call, id).await?.state;
        let fresh = match is_settled(state) && !state.is_final() {
            true => not_asked(questions::requests(call, id).await?, before),
            false => OpenRequests::default(),
        };
        let is_news = state.is_final() || !fresh.requests.is_empty() || (is_settled(state) && before.is_none());
        if is_news || wait.is_over() {
            return Ok(fresh);
        }
        wait.next_look().await;
    }
}

fn not_asked(open: Map<String, Value>, before: Option<&WaitState>) -> OpenRequests {
    let was_asked = |key: &String| before.is_some_and(|before| before.asked.contains(key));
    let (asked, requests): (Vec<_>, Vec<_>) = open.into_iter().partition(|(key, _)| was_asked(key));
    OpenRequests { requests: requests.into_iter().collect(), asked: asked.into_iter().map(|(key, _)| key).collect() }
}

/// The answer that has the client ask its person.
fn input_required(call: &McpCall, run: Uuid, OpenRequests { requests, asked }: OpenRequests) -> Value {
    let asked = asked.into_iter().chain(requests.keys().cloned()).collect();
    let state = WaitState { run, asked }.write(call);
    json!({ "resultType": "input_required", "inputRequests": requests, "requestState": state })
}

async fn run_now(call: &McpCall, id: Uuid) -> Result<Run, ToolFault> {
    call.caller.may(Permission::RunsRead).map_err(refusal)?;
    let run = call.state.store.get_run(&call.caller.scope, id).await;
    run.map_err(|error| refusal(missing(error)))
}

fn refusal(error: ApiError) -> ToolFault {
    ToolRefusal::from(error).into()
}

async fn read_run(call: &McpCall, id: Uuid) -> Result<Value, ToolFault> {
    Ok(call.get(&["v1", "runs", &id.to_string()], &[]).await?)
}

/// A run as far as it has come, with what to do about it.
fn so_far(call: &McpCall, run: &Value) -> ToolResult {
    let result = || ToolResult::of(shown(run));
    match state_of(run) {
        Some(state) if state.is_final() => ended(run),
        Some(RunState::PendingApproval) => result().then(
            "A person has to agree. They were sent a message, and only there it is decided: tell the person and do not \
             call again until they have done so.",
        ),
        Some(RunState::WaitingForInput) if call.holds(Permission::RunsInput) => result().then(
            "The run needs an answer of a person, who was sent the question. Ask the person; `answer_run` hands on \
             what they say.",
        ),
        Some(RunState::WaitingForInput) => result().then(
            "The run needs an answer of a person, who was sent the question and answers there. Tell the person, and do \
             not call again until they have done so.",
        ),
        _ => result().then("It has not ended yet: call `wait_for_run` again. It goes on meanwhile."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_asked_for_nothing_twice() {
        let open = || Map::from_iter([("input:1".to_owned(), json!(1)), ("input:2".to_owned(), json!(2))]);
        let first = not_asked(open(), None);
        assert_eq!((first.requests.len(), first.asked.len()), (2, 0));
        let before = WaitState { run: Uuid::from_u128(1), asked: vec!["input:1".into(), "input:0".into()] };
        let second = not_asked(open(), Some(&before));
        assert_eq!(second.requests.keys().collect::<Vec<_>>(), ["input:2"]);
        assert_eq!(second.asked, ["input:1"], "one that is settled is forgotten");
        let all = WaitState { asked: vec!["input:1".into(), "input:2".into()], ..before };
        assert!(not_asked(open(), Some(&all)).requests.is_empty());
    }
}
