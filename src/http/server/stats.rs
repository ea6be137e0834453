//! How much there is, and how much waits: figures for operators, and for a tenant of its own things.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::base::token::Permission;
use crate::domain::quota::{Quota, QuotaStanding};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::http::request::query::Query;

/// The figures. A word that is missing counts zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Stats {
    /// Tasks by status.
    #[schema(example = json!({"active": 12, "paused": 1}))]
    pub tasks: BTreeMap<String, i64>,
    /// Runs that are not final: `ready`, `claimed` and `started` in the queue, `parked` while they wait.
    #[schema(example = json!({"ready": 0, "started": 2, "parked": 1}))]
    pub runs: BTreeMap<String, i64>,
    /// Deliveries that are still to be sent.
    pub pending_deliveries: i64,
    /// Of one tenant: what it may have, and how much of that is used; `null` for all tenants.
    #[schema(required)]
    pub quotas: Option<BTreeMap<Quota, QuotaStanding>>,
}

/// Read figures
#[utoipa::path(get, path = "/v1/stats", tag = "operations", security(("bearer" = ["stats:read"])),
    params(("tenant_id" = Option<String>, Query, description = "This tenant's only")),
    responses((status = 200, body = Stats)))]
pub async fn get_stats(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    mut query: Query,
) -> Result<Json<Stats>, ApiError> {
    caller.may(Permission::StatsRead)?;
    let tenant = query.text("tenant_id");
    query.done()?;
    let scope = caller.narrowed(tenant.as_deref())?;
    let quotas = match scope.tenant() {
        Some(tenant) => Some(state.store.quota_usage(tenant).await?.standings),
        None => None,
    };
    Ok(Json(Stats {
        quotas,
        tasks: state.store.count_tasks(&scope).await?.into_iter().collect(),
        runs: state.store.count_runs(&scope).await?.into_iter().collect(),
        pending_deliveries: state.store.count_deliveries(&scope).await?,
    }))
}
