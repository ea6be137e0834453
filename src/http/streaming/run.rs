//! The live stream of one run: what is in its transcript first, then what happens, until it has ended.
//!
//! The transcript is the truth: committed entries carry its `seq` as event id, and a client that comes back with
//! `Last-Event-ID` misses none. Live events of a run that this instance executes carry no id and are told as they
//! come; what they led to is not told again when it is committed. A run that another instance executes is followed by
//! its transcript alone. Entries of a pipeline are committed up to a second late, or with the end of the run.

mod memory;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::{BoxFuture, ready};
use futures::stream::unfold;
use futures::{FutureExt, Stream};
use uuid::Uuid;

use crate::base::clock;
use crate::base::token::Permission;
use crate::domain::run::{Run, StreamEvent, TranscriptEntry};
use crate::executor::hub::{RunSubscription, WatchedEvent};
use crate::http::HttpState;
use crate::http::api::runs::missing;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Id, Query};
use crate::http::streaming::limiter;
use crate::http::streaming::run::memory::StreamMemory;
use crate::store::StoreError;

/// How often the transcript is looked at while nothing is heard.
const LOOK: Duration = Duration::from_millis(500);
/// How soon it is looked at after the executor has said that it is done: its last write is on the way.
const LOOK_SOON: Duration = Duration::from_millis(50);

/// No transcript has an entry of a larger number.
const MOST_ENTRIES: i64 = 1 << 48;
/// Entries that are read at once.
const ENTRIES: i64 = 100;

/// Follow a run
///
/// Server-sent events: `session`, `message_start`, `message_chunk`, `message_end`, `tool_call_start`, `tool_result`,
/// `state_change`, `tool_warning`, `error`, and `execution_end` last. Committed entries come first; with
/// `Last-Event-ID`, what came after it.
#[utoipa::path(get, path = "/v1/runs/{id}/stream", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "The last id that was seen")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub async fn stream_run(
    Call(state, caller): Call,
    id: Id,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let id = id.of("run")?;
    let seen = last_event_id(&headers)?;
    let permit = limiter::acquire_stream(&state, &caller, &caller.scope).await?;
    // listen first, read after: what happens in between is heard, and told once
    let live = state.hub.subscribe(id);
    let run = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    let keep_alive = KeepAlive::new().interval(state.limits.keep_alive);
    let follower = Follower::new(state, caller, run, live, seen);
    Ok(Sse::new(limiter::detached(permit, follower.events())).keep_alive(keep_alive).into_response())
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) else { return Ok(None) };
    let seq = id.to_str().ok().and_then(|id| id.parse().ok()).filter(|seq| (0..=MOST_ENTRIES).contains(seq));
    seq.map(Some).ok_or_else(|| ApiError::Malformed("Last-Event-ID must be an id of this stream".into()))
}

/// One client that follows one run.
struct Follower {
    state: HttpState,
    caller: AuthenticatedCaller,
    id: Uuid,
    live: RunSubscription,
    memory: StreamMemory,
    /// The next entry of the transcript.
    next_seq: i64,
    /// Events to tell before anything else, in order.
    outbox: VecDeque<Event>,
    last_state: String,
    /// When the transcript is looked at next.
    look: BoxFuture<'static, ()>,
    ended: bool,
}

impl Follower {
    fn new(
        state: HttpState,
        caller: AuthenticatedCaller,
        run: Run,
        live: RunSubscription,
        seen: Option<i64>,
    ) -> Follower {
        let session = StreamEvent::Session { run_id: run.id.to_string() };
        Follower {
            state,
            caller,
            id: run.id,
            live,
            memory: StreamMemory::default(),
            next_seq: seen.map_or(0, |seq| seq + 1),
            outbox: [event(&session, None)].into(),
            last_state: String::new(),
            look: ready(()).boxed(),
            ended: false,
        }
    }

    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(self, |mut follower| async move { Some((Ok(follower.next().await?), follower)) })
    }

    /// The next event; `None` when the run has ended, or the service is being stopped.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.outbox.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let stop = self.state.stop.clone();
            // in this order: however much is heard, the transcript has its turn
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut self.look => self.read_committed().await,
                heard = self.live.next() => self.on_live_event(heard),
            }
        }
    }

    fn on_live_event(&mut self, heard: WatchedEvent) {
        match heard {
            // how it ended, and in which state it is, the record says
            WatchedEvent::Event(
                StreamEvent::ExecutionEnd { .. } | StreamEvent::Session { .. } | StreamEvent::StateChange { .. },
            ) => self.look = clock::pause(LOOK_SOON).boxed(),
            WatchedEvent::Event(heard) if self.memory.accept_live(&heard) => self.outbox.push_back(event(&heard, None)),
            WatchedEvent::Event(_) => {}
            // what is gone is in the transcript, or will be
            WatchedEvent::Missed(_) => self.look = clock::pause(LOOK_SOON).boxed(),
        }
    }

    /// Reads what was committed, as long as the token is good. A database that is away is asked again.
    async fn read_committed(&mut self) {
        self.look = clock::pause(LOOK).boxed();
        let read = match self.caller.is_still_known(&self.state).await {
            Ok(true) => self.read().await,
            Ok(false) => Err(StoreError::NotFound),
            Err(error) => Err(error),
        };
        match read {
            Ok(()) => {}
            Err(StoreError::NotFound) => self.ended = true,
            Err(error) => tracing::warn!(run_id = %self.id, %error, "can't read a run that is followed"),
        }
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        // the state first: a final run has no later entry
        let run = self.state.store.get_run(&self.caller.scope, self.id).await?;
        let page = self.state.store.transcript_page(&self.caller.scope, self.id, self.next_seq, ENTRIES).await?;
        for entry in &page.rows {
            self.queue_entry(entry);
        }
        if page.is_cut || page.rows.len() as i64 == ENTRIES {
            // more are there: they come before what is said of the run
            self.look = ready(()).boxed();
            return Ok(());
        }
        let state = run.state.as_str();
        if self.last_state != state {
            self.last_state = state.to_owned();
            let change = StreamEvent::StateChange { state: state.to_owned(), reason: run.reason.clone() };
            self.outbox.push_back(event(&change, None));
        }
        if run.state.is_final() {
            self.end(&run);
        }
        Ok(())
    }

    /// The events of an entry that were not told live; its id comes with the last of them, or alone.
    fn queue_entry(&mut self, entry: &TranscriptEntry) {
        let news = self.memory.accept_committed(entry);
        let id = Some(entry.seq);
        match news.split_last() {
            Some((last, before)) => {
                self.outbox.extend(before.iter().map(|news| event(news, None)));
                self.outbox.push_back(event(last, id));
            }
            // an id without data moves the client's Last-Event-ID on and tells nothing
            None => self.outbox.push_back(Event::default().id(entry.seq.to_string())),
        }
        self.next_seq = entry.seq + 1;
    }

    fn end(&mut self, run: &Run) {
        if let Some(fault) = &run.error {
            let error = StreamEvent::Error { code: fault.code.clone(), message: fault.message.clone() };
            if self.memory.accept_live(&error) {
                self.outbox.push_back(event(&error, None));
            }
        }
        let usage = serde_json::to_value(run.usage).unwrap_or_default();
        self.outbox.push_back(event(&StreamEvent::ExecutionEnd { conversation_id: None, usage }, None));
        self.ended = true;
    }
}

fn event(memory: &StreamEvent, id: Option<i64>) -> Event {
    let data = serde_json::to_string(memory).expect("a stream event is JSON");
    let event = Event::default().event(memory.name()).data(data);
    match id {
        Some(id) => event.id(id.to_string()),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_of_the_stream_is_gone_on_from() {
        let of =
            |id: &str| last_event_id(&HeaderMap::from_iter([("last-event-id".parse().unwrap(), id.parse().unwrap())]));
        assert_eq!(of("7").unwrap(), Some(7));
        assert_eq!(of("").unwrap(), None);
        for bad in ["x", "-1", "9223372036854775807", "9223372036854775808", "1e3", "00000000000000000000000000001 "] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert_eq!(of(&MOST_ENTRIES.to_string()).unwrap(), Some(MOST_ENTRIES));
    }
}
