//! The audit record over HTTP: who did what. It is read here and nowhere written; `reveille audit verify` checks it.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::http::request::page::{Items, ListPage};
use crate::http::request::query::Query;
use crate::store::{AuditEntry, AuditFilter};

/// One act, as it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct AuditView {
    /// Id of the entry, a UUIDv7.
    pub id: Uuid,
    /// The tenant that it concerns; `*` for all.
    pub tenant_id: String,
    /// The instant of the act.
    pub at: DateTime<Utc>,
    /// The actor: `recipient:<id>`, `token:<id>` or `service`.
    #[schema(example = "recipient:user_123")]
    pub actor: String,
    /// By which way: `link`, `api` or `service`.
    #[schema(example = "link")]
    pub via: String,
    /// The act, such as `approval.decided`.
    #[schema(example = "approval.approved")]
    pub action: String,
    /// Type of the thing that was changed.
    #[schema(example = "approval")]
    pub subject_type: String,
    /// Id of the thing that was changed.
    pub subject_id: Uuid,
    /// Hashes of the proposal that was shown and of the call that was decided.
    pub body: Value,
    /// Its place in the chain; `null` until it is sealed, within seconds.
    #[schema(required)]
    pub position: Option<i64>,
    /// Of the entry and all before it.
    #[schema(required)]
    pub hash: Option<String>,
}

impl AuditView {
    fn of(entry: AuditEntry) -> AuditView {
        AuditView {
            id: entry.id,
            tenant_id: entry.tenant_id,
            at: entry.at,
            actor: entry.actor,
            via: entry.via,
            action: entry.action,
            subject_type: entry.subject_type,
            subject_id: entry.subject_id,
            body: entry.body,
            position: entry.position,
            hash: entry.hash,
        }
    }
}

/// List audit entries
///
/// The decisions about approvals: by which actor, over which way, what was shown and what ran.
#[utoipa::path(get, path = "/v1/audit", tag = "operations", security(("bearer" = ["audit:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("action" = Option<String>, Query, example = "approval.approved"),
        ("subject_id" = Option<Uuid>, Query, description = "The thing that was changed, such as an approval"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<AuditView>)))]
pub async fn list_audit_entries(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    mut query: Query,
) -> Result<Json<Items<AuditView>>, ApiError> {
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
    let scope = caller.narrowed(tenant.as_deref())?;
    let entries = state.store.audit_page(&scope, &filter).await?;
    Ok(Json(page.within(entries, |entry| entry.id).map(AuditView::of)))
}
