//! The live stream of the bus: each event as it comes, from the end of the log or from where a client has left it.
//!
//! The log is the truth: every event carries its position as event id, and a client that comes back with
//! `Last-Event-ID` misses none that is still kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use futures::stream::unfold;
use tokio::sync::watch;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::base::clock::pause;
use crate::base::compute::steps_to_parse;
use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::domain::event::CloudEvent;
use crate::http::HttpState;
use crate::http::api::events::{EVENTS_AT_ONCE, of_bus};
use crate::http::error::ApiError;
use crate::http::openapi::streams::{self, NamedSchemas};
use crate::http::request::{AuthenticatedCaller, Call, Query};
use crate::http::streaming::limiter;
use crate::ports::bus::{BusError, LogFilter, LogOrder, LoggedEvent, write_entry};
use crate::store::Topic;

/// How often the log is looked at while nothing is heard of. One look is for all streams of a scope: a stream reads the
/// log by itself where that look has found something new.
const LOOK: Duration = Duration::from_millis(500);
/// How old such a look may be.
const LOOK_AGE: Duration = Duration::from_millis(250);
/// The name of each event of the stream.
const EVENT: &str = "event";

/// Follow the bus
///
/// Server-sent events, each named `event` with a CloudEvent as its data: those that come from now on, or with
/// `Last-Event-ID` those after it.
#[utoipa::path(get, path = "/v1/events/stream", tag = "events", security(("bearer" = ["events:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("source" = Option<String>, Query, example = "email"),
        ("type" = Option<String>, Query, description = "Exact, or with a trailing `*`", example = "mail.*"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last id that was seen")),
    responses((status = 200, body = inline(BusStream), content_type = "text/event-stream")))]
pub async fn stream_events(
    Call(state, caller): Call,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    caller.may(Permission::EventsRead)?;
    let (tenant, source, kind) = (query.text("tenant_id"), query.text("source"), query.text("type"));
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let permit = limiter::acquire_stream(&state, &caller, &scope).await?;
    let published = state.store.listen(Topic::Events);
    let seen = match headers.get("last-event-id").filter(|id| !id.is_empty()) {
        Some(id) => id.to_str().map_err(|_| unknown_id())?.to_owned(),
        None => state.bus.end(&scope).await.map_err(|error| of_bus(error, "event"))?,
    };
    let (order, after) = (LogOrder::Oldest, Some(seen));
    let filter = LogFilter { source, kind, order, after, limit: EVENTS_AT_ONCE, ..LogFilter::default() };
    let (outbox, read_to, behind, failed) = (VecDeque::new(), None, false, false);
    let mut tail = Tail { state, caller, scope, filter, published, outbox, read_to, behind, failed };
    // a wrong id is told before the stream begins
    tail.read().await.map_err(|error| match error {
        BusError::Invalid { .. } => unknown_id(),
        error => of_bus(error, "event"),
    })?;
    let keep_alive = KeepAlive::new().interval(tail.state.limits.keep_alive);
    Ok(Sse::new(limiter::detached(permit, tail.events())).keep_alive(keep_alive).into_response())
}

/// The stream of the bus, for the reference.
struct BusStream;

impl BusStream {
    /// The published name of its events.
    const EVENT: &str = "BusStreamEvent";
    /// The meaning of their ids.
    const ID: &str = "With it as `Last-Event-ID` a stream goes on behind this event.";
}

impl PartialSchema for BusStream {
    fn schema() -> RefOr<Schema> {
        streams::stream_of(Ref::from_schema_name(BusStream::EVENT).into())
    }
}

impl ToSchema for BusStream {
    fn schemas(schemas: &mut NamedSchemas) {
        let data = streams::named::<CloudEvent<'static>>(schemas);
        schemas.push((BusStream::EVENT.into(), streams::event(EVENT, Some(BusStream::ID), data)));
    }
}

fn unknown_id() -> ApiError {
    ApiError::Malformed("Last-Event-ID must be an id of this stream".into())
}

/// One client that follows the bus.
struct Tail {
    state: HttpState,
    caller: AuthenticatedCaller,
    scope: Scope,
    filter: LogFilter,
    published: watch::Receiver<()>,
    outbox: VecDeque<Event>,
    /// The end of the log before it was read the last time, as far as that is known.
    read_to: Option<String>,
    /// The last look did not see all that there was.
    behind: bool,
    /// The last look has failed.
    failed: bool,
}

impl Tail {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(self, |mut tail| async move { Some((Ok(tail.next().await?), tail)) })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.outbox.pop_front() {
                return Some(event);
            }
            let stop = self.state.stop.clone();
            let is_told = tokio::select! {
                () = stop.cancelled() => return None,
                is_told = self.wait() => is_told,
            };
            match self.caller.is_still_known(&self.state).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%error, "can't ask for the token of who follows the bus");
                    self.failed = true;
                    continue;
                }
            }
            // a bus that is away is asked again; those who wait for the same look do not keep the service from its end
            let read = tokio::select! {
                () = stop.cancelled() => return None,
                read = self.read_news(is_told) => read,
            };
            self.failed = read.is_err();
            if let Err(error) = read {
                tracing::warn!(%error, "can't read the bus that is followed");
            }
        }
    }

    /// Until the next look: one that is behind catches up without a wait, and after a failure nothing is asked for a
    /// while. Whether something was told of meanwhile.
    async fn wait(&mut self) -> bool {
        if self.failed {
            pause(LOOK).await;
            return true;
        }
        let wait = if self.behind { Duration::ZERO } else { LOOK };
        tokio::time::timeout(wait, self.published.changed()).await.is_ok()
    }

    /// Reads the log, unless it ends where it did when it was read before.
    async fn read_news(&mut self, is_told: bool) -> Result<(), BusError> {
        let now = Instant::now();
        let earliest = if is_told { now } else { now.checked_sub(LOOK_AGE).unwrap_or(now) };
        let end = self.state.log_ends.since(&*self.state.bus, &self.scope, earliest).await?;
        if !self.behind && self.read_to.as_ref() == Some(&end) {
            return Ok(());
        }
        self.read().await?;
        self.read_to = Some(end);
        Ok(())
    }

    async fn read(&mut self) -> Result<(), BusError> {
        loop {
            let log = self.state.bus.log(&self.scope, &self.filter).await?;
            let bytes = log.events.iter().map(|logged| logged.bytes).sum();
            let write = move || log.events.into_iter().map(written).collect::<Vec<Event>>();
            let (compute, name) = (&self.state.compute, self.caller.computes_for());
            let events = compute.run_if_costly(name, steps_to_parse(bytes), write).await;
            self.outbox.extend(events.map_err(|panicked| BusError::Corrupt { why: panicked.to_string() })?);
            self.filter.after = Some(log.position);
            self.behind = log.more;
            if !log.more || !self.outbox.is_empty() {
                return Ok(());
            }
        }
    }
}

fn written(logged: LoggedEvent) -> Event {
    Event::default().event(EVENT).id(logged.position).data(write_entry(&logged.event))
}
