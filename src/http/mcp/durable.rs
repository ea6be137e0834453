//! Runs as durable tasks of MCP clients (the Tasks extension): the id of a task is that of its run. All is read from
//! the store, so a task outlives the client, the connection and the instance.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::run::RunState;
use crate::http::in_process::CallError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::client::TASKS;
use crate::http::mcp::outcome::{Answered, ToolRefusal, ToolResult};
use crate::http::mcp::questions;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::mcp::run_result::{ended, shown, state_of};

/// When a client is to ask again.
const POLL_MS: u32 = 2_000;
/// When it is to ask again while a person is waited for.
const POLL_PERSON_MS: u32 = 15_000;

/// The answer to a client that has started a run: a task where it follows those, else how to ask for the run.
pub fn started(call: &McpCall, run: &Value) -> Answered {
    if call.client.has_tasks && call.holds(Permission::RunsRead) {
        let mut task = task_fields(call, run);
        task.insert("resultType".into(), "task".into());
        task.insert("status".into(), "working".into());
        task.insert("statusMessage".into(), message_of(RunState::Queued).into());
        return Answered::Other(task.into());
    }
    let id = run["id"].as_str().unwrap_or_default();
    let next = match call.holds(Permission::RunsRead) {
        true => format!(
            "The run goes on whatever becomes of this client. Call `wait_for_run` with the id `{id}`; if it still runs \
             then, call it again."
        ),
        false => {
            "The run goes on by itself, and its result is sent as its task says. This token lacks `runs:read`, so \
                  nothing here can follow it; tell the person."
                .to_owned()
        }
    };
    Answered::Result(ToolResult::of(shown(run)).then(next))
}

/// `tasks/get`: where a run stands.
///
/// # Errors
/// The client follows no tasks, or there is no such run for the caller.
pub async fn get(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    let id = task_id(call, &params)?;
    let run = run_of(call, id).await?;
    let requests = match state_of(&run) {
        Some(RunState::WaitingForInput | RunState::PendingApproval) => questions::requests(call, id).await?,
        _ => Map::new(),
    };
    task(call, &run, requests).await
}

/// `tasks/update`: takes answers to what a run waits for.
///
/// # Errors
/// As [`get`], and what is wrong with an answer.
pub async fn update(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    let id = task_id(call, &params)?;
    let responses = params.get("inputResponses").and_then(Value::as_object);
    let responses = responses
        .ok_or_else(|| RpcError::invalid_params("`inputResponses` must be an object with an answer for each key"))?;
    run_of(call, id).await?;
    questions::take(call, id, responses).await?;
    Ok(acknowledged())
}

/// `tasks/cancel`: asks for the end of a run. One that has ended stays as it is.
///
/// # Errors
/// As [`get`], and the token may not cancel runs.
pub async fn cancel(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    let id = task_id(call, &params)?;
    match call.post(&["v1", "runs", &id.to_string(), "cancel"], &[], json!({}), None).await {
        Err(error) if error.status != 409 => Err(refused(error)),
        _ => Ok(acknowledged()),
    }
}

fn acknowledged() -> Value {
    json!({ "resultType": "complete" })
}

/// The run that a request is about, of a client that follows tasks.
fn task_id(call: &McpCall, params: &Map<String, Value>) -> Result<Uuid, RpcError> {
    if !call.client.has_tasks {
        return Err(RpcError::missing_capability(json!({ "extensions": { TASKS: {} } })));
    }
    let id = params.get("taskId").and_then(Value::as_str).and_then(|id| Uuid::try_parse(id).ok());
    id.ok_or_else(unknown)
}

fn unknown() -> RpcError {
    RpcError::invalid_params("`taskId`: there is no such task; it must be the id of a run that this token sees")
}

async fn run_of(call: &McpCall, id: Uuid) -> Result<Value, RpcError> {
    call.get(&["v1", "runs", &id.to_string()], &[]).await.map_err(refused)
}

fn refused(error: CallError) -> RpcError {
    match error.status {
        404 => unknown(),
        _ => RpcError::refused(ToolRefusal::from(error).message),
    }
}

/// A run as the extension has it, with what the client can be asked for it.
async fn task(call: &McpCall, run: &Value, requests: Map<String, Value>) -> Result<Value, RpcError> {
    use RunState::*;
    let mut task = task_fields(call, run);
    let state = state_of(run).unwrap_or(Running);
    let status = match state {
        Queued | Running | WaitingForCompletion => "working",
        WaitingForInput | PendingApproval if requests.is_empty() => "working",
        WaitingForInput | PendingApproval => "input_required",
        // the call was made and has a result; `failed` is for faults of the protocol
        Succeeded | Failed | Expired | Skipped => "completed",
        Cancelled => "cancelled",
    };
    task.insert("status".into(), status.into());
    task.insert("statusMessage".into(), message_of(state).into());
    if status == "input_required" {
        task.insert("inputRequests".into(), requests.into());
    }
    if status == "completed" {
        // a long result is written in the caller's turn
        let result = ended(run);
        let written = call.compute(result.steps(), move || result.into_call_result()).await?;
        task.insert("result".into(), written);
    }
    Ok(task.into())
}

/// The fields that every task has, whatever its status.
fn task_fields(call: &McpCall, run: &Value) -> Map<String, Value> {
    let waits_for_person = matches!(state_of(run), Some(RunState::WaitingForInput | RunState::PendingApproval));
    let poll_ms = if waits_for_person { POLL_PERSON_MS } else { POLL_MS };
    // a run is kept for so long after its end
    let ttl_ms = Some(call.state.runs_kept.num_milliseconds()).filter(|ttl| *ttl > 0);
    let updated = ["finished_at", "started_at", "created_at"].into_iter().find(|at| run[*at].is_string());
    let fields = json!({
        "taskId": run["id"], "createdAt": run["created_at"], "lastUpdatedAt": run[updated.unwrap_or("created_at")],
        "ttlMs": ttl_ms, "pollIntervalMs": poll_ms,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A sentence for people about a run in this state.
fn message_of(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "The run is recorded and begins when there is room.",
        RunState::Running => "The run is under way.",
        RunState::WaitingForCompletion => "The run waits for another system to report.",
        RunState::WaitingForInput => "The run waits for a person's answer; the person was sent the question.",
        RunState::PendingApproval => {
            "The run waits for a person's consent; it is decided by the message that the person was sent."
        }
        RunState::Succeeded => "The run has succeeded.",
        RunState::Failed => "The run has failed.",
        RunState::Cancelled => "The run was cancelled.",
        RunState::Expired => "Nobody answered in time, and the run has ended.",
        RunState::Skipped => "The run was skipped, for the reason in its result.",
    }
}
