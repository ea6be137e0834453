//! Suspended agents: runs that wait for people, with the agents in them that wait. Listed, paused, resumed and
//! cancelled.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::run::RunState;
use crate::http::HttpState;
use crate::http::api::runs::{RunView, cancel, missing};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::store::{SuspendedCaller, SuspendedFilter, SuspendedRun};

/// A run that waits for people.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct SuspendedAgent {
    /// Id of the run, by which it is paused, resumed and cancelled.
    pub id: Uuid,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// The run's task, or the conversation that it is of.
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<Uuid>,
    /// `pending_approval` or `waiting_for_input`.
    pub state: RunState,
    /// The agents of the run that wait.
    pub agents: Vec<WaitingAgent>,
    /// Since when it is paused; absent: it is not.
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<DateTime<Utc>>,
    /// When a paused run is resumed by itself.
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumes_at: Option<DateTime<Utc>>,
}

/// An agent that waits for people.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct WaitingAgent {
    /// The agents through which it was called, itself the last; empty: it is the run's own agent, or that of a step of
    /// a pipeline.
    pub delegation_chain: Vec<String>,
    /// Questions for which it waits, and approved calls that are held.
    #[schema(minimum = 1)]
    pub questions: i64,
    /// The instant of the first of them.
    pub since: DateTime<Utc>,
    /// When the first of them expires, or is held no more; of a paused run, if it were resumed now.
    pub expires_at: DateTime<Utc>,
}

impl SuspendedAgent {
    fn of(run: SuspendedRun, now: DateTime<Utc>) -> SuspendedAgent {
        let SuspendedRun { run_id, tenant_id, task_id, state, paused_at, paused_until, agents } = run;
        // what is open of a paused run stands at its latest instant
        let unused = paused_until.map_or_else(Default::default, |until| until - now);
        let agent = |SuspendedCaller { delegation_chain, questions, since, expires_at }| WaitingAgent {
            delegation_chain,
            questions,
            since,
            expires_at: expires_at - unused,
        };
        SuspendedAgent {
            id: run_id,
            tenant_id,
            task_id,
            state,
            agents: agents.into_iter().map(agent).collect(),
            paused_at,
            resumes_at: paused_until,
        }
    }
}

/// List suspended agents
///
/// Runs that wait for people, newest first, each with the agents in it that wait: the run's own, or agents that it has
/// called.
#[utoipa::path(get, path = "/v1/agents/suspended", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<SuspendedAgent>)))]
pub async fn list_suspended(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<SuspendedAgent>>, ApiError> {
    caller.may(Permission::RunsRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let filter = SuspendedFilter { run_id: None, before: page.before, limit: page.fetch() };
    let runs = state.store.list_suspended(&scope, &filter).await?;
    let now = state.clock.now();
    Ok(Json(page.within(runs, |run| run.run_id).map(|run| SuspendedAgent::of(run, now))))
}

/// Pause a suspended agent
///
/// While it is paused nobody is reminded, nothing expires, and no answer is taken. It is resumed by itself after 30
/// days. To pause a paused one changes nothing.
#[utoipa::path(post, path = "/v1/agents/suspended/{id}/pause", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path, description = "Id of the run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = SuspendedAgent),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "It waits for nobody, or was paused 100 times")))]
pub async fn pause_suspended(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    body.refuse_fields().await?;
    let paused = state.store.pause_suspended(&caller.scope, id, &caller.root()).await.map_err(missing)?;
    answer(&state, &caller, paused, &body).await
}

/// Resume a suspended agent
///
/// It waits as before, with as much time left as when it was paused. To resume one that is not paused changes nothing.
#[utoipa::path(post, path = "/v1/agents/suspended/{id}/resume", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path, description = "Id of the run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = SuspendedAgent),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json", description = "It waits for nobody")))]
pub async fn resume_suspended(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    body.refuse_fields().await?;
    let resumed = state.store.resume_suspended(&caller.scope, id, &caller.root()).await.map_err(missing)?;
    answer(&state, &caller, resumed, &body).await
}

/// Cancel a suspended agent
///
/// Cancels its run with all agents that wait in it, and withdraws what they ask.
#[utoipa::path(post, path = "/v1/agents/suspended/{id}/cancel", tag = "runs", security(("bearer" = ["runs:write"])),
    params(("id" = Uuid, Path, description = "Id of the run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = RunView, description = "It is cancelled"),
        (status = 202, body = RunView, description = "It has just gone on, and its worker has been asked to end it"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json", description = "It waits for nobody")))]
pub async fn cancel_suspended(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::RunsWrite, id.of("run")).await?;
    body.refuse_fields().await?;
    let run = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    if !matches!(run.state, RunState::Cancelled | RunState::PendingApproval | RunState::WaitingForInput) {
        let why = format!("the run waits for nobody; it is `{}`", run.state.as_str());
        return Err(ApiError::Conflict(why).into());
    }
    cancel(&state, &caller, id, &body).await
}

async fn answer(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    run: SuspendedRun,
    body: &JsonBody,
) -> Result<Response, EarlyResponse> {
    let view = SuspendedAgent::of(run, state.clock.now());
    body.key.remember_answer(state, caller, StatusCode::OK, view).await
}
