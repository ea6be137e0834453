//! Facts over HTTP: noted, listed, read with what they said before, corrected, deleted.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::base::id::{Scope, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::memory::{Fact, FactChange, FactVersion, NewFact, checked_collection};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, Id, Items, Json, JsonBody, ListPage, Query};
use crate::http::schema;
use crate::store::{FactFilter, NotingKind, StoreError};

/// Longest text that a list is searched for, in characters.
const LONGEST_SEARCH: usize = 200;

/// A fact, and what it said before.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct FactView {
    /// As it stands now.
    #[serde(flatten)]
    pub fact: Fact,
    /// Its earlier versions, the newest first: 20 at most.
    pub versions: Vec<FactVersion>,
}

/// Note a fact
///
/// Agents of the tenant are told of it where it fits, and of those of `profile` and `preferences` in every run. One
/// that is noted in the same words already is counted: 200 then, with that one.
#[utoipa::path(post, path = "/v1/facts", tag = "memory", security(("bearer" = ["facts:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::NewFactSchema,
    responses((status = 201, body = Fact), (status = 200, body = Fact, description = "It was known"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The tenant has as many facts as it may have")))]
pub async fn add_fact(Call(state, caller): Call, body: JsonBody) -> Result<Response, ApiError> {
    caller.may(Permission::FactsWrite)?;
    let reader = caller.clone();
    let read = move |value: Value| {
        let asked: schema::NewFactSchema = typed::body(&value)?;
        Ok::<_, ValidationErrors>((asked, reader.acts_for(&value)?))
    };
    let (asked, tenant) = body.read_with(read).await?;
    let mut new = NewFact::by_person(&asked.text, asked.collection.as_deref(), caller.name())?;
    let made = body.key.identity(&state, &caller, new_id(state.clock.now())).await?;
    new.call_key = Some(made.id.to_string());
    let noted = state.store.add_fact(&tenant, &new).await.map_err(missing)?;
    let place = [(header::LOCATION, format!("/v1/facts/{}", noted.fact.id))];
    let status = if noted.noted_as == NotingKind::New { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, place, Json(noted.fact)).into_response())
}

/// List facts
///
/// Newest first. `collection` and `q` need a `tenant_id` where the token is not a tenant's own.
#[utoipa::path(get, path = "/v1/facts", tag = "memory", security(("bearer" = ["facts:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("collection" = Option<String>, Query, description = "Of this collection and those below it"),
        ("q" = Option<String>, Query, max_length = 200, description = "With this in their text, in upper or lower case"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<Fact>)))]
pub async fn list_facts(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<Fact>>, ApiError> {
    caller.may(Permission::FactsRead)?;
    let (tenant, collection, q) = (query.text("tenant_id"), query.text("collection"), query.text("q"));
    if let Some(Err(message)) = collection.as_deref().map(checked_collection) {
        query.fault("collection", message);
    }
    if q.as_ref().is_some_and(|q| q.chars().count() > LONGEST_SEARCH) {
        query.fault("q", format!("must be at most {LONGEST_SEARCH} characters"));
    }
    let is_searched = collection.is_some() || q.is_some();
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    if is_searched && matches!(scope, Scope::Every) {
        return Err(ApiError::invalid("/tenant_id", "is missing: facts are searched for one tenant at a time"));
    }
    let filter = FactFilter { collection, q, before: page.before, limit: page.fetch() };
    let found = state.store.list_facts(&scope, &filter).await?;
    Ok(Json(page.within(found, |fact| fact.id)))
}

/// Read a fact
///
/// With what it said before.
#[utoipa::path(get, path = "/v1/facts/{id}", tag = "memory", security(("bearer" = ["facts:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = FactView)))]
pub async fn get_fact(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<FactView>, ApiError> {
    caller.may(Permission::FactsRead)?;
    query.done()?;
    let (fact, versions) = state.store.get_fact(&caller.scope, id.of("fact")?).await.map_err(missing)?;
    Ok(Json(FactView { fact, versions }))
}

/// Correct a fact
///
/// Its text is a person's word then, and what it said becomes an earlier version of it. A fact whose collection alone
/// is given is moved.
#[utoipa::path(patch, path = "/v1/facts/{id}", tag = "memory", security(("bearer" = ["facts:write"])),
    params(("id" = Uuid, Path)), request_body = schema::FactPatch,
    responses((status = 200, body = Fact),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "Another fact says the same")))]
pub async fn correct_fact(
    Call(state, caller): Call,
    id: Id,
    query: Query,
    body: JsonBody,
) -> Result<Json<Fact>, ApiError> {
    caller.may(Permission::FactsWrite)?;
    query.done()?;
    let id = id.of("fact")?;
    let asked: schema::FactPatch = body.read().await?;
    if asked.text.is_none() && asked.collection.is_none() {
        return Err(ApiError::invalid("/text", "is missing: give `text`, `collection`, or both"));
    }
    let change = FactChange::checked(asked.text.as_deref(), asked.collection.as_deref())?;
    let corrected = state.store.correct_fact(&caller.scope, id, &change, &caller.name()).await;
    Ok(Json(corrected.map_err(missing)?))
}

/// Delete a fact
///
/// With all that it has said. Transcripts of runs keep what they were told, and so do questions about its deletion.
#[utoipa::path(delete, path = "/v1/facts/{id}", tag = "memory", security(("bearer" = ["facts:write"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn delete_fact(Call(state, caller): Call, id: Id, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::FactsWrite)?;
    query.done()?;
    state.store.delete_fact(&caller.scope, id.of("fact")?, &caller.name(), None).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// The number of facts that were deleted.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DeletedFacts {
    /// How many.
    pub deleted: u64,
}

/// Delete all facts of a tenant
///
/// What was broken off in the middle is done by a repetition.
#[utoipa::path(delete, path = "/v1/tenants/{tenant_id}/facts", tag = "memory", security(("bearer" = ["facts:write"])),
    params(("tenant_id" = String, Path)), responses((status = 200, body = DeletedFacts)))]
pub async fn delete_facts(Call(state, caller): Call, tenant: Id, query: Query) -> Result<Json<DeletedFacts>, ApiError> {
    caller.may(Permission::FactsWrite)?;
    query.done()?;
    let tenant = caller.sees(&tenant.0)?;
    let deleted = state.store.delete_facts(&tenant, &caller.name()).await?;
    Ok(Json(DeletedFacts { deleted }))
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "fact")
}
