//! The audit record over HTTP: who did what. It is read here and nowhere written; `reveille audit verify` checks it.

use crate::base::token::Permission;
use crate::http::error::ApiError;
use crate::http::request::{Call, Items, Json, ListPage, Query};
use crate::store::{AuditEntry, AuditFilter};

/// List audit entries
///
/// The decisions about approvals: by which actor, over which way, what was shown and what ran.
#[utoipa::path(get, path = "/v1/audit", tag = "operations", security(("bearer" = ["audit:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("action" = Option<String>, Query, example = "approval.approved"),
        ("subject_id" = Option<Uuid>, Query, description = "The thing that was changed, such as an approval"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<AuditEntry>)))]
pub async fn list_audit_entries(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<AuditEntry>>, ApiError> {
    caller.may(Permission::AuditRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    let filter = AuditFilter {
        tenant: None,
        action: query.text("action"),
        subject_id: query.id("subject_id"),
        before: page.before,
        limit: page.fetch(),
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let entries = state.store.audit_page(&scope, &filter).await?;
    Ok(Json(page.within(entries, |entry| entry.id)))
}
