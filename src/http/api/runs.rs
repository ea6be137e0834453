//! Runs over HTTP: list, read, transcript, cancel, retry.

pub mod input;
pub mod server_question;
pub mod settling;
mod summary;
pub mod suspended;

use std::collections::BTreeSet;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{self, Scope};
use crate::base::token::Permission;
use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::run::{ReactLoopResult, Run, RunOrigin, RunState, TranscriptEntry, Usage};
use crate::domain::task::Task;
use crate::http::HttpState;
use crate::http::api::approvals::ApprovalOfRun;
use crate::http::api::runs::input::InputRequest;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{
    AuthenticatedCaller, Call, EarlyResponse, ForwardPage, Id, Items, Json, JsonBody, ListPage, Query,
};
use crate::store::{ApprovalFilter, RunAccount, RunFilter, StoreError};

pub use summary::RunSummary;

/// Why a run is cancelled by its owner.
const CANCELLED: &str = "cancelled by its owner";

/// Characters of the beginning by which runs are looked for.
const LONGEST_SEARCH: usize = 200;

/// The approvals of a run that are named with it, the newest ones.
const APPROVALS: i64 = 200;

/// A run as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Run)]
pub struct RunView {
    /// The run, whole.
    #[serde(flatten)]
    pub run: Run,
    /// Questions of the run to people, oldest first.
    pub approvals: Vec<ApprovalOfRun>,
    /// Questions for what its calls lack that are open, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub inputs: Vec<InputRequest>,
    /// The account of its models and tools, with up to 500 calls of tools in the order in which they ended; absent
    /// where it has used none, and in answers to changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ReactLoopResult>,
}

impl RunView {
    /// The run without its approvals.
    pub fn of(run: Run) -> RunView {
        RunView { run, approvals: Vec::new(), inputs: Vec::new(), result: None }
    }

    /// A run that is about to be recorded, as it will be read.
    pub fn queued(
        task: &Task,
        id: Uuid,
        fire_key: String,
        scheduled_for: DateTime<Utc>,
        now: DateTime<Utc>,
        input: Option<Value>,
    ) -> RunView {
        RunView::of(Run {
            origin: RunOrigin::Request,
            input,
            ..Run::queued(task.id, id, &task.tenant_id, fire_key, task.spec.trigger.kind(), scheduled_for, now)
        })
    }
}

/// List runs
///
/// In short: without inputs and causes, with the first 1,000 characters of each output; the whole is in the run itself.
/// A page ends early where it is large. One of a `state` that runs end in, or of a `q` with which many begin, looks
/// through 3,000 runs at most: it may have few items, or none, and still go on at `next_cursor`.
#[utoipa::path(get, path = "/v1/runs", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("task_id" = Option<Uuid>, Query), ("state" = Option<RunState>, Query),
        ("since" = Option<DateTime<Utc>>, Query, description = "Recorded at or after"),
        ("until" = Option<DateTime<Utc>>, Query, description = "Recorded before"),
        ("q" = Option<String>, Query, max_length = 200, example = "s:2026-12-24T15", description =
            "Beginning of the id, of the fire key with its letter, or of the name of the task in upper or lower case. \
             Eight digits of an id or more are looked for among ids alone"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<RunSummary>)))]
pub async fn list_runs(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<RunSummary>>, ApiError> {
    caller.may(Permission::RunsRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    let filter = RunFilter {
        tenant: None,
        task_id: query.id("task_id"),
        state: query.word("state", &RunState::ALL.map(|state| (state.as_str(), state))),
        since: query.instant("since"),
        until: query.instant("until"),
        q: query.text("q"),
        before: page.before,
        limit: page.fetch(),
    };
    if filter.q.as_ref().is_some_and(|q| q.chars().count() > LONGEST_SEARCH) {
        query.fault("q", format!("must be at most {LONGEST_SEARCH} characters"));
    }
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let runs = page.within(state.store.run_summaries(&scope, &filter).await?, |summary| summary.run.id);
    let tasks: BTreeSet<Uuid> = runs.items.iter().filter_map(|summary| summary.run.task_id).collect();
    let names = state.store.task_names(&scope, &Vec::from_iter(tasks)).await?;
    Ok(Json(runs.map(|summary| RunSummary::of(summary, &names))))
}

/// Read a run
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = RunView)))]
pub async fn get_run(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<RunView>, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let run = state.store.get_run(&caller.scope, id.of("run")?).await.map_err(missing)?;
    let asked = ApprovalFilter { run_id: Some(run.id), limit: APPROVALS, ..ApprovalFilter::default() };
    let page = state.store.approvals_page(&caller.scope, &asked).await?;
    let is_cut = page.is_cut || page.rows.len() as i64 == APPROVALS;
    let mut approvals = page.rows;
    approvals.reverse();
    if is_cut {
        // questions that are open are told, however many there were since
        let mut open = pending_questions(&state, &caller.scope, run.id).await?;
        open.retain(|question| approvals.iter().all(|told| told.id != question.id));
        approvals.splice(0..0, open);
    }
    let inputs = InputRequest::of_open(&approvals);
    let approvals = approvals.into_iter().map(ApprovalOfRun::of).collect();
    let result = result_of(&run, state.store.run_account(&caller.scope, run.id).await?);
    Ok(Json(RunView { run, approvals, inputs, result }))
}

/// The result of a run as far as it has come; `None` where it has used neither models nor tools.
fn result_of(run: &Run, account: RunAccount) -> Option<ReactLoopResult> {
    (run.usage != Usage::default() || !account.tool_records.is_empty()).then(|| account_of(run, account))
}

/// The result of a run as far as it has come.
pub(in crate::http) fn account_of(run: &Run, account: RunAccount) -> ReactLoopResult {
    let RunAccount { execution_ms, tool_records, tool_warnings } = account;
    ReactLoopResult {
        response: run.output.clone().unwrap_or_default(),
        finish: run.finish,
        turns: run.usage.turns,
        duration_ms: execution_ms,
        token_usage: run.usage.into(),
        tool_calls: tool_records,
        tool_warnings,
        usage: run.usage,
    }
}

/// The questions for whose answers a run waits, oldest first.
pub(in crate::http) async fn pending_questions(
    state: &HttpState,
    scope: &Scope,
    run_id: Uuid,
) -> Result<Vec<Approval>, ApiError> {
    let status = Some(ApprovalStatus::Pending);
    let asked = ApprovalFilter { run_id: Some(run_id), status, limit: APPROVALS, ..ApprovalFilter::default() };
    let mut approvals = state.store.approvals_page(scope, &asked).await?.rows;
    approvals.reverse();
    Ok(approvals)
}

/// Read the transcript of a run
///
/// The messages between orchestrator, model and tools, in order.
#[utoipa::path(get, path = "/v1/runs/{id}/transcript", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<TranscriptEntry>),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "A newer release has written it")))]
pub async fn get_transcript(
    Call(state, caller): Call,
    id: Id,
    mut query: Query,
) -> Result<Json<Items<TranscriptEntry>>, ApiError> {
    caller.may(Permission::RunsRead)?;
    let page = ForwardPage::of(&mut query);
    query.done()?;
    let run = state.store.get_run(&caller.scope, id.of("run")?).await.map_err(missing)?;
    Ok(Json(
        page.items(state.store.transcript_page(&caller.scope, run.id, page.from, page.fetch()).await?, |entry| {
            entry.seq
        }),
    ))
}

/// Cancel a run
///
/// A run that has not been started is cancelled at once; a running one is asked to end, and ends soon. To cancel a
/// cancelled run changes nothing.
#[utoipa::path(post, path = "/v1/runs/{id}/cancel", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = RunView, description = "It is cancelled"),
        (status = 202, body = RunView, description = "Its worker has been asked to end it"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json", description = "It is final already")))]
pub async fn cancel_run(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    body.refuse_fields().await?;
    cancel(&state, &caller, id, &body).await
}

/// Cancels a run, and answers it as it is then.
async fn cancel(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    id: Uuid,
    body: &JsonBody,
) -> Result<Response, EarlyResponse> {
    let before = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    if before.state == RunState::Cancelled {
        return body.key.remember_answer(state, caller, StatusCode::OK, RunView::of(before)).await;
    }
    state.store.cancel_run(&caller.scope, id, CANCELLED).await.map_err(missing)?;
    let run = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    let status = if run.state == RunState::Cancelled { StatusCode::OK } else { StatusCode::ACCEPTED };
    body.key.remember_answer(state, caller, status, RunView::of(run)).await
}

/// Run a run again
///
/// Makes a new run, `retry_of` the final one, which stays as it is.
#[utoipa::path(post, path = "/v1/runs/{id}/retry", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 201, body = RunView),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json", description = "It is not final yet")))]
pub async fn retry_run(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    body.refuse_fields().await?;
    let now = state.clock.now();
    let old = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    let no_task = || ApiError::Conflict("the run has no task, so it can't be run again".into());
    let task = state.store.find_task(&caller.scope, old.task_id.ok_or_else(no_task)?).await?;
    let task = task.ok_or_else(|| ApiError::Conflict("the task of the run was deleted".into()))?;
    let run_id = id::new_id(now);
    let view = |fire_key: &str| {
        let key = fire_key.to_owned();
        let mut view = RunView::queued(&task, run_id, key, old.scheduled_for, now, old.input.clone());
        view.run.missed = old.earlier_instants();
        view.run.retry_of = Some(id);
        view.run.event_ids = old.event_ids.clone();
        view.run.cause = old.cause.clone();
        view
    };
    let told = |fire_key: &str| {
        body.key.idempotency_in_place(&caller, StatusCode::CREATED, &view(fire_key)).map_err(response_not_serializable)
    };
    let by = caller.root();
    let answer = state.store.retry_run(&caller.scope, id, run_id, now, told, Some(&by)).await.map_err(missing)?;
    let place = [(header::LOCATION, format!("/v1/runs/{run_id}"))];
    replayed_or(answer, |fire_key| (StatusCode::CREATED, place, Json(view(&fire_key))).into_response())
}

pub(in crate::http) fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "run")
}

/// An answer that can't be written down, met inside the store's call.
pub(in crate::http) fn response_not_serializable(error: ApiError) -> StoreError {
    StoreError::Corrupt(format!("the answer can't be remembered: {error:?}"))
}
