//! Tasks over HTTP: create, read, change, pause, run, backfill, delete.

pub mod import;
mod kept_events;

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{self, Scope};
use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::domain::task::change::TaskChange;
use crate::domain::task::{Draft, LastRun, Task, TaskStatus, TaskView};
use crate::domain::trigger;
use crate::domain::trigger::condition::ConditionState;
use crate::http::api::halts::reason_of;
use crate::http::api::runs::RunView;
use crate::http::api::tasks::kept_events::missing_field;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::http::{HttpState, schema};
use crate::store::{NewTask, RunRequest, StoreError, TaskFilter};

/// How often an edit without a version is tried against edits of others.
const EDITS: usize = 5;
/// Instants that one backfill may run.
const BACKFILL: usize = 1_000;

/// The runs that a backfill recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Backfill {
    /// Its runs have fire keys that begin with `b:` and this id.
    pub id: Uuid,
    /// Id of the task.
    pub task_id: Uuid,
    /// The instants that are run, oldest first.
    pub fires: Vec<DateTime<Utc>>,
}

/// A task of a list, which is written as a [`TaskView`]. That is made where the list is written: a page of them is
/// long.
pub struct ListedTask {
    task: Task,
    last_run: Option<LastRun>,
    condition: ConditionState,
    now: DateTime<Utc>,
}

impl Serialize for ListedTask {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.task.view_with(self.last_run.clone(), &self.condition, self.now).serialize(to)
    }
}

/// Create a task
///
/// An event trigger is held against the newest kept events of its source and type, for a token that may read events:
/// `missing` is a field that the trigger looks for and that none of them has.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe"),
        ("dry_run" = Option<bool>, Query, description = "Answer what would be made, with 200, and make nothing")),
    request_body = schema::NewTaskSchema,
    responses((status = 201, body = TaskView), (status = 200, body = TaskView, description = "A dry run"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The tenant has a task with this key")))]
pub async fn create_task(
    Call(state, caller): Call,
    mut query: Query,
    body: JsonBody,
) -> Result<Response, EarlyResponse> {
    caller.may(Permission::TasksWrite)?;
    let is_dry = dry_run(&mut query);
    query.done()?;
    body.key.replay_if_repeated(&state, &caller).await?;
    let value = body.json().await?;
    let (shared, to_read, now) = (state.clone(), caller.clone(), state.clock.now());
    let read = move || read_new(&shared, &to_read, &value, now);
    let (task, nominal) = state.compute_for(caller.computes_for(), read).await??;
    let view = TaskView { missing: missing_field(&state, &caller, &task).await, ..task.view(None) };
    if is_dry {
        return Ok(Json(view).into_response());
    }
    let (once, view) = body.key.idempotency(&state, &caller, StatusCode::CREATED, view).await?;
    let answer = state.store.create_task(&task, nominal, once.as_ref()).await?;
    let place = [(header::LOCATION, format!("/v1/tasks/{}", task.id))];
    replayed_or(answer, |()| (StatusCode::CREATED, place, Json(view)).into_response())
}

/// Reads a new task, and asks its trigger for the first instant. That computes, so it is done on a computing thread.
pub(in crate::http) fn read_new(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    value: &Value,
    now: DateTime<Utc>,
) -> Result<NewTask, ValidationErrors> {
    let draft = Draft::parse(caller.acts_for(value), value, &state.validator, now)?;
    let (task, next) = Task::new(id::new_id(now), draft, now).map_err(|fault| ValidationErrors(vec![fault]))?;
    Ok((task, next.map(|next| next.nominal)))
}

/// List tasks
///
/// A page of a `status`, a `trigger_type` or a `q` looks through 5,000 tasks at most: it may have few items, or none,
/// and still go on at `next_cursor`.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", security(("bearer" = ["tasks:read"])), params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("status" = Option<TaskStatus>, Query), ("trigger_type" = Option<String>, Query, example = "schedule"),
        ("key" = Option<String>, Query, description = "The one with this stable key; of each tenant, for an admin"),
        ("q" = Option<String>, Query, description = "Part of the name, in any case"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<TaskView>)))]
pub async fn list_tasks(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<ListedTask>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let tenant = query.text("tenant_id");
    let words = TaskStatus::ALL.map(|status| (status.as_str(), status));
    let kinds: Vec<_> = trigger::KINDS.iter().map(|kind| (*kind, *kind)).collect();
    let page = ListPage::of(&mut query);
    let filter = TaskFilter {
        tenant: None,
        key: query.text("key"),
        status: query.word("status", &words),
        trigger_type: query.word("trigger_type", &kinds).map(str::to_owned),
        q: query.text("q"),
        before: page.before,
        limit: page.fetch(),
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let tasks = page.within(state.store.tasks_page(&scope, &filter).await?, |task| task.id);
    let ids: Vec<Uuid> = tasks.items.iter().map(|task| task.id).collect();
    let runs = state.store.last_runs(&scope, &ids).await?;
    let mut states = condition_states(&state, &scope, &tasks.items).await?;
    let now = state.clock.now();
    Ok(Json(tasks.map(|task| {
        let last_run = runs.iter().find(|run| run.task_id == Some(task.id)).map(LastRun::of);
        let condition = states.remove(&task.id).unwrap_or_default();
        ListedTask { task, last_run, condition, now }
    })))
}

/// Read a task
#[utoipa::path(get, path = "/v1/tasks/{id}", tag = "tasks", security(("bearer" = ["tasks:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = TaskView)))]
pub async fn get_task(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<TaskView>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let task = state.store.get_task(&caller.scope, id.of("task")?).await.map_err(missing)?;
    shown(&state, &caller, &task).await
}

/// Change a task
///
/// A field that is present replaces the whole field; null stands for its default. With a `version`, nothing is changed
/// if the task has another by now. Another event trigger is held against kept events as that of a new task.
#[utoipa::path(patch, path = "/v1/tasks/{id}", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path),
        ("dry_run" = Option<bool>, Query, description = "Answer what would come of it, and change nothing")),
    request_body = schema::TaskPatch,
    responses((status = 200, body = TaskView), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "The task has another version")))]
pub async fn update_task(
    Call(state, caller): Call,
    id: Id,
    mut query: Query,
    body: JsonBody,
) -> Result<Json<TaskView>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    let is_dry = dry_run(&mut query);
    query.done()?;
    let (id, patch) = (id.of("task")?, Arc::new(body.json().await?));
    let version = version(&patch)?;
    for _ in 0..EDITS {
        let task = state.store.get_task(&caller.scope, id).await.map_err(missing)?;
        if version.is_some_and(|version| version != task.version) {
            return Err(ApiError::Conflict(format!("the task has version {} by now", task.version)));
        }
        if patch.get("tenant_id").is_some_and(|named| named.as_str() != Some(&task.tenant_id)) {
            return Err(ApiError::invalid("/tenant_id", "can't be changed: a task stays with its tenant"));
        }
        let (shared, before, written) = (state.clone(), task.clone(), Arc::clone(&patch));
        let read = move || Draft::patch(&before, &written, &shared.validator, shared.clock.now());
        let Draft { name, spec, .. } = state.compute_for(caller.computes_for(), read).await??;
        let is_other_trigger = spec.trigger != task.spec.trigger;
        let edited = Task { name, spec, ..task };
        let field = if is_other_trigger { missing_field(&state, &caller, &edited).await } else { None };
        if is_dry {
            let Json(view) = shown(&state, &caller, &edited).await?;
            return Ok(Json(TaskView { missing: field, ..view }));
        }
        let Task { version: read_version, name, spec, .. } = edited;
        let edit = TaskChange::Edit { version: read_version, name, spec: Box::new(spec) };
        match state.store.change_task(&caller.scope, id, &edit).await {
            // somebody else was faster; without a version the last one wins
            Err(StoreError::Conflict(_)) if version.is_none() => continue,
            changed => {
                let Json(view) = shown(&state, &caller, &changed.map_err(missing)?).await?;
                return Ok(Json(TaskView { missing: field, ..view }));
            }
        }
    }
    Err(ApiError::Conflict("the task is being changed by others all the time; try again".into()))
}

/// Delete a task
///
/// Its runs stay as a record; those that have not been started are taken back.
#[utoipa::path(delete, path = "/v1/tasks/{id}", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn delete_task(Call(state, caller): Call, id: Id) -> Result<StatusCode, ApiError> {
    caller.may(Permission::TasksWrite)?;
    state.store.delete_task(&caller.scope, id.of("task")?).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a task
///
/// Nothing fires until it is resumed. A task that is paused stays so.
#[utoipa::path(post, path = "/v1/tasks/{id}/pause", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")), request_body = Option<schema::Pause>,
    responses((status = 200, body = TaskView), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "The task is completed, or disabled")))]
pub async fn pause_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::TasksWrite, id.of("task")).await?;
    let schema::Pause { reason } = body.read_or_empty().await?;
    let changed = state.store.change_task(&caller.scope, id, &TaskChange::Pause { reason }).await;
    let Json(view) = shown(&state, &caller, &changed.map_err(missing)?).await?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, view).await
}

/// Resume a task
///
/// Fires that it missed while it was paused are not caught up, unless its trigger says so. Events that it has
/// buffered run, or are dropped.
#[utoipa::path(post, path = "/v1/tasks/{id}/resume", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")), request_body = Option<schema::Resume>,
    responses((status = 200, body = TaskView), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "The task is completed, or disabled")))]
pub async fn resume_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::TasksWrite, id.of("task")).await?;
    let schema::Resume { buffered_events } = body.read_or_empty().await?;
    let change = match buffered_events.as_deref() {
        None | Some("run") => TaskChange::Resume,
        Some("drop") => TaskChange::ResumeDropping,
        Some(_) => return Err(ApiError::invalid("/buffered_events", "must be `run` or `drop`").into()),
    };
    let changed = state.store.change_task(&caller.scope, id, &change).await;
    let Json(view) = shown(&state, &caller, &changed.map_err(missing)?).await?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, view).await
}

/// Disable a task
///
/// For an admin token. Nothing of it fires until it is enabled; its owner can neither resume it nor mend it. A task
/// that is disabled so stays as it is.
#[utoipa::path(post, path = "/v1/tasks/{id}/disable", tag = "tasks", security(("bearer" = ["*"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")), request_body = Option<schema::Disable>,
    responses((status = 200, body = TaskView), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "The task is completed")))]
pub async fn disable_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.is_operator()?;
    let id = body.key.begin(&state, &caller, Permission::All, id.of("task")).await?;
    let schema::Disable { reason } = body.read_or_empty().await?;
    let reason = reason_of(reason.as_deref())?.map(str::to_owned);
    let disabled = state.store.disable_task_for(id, reason, &caller.name()).await;
    let Json(view) = shown(&state, &caller, &disabled.map_err(missing)?).await?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, view).await
}

/// Enable a task
///
/// For an admin token. A disabled task is active from now on, whoever disabled it, and catches nothing up. Another one
/// stays as it is.
#[utoipa::path(post, path = "/v1/tasks/{id}/enable", tag = "tasks", security(("bearer" = ["*"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = TaskView),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The task is being changed by others all the time")))]
pub async fn enable_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.is_operator()?;
    let id = body.key.begin(&state, &caller, Permission::All, id.of("task")).await?;
    let enabled = state.store.enable_task(id, &caller.name()).await;
    let Json(view) = shown(&state, &caller, &enabled.map_err(missing)?).await?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, view).await
}

/// Run a task now
///
/// Whatever its status and limits. `input` is told to the executor.
#[utoipa::path(post, path = "/v1/tasks/{id}/run", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path), ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = Option<schema::RunNow>, responses((status = 201, body = RunView)))]
pub async fn run_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::TasksWrite, id.of("task")).await?;
    let schema::RunNow { input } = body.read_or_empty().await?;
    let task = state.store.get_task(&caller.scope, id).await.map_err(missing)?;
    let now = state.clock.now();
    let run_id = id::new_id(now);
    let view = RunView::queued(&task, run_id, format!("m:{run_id}"), now, now, input.clone());
    let (once, view) = body.key.idempotency(&state, &caller, StatusCode::CREATED, view).await?;
    let request = RunRequest { input, requested_by: Some(caller.root()), ..RunRequest::default() };
    let answer = state.store.run_now(&caller.scope, id, run_id, request, now, once.as_ref()).await.map_err(missing)?;
    let place = [(header::LOCATION, format!("/v1/runs/{}", view.run.id))];
    replayed_or(answer, |()| (StatusCode::CREATED, place, Json(view)).into_response())
}

/// Run past instants of a task
///
/// One run for each instant of its schedule from `from` up to, not including, `to`; at most 1,000.
#[utoipa::path(post, path = "/v1/tasks/{id}/backfill", tag = "tasks", security(("bearer" = ["tasks:write"])),
    params(("id" = Uuid, Path), ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::BackfillRange, responses((status = 202, body = Backfill)))]
pub async fn backfill_task(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let task_id = body.key.begin(&state, &caller, Permission::TasksWrite, id.of("task")).await?;
    let now = state.clock.now();
    let (from, to) = range(body.read().await?, now)?;
    let task = state.store.get_task(&caller.scope, task_id).await.map_err(missing)?;
    let (tenant, trigger, anchor) = (task.tenant_id, task.spec.trigger, task.anchor_at);
    let listed = state.compute_for(&tenant, move || trigger.between(from, to, anchor, BACKFILL + 1)).await?;
    let fires = listed.map_err(|fault| ValidationErrors(vec![fault]))?;
    if fires.len() > BACKFILL {
        let message = format!("there are more than {BACKFILL} instants; take a shorter range");
        return Err(ApiError::invalid("/to", message).into());
    }
    let backfill = Backfill { id: id::new_id(now), task_id, fires };
    let (once, backfill) = body.key.idempotency(&state, &caller, StatusCode::ACCEPTED, backfill).await?;
    let by = caller.root();
    let answer =
        state.store.backfill(&caller.scope, task_id, backfill.id, &backfill.fires, once.as_ref(), Some(&by)).await;
    replayed_or(answer.map_err(missing)?, |()| (StatusCode::ACCEPTED, Json(backfill)).into_response())
}

/// The task as it is shown, with its newest run.
async fn shown(state: &HttpState, caller: &AuthenticatedCaller, task: &Task) -> Result<Json<TaskView>, ApiError> {
    let runs = state.store.last_runs(&caller.scope, &[task.id]).await?;
    let states = condition_states(state, &caller.scope, std::slice::from_ref(task)).await?;
    let condition = states.get(&task.id).cloned().unwrap_or_default();
    Ok(Json(task.view_with(runs.first().map(LastRun::of), &condition, state.clock.now())))
}

/// Where the conditions among these tasks stand.
async fn condition_states(
    state: &HttpState,
    scope: &Scope,
    tasks: &[Task],
) -> Result<HashMap<Uuid, ConditionState>, ApiError> {
    let conditions = tasks.iter().filter(|task| task.spec.trigger.condition().is_some());
    let ids: Vec<Uuid> = conditions.map(|task| task.id).collect();
    Ok(state.store.condition_states(scope, &ids).await?)
}

fn dry_run(query: &mut Query) -> bool {
    query.word("dry_run", &[("true", true), ("false", false)]).unwrap_or_default()
}

pub(in crate::http) fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "task")
}

fn version(patch: &Value) -> Result<Option<i64>, ApiError> {
    match patch.get("version") {
        None | Some(Value::Null) => Ok(None),
        Some(version) => match version.as_i64() {
            Some(version) => Ok(Some(version)),
            None => Err(ApiError::invalid("/version", "must be the whole number that the task was answered with")),
        },
    }
}

fn range(asked: schema::BackfillRange, now: DateTime<Utc>) -> Result<(DateTime<Utc>, DateTime<Utc>), ApiError> {
    match (asked.from, asked.to) {
        (from, to) if from >= to => Err(ApiError::invalid("/from", "must be before `to`")),
        (_, to) if to > now => Err(ApiError::invalid("/to", "must not be in the future")),
        range => Ok(range),
    }
}
