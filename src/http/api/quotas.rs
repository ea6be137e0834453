//! Quotas over HTTP: what a tenant may have and has, and what an admin says for one tenant.

pub mod budgets;

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::quota::{Overrides, Quota, QuotaStanding};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Id, Json, JsonBody, Query};

/// The quotas of a tenant as they are answered.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QuotasView {
    /// The tenant with these quotas.
    pub tenant_id: String,
    /// Of each quota what holds, and how much of it is used.
    pub quotas: BTreeMap<Quota, QuotaStanding>,
    /// Quotas of this tenant alone; a null is as `[quotas]` has it.
    pub overrides: Overrides,
}

impl QuotasView {
    async fn read(state: &HttpState, tenant: &Tenant) -> Result<QuotasView, ApiError> {
        let usage = state.store.quota_usage(tenant.as_str()).await?.with_streams(state.streams.open_of(tenant));
        Ok(QuotasView { tenant_id: tenant.as_str().to_owned(), quotas: usage.standings, overrides: usage.overrides })
    }
}

/// Read the quotas of a tenant
///
/// Answers its quotas and its usage. `event_tasks_per_source` shows the source with the most tasks,
/// `stored_bytes` what was stored until a few seconds ago, `streams` those that are open on the instance that answers:
/// the quota is one of each instance. A limit that is null is none.
#[utoipa::path(get, path = "/v1/tenants/{tenant_id}/quotas", tag = "operations", security(("bearer" = ["stats:read"])),
    params(("tenant_id" = String, Path)), responses((status = 200, body = QuotasView)))]
pub async fn get_quotas(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<QuotasView>, ApiError> {
    caller.may(Permission::StatsRead)?;
    query.done()?;
    let tenant = caller.sees(&id.0)?;
    Ok(Json(QuotasView::read(&state, &tenant).await?))
}

/// Say what a tenant may have
///
/// For an admin token. Replaces the overrides of this tenant; a quota that is left out or null is as `[quotas]` has it.
/// Numbers of tasks hold at once, the others within seconds, on every instance. Things that a tenant has already stay,
/// whatever the number: also runs that are under way, and streams that are open.
#[utoipa::path(put, path = "/v1/tenants/{tenant_id}/quotas", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path)), request_body = Overrides,
    responses((status = 200, body = QuotasView)))]
pub async fn put_quotas(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Json<QuotasView>, ApiError> {
    let tenant = of_an_admin(&caller, &id)?;
    let read = |value: Value| {
        let mut faults = ValidationErrors::new();
        let overrides: Overrides = typed::read(&value, "", &mut faults).unwrap_or_default();
        overrides.check(&mut faults);
        faults.into_result(overrides)
    };
    let overrides = body.read_with(read).await?;
    state.store.put_quotas(tenant.as_str(), &overrides, &caller.name()).await?;
    Ok(Json(QuotasView::read(&state, &tenant).await?))
}

/// Let a tenant have what everybody may
///
/// For an admin token. The overrides of this tenant are removed.
#[utoipa::path(delete, path = "/v1/tenants/{tenant_id}/quotas", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path)), responses((status = 204)))]
pub async fn reset_quotas(Call(state, caller): Call, id: Id) -> Result<StatusCode, ApiError> {
    let tenant = of_an_admin(&caller, &id)?;
    state.store.reset_quotas(tenant.as_str(), &caller.name()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The tenant that is named; a tenant's own token has no say in its quotas.
fn of_an_admin(caller: &AuthenticatedCaller, id: &Id) -> Result<Tenant, ApiError> {
    caller.may(Permission::All)?;
    let tenant = caller.sees(&id.0)?;
    caller.is_operator()?;
    Ok(tenant)
}
