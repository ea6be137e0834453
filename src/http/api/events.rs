//! Events over HTTP: publishing them in every form of CloudEvents, and reading the log of the bus.

mod form;
pub(in crate::http) mod log_ends;
pub mod lookup;
mod tail;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::domain::event::{CloudEvent, Event};
use crate::http::HttpState;
use crate::http::api::events::form::EventReader;
use crate::http::error::ApiError;
use crate::http::request::idempotency::REPLAYED;
use crate::http::request::page::limit;
use crate::http::request::{AuthenticatedCaller, Call, Items, Json, JsonBody, Query, RawBody};
use crate::http::schema::NewEvents;
use crate::ports::bus::{BusError, LogFilter, LogOrder};
use crate::store::PAGE_BYTES;

pub use form::media_type;
pub use tail::{__path_stream_events, stream_events};

/// Events that are read at once: of the largest, a few megabytes.
pub const EVENTS_AT_ONCE: usize = 16;
/// When a bus that is away is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Under which ids events were taken, in the order in which they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct EventIds {
    /// Ids of the events, in the order in which they were sent.
    pub ids: Vec<String>,
}

/// Events that are published together, and what each tenant's are counted as.
pub struct PostedEvents {
    events: Vec<Event>,
    tallies: BTreeMap<Tenant, Tally>,
}

#[derive(Default)]
struct Tally {
    events: usize,
    bytes: usize,
}

impl PostedEvents {
    /// Counts events. To count their bytes takes as long as to write them.
    pub fn of(events: Vec<Event>) -> PostedEvents {
        let mut tallies: BTreeMap<Tenant, Tally> = BTreeMap::new();
        for event in &events {
            let tally = tallies.entry(event.tenant.clone()).or_default();
            tally.events += 1;
            tally.bytes += event.bytes();
        }
        PostedEvents { events, tallies }
    }

    /// Under which ids the events are taken.
    pub fn into_ids(self) -> EventIds {
        EventIds { ids: self.events.into_iter().map(|event| event.id).collect() }
    }
}

/// Publish events
///
/// One event or a list of up to 500, each in the short form or as a CloudEvent. The media types of CloudEvents are
/// taken too: `application/cloudevents+json`, `application/cloudevents-batch+json`, and any body with `ce-` headers. A
/// tenant's token publishes its own events; an admin's names the tenant (`tenantid`, `tenant_id`). Nothing of a batch
/// is published when one of it is not valid. What was answered is durable; an event with the source and id of an
/// earlier one does nothing. An event has at most 256 KiB, a request 1 MiB. More in a minute than the tenant's quota is
/// 429, and nothing of it is published.
#[utoipa::path(post, path = "/v1/events", tag = "events", security(("bearer" = ["events:publish"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = NewEvents, responses((status = 202, body = EventIds)))]
pub async fn publish_events(
    Call(state, caller): Call,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    caller.may(Permission::EventsPublish)?;
    let now = state.clock.now();
    let fresh = new_id(now);
    let asked = Arc::new((caller, headers));
    let batch = read(&body, &asked, fresh, now).await?;
    let (caller, _) = &*asked;
    let made = body.key.identity(&state, caller, fresh).await?;
    // a repetition publishes the same events: those of the first may have been lost on their way
    let batch = if made.repeated { read(&body, &asked, made.id, now).await? } else { batch };
    publish(&state, &batch).await?;
    let mut answer = (StatusCode::ACCEPTED, Json(batch.into_ids())).into_response();
    if made.repeated {
        answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(answer)
}

/// The events of a request; those without an id get one from `made`. Those of a long one are counted where they are
/// read.
async fn read(
    body: &JsonBody,
    asked: &Arc<(AuthenticatedCaller, HeaderMap)>,
    made: Uuid,
    now: DateTime<Utc>,
) -> Result<PostedEvents, ApiError> {
    let asked = Arc::clone(asked);
    let read = move |sent: RawBody| {
        let (caller, headers) = &*asked;
        let made_id = |index: usize| if index == 0 { made.to_string() } else { format!("{made}.{index}") };
        EventReader { caller, made_id: &made_id, now }.read(headers, &sent).map(PostedEvents::of)
    };
    body.read_by(read).await
}

/// List events
///
/// The log of the bus, oldest first or with `order=newest` newest first, for as long as it is kept (`bus.retention`). A
/// page may be empty and have a `next_cursor`: nothing matched in what was looked at, and there is more.
#[utoipa::path(get, path = "/v1/events", tag = "events", security(("bearer" = ["events:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("source" = Option<String>, Query, example = "email"),
        ("type" = Option<String>, Query, description = "Exact, or with a trailing `*`", example = "mail.*"),
        ("since" = Option<DateTime<Utc>>, Query, description = "Taken by the bus from this instant on"),
        ("until" = Option<DateTime<Utc>>, Query, description = "Taken before this instant"),
        ("order" = Option<LogOrder>, Query, description = "Which come first; absent: the oldest"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<CloudEvent<'static>>)))]
pub async fn list_events(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<Event>>, ApiError> {
    caller.may(Permission::EventsRead)?;
    let tenant = query.text("tenant_id");
    let filter = LogFilter {
        source: query.text("source"),
        kind: query.text("type"),
        since: query.instant("since"),
        until: query.instant("until"),
        order: query.word("order", &LogOrder::ALL.map(|order| (order.as_str(), order))).unwrap_or_default(),
        after: query.text("cursor"),
        limit: limit(&mut query),
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    page_of_log(&state, &scope, filter).await.map(Json)
}

/// A page of the log, read in parts: never more is held than a page, a part, and what the bus reads for it at once.
async fn page_of_log(state: &HttpState, scope: &Scope, mut filter: LogFilter) -> Result<Items<Event>, ApiError> {
    let (wanted, mut bytes, mut items) = (filter.limit, 0, Vec::new());
    loop {
        filter.limit = EVENTS_AT_ONCE.min(wanted - items.len());
        let log = state.bus.log(scope, &filter).await.map_err(of_position)?;
        let nothing = log.events.is_empty();
        bytes += log.events.iter().map(|logged| logged.bytes as i64).sum::<i64>();
        items.extend(log.events.into_iter().map(|logged| logged.event));
        if !log.more || nothing || items.len() >= wanted || bytes >= PAGE_BYTES {
            return Ok(Items { items, next_cursor: log.more.then_some(log.position) });
        }
        filter.after = Some(log.position);
    }
}

/// Publishes events if their tenants may publish as many in this minute, and store them: all of them, or none.
pub async fn publish(state: &HttpState, batch: &PostedEvents) -> Result<(), ApiError> {
    let mut counted = Vec::with_capacity(batch.tallies.len());
    let mut outcome = Ok(());
    for (tenant, tally) in &batch.tallies {
        let admitted = match state.store.admit_bytes(tenant.as_str(), tally.bytes).await {
            Ok(()) => state.store.take_events(tenant.as_str(), tally.events).await,
            refused => refused,
        };
        outcome = admitted.map_err(|error| ApiError::of_store(error, "tenant"));
        if outcome.is_err() {
            break;
        }
        counted.push((tenant.as_str(), tally.events));
    }
    if outcome.is_ok() {
        outcome = state.bus.publish(&batch.events).await.map_err(|error| of_bus(error, "event"));
    }
    if outcome.is_err() {
        counted.into_iter().for_each(|(tenant, count)| state.store.give_events_back(tenant, count));
    }
    outcome
}

/// The error for the bus's; `NotFound` means that there is no such `what`.
pub fn of_bus(error: BusError, what: &'static str) -> ApiError {
    match error {
        BusError::NotFound => ApiError::NotFound(what),
        BusError::Invalid { why } => ApiError::Conflict(why),
        BusError::Unavailable { why } => {
            tracing::warn!(cause = why, "the event bus is away");
            ApiError::Unavailable { detail: "the event bus is away", retry_after: RETRY_AFTER }
        }
        BusError::Corrupt { .. } => ApiError::Internal { log: error.to_string() },
    }
}

/// The error for the bus's where the query named a position.
pub fn of_position(error: BusError) -> ApiError {
    match error {
        BusError::Invalid { .. } => {
            ApiError::Query(ValidationErrors::one("/cursor", "must be the next_cursor of an earlier answer"))
        }
        error => of_bus(error, "event"),
    }
}
