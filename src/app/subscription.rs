//! Events of the bus for the program that embeds the service, as they come.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::id::Scope;
use crate::domain::event::Event;
use crate::http::HttpState;
use crate::ports::bus::{BusError, LogFilter, LoggedEvent};
use crate::store::Topic;

/// How often the log is looked at while nothing is heard of.
const LOOK: Duration = Duration::from_millis(500);
/// Events that are read at once.
const EVENTS_AT_ONCE: usize = 16;

/// Follows the bus until it is dropped. Events that come while nobody asks for the next are kept by the bus, for as
/// long as it keeps its log.
pub struct EventSubscription {
    state: HttpState,
    scope: Scope,
    filter: LogFilter,
    published: watch::Receiver<()>,
    ended: CancellationToken,
    found: VecDeque<LoggedEvent>,
    has_more: bool,
}

impl EventSubscription {
    pub(super) async fn begin(state: &HttpState, scope: Scope, pattern: &str) -> Result<EventSubscription, BusError> {
        if pattern.trim_end_matches('*').contains('*') || pattern.is_empty() {
            let why = "a pattern is a type of events, or the beginning of one with `*` behind it".to_owned();
            return Err(BusError::Invalid { why });
        }
        let published = state.store.listen(Topic::Events);
        let after = Some(state.bus.end(&scope).await?);
        let kind = Some(pattern.to_owned());
        let filter = LogFilter { kind, after, limit: EVENTS_AT_ONCE, ..LogFilter::default() };
        let ended = state.stop.clone();
        Ok(EventSubscription {
            state: state.clone(),
            scope,
            filter,
            published,
            ended,
            found: VecDeque::new(),
            has_more: false,
        })
    }

    /// The next event; waits for it. `None`: the service has stopped. Safe to drop while it waits.
    ///
    /// # Errors
    /// The log of the bus can't be read from here on. A bus that is away is asked again.
    pub async fn next(&mut self) -> Option<Result<Event, BusError>> {
        loop {
            if let Some(logged) = self.found.pop_front() {
                return Some(Ok(logged.event));
            }
            if !self.has_more {
                tokio::select! {
                    () = self.ended.cancelled() => return None,
                    _ = timeout(LOOK, self.published.changed()) => {}
                }
            }
            match self.state.bus.log(&self.scope, &self.filter).await {
                Ok(log) => {
                    self.filter.after = Some(log.position);
                    self.has_more = log.more;
                    self.found.extend(log.events);
                }
                Err(error @ BusError::Unavailable { .. }) => {
                    tracing::warn!(%error, "can't read the bus that is followed");
                    self.has_more = false;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Ends it; dropping it does the same.
    pub fn unsubscribe(self) {}
}
