//! Dead letters over HTTP: what could not be handled, and whether it is tried again or given up.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::base::compute::steps_to_parse;
use crate::base::id::Scope;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::api::events::{EVENTS_AT_ONCE, of_bus, of_position};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::page::limit;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Items, Json, JsonBody, Query};
use crate::http::schema::DeadLetterChoice;
use crate::ports::bus::{self, BusError, DeadLetterFilter, DeadLetterPage};
use crate::store::PAGE_BYTES;

/// Letters that are asked for at once.
const PAGE: usize = 100;

/// An entry of the bus that could not be handled.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = DeadLetter)]
pub struct DeadLetterView {
    /// Id of the letter.
    pub id: String,
    /// `null` where the entry is no event; then only an admin sees it.
    #[schema(required)]
    pub tenant_id: Option<String>,
    /// The event, a CloudEvent; `null` where it is none.
    #[schema(required)]
    pub event: Option<Value>,
    /// The entry as it was found, where it is no event.
    #[schema(required)]
    pub text: Option<String>,
    /// Why it could not be handled.
    pub error: String,
    /// How often it was tried.
    pub deliveries: u32,
    /// The instant from which the entry is delivered no more.
    pub dead_lettered_at: DateTime<Utc>,
}

/// How many dead letters were dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AffectedCount {
    /// Number of letters that were replayed or dropped.
    pub count: u64,
}

/// How many of the chosen dead letters were dealt with, and where the next request goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AffectedLetters {
    /// Number of letters that were replayed or dropped.
    pub count: u64,
    /// The `cursor` of a request that goes on; `null` once all were looked at, however few were dealt with.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

impl From<bus::BusDeadLetter> for DeadLetterView {
    fn from(letter: bus::BusDeadLetter) -> DeadLetterView {
        let event = bus::read_stored(letter.body.as_bytes()).ok().map(|event| event.to_value());
        DeadLetterView {
            id: letter.id,
            tenant_id: letter.tenant,
            text: event.is_none().then_some(letter.body),
            event,
            error: letter.error,
            deliveries: letter.deliveries,
            dead_lettered_at: letter.dead_lettered_at,
        }
    }
}

/// List dead letters
///
/// Newest first. A page may have fewer than `limit`, or none, and a `next_cursor`: there is more to look at.
#[utoipa::path(get, path = "/v1/dead-letters", tag = "events", security(("bearer" = ["dead_letters:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("source" = Option<String>, Query, example = "email"),
        ("type" = Option<String>, Query, description = "Exact, or with a trailing `*`", example = "mail.*"),
        ("error" = Option<String>, Query, description = "Part of the error"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<DeadLetterView>)))]
pub async fn list_dead_letters(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<DeadLetterView>>, ApiError> {
    caller.may(Permission::DeadLettersRead)?;
    let tenant = query.text("tenant_id");
    let limit = limit(&mut query);
    let mut filter = DeadLetterFilter {
        source: query.text("source"),
        kind: query.text("type"),
        error: query.text("error"),
        before: query.text("cursor"),
        limit: 0,
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let (mut bytes, mut items) = (0, Vec::new());
    // in parts, so that never more is held than a page and a part
    loop {
        filter.limit = EVENTS_AT_ONCE.min(limit - items.len());
        let DeadLetterPage { letters, next } = state.bus.dead_letters(&scope, &filter).await.map_err(of_position)?;
        let is_last = is_last_part(letters.len(), filter.limit, next.as_deref());
        bytes += letters.iter().map(|letter| (letter.body.len() + letter.error.len()) as i64).sum::<i64>();
        items.extend(views(&state, &caller, letters).await?);
        if is_last || items.len() >= limit || bytes >= PAGE_BYTES {
            return Ok(Json(Items { items, next_cursor: next }));
        }
        filter.before = next;
    }
}

/// Whether a request ends with this part of the list: nothing is behind it, or the bus has looked as far as it looks at
/// once.
fn is_last_part(found: usize, asked: usize, next: Option<&str>) -> bool {
    next.is_none() || found < asked
}

/// Read a dead letter
#[utoipa::path(get, path = "/v1/dead-letters/{id}", tag = "events", security(("bearer" = ["dead_letters:read"])),
    params(("id" = String, Path)), responses((status = 200, body = DeadLetterView)))]
pub async fn get_dead_letter(
    Call(state, caller): Call,
    Id(id): Id,
    query: Query,
) -> Result<Json<DeadLetterView>, ApiError> {
    caller.may(Permission::DeadLettersRead)?;
    query.done()?;
    let letter = state.bus.dead_letter(&caller.scope, &id).await.map_err(missing)?;
    let view = views(&state, &caller, vec![letter]).await?.pop();
    view.map(Json).ok_or(ApiError::NotFound("dead letter"))
}

/// Letters as they are shown. The events in them are read on a computing thread where they are long.
async fn views(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    letters: Vec<bus::BusDeadLetter>,
) -> Result<Vec<DeadLetterView>, ApiError> {
    let bytes = letters.iter().map(|letter| letter.body.len()).sum();
    let view = move || letters.into_iter().map(DeadLetterView::from).collect();
    let computed = state.compute.run_if_costly(caller.computes_for(), steps_to_parse(bytes), view).await;
    computed.map_err(|panicked| ApiError::Internal { log: panicked.to_string() })
}

/// Replay a dead letter
///
/// Publishes its event once more under the same identity: a task that it has fired already is not fired again. An
/// entry that is no event can't be replayed.
#[utoipa::path(post, path = "/v1/dead-letters/{id}/replay", tag = "events",
    security(("bearer" = ["dead_letters:write"])),
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 202, body = AffectedCount), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "It is no event")))]
pub async fn replay_dead_letter(
    Call(state, caller): Call,
    Id(id): Id,
    body: JsonBody,
) -> Result<Response, EarlyResponse> {
    caller.may(Permission::DeadLettersWrite)?;
    body.key.replay_if_repeated(&state, &caller).await?;
    body.refuse_fields().await?;
    state.bus.replay(&caller.scope, &id).await.map_err(missing)?;
    body.key.remember_answer(&state, &caller, StatusCode::ACCEPTED, AffectedCount { count: 1 }).await
}

/// Drop a dead letter
///
/// For good: its event is not handled any more.
#[utoipa::path(delete, path = "/v1/dead-letters/{id}", tag = "events", security(("bearer" = ["dead_letters:write"])),
    params(("id" = String, Path)), responses((status = 204)))]
pub async fn drop_dead_letter(Call(state, caller): Call, Id(id): Id, query: Query) -> Result<StatusCode, ApiError> {
    caller.may(Permission::DeadLettersWrite)?;
    query.done()?;
    state.bus.drop_dead_letter(&caller.scope, &id).await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replay dead letters
///
/// Those that match, newest first, up to `limit` (1000). Entries that are no events stay. Where the answer has a
/// `next_cursor`, there is more to look at: a request with it as `cursor` goes on.
#[utoipa::path(post, path = "/v1/dead-letters/replay", tag = "events", security(("bearer" = ["dead_letters:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = DeadLetterChoice, responses((status = 200, body = AffectedLetters)))]
pub async fn replay_dead_letters(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    bulk(state, caller, body, DeadLetterAction::Replay).await
}

/// Drop dead letters
///
/// Those that match, newest first, up to `limit` (1000). Where the answer has a `next_cursor`, there is more to look
/// at: a request with it as `cursor` goes on.
#[utoipa::path(post, path = "/v1/dead-letters/drop", tag = "events", security(("bearer" = ["dead_letters:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = DeadLetterChoice, responses((status = 200, body = AffectedLetters)))]
pub async fn drop_dead_letters(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    bulk(state, caller, body, DeadLetterAction::Drop).await
}

#[derive(Clone, Copy)]
enum DeadLetterAction {
    Replay,
    Drop,
}

async fn bulk(
    state: HttpState,
    caller: AuthenticatedCaller,
    body: JsonBody,
    deed: DeadLetterAction,
) -> Result<Response, EarlyResponse> {
    caller.may(Permission::DeadLettersWrite)?;
    body.key.replay_if_repeated(&state, &caller).await?;
    let reader = caller.clone();
    let (scope, mut filter, limit) = body.read_with(move |value| choice(&reader, &value)).await?;
    let (mut count, mut met) = (0, 0);
    let next_cursor = loop {
        filter.limit = PAGE.min(limit - met);
        let DeadLetterPage { letters, next } = state.bus.dead_letters(&scope, &filter).await.map_err(of_cursor)?;
        let is_last = is_last_part(letters.len(), filter.limit, next.as_deref());
        met += letters.len();
        for letter in letters {
            let done = match deed {
                DeadLetterAction::Replay => state.bus.replay(&scope, &letter.id).await,
                DeadLetterAction::Drop => state.bus.drop_dead_letter(&scope, &letter.id).await,
            };
            match done {
                Ok(()) => count += 1,
                // no event, or another call was faster
                Err(BusError::Invalid { .. } | BusError::NotFound) => {}
                Err(error) => return Err(missing(error).into()),
            }
        }
        if is_last || met >= limit {
            break next;
        }
        filter.before = next;
    };
    body.key.remember_answer(&state, &caller, StatusCode::OK, AffectedLetters { count, next_cursor }).await
}

/// Which letters a body means.
fn choice(caller: &AuthenticatedCaller, body: &Value) -> Result<(Scope, DeadLetterFilter, usize), ApiError> {
    let DeadLetterChoice { tenant_id, source, r#type: kind, error, limit, cursor } = typed::body(body)?;
    // an admin who names nobody means every tenant
    let scope = match (&caller.scope, tenant_id) {
        (Scope::Every, None) => Scope::Every,
        _ => Scope::Only(caller.acts_for(body)?),
    };
    let limit = limit as usize;
    Ok((scope, DeadLetterFilter { source, kind, error, before: cursor, limit }, limit))
}

/// The error for the bus's where the body named a position.
fn of_cursor(error: BusError) -> ApiError {
    match error {
        BusError::Invalid { .. } => ApiError::invalid("/cursor", "must be the next_cursor of an earlier answer"),
        error => missing(error),
    }
}

fn missing(error: BusError) -> ApiError {
    of_bus(error, "dead letter")
}
