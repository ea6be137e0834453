//! Why a run ran, was skipped or waits, in sentences; and why people were asked about its calls.
//!
//! [`unfinished_run`] says where a run stands that is not over, [`task`] explains tasks, [`rules`] what their options
//! decide; each is a function over what was read. It tells what is stored, and judges nothing anew: reasons are those
//! that held when they were recorded.

pub mod event;
pub mod instant;
pub mod rules;
mod skip_tally;
pub mod task;
pub mod unfinished_run;

use std::collections::HashMap;

use chrono::SecondsFormat;
use serde::Serialize;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::approval::{Approval, ApprovalStatus, ServerQuestion};
use crate::domain::notification::{Delivery, dedupe};
use crate::domain::quota::REASON_QUOTA;
use crate::domain::run::outcome::REASON_BUDGET;
use crate::domain::run::{Cause, Run, RunFault, RunFinish, RunOrigin, RunState, TranscriptEntry, TranscriptMessage};
use crate::domain::task::{Notify, Route, Task};
use crate::http::HttpState;
use crate::http::api::runs::missing;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, Id, Json, Query};
use crate::store::{ApprovalFilter, DeliveryFilter, RunLimits, StoreError};

/// Entries of a transcript that are looked through for calls, and approvals that are read.
const LOOKED_THROUGH: i64 = 1_000;

/// Why a run is where it is.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Explanation {
    /// Id of the run.
    pub run_id: Uuid,
    /// State of the run.
    pub state: RunState,
    /// Cause, state and reason of the run, one sentence each.
    pub sentences: Vec<String>,
    /// Conditions that would have to hold, or happen, before it goes on; empty where it is over, or nothing is in its
    /// way.
    pub needs: Vec<String>,
    /// Its tool calls, in order.
    pub calls: Vec<CallExplained>,
}

/// Why a call ran, waits or did not run.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct CallExplained {
    /// The model's turn within the run.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// The question about it; `null`: nobody was asked.
    #[schema(required)]
    pub approval_id: Option<Uuid>,
    /// Status of the approval; absent where nobody was asked.
    #[schema(required)]
    pub status: Option<ApprovalStatus>,
    /// Outcome of the instant.
    pub sentence: String,
    /// Why people were asked, or nobody was: each rule that had a part in it, in order.
    pub reasons: Vec<String>,
}

/// Explain a run
///
/// Why it ran, was skipped or waits and what would have to hold, and for each of its calls why people were asked about
/// it.
#[utoipa::path(get, path = "/v1/runs/{id}/explain", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path)),
    responses((status = 200, body = Explanation),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "A newer release has written its transcript")))]
pub async fn explain_run(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<Explanation>, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let run = state.store.get_run(&caller.scope, id.of("run")?).await.map_err(missing)?;
    let asked = ApprovalFilter { run_id: Some(run.id), limit: LOOKED_THROUGH, ..ApprovalFilter::default() };
    let mut approvals = state.store.approvals_page(&caller.scope, &asked).await?.rows;
    approvals.reverse();
    let entries = state.store.transcript_page(&caller.scope, run.id, 0, LOOKED_THROUGH).await?.rows;
    let calls = calls(&entries, &approvals);
    let task = task_of(&state, &caller, &run).await?;
    let place = state.store.locate_run(&caller.scope, run.id, run.task_id).await?;
    let own = state.store.quotas_of(&run.tenant_id).await?.concurrent_runs.map(|most| most as i64);
    let limits = RunLimits { per_tenant: own.or(state.runs_at_once.per_tenant), ..state.runs_at_once };
    let now = state.clock.now();
    let facts = unfinished_run::StandingFacts { run: &run, task: task.as_ref(), place: &place, limits, now };
    let mut sentences = sentences(&run, &approvals, unfinished_run::history_sentences(&facts));
    let needs = unfinished_run::pending_conditions(&facts);
    if run.state.is_final()
        && let Some(task) = task
    {
        let about = DeliveryFilter { run_id: Some(run.id), limit: LOOKED_THROUGH, ..DeliveryFilter::default() };
        let summaries = state.store.delivery_summaries(&caller.scope, &about).await?.rows;
        let mut deliveries: Vec<_> = summaries.into_iter().map(|summary| summary.delivery).collect();
        deliveries.reverse();
        sentences.extend(notified_recipients((run.id, run.state), &task, &deliveries));
    }
    Ok(Json(Explanation { run_id: run.id, state: run.state, sentences, needs, calls }))
}

async fn task_of(state: &HttpState, caller: &AuthenticatedCaller, run: &Run) -> Result<Option<Task>, ApiError> {
    let Some(id) = run.task_id else { return Ok(None) };
    match state.store.find_task(&caller.scope, id).await {
        Ok(task) => Ok(task),
        // the record of the run is told all the same
        Err(StoreError::Corrupt(why)) => {
            tracing::error!(task_id = %id, why, "a task can't be read, its run is explained without it");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The recipients who were notified of its end, or why nobody was, by the task's present settings.
fn notified_recipients((run, state): (Uuid, RunState), task: &Task, deliveries: &[Delivery]) -> Option<String> {
    let key = dedupe::run_result(run);
    let sent: Vec<String> = deliveries
        .iter()
        .filter(|delivery| delivery.dedupe_key == key)
        .map(|delivery| format!("{} ({})", delivery.channel, delivery.state.as_str()))
        .collect();
    if !sent.is_empty() {
        return Some(format!("Its end was told by {}.", sent.join(", then ")));
    }
    let why = match (state, task.spec.notify) {
        _ if task.spec.output.route == Route::Nobody => "its task tells its results to nobody",
        (RunState::Succeeded | RunState::Failed, Notify::Never) => "its task wants nothing told (notify: never)",
        (RunState::Succeeded, Notify::OnFailure) => "its task wants failures told only (notify: on_failure)",
        (RunState::Succeeded, Notify::OnChange) => {
            "its output is the one that was told last (notify: on_change), or there is no way to reach anybody"
        }
        (RunState::Failed, _) => "the same failure had been told already, or there is no way to reach anybody",
        (RunState::Succeeded, Notify::Always) => "there was no way to reach anybody, or the run told it itself",
        _ => return None,
    };
    Some(format!("Nobody was told of its end: {why}."))
}

fn sentences(run: &Run, approvals: &[Approval], course: Vec<String>) -> Vec<String> {
    if let Some(fires) = run.tallied_fires() {
        return skip_tally::sentences(run, fires);
    }
    let mut sentences = vec![cause_sentence(run)];
    if let Some(missed) = &run.missed {
        let (from, to) = (rfc3339(missed.from), rfc3339(missed.to));
        let count = missed.count.map_or("too many to count".into(), |count| count.to_string());
        sentences.push(format!("It stands for the instants from {from} to {to} that were missed ({count})."));
    }
    if let Some(run) = run.retry_of {
        sentences.push(format!("It repeats the run {run}."));
    }
    sentences.extend(course);
    sentences.push(state_sentence(run, approvals));
    sentences.extend(run.reason.as_deref().map(|reason| why(run.state, reason)));
    if let Some(other) = run.blocked_by {
        sentences.push(format!("The run {other} was in the way."));
    }
    if let Some(fault) = &run.error {
        sentences.push(format!("The fault: {} ({}).", fault.message.trim_end_matches('.'), fault.code));
    }
    sentences
}

/// The cause of the run.
fn cause_sentence(run: &Run) -> String {
    let at = rfc3339(run.scheduled_for);
    match &run.cause {
        Some(Cause::Event { event, events }) => {
            let text = |name: &str| event.get(name).and_then(|value| value.as_str()).unwrap_or("?").to_owned();
            let more = match events.len() {
                0 | 1 => String::new(),
                count => format!(", the last of {count}"),
            };
            format!("The event `{}` of `{}` made the task fire{more}.", text("type"), text("source"))
        }
        Some(Cause::Condition { expression, value, .. }) => {
            format!("The condition `{expression}` made the task fire; the poll saw {value}.")
        }
        None if run.origin == RunOrigin::Request => format!("Somebody asked for it at {at}."),
        None if run.origin == RunOrigin::Backfill => format!("A backfill asked for the instant {at}."),
        None => format!("The {} of the task was due at {at}.", run.trigger_type),
    }
}

/// Where the run stands.
fn state_sentence(run: &Run, approvals: &[Approval]) -> String {
    let open = approvals.iter().filter(|approval| approval.status == ApprovalStatus::Pending);
    let ends =
        |at: Option<chrono::DateTime<chrono::Utc>>| at.map_or(String::new(), |at| format!(" at {}", rfc3339(at)));
    match run.state {
        RunState::Queued => "It waits for its instant, for a worker, or for a run before it.".into(),
        RunState::Running => format!("It is being executed since{}.", ends(run.started_at).replacen(" at", "", 1)),
        RunState::WaitingForInput => match open.clone().find_map(|approval| approval.proposal.server.as_ref()) {
            Some(asking) => format!("It waits until a person answers the server `{}`.", asking.server),
            None => "It waits until a person supplies what is missing.".into(),
        },
        RunState::PendingApproval => match open.clone().map(|approval| approval.expires_at).min() {
            Some(until) => {
                format!("It waits for people to decide on {} of its calls, until {}.", open.count(), rfc3339(until))
            }
            None => match held_until(approvals) {
                Some(until) => format!("A call of it is held until {}, and may be stopped until then.", rfc3339(until)),
                None => "All that people were asked is decided; it goes on soon.".into(),
            },
        },
        RunState::WaitingForCompletion => "It waits until a foreign runtime reports.".into(),
        RunState::Succeeded if run.finish == Some(RunFinish::MaxTurns) => {
            let at = ends(run.finished_at);
            format!("It succeeded{at}, but its agent was stopped at its limit of turns and asked for what it had.")
        }
        RunState::Succeeded => format!("It succeeded{}.", ends(run.finished_at)),
        RunState::Failed => format!("It failed{}, after {} attempts.", ends(run.finished_at), run.attempt),
        RunState::Cancelled => format!("It was cancelled{}.", ends(run.finished_at)),
        RunState::Expired => format!("It expired{}: nobody answered in time.", ends(run.finished_at)),
        RunState::Skipped => "It was recorded and not executed.".into(),
    }
}

/// Until when the next call waits that is only held.
fn held_until(approvals: &[Approval]) -> Option<chrono::DateTime<chrono::Utc>> {
    let held = approvals.iter().filter(|approval| approval.status.allows() && approval.execution_started_at.is_none());
    held.filter_map(|approval| approval.hold_until).min()
}

/// The recorded reason of a run in this state, in a sentence.
fn why(state: RunState, reason: &str) -> String {
    match reason_sentence(state, reason) {
        Some(sentence) => format!("The reason: {sentence} (`{reason}`)."),
        None => format!("The reason: {reason}."),
    }
}

/// Why a run has no answer: its error, or why it was skipped.
pub(in crate::http) fn missing_answer(run: &Run) -> Option<RunFault> {
    let is_skipped = run.state == RunState::Skipped;
    let of_reason = |reason: &str| {
        let state = run.state.as_str();
        let sentence = reason_sentence(run.state, reason).map_or_else(|| format!("the run is {state}"), str::to_owned);
        RunFault::new(reason, sentence)
    };
    run.error.clone().or_else(|| run.reason.as_deref().filter(|_| is_skipped).map(of_reason))
}

/// The word for a reason, in a sentence.
fn reason_sentence(state: RunState, reason: &str) -> Option<&'static str> {
    Some(match reason {
        "safety" => "the message has words that the operator lets no model be asked with",
        "rate" => "the tenant has sent models as many messages within this minute as it may",
        "tier" => "the tenant has sent models as many messages within this minute as its tier lets it",
        REASON_QUOTA => "the tenant had stored all that it may, or had used up its fires of the minute",
        REASON_BUDGET => "there was no budget left for it",
        "stopped" if state == RunState::Skipped => "the operator had stopped the work of its tenant, or of all",
        "tenant_disabled" => "the operator had disabled its tenant",
        "overlap" => "another run of the task was being executed, and the task's overlap rule says to skip",
        "missed_window" => "it was due longer ago than the task's catch-up window allows",
        "catch_up_skip" => "it was missed, and the task says that what was missed is not caught up",
        "catch_up_limit" => "more was missed than is caught up at once",
        "max_runs" => "the task has had all the runs that it may have",
        "excluded" => "the instant is excluded by the task's trigger",
        "ended" => "the task's trigger had ended",
        "paused" => "the task was paused",
        "paused_by_agent" => "an agent paused the task",
        "edited" => "the task was edited meanwhile",
        "superseded" => "a later run took its place",
        "cooldown" => "the condition had fired a short while before",
        "fan_out" => "the event had fired as many other tasks as one event may",
        "filtered" => "a filter of its pipeline said no",
        "stopped" => "its pipeline stopped there",
        "told" => "its pipeline told the result itself",
        "task_deleted" => "the task was deleted",
        "too_old" => "the event had happened longer ago than the task wants",
        "throttled" => "the task had fired as often as its `throttle` lets it",
        "duplicate" => "an event with the same `dedup` key had fired the task a short while before",
        "filter_error" => "an expression of the task's trigger could not be evaluated over the event",
        "buffer_full" => "the paused task had buffered as many events as it may",
        "dropped" => "somebody dropped the events that the paused task had buffered",
        "completion_timeout" => "the foreign runtime did not report in time",
        _ => return None,
    })
}

/// Every call of the transcript with the question about it, and questions whose call is not written down yet.
fn calls(entries: &[TranscriptEntry], approvals: &[Approval]) -> Vec<CallExplained> {
    let mut asked: HashMap<(i64, &str), &Approval> = HashMap::new();
    // in order: the latest question about a call is the one that counts
    for approval in approvals {
        asked.insert((approval.turn, approval.call_id.as_str()), approval);
    }
    let mut answered = HashMap::new();
    for entry in entries {
        if let TranscriptMessage::Tool { call_id, is_error, reasons, .. } = &entry.message {
            answered.insert((entry.turn, call_id.as_str()), (*is_error, reasons));
        }
    }
    let mut found = Vec::new();
    for entry in entries {
        let TranscriptMessage::Assistant { tool_calls, .. } = &entry.message else { continue };
        for call in tool_calls {
            let place = (entry.turn, call.id.as_str());
            let approval = asked.remove(&place);
            found.push(explained(entry.turn, &call.id, &call.name, approval, answered.get(&place).copied()));
        }
    }
    let mut rest: Vec<&Approval> = asked.into_values().collect();
    rest.sort_by_key(|approval| approval.id);
    found
        .extend(rest.into_iter().map(|approval| {
            explained(approval.turn, &approval.call_id, &approval.proposal.tool, Some(approval), None)
        }));
    found
}

fn explained(
    turn: i64,
    call: &str,
    tool: &str,
    approval: Option<&Approval>,
    answered: Option<(bool, &Vec<String>)>,
) -> CallExplained {
    // an agent that is a step of a pipeline is called by no model, and its call has no answer in the transcript
    let outcome = approval.and_then(|approval| approval.outcome.as_ref()).map(|outcome| outcome.is_error);
    let ended = match answered.map(|(failed, _)| failed).or(outcome) {
        Some(true) => "It was answered with an error.",
        Some(false) => "It was executed.",
        None => "It has no result yet.",
    };
    let sentence = match approval {
        None => format!("Nobody was asked. {ended}"),
        Some(approval) => format!("{} {ended}", decided(approval)),
    };
    CallExplained {
        turn,
        call_id: call.to_owned(),
        tool: tool.to_owned(),
        approval_id: approval.map(|approval| approval.id),
        status: approval.map(|approval| approval.status),
        sentence,
        reasons: match approval {
            Some(approval) => approval.proposal.reasons.clone(),
            None => answered.map(|(_, reasons)| reasons.clone()).unwrap_or_default(),
        },
    }
}

/// Whether a person has answered the server that asks in the middle of a call, and what that did to the call.
fn answered_server(asking: &ServerQuestion, approval: &Approval) -> String {
    let who = approval.decided_by.as_deref().unwrap_or("the service");
    let name = &asking.server;
    match approval.status {
        ApprovalStatus::Pending => {
            let until = rfc3339(approval.expires_at);
            format!("The server `{name}` asks in the middle of it, and waits for a person until {until}.")
        }
        ApprovalStatus::Approved => format!("The server `{name}` asked; {who} declined, and the call went on."),
        ApprovalStatus::Edited => format!("The server `{name}` asked; {who} answered, and the call went on."),
        ApprovalStatus::Cancelled => format!("The server `{name}` asked; {who} stopped the call."),
        ApprovalStatus::Expired => format!("The server `{name}` asked; nobody answered in time, and the call ended."),
    }
}

fn decided(approval: &Approval) -> String {
    if let Some(asking) = &approval.proposal.server {
        return answered_server(asking, approval);
    }
    let who = approval.decided_by.as_deref().unwrap_or("the service");
    if let (true, true, Some(until)) =
        (approval.proposal.is_auto_approved(), approval.status.allows(), approval.hold_until)
    {
        return format!("Nobody was asked; it could be stopped until {}.", rfc3339(until));
    }
    match approval.status {
        ApprovalStatus::Pending => format!("A person has to agree, until {}.", rfc3339(approval.expires_at)),
        ApprovalStatus::Approved => format!("{who} approved it."),
        ApprovalStatus::Edited => format!("{who} approved it with other arguments."),
        ApprovalStatus::Cancelled => format!("{who} rejected it."),
        ApprovalStatus::Expired => "Nobody approved it in time.".into(),
    }
}

fn rfc3339(at: chrono::DateTime<chrono::Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::notification::DeliveryState;

    #[test]
    fn explanation_names_the_notified_recipients_or_why_there_are_none() {
        let now = "2027-03-01T08:00:00Z".parse().expect("an instant");
        let id = Uuid::from_u128(2);
        let sentences = |state: RunState, notify: Notify, sent: &[(&str, DeliveryState)]| {
            let spec = serde_json::from_value(json!({
                "trigger": { "type": "schedule", "interval": "1m" }, "executor": "test", "action": {}, "notify": notify,
                "max_runs": null, "timeout_seconds": 600, "retry": { "max_attempts": 1, "backoff_seconds": 1 },
                "pause_after_failures": null, "metadata": {},
            }))
            .expect("a spec");
            let tenant = crate::base::id::Tenant::new("ann").expect("a tenant");
            let draft = crate::domain::task::Draft { tenant, key: None, name: "a task".into(), spec };
            let task = Task::new(Uuid::from_u128(1), draft, now).expect("a task").0;
            let deliveries: Vec<Delivery> = sent.iter().map(|(channel, state)| delivery(id, channel, *state)).collect();
            notified_recipients((id, state), &task, &deliveries)
        };
        let email = ("email", DeliveryState::Failed);
        assert_eq!(
            sentences(RunState::Succeeded, Notify::Always, &[email, ("sms", DeliveryState::Delivered)]).as_deref(),
            Some("Its end was told by email (failed), then sms (delivered).")
        );
        let why = |state, notify| sentences(state, notify, &[]).expect("a sentence");
        assert!(why(RunState::Succeeded, Notify::OnChange).contains("the one that was told last (notify: on_change)"));
        assert!(why(RunState::Succeeded, Notify::OnFailure).contains("notify: on_failure"));
        assert!(why(RunState::Failed, Notify::Never).contains("notify: never"));
        assert!(why(RunState::Failed, Notify::OnFailure).contains("had been told already"));
        assert_eq!(sentences(RunState::Cancelled, Notify::Always, &[]), None);
    }

    #[test]
    fn question_of_a_server_is_told_with_what_a_person_has_answered() {
        let now = "2027-03-01T08:00:00Z".parse().expect("an instant");
        let mut asked = crate::domain::approval::test_question("Deploy?", now, now + chrono::TimeDelta::minutes(30));
        let server = json!({
            "server": "github", "parts": [],
            "continuation": { "kind": "continue", "round": 1, "request_state": "c2Vj" },
        });
        asked.proposal.server = Some(serde_json::from_value(server).expect("a question"));
        asked.decided_by = Some("recipient:ann".into());
        let mut told = |status: ApprovalStatus| {
            asked.status = status;
            explained(1, "c", "github.deploy", Some(&asked), None).sentence
        };
        let until = "The server `github` asks in the middle of it, and waits for a person until 2027-03-01T08:30:00Z. \
                     It has no result yet.";
        assert_eq!(told(ApprovalStatus::Pending), until);
        for (status, expected) in [
            (ApprovalStatus::Approved, "recipient:ann declined, and the call went on."),
            (ApprovalStatus::Edited, "recipient:ann answered, and the call went on."),
            (ApprovalStatus::Cancelled, "recipient:ann stopped the call."),
            (ApprovalStatus::Expired, "nobody answered in time, and the call ended."),
        ] {
            let sentence = told(status);
            assert!(sentence.starts_with(&format!("The server `github` asked; {expected}")), "{sentence}");
            assert!(!sentence.contains("c2Vj"), "{sentence}");
        }
    }

    fn delivery(run: Uuid, channel: &str, state: DeliveryState) -> Delivery {
        Delivery {
            id: Uuid::from_u128(3),
            channel: channel.into(),
            dedupe_key: dedupe::run_result(run),
            run_id: Some(run),
            state,
            ..Delivery::sample(crate::domain::notification::MessageKind::Result)
        }
    }
}
