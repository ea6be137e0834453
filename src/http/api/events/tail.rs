//! The live stream of the bus: each event as it comes, from the end of the log or from where a client has left it.
//!
//! The log is the truth: every event carries its position as event id, and a client that comes back with
//! `Last-Event-ID` misses none that is still kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use futures::stream::unfold;
use tokio::sync::watch;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::api::events::{EVENTS_AT_ONCE, of_bus};
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Query};
use crate::http::streaming::limiter;
use crate::ports::bus::{BusError, LogFilter};
use crate::store::Topic;

/// How often the log is looked at while nothing is heard of.
const LOOK: Duration = Duration::from_millis(500);

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
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub async fn stream_events(
    Call(state, caller): Call,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    caller.may(Permission::EventsRead)?;
    let (tenant, source, kind) = (query.text("tenant_id"), query.text("source"), query.text("type"));
    query.done()?;
    let scope = caller.narrowed(tenant.as_deref())?;
    let permit = limiter::acquire_stream(&state, &caller, &scope).await?;
    let published = state.store.listen(Topic::Events);
    let seen = match headers.get("last-event-id").filter(|id| !id.is_empty()) {
        Some(id) => id.to_str().map_err(|_| unknown_id())?.to_owned(),
        None => state.bus.end(&scope).await.map_err(|error| of_bus(error, "event"))?,
    };
    let filter = LogFilter { source, kind, after: Some(seen), limit: EVENTS_AT_ONCE };
    let (outbox, behind) = (VecDeque::new(), false);
    let mut tail = Tail { state, caller, scope, filter, published, outbox, behind };
    // a wrong id is told before the stream begins
    tail.read().await.map_err(|error| match error {
        BusError::Invalid { .. } => unknown_id(),
        error => of_bus(error, "event"),
    })?;
    let keep_alive = KeepAlive::new().interval(tail.state.limits.keep_alive);
    Ok(Sse::new(limiter::detached(permit, tail.events())).keep_alive(keep_alive).into_response())
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
    /// The last look did not see all that there was.
    behind: bool,
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
            // who is behind catches up without a wait
            let wait = if self.behind { Duration::ZERO } else { LOOK };
            tokio::select! {
                () = stop.cancelled() => return None,
                _ = tokio::time::timeout(wait, self.published.changed()) => {}
            }
            match self.caller.is_still_known(&self.state).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%error, "can't ask for the token of who follows the bus");
                    continue;
                }
            }
            // a bus that is away is asked again
            if let Err(error) = self.read().await {
                tracing::warn!(%error, "can't read the bus that is followed");
            }
        }
    }

    async fn read(&mut self) -> Result<(), BusError> {
        loop {
            let log = self.state.bus.log(&self.scope, &self.filter).await?;
            for logged in log.events {
                let data = logged.event.to_value().to_string();
                self.outbox.push_back(Event::default().event("event").id(logged.position).data(data));
            }
            self.filter.after = Some(log.position);
            self.behind = log.more;
            if !log.more || !self.outbox.is_empty() {
                return Ok(());
            }
        }
    }
}
