//! Standing grants over HTTP: what people have allowed for good, listed and revoked. They are given with a decision.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::http::request::page::{Items, ListPage};
use crate::http::request::path::Id;
use crate::http::request::query::Query;
use crate::store::{Grant, StoreError};

/// "Always allow this": one tool of one task, with these arguments.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GrantView {
    /// Id of the grant.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The task for which it holds.
    pub task_id: Uuid,
    /// Name of the tool.
    #[schema(example = "send_note")]
    pub tool: String,
    /// Arguments that a call must have with exactly these values; its others are free.
    pub arguments: Value,
    /// How often it may still be used; `null`: as often as it likes.
    #[schema(required)]
    pub uses_left: Option<i64>,
    /// The instant at which it was given.
    pub created_at: DateTime<Utc>,
    /// The person or token that gave it.
    #[schema(example = "recipient:user_123")]
    pub created_by: String,
    /// The instant from which it does not hold.
    pub expires_at: DateTime<Utc>,
    /// The instant at which it was revoked.
    #[schema(required)]
    pub revoked_at: Option<DateTime<Utc>>,
    /// The person or token that revoked it.
    #[schema(required)]
    pub revoked_by: Option<String>,
}

impl GrantView {
    /// The grant as the API shows it.
    pub fn of(grant: Grant) -> GrantView {
        GrantView {
            id: grant.id,
            tenant_id: grant.tenant_id,
            task_id: grant.task_id,
            tool: grant.tool,
            arguments: grant.arguments,
            uses_left: grant.uses_left,
            created_at: grant.created_at,
            created_by: grant.created_by,
            expires_at: grant.expires_at,
            revoked_at: grant.revoked_at,
            revoked_by: grant.revoked_by,
        }
    }
}

/// List standing grants
///
/// With those that have ended. An edit of the task ends its grants, too.
#[utoipa::path(get, path = "/v1/grants", tag = "approvals", security(("bearer" = ["approvals:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"), ("task_id" = Option<Uuid>, Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<GrantView>)))]
pub async fn list_grants(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    mut query: Query,
) -> Result<Json<Items<GrantView>>, ApiError> {
    caller.may(Permission::ApprovalsRead)?;
    let tenant = query.text("tenant_id");
    let task = query.id("task_id");
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrowed(tenant.as_deref())?;
    let grants = state.store.list_grants(&scope, task, page.before, page.fetch()).await?;
    Ok(Json(page.within(grants, |grant| grant.id).map(GrantView::of)))
}

/// Revoke a standing grant
///
/// From then on people are asked again. To revoke it once more changes nothing.
#[utoipa::path(delete, path = "/v1/grants/{id}", tag = "approvals", security(("bearer" = ["approvals:decide"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn revoke_grant(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    id: Id,
    query: Query,
) -> Result<StatusCode, ApiError> {
    caller.may(Permission::ApprovalsDecide)?;
    query.done()?;
    state.store.revoke_grant(&caller.scope, id.of("grant")?, &caller.name()).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "grant")
}
