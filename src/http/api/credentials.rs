//! Credentials over HTTP: put, shown without their documents, deleted; who used them; master keys changed.
//!
//! A document goes in and never comes out. The answers are stored sealed.

mod keys;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;

use crate::base::id::{Scope, Tenant};
use crate::base::token::Permission;
use crate::domain::credential::{
    Credential, CredentialDraft, CredentialStatus, CredentialUse, NewCredential, Reference,
};
use crate::domain::task::DependentTask;
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, Items, Json, JsonBody, ListPage, Pair, Query};
use crate::ports::vault::credentials::{SaveFault, check_reference, credential_to_store, replace};
use crate::store::{CredentialFilter, StoreError, StoredCredential, UseFilter};

pub use keys::*;

/// A credential with the tasks that name it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct CredentialView {
    /// The credential, without its document.
    #[serde(flatten)]
    pub credential: Credential,
    /// Tasks that name it, or a declared tool that is sent with it, by name: a thousand at most.
    pub tasks: Vec<DependentTask>,
}

/// A credential as it was written, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct SavedCredentialView {
    /// The credential after the write.
    #[serde(flatten)]
    pub view: CredentialView,
    /// Tasks that were paused for want of it, and go on: the first 20.
    pub resumed: Vec<DependentTask>,
    /// How many more tasks go on after these, one after the other within moments; absent where there are none.
    #[serde(skip_serializing_if = "is_none")]
    pub resuming: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// List credentials
///
/// Their documents are never shown.
#[utoipa::path(get, path = "/v1/credentials", tag = "credentials", security(("bearer" = ["credentials:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("service" = Option<String>, Query, description = "Of this service only"),
        ("status" = Option<CredentialStatus>, Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<Credential>)))]
pub async fn list_credentials(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<Credential>>, ApiError> {
    caller.may(Permission::CredentialsRead)?;
    let tenant = query.text("tenant_id");
    let service = query.text("service");
    let status = query.word("status", &CredentialStatus::ALL.map(|status| (status.as_str(), status)));
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let filter = CredentialFilter { tenant: None, service, status, before: page.before, limit: page.fetch() };
    let found = state.store.list_credentials(&scope, &filter).await?;
    Ok(Json(page.within(found, |credential| credential.id)))
}

/// Read a credential
///
/// All of it but its document, and the tasks that name it. An admin names the tenant.
#[utoipa::path(get, path = "/v1/credentials/{service}/{account_name}", tag = "credentials",
    security(("bearer" = ["credentials:read"])),
    params(("service" = String, Path), ("account_name" = String, Path),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the credential; needed with an admin token")),
    responses((status = 200, body = CredentialView)))]
pub async fn get_credential(
    Call(state, caller): Call,
    name: Pair,
    query: Query,
) -> Result<Json<CredentialView>, ApiError> {
    caller.may(Permission::CredentialsRead)?;
    let (tenant, reference) = named(&caller, name, query)?;
    let stored = read(&state, &caller.scope, &tenant, &reference).await?;
    Ok(Json(with_tasks(&state, &caller.scope, stored).await?))
}

/// Write a credential
///
/// Replaces it whole; a document that is left out is kept. It then goes nowhere that it did not go before: hosts that
/// the stored ones don't cover, and another `provider`, `token_url` or `client_id`, need the document again (422), and
/// what was written meanwhile is not overwritten (409). With a document it is active again, whatever was wrong with the
/// one before; tasks that were paused for want of it go on. A reference to it is `service`, which means the account
/// `primary`, or `service/account_name`. It is put into requests to its `hosts` alone, and a redactor takes it out of
/// what comes back.
#[utoipa::path(put, path = "/v1/credentials/{service}/{account_name}", tag = "credentials",
    security(("bearer" = ["credentials:write"])),
    params(("service" = String, Path), ("account_name" = String, Path),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the credential; needed with an admin token")),
    request_body = NewCredential, responses((status = 200, body = SavedCredentialView),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "It was written meanwhile")))]
pub async fn put_credential(
    Call(state, caller): Call,
    name: Pair,
    query: Query,
    body: JsonBody,
) -> Result<Json<SavedCredentialView>, ApiError> {
    caller.may(Permission::CredentialsWrite)?;
    let (tenant, reference) = named(&caller, name, query)?;
    let tenant = caller.makes_for(tenant.as_str())?;
    check_reference(&reference)?;
    let (name, now) = ((&tenant, &reference), state.clock.now());
    let draft = body.read_with(move |value| CredentialDraft::parse(value, now)).await?;
    let make = |old: Option<&_>| credential_to_store(&state.vault, name, (&draft, caller.name()), old, now);
    let saved = replace(&state.store, &caller.scope, tenant.as_str(), &reference, make).await.map_err(not_saved)?;
    let view = with_tasks(&state, &caller.scope, saved.stored).await?;
    Ok(Json(SavedCredentialView { view, resumed: saved.resumed, resuming: saved.resuming }))
}

/// Delete a credential
///
/// With its document, for good. Tasks may name it still: each is paused, and its owner told, when it next needs it. The
/// record of its uses stays.
#[utoipa::path(delete, path = "/v1/credentials/{service}/{account_name}", tag = "credentials",
    security(("bearer" = ["credentials:write"])),
    params(("service" = String, Path), ("account_name" = String, Path),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the credential; needed with an admin token")),
    responses((status = 204)))]
pub async fn delete_credential(Call(state, caller): Call, name: Pair, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::CredentialsWrite)?;
    let (tenant, Reference { service, account }) = named(&caller, name, query)?;
    let by = caller.name();
    let deleted = state.store.delete_credential(&caller.scope, tenant.as_str(), &service, &account, &by).await;
    deleted.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the uses of a credential
///
/// Which run, tool and host used it when, newest first; refused attempts with the reason. The record outlives the
/// credential, as long as runs are kept.
#[utoipa::path(get, path = "/v1/credentials/{service}/{account_name}/uses", tag = "credentials",
    security(("bearer" = ["credentials:read"])),
    params(("service" = String, Path), ("account_name" = String, Path),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the credential; needed with an admin token"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<CredentialUse>)))]
pub async fn list_credential_uses(
    Call(state, caller): Call,
    name: Pair,
    mut query: Query,
) -> Result<Json<Items<CredentialUse>>, ApiError> {
    caller.may(Permission::CredentialsRead)?;
    let page = ListPage::of(&mut query);
    let (tenant, Reference { service, account }) = named(&caller, name, query)?;
    let filter = UseFilter {
        outcome: None,
        tenant: Some(tenant.as_str().to_owned()),
        service: Some(service),
        account: Some(account),
        before: page.before,
        limit: page.fetch(),
    };
    let uses = state.store.credential_uses(&caller.scope, &filter).await?;
    Ok(Json(page.items(uses, |used| used.id)))
}

/// The credential that an address means: an admin names the tenant in the query, another's is not found.
fn named(caller: &AuthenticatedCaller, name: Pair, mut query: Query) -> Result<(Tenant, Reference), ApiError> {
    let named = query.text("tenant_id");
    let tenant = match (&caller.scope, named) {
        (_, Some(named)) => Some(caller.sees(&named)?),
        (Scope::Only(own), None) => Some(own.clone()),
        (Scope::Every, None) => {
            query.fault("tenant_id", "is missing: an admin token names the tenant");
            None
        }
    };
    query.done()?;
    let reference = Reference { service: name.0, account: name.1 };
    tenant.map(|tenant| (tenant, reference)).ok_or(ApiError::NotFound("tenant"))
}

async fn read(
    state: &HttpState,
    scope: &Scope,
    tenant: &Tenant,
    reference: &Reference,
) -> Result<StoredCredential, ApiError> {
    let Reference { service, account } = reference;
    state.store.get_credential(scope, tenant.as_str(), service, account).await.map_err(missing)
}

async fn with_tasks(state: &HttpState, scope: &Scope, stored: StoredCredential) -> Result<CredentialView, ApiError> {
    let credential = stored.credential;
    let reference = credential.reference();
    let uses = |request: &Value| {
        let named = request.get("credential").and_then(Value::as_str);
        named.is_some_and(|named| Reference::parse(named).as_ref() == Ok(&reference))
    };
    let tools = state.tools.current();
    let using = tools.definitions().filter(|tool| tool.request.as_ref().is_some_and(uses));
    let names: Vec<&str> = using.map(|tool| tool.name.as_str()).collect();
    let tasks = state.store.tasks_of_credential(scope, &credential.tenant_id, &reference, &names).await?;
    Ok(CredentialView { credential, tasks })
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "credential")
}

fn not_saved(fault: SaveFault) -> ApiError {
    match fault {
        SaveFault::Invalid(faults) => faults.into(),
        SaveFault::Store(error) => error.into(),
        SaveFault::Vault(error) => ApiError::Internal { log: error.to_string() },
    }
}
