//! Standing grants over HTTP: what people have allowed for good, listed and revoked. They are given with a decision.

use axum::http::StatusCode;

use crate::base::token::Permission;
use crate::http::error::ApiError;
use crate::http::request::{Call, Id, Items, Json, ListPage, Query};
use crate::store::{Grant, StoreError};

/// List standing grants
///
/// With those that have ended. An edit of the task ends its grants, too.
#[utoipa::path(get, path = "/v1/grants", tag = "approvals", security(("bearer" = ["approvals:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"), ("task_id" = Option<Uuid>, Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<Grant>)))]
pub async fn list_grants(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<Grant>>, ApiError> {
    caller.may(Permission::ApprovalsRead)?;
    let tenant = query.text("tenant_id");
    let task = query.id("task_id");
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let grants = state.store.list_grants(&scope, task, page.before, page.fetch()).await?;
    Ok(Json(page.within(grants, |grant| grant.id)))
}

/// Revoke a standing grant
///
/// From then on people are asked again. To revoke it once more changes nothing.
#[utoipa::path(delete, path = "/v1/grants/{id}", tag = "approvals", security(("bearer" = ["approvals:decide"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn revoke_grant(Call(state, caller): Call, id: Id, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::ApprovalsDecide)?;
    query.done()?;
    state.store.revoke_grant(&caller.scope, id.of("grant")?, &caller.name()).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "grant")
}
