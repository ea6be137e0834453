//! Overrides of the approval matrix over HTTP: set for a while, listed, taken back.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::base::expr::Language;
use crate::base::id;
use crate::base::invalid::{ValidationErrors, did_you_mean};
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::approval::policy::VARIABLES;
use crate::domain::approval::stored_override::{LONGEST_OVERRIDE, OVERRIDE_TTL};
use crate::domain::approval::{ApprovalLevel, ApprovalOverride};
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::http::schema;
use crate::store::{OverrideFilter, StoreError};

/// Set an override
///
/// Says for the calls of a tool whether a person is asked first, in place of the matrix: for all runs of a tenant, for
/// one configured agent or for one task. It outweighs the configuration of the same tenant, agent or task, and it takes
/// the place of the override that they have for the tool. It holds for 30 days where nothing else is said. An edit of
/// the task ends one that lets its calls through. A tool that always asks does so all the same.
#[utoipa::path(post, path = "/v1/approval-overrides", tag = "approvals", security(("bearer" = ["approvals:decide"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::NewApprovalOverride,
    responses((status = 201, body = ApprovalOverride),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The tenant has as many overrides as it may have")))]
pub async fn set_approval_override(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.may(Permission::ApprovalsDecide)?;
    body.key.replay_if_repeated(&state, &caller).await?;
    let wanted = wanted(&body, &state, &caller).await?;
    let (once, wanted) = body.key.idempotency(&state, &caller, StatusCode::CREATED, wanted).await?;
    let answer = state.store.set_approval_override(&wanted, once.as_ref()).await.map_err(|error| match error {
        StoreError::NotFound => ApiError::invalid("/task_id", "the tenant has no such task"),
        other => ApiError::of_store(other, "override"),
    })?;
    let place = [(header::LOCATION, format!("/v1/approval-overrides/{}", wanted.id))];
    replayed_or(answer, |()| (StatusCode::CREATED, place, Json(wanted)).into_response())
}

/// List overrides
///
/// Those that hold, newest first.
#[utoipa::path(get, path = "/v1/approval-overrides", tag = "approvals", security(("bearer" = ["approvals:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"), ("task_id" = Option<Uuid>, Query),
        ("agent" = Option<String>, Query, description = "Of this configured agent only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<ApprovalOverride>)))]
pub async fn list_approval_overrides(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<ApprovalOverride>>, ApiError> {
    caller.may(Permission::ApprovalsRead)?;
    let (tenant, task_id, agent) = (query.text("tenant_id"), query.id("task_id"), query.text("agent"));
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let filter = OverrideFilter { task_id, agent, before: page.before, limit: page.fetch() };
    let found = state.store.list_approval_overrides(&scope, &filter).await?;
    Ok(Json(page.within(found, |stored| stored.id)))
}

/// Take an override back
///
/// From the next call on the tool is judged without it.
#[utoipa::path(delete, path = "/v1/approval-overrides/{id}", tag = "approvals",
    security(("bearer" = ["approvals:decide"])), params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn remove_approval_override(Call(state, caller): Call, id: Id, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::ApprovalsDecide)?;
    query.done()?;
    let removed = state.store.remove_approval_override(&caller.scope, id.of("override")?, &caller.name()).await;
    removed.map_err(|error| ApiError::of_store(error, "override"))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The override that is asked for, checked against what there is.
async fn wanted(
    body: &JsonBody,
    state: &HttpState,
    caller: &AuthenticatedCaller,
) -> Result<ApprovalOverride, ApiError> {
    let reader = caller.clone();
    let read = move |value: Value| {
        let mut faults = ValidationErrors::new();
        let Some(asked) = typed::read::<schema::NewApprovalOverride>(&value, "", &mut faults) else {
            return Err(faults);
        };
        let tenant = reader.acts_for(&value).map_err(|more| faults.0.extend(more.0)).ok();
        Ok((asked, tenant, faults))
    };
    let (asked, tenant, mut faults) = body.read_with(read).await?;
    check_tool(&asked, state, &mut faults);
    if asked.task_id.is_some() && asked.agent.is_some() {
        faults.add("/agent", "an override is for a task or for an agent; leave one of them out");
    }
    if let Some(agent) = &asked.agent {
        let known: Vec<&str> = state.pipeline.agents().collect();
        if !known.contains(&agent.as_str()) {
            let near = did_you_mean(agent, known);
            faults.add("/agent", format!("there is no agent `{agent}` in [[agents]]{near}"));
        }
    }
    if let Some(when) = asked.when.clone() {
        let read = move || Language::default().read(&when, &VARIABLES).err();
        if let Some(error) = state.compute_for(caller.computes_for(), read).await? {
            faults.add("/when", error.to_string());
        }
    }
    let now = state.clock.now();
    let expires_at = expiry(asked.expires_at, now, &mut faults);
    let wanted = ApprovalOverride {
        id: id::new_id(now),
        tenant_id: tenant.map_or(String::new(), |tenant| tenant.as_str().to_owned()),
        task_id: asked.task_id,
        agent: asked.agent,
        tool: asked.tool,
        gate: asked.gate,
        when: asked.when,
        created_at: now,
        created_by: caller.name(),
        expires_at,
    };
    faults.into_result(wanted).map_err(ApiError::Invalid)
}

/// A rule for a tool that is not there, or for one that always asks, would silently decide nothing. One for a tool that
/// an MCP server does not list now is taken: the server may be away.
fn check_tool(asked: &schema::NewApprovalOverride, state: &HttpState, faults: &mut ValidationErrors) {
    let (tool, registry) = (&asked.tool, state.tools.current());
    let tools = registry.definitions().map(|tool| (tool.name.as_str(), tool.requires_confirmation));
    let agents = state.pipeline.configured_agents().map(|agent| (agent.name, agent.needs_approval));
    let callable: Vec<(&str, bool)> = tools.chain(agents).collect();
    match callable.iter().find(|(name, _)| name == tool) {
        None if registry.is_of_server(tool) => {}
        None => {
            let near = did_you_mean(tool, callable.iter().map(|(name, _)| *name));
            faults.add("/tool", format!("unknown tool `{tool}`{near}"));
        }
        Some((_, true)) if asked.gate == ApprovalLevel::Auto => {
            faults.add("/gate", format!("`{tool}` always asks for confirmation, whatever is said here"));
        }
        Some(_) => {}
    }
}

fn expiry(wanted: Option<DateTime<Utc>>, now: DateTime<Utc>, faults: &mut ValidationErrors) -> DateTime<Utc> {
    let at = wanted.unwrap_or(now + OVERRIDE_TTL);
    if at <= now {
        faults.add("/expires_at", "must be in the future");
    } else if at > now + LONGEST_OVERRIDE {
        faults.add("/expires_at", format!("must be within {} days", LONGEST_OVERRIDE.num_days()));
    }
    at
}
