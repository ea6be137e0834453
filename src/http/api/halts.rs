//! Halts over HTTP: the stop switch, and tenants that an operator disables and enables.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::base::id::{Scope, Tenant};
use crate::base::token::Permission;
use crate::domain::halt::{Halt, HaltKind};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Json, JsonBody, Query};
use crate::http::schema;
use crate::store::HaltPage;

/// Longest reason of an order, in characters.
const REASON_LENGTH: usize = 500;

/// A halt that holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Halt)]
pub struct HaltView {
    /// The tenant; `null`: every tenant.
    #[schema(required)]
    pub tenant_id: Option<String>,
    /// Its kind.
    pub kind: HaltKind,
    /// The operator's reason.
    #[schema(required)]
    pub reason: Option<String>,
    /// The operator's name on the record.
    #[schema(example = "token:admin")]
    pub by: String,
    /// The instant of the order.
    pub since: DateTime<Utc>,
}

impl From<Halt> for HaltView {
    fn from(halt: Halt) -> HaltView {
        let Halt { tenant, kind, reason, by, since } = halt;
        HaltView { tenant_id: tenant, kind, reason, by, since }
    }
}

/// The halts that hold for a tenant, or for every tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct HaltsView {
    /// The tenant; `null`: every tenant.
    #[schema(required)]
    pub tenant_id: Option<String>,
    /// Halts of this tenant, and of every tenant. Without any its work goes on.
    pub halts: Vec<HaltView>,
    /// So many more hold than the 200 that are listed.
    pub more_halts: i64,
}

/// The tenants to be stopped or started: `all`, or one.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchOrder {
    /// Every tenant.
    #[serde(default)]
    pub all: bool,
    /// One tenant.
    pub tenant_id: Option<String>,
    /// Reason for the record.
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

impl SwitchOrder {
    /// The tenant; `None`: every tenant.
    fn tenant(&self) -> Result<Option<Tenant>, ApiError> {
        match (self.all, &self.tenant_id) {
            (true, None) => Ok(None),
            (false, Some(named)) => Tenant::new(named).map(Some).map_err(|why| ApiError::invalid("/tenant_id", why)),
            _ => Err(ApiError::invalid("", "say either `\"all\": true` or `tenant_id`")),
        }
    }
}

/// Stop the work of all tenants, or of one
///
/// For an admin token. Within a second, on every instance, nothing of theirs begins any more: no turn, call, poll or
/// run. Fires are recorded as `skipped` with the reason `stopped`. Calls of models that are under way are cut off, the
/// results of other calls are recorded, and their runs are `queued` again. It holds over restarts, until `/v1/start`.
/// What is stopped already stays so.
#[utoipa::path(post, path = "/v1/stop", tag = "operations", security(("bearer" = ["*"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = SwitchOrder, responses((status = 200, body = HaltsView)))]
pub async fn stop_work(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    let order = switch(&state, &caller, &body).await?;
    let (tenant, reason) = (order.tenant()?, reason_of(order.reason.as_deref())?);
    state.store.halt(HaltKind::Stopped, tenant.as_ref().map(Tenant::as_str), reason, &caller.name()).await?;
    answer(&state, &caller, &body, tenant).await
}

/// Start what was stopped
///
/// For an admin token. Lifts `/v1/stop` for all, or for one tenant: a tenant that was stopped by its name stays so when
/// all are started. Queued runs go on; fires that were skipped meanwhile are not caught up.
#[utoipa::path(post, path = "/v1/start", tag = "operations", security(("bearer" = ["*"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = SwitchOrder, responses((status = 200, body = HaltsView)))]
pub async fn start_work(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    let order = switch(&state, &caller, &body).await?;
    let tenant = order.tenant()?;
    state.store.lift_halt(HaltKind::Stopped, tenant.as_ref().map(Tenant::as_str), &caller.name()).await?;
    answer(&state, &caller, &body, tenant).await
}

/// Disable a tenant
///
/// For an admin token. Fires of its tasks are recorded as `skipped` with the reason `tenant_disabled`, its queued runs
/// and its polls do not begin, and its tokens may read alone. A tenant that is disabled stays so.
#[utoipa::path(post, path = "/v1/tenants/{tenant_id}/disable", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = Option<schema::Disable>, responses((status = 200, body = HaltsView)))]
pub async fn disable_tenant(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let tenant = operator_names(&state, &caller, &id, &body).await?;
    let schema::Disable { reason } = body.read_or_empty().await?;
    let reason = reason_of(reason.as_deref())?;
    state.store.halt(HaltKind::TenantDisabled, Some(tenant.as_str()), reason, &caller.name()).await?;
    answer(&state, &caller, &body, Some(tenant)).await
}

/// Enable a tenant
///
/// For an admin token. Its tasks fire from now on, its queued runs go on, and what was skipped is not caught up.
#[utoipa::path(post, path = "/v1/tenants/{tenant_id}/enable", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 200, body = HaltsView)))]
pub async fn enable_tenant(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let tenant = operator_names(&state, &caller, &id, &body).await?;
    state.store.lift_halt(HaltKind::TenantDisabled, Some(tenant.as_str()), &caller.name()).await?;
    answer(&state, &caller, &body, Some(tenant)).await
}

/// Read whether a tenant is halted
///
/// Answers by whom, why and since when it is stopped or disabled.
#[utoipa::path(get, path = "/v1/tenants/{tenant_id}", tag = "operations", security(("bearer" = ["stats:read"])),
    params(("tenant_id" = String, Path)),
    responses((status = 200, body = HaltsView)))]
pub async fn get_tenant(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<HaltsView>, ApiError> {
    caller.may(Permission::StatsRead)?;
    query.done()?;
    Ok(Json(halts_of(&state, Some(caller.sees(&id.0)?)).await?))
}

/// The order of an operator about one or all tenants, unless it was answered before.
async fn switch(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    body: &JsonBody,
) -> Result<SwitchOrder, EarlyResponse> {
    caller.is_operator()?;
    body.key.replay_if_repeated(state, caller).await?;
    Ok(body.read().await?)
}

/// The tenant that an operator names in the address, unless the request was answered before.
async fn operator_names(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    id: &Id,
    body: &JsonBody,
) -> Result<Tenant, EarlyResponse> {
    caller.is_operator()?;
    let tenant = caller.makes_for(&id.0)?;
    body.key.replay_if_repeated(state, caller).await?;
    Ok(tenant)
}

/// The reason that an operator gave, if it is one.
pub(super) fn reason_of(reason: Option<&str>) -> Result<Option<&str>, ApiError> {
    match reason {
        Some(reason) if reason.chars().count() > REASON_LENGTH => {
            Err(ApiError::invalid("/reason", format!("must not be longer than {REASON_LENGTH} characters")))
        }
        reason => Ok(reason.filter(|reason| !reason.trim().is_empty())),
    }
}

/// Answers what holds for the tenant now, and remembers the answer.
async fn answer(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    body: &JsonBody,
    tenant: Option<Tenant>,
) -> Result<Response, EarlyResponse> {
    let view = halts_of(state, tenant).await?;
    body.key.remember_answer(state, caller, StatusCode::OK, view).await
}

async fn halts_of(state: &HttpState, tenant: Option<Tenant>) -> Result<HaltsView, ApiError> {
    let tenant_id = tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
    let scope = tenant.map_or(Scope::Every, Scope::Only);
    let HaltPage { halts, more } = state.store.list_halts(&scope).await?;
    Ok(HaltsView { tenant_id, halts: halts.into_iter().map(HaltView::from).collect(), more_halts: more })
}
