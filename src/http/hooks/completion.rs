//! The end of a run that a foreign runtime executes, reported by it.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::domain::notification::{RunEnd, RunNotification};
use crate::domain::run::{Run, RunEvent, RunState};
use crate::domain::task::{Task, credentials_of};
use crate::executor::webhook::{Completion, RuntimeReport};
use crate::http::HttpState;
use crate::http::api::runs::{RunView, missing};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{Call, EarlyResponse, Id, Json, JsonBody};
use crate::ports::vault::credentials::UsedSecrets;
use crate::store::{RunCompletion, StoreError, StoredAnswer, log_end_outside_execution};

/// A runtime may be faster than its own 202 is written down here: so long is that waited for.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

/// Complete a run
///
/// For runs of the executor `webhook` that wait for completion. Takes the token that was in the request to the runtime
/// (`data.completion.token`), or one with `runs:write`. Secrets of the run's credentials are taken out of its texts.
/// The first report counts; a second one is a conflict.
#[utoipa::path(post, path = "/v1/runs/{id}/complete", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = Completion,
    responses((status = 200, body = RunView),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "It does not wait for completion, or not any more")))]
pub async fn complete_run(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    let report = body.read_with(|value| RuntimeReport::parse(&value)).await?;
    let run = wait_for_run(&state, &caller.scope, id).await.map_err(missing)?;
    let task = match run.task_id {
        None => None,
        Some(task) => state.store.find_task(&caller.scope, task).await?,
    };
    let named = task.as_ref().map_or_else(Vec::new, |task| credentials_of(&task.spec));
    let used_secrets = UsedSecrets::load_for_run(&state.store, &state.vault, &run, &named).await?;
    let report = report.redacted(&used_secrets).await;
    let completion = completion(&state, &run, task.as_ref(), report).await?;
    let now = state.clock.now();
    let mut ended = run;
    ended.state = RunState::WaitingForCompletion
        .on(completion.event)
        .map_err(|illegal| ApiError::Internal { log: illegal.to_string() })?;
    ended.output.clone_from(&completion.output);
    ended.error.clone_from(&completion.error);
    ended.finished_at = Some(now);
    let failed = ended.state == RunState::Failed;
    let view = RunView::of(ended);
    let (once, view) = body.key.idempotency(&state, &caller, StatusCode::OK, view).await?;
    let answer = state.store.complete_run(&caller.scope, id, &completion, now, once.as_ref()).await.map_err(missing)?;
    if matches!(answer, StoredAnswer::Done(())) {
        let why = completion.error.as_ref().map(|error| error.code.as_str());
        log_end_outside_execution(&view.run, task.as_ref(), view.run.state, why, now);
    }
    if let (true, Some(task)) = (failed, &task)
        && let Some(limit) = task.spec.pause_after_failures
        && let Err(error) = state.store.pause_if_failing(task.id, limit).await
    {
        tracing::warn!(task_id = %task.id, %error, "failures could not be counted");
    }
    replayed_or(answer, |()| (StatusCode::OK, Json(view)).into_response())
}

/// The run, once it waits, or if it won't.
async fn wait_for_run(state: &HttpState, scope: &Scope, id: Uuid) -> Result<Run, StoreError> {
    let began = state.clock.elapsed();
    loop {
        let run = state.store.get_run(scope, id).await?;
        if run.state != RunState::Running || state.clock.elapsed().saturating_sub(began) >= PATIENCE {
            return Ok(run);
        }
        pause(LOOK).await;
    }
}

async fn completion(
    state: &HttpState,
    run: &Run,
    task: Option<&Task>,
    report: RuntimeReport,
) -> Result<RunCompletion, ApiError> {
    let recipient = state.store.recipient_to_tell(&run.tenant_id).await?;
    let (event, output, error) = match report {
        RuntimeReport::Succeeded { output } => (RunEvent::Succeed, Some(output), None),
        RuntimeReport::Failed { error } => (RunEvent::Fail, None, Some(error)),
    };
    let end = match &error {
        Some(fault) => RunEnd::Failed { code: &fault.code },
        None => RunEnd::Succeeded { output: output.as_deref() },
    };
    let tells = RunNotification::of(run, task, recipient.as_ref(), end);
    Ok(RunCompletion { event, output, error, reason: None, tells })
}
