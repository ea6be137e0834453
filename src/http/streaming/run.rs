//! The live stream of one run: what is in its transcript first, then what happens, until it has ended.
//!
//! The record is the truth. Each event that is told once has the client's place behind it as its id; a client that
//! comes back with `Last-Event-ID`, here or at another instance, is told the rest. Of a run that this instance
//! executes, messages and calls are told as they come, and not again when they are committed. All else is read from the
//! record: state, questions and errors, wherever the run is executed. Entries of a pipeline are committed up to a
//! second late, or with the end of the run.

mod event_text;
mod keyed_event;
mod memory;
mod position;
pub(in crate::http) mod record_watch;
mod stream_reference;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::{BoxFuture, ready};
use futures::stream::unfold;
use futures::{FutureExt, Stream, StreamExt};
use serde_json::json;
use uuid::Uuid;

use crate::base::clock;
use crate::base::token::Permission;
use crate::domain::approval::{Approval, QuestionKind};
use crate::domain::run::{Run, RunState, StreamEvent, TranscriptEntry, TranscriptMessage};
use crate::executor::hub::{RunSubscription, WatchedEvent};
use crate::http::HttpState;
use crate::http::api::explain::missing_answer;
use crate::http::api::runs::missing;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Id, Query};
use crate::http::streaming::limiter::{self, StreamPermit};
use crate::http::streaming::run::event_text::{written, written_in_turn};
use crate::http::streaming::run::keyed_event::{EntryEvents, KeyedEvent};
use crate::http::streaming::run::memory::StreamMemory;
use crate::http::streaming::run::position::digest_of;
use crate::store::{ApprovalFilter, StoreError};

pub(in crate::http) use crate::http::streaming::run::memory::ClientEvent;
pub(in crate::http) use crate::http::streaming::run::position::StreamPosition;
pub(in crate::http) use crate::http::streaming::run::stream_reference::RunStream;

/// How often the record is looked at while nothing is heard. One look is for all streams of the instance: a stream
/// reads its run by itself where that look has found something new.
const LOOK: Duration = Duration::from_millis(500);
/// How soon it is looked at after the executor has said that it is done: its last write is on the way.
const LOOK_SOON: Duration = Duration::from_millis(50);

/// Entries that are read at once.
const ENTRIES: i64 = 100;
/// Approvals that are read at once, the newest.
const APPROVALS: i64 = 200;

/// Follow a run
///
/// Server-sent events: `session`, `message_start`, `message_chunk`, `message_end`, `tool_call_start`, `tool_result`,
/// `tool_progress`, `state_change`, `approval_required`, `input_required`, `tool_warning`, `error`, and `execution_end`
/// last. What has happened comes first; with `Last-Event-ID`, what came after it, at any instance. `message_start`,
/// `message_chunk`, `tool_progress` and a `tool_warning` without a turn are told while they happen and have no id.
#[utoipa::path(get, path = "/v1/runs/{id}/stream", tag = "runs", security(("bearer" = ["runs:read"])),
    params(("id" = Uuid, Path),
        ("Last-Event-ID" = Option<String>, Header, description = "The last id that was seen")),
    responses((status = 200, body = inline(RunStream), content_type = "text/event-stream")))]
pub async fn stream_run(
    Call(state, caller): Call,
    id: Id,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    caller.may(Permission::RunsRead)?;
    query.done()?;
    let id = id.of("run")?;
    let position = last_event_id(&headers)?;
    let permit = limiter::acquire_stream(&state, &caller, &caller.scope).await?;
    // listen first, read after: what happens in between is heard, and told once
    let live = state.hub.subscribe(id);
    let run = state.store.get_run(&caller.scope, id).await.map_err(missing)?;
    Ok(follow(state, caller, FollowedRun { id, conversation_id: run.conversation_id(), live, position }, permit))
}

/// A run that is about to be followed.
pub(in crate::http) struct FollowedRun {
    pub id: Uuid,
    pub conversation_id: Option<Uuid>,
    /// Heard since before the run was read, or recorded.
    pub live: RunSubscription,
    pub position: StreamPosition,
}

/// The stream of a run that is there.
pub(in crate::http) fn follow(
    state: HttpState,
    caller: AuthenticatedCaller,
    followed: FollowedRun,
    permit: StreamPermit,
) -> Response {
    let keep_alive = KeepAlive::new().interval(state.limits.keep_alive);
    let (compute, name) = (state.compute.clone(), Arc::<str>::from(caller.computes_for()));
    let write = move |told| written_in_turn(told, compute.clone(), Arc::clone(&name));
    let events = events_of(state, caller, followed).then(write).map(Ok::<_, Infallible>);
    Sse::new(limiter::detached(permit, events)).keep_alive(keep_alive).into_response()
}

/// The events of a run that is there, until it has ended.
pub(in crate::http) fn events_of(
    state: HttpState,
    caller: AuthenticatedCaller,
    followed: FollowedRun,
) -> impl Stream<Item = ClientEvent> {
    Follower::new(state, caller, followed).events()
}

/// Where the client's last stream of the run has come to.
pub(in crate::http) fn last_event_id(headers: &HeaderMap) -> Result<StreamPosition, ApiError> {
    let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) else {
        return Ok(StreamPosition::default());
    };
    let position = id.to_str().ok().and_then(|id| id.parse().ok());
    position.ok_or_else(|| ApiError::Malformed("Last-Event-ID must be an id of this stream".into()))
}

/// One client that follows one run.
struct Follower {
    state: HttpState,
    caller: AuthenticatedCaller,
    id: Uuid,
    live: RunSubscription,
    memory: StreamMemory,
    /// Events to tell before anything else, in order.
    outbox: VecDeque<ClientEvent>,
    /// Approvals may be there that were not told.
    asks: bool,
    /// The record may have something new, whatever was found by the look for all streams.
    expects_news: bool,
    /// When the record is looked at next.
    look: BoxFuture<'static, ()>,
    ended: bool,
}

impl Follower {
    fn new(state: HttpState, caller: AuthenticatedCaller, followed: FollowedRun) -> Follower {
        let FollowedRun { id, conversation_id, live, position } = followed;
        let session = ClientEvent::passing(StreamEvent::Session { run_id: id.to_string(), conversation_id });
        Follower {
            state,
            caller,
            id,
            live,
            memory: StreamMemory::behind(position),
            outbox: [session].into(),
            asks: true,
            expects_news: true,
            look: ready(()).boxed(),
            ended: false,
        }
    }

    fn events(self) -> impl Stream<Item = ClientEvent> {
        unfold(self, |mut follower| async move { Some((follower.next().await?, follower)) })
    }

    /// The next event; `None` when the run has ended, or the service is being stopped.
    async fn next(&mut self) -> Option<ClientEvent> {
        loop {
            if let Some(event) = self.outbox.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let stop = self.state.stop.clone();
            // in this order: however much is heard, the record has its turn
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = &mut self.look => self.read_record().await,
                heard = self.live.next() => self.on_live_event(heard).await,
            }
        }
    }

    async fn on_live_event(&mut self, heard: WatchedEvent) {
        match heard {
            // it is recorded: what was committed before it comes before all that is heard after it
            WatchedEvent::Event(StreamEvent::StateChange { .. }) => self.look_now(),
            WatchedEvent::Event(
                StreamEvent::Session { .. }
                | StreamEvent::ApprovalRequired { .. }
                | StreamEvent::InputRequired { .. }
                | StreamEvent::Error { .. }
                | StreamEvent::ExecutionEnd { .. },
            ) => self.look_soon(),
            WatchedEvent::Event(heard) => {
                match KeyedEvent::compute(heard, &self.state.compute, self.caller.computes_for()).await {
                    Ok(heard) => self.outbox.extend(self.memory.accept_live(heard)),
                    // the transcript has it, or will
                    Err(_panicked) => self.look_soon(),
                }
            }
            // events that are gone are in the transcript, or will be
            WatchedEvent::Missed(_) => {
                self.memory.miss();
                self.look_soon();
            }
        }
    }

    fn look_now(&mut self) {
        self.expects_news = true;
        self.look = ready(()).boxed();
    }

    fn look_soon(&mut self) {
        self.expects_news = true;
        self.look = clock::pause(LOOK_SOON).boxed();
    }

    /// Reads what was recorded, as long as the token is good. A database that is away is asked again.
    async fn read_record(&mut self) {
        self.look = clock::pause(LOOK).boxed();
        let read = match self.caller.is_still_known(&self.state).await {
            Ok(true) => self.read_news().await,
            Ok(false) => Err(StoreError::NotFound),
            Err(error) => Err(error),
        };
        match read {
            Ok(()) => {}
            Err(StoreError::NotFound) => self.ended = true,
            Err(error) => {
                self.expects_news = true;
                tracing::warn!(run_id = %self.id, %error, "can't read a run that is followed");
            }
        }
    }

    /// Whether there may be something in the record that was not told: by the look for all streams, where nothing was
    /// heard.
    async fn may_have_news(&mut self) -> bool {
        if std::mem::take(&mut self.expects_news) || self.asks {
            return true;
        }
        let state = &self.state;
        let Some(progress) = state.records.progress_of(&state.store, &state.hub, self.id).await else { return true };
        let position = &self.memory.position;
        progress.last_seq > position.seq || position.state != Some((progress.state, progress.attempt))
    }

    async fn read_news(&mut self) -> Result<(), StoreError> {
        match self.may_have_news().await {
            true => self.read().await,
            false => Ok(()),
        }
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        // approvals first: the state and the calls that they follow from are in what is read after them
        let mut approvals = if self.asks { self.untold_approvals().await? } else { VecDeque::new() };
        // then the run: a final one has no later entry
        let run = self.state.store.get_run(&self.caller.scope, self.id).await?;
        let next_seq = self.memory.position.seq.map_or(0, |seq| seq + 1);
        let page = self.state.store.transcript_page(&self.caller.scope, self.id, next_seq, ENTRIES).await?;
        let is_new_state = self.memory.position.state != Some((run.state, run.attempt));
        if (is_new_state || !page.rows.is_empty()) && !self.asks {
            self.asks = true;
            self.look_now();
            return Ok(());
        }
        let has_more = page.is_cut || page.rows.len() as i64 == ENTRIES;
        let entries = EntryEvents::compute(page.rows, &self.state.compute, self.caller.computes_for()).await;
        for (entry, events) in entries.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))? {
            if let TranscriptMessage::Tool { .. } = entry.message {
                self.tell_approvals(&mut approvals, entry.turn, run.state);
            }
            self.tell_entry(&entry, events, &run);
        }
        self.tell_approvals(&mut approvals, self.memory.position.turn, run.state);
        if has_more {
            // more are there: they come before what is said of the run
            self.look_now();
            return Ok(());
        }
        // a question may have come with the state, after the approvals were read
        self.asks = is_new_state || !approvals.is_empty();
        self.pass(run.state, run.attempt, run.reason.as_deref());
        self.tell_error(&run);
        if run.state.is_final() {
            self.tell_end(&run);
        }
        Ok(())
    }

    /// Approvals that were not told, oldest first.
    async fn untold_approvals(&mut self) -> Result<VecDeque<Approval>, StoreError> {
        let filter = ApprovalFilter { run_id: Some(self.id), limit: APPROVALS, ..ApprovalFilter::default() };
        let newest = self.state.store.approvals_page(&self.caller.scope, &filter).await?.rows;
        let told = self.memory.position.approval;
        Ok(newest.into_iter().filter(|approval| Some(approval.id) > told).rev().collect())
    }

    /// Tells the approvals of turns up to this one, whose calls were told, each behind the state in which the run
    /// waited for it: so a place between the two says which of them is still to be told.
    fn tell_approvals(&mut self, approvals: &mut VecDeque<Approval>, turn: i64, now: RunState) {
        while let Some(approval) = approvals.pop_front_if(|approval| approval.turn <= turn) {
            if let Some((_, attempt)) = self.memory.position.state {
                self.pass(waiting_state(now, &approval), attempt, None);
            }
            self.memory.position.approval = Some(approval.id);
            self.tell(StreamEvent::of_approval(&approval));
        }
    }

    /// The events of an entry that were not told live. It was written while the run was executed.
    fn tell_entry(&mut self, entry: &TranscriptEntry, events: EntryEvents, run: &Run) {
        if self.memory.position.state.is_some() {
            self.pass(RunState::Running, run.attempt, None);
        }
        self.outbox.extend(self.memory.accept_committed(entry, events));
    }

    /// Tells that the run has come to a state, and through which ones since the last that was told.
    fn pass(&mut self, state: RunState, attempt: i32, reason: Option<&str>) {
        let way = match self.memory.position.state {
            None => vec![state],
            Some((from, before)) if from != state || attempt > before => from.shortest_path_to(state),
            Some(_) => return,
        };
        let last = way.len().saturating_sub(1);
        for (index, passed) in way.into_iter().enumerate() {
            let reason = reason.filter(|_| index == last).map(str::to_owned);
            self.memory.position.state = Some((passed, attempt));
            self.tell(StreamEvent::StateChange { state: passed.as_str().to_owned(), reason });
        }
    }

    /// Tells how an attempt ended that did not end well.
    fn tell_error(&mut self, run: &Run) {
        // while the run is executed again, the record still has the error of the attempt before
        let has_ended = run.state == RunState::Queued || run.state.is_final();
        // a message that was refused has a reason alone; the person who has sent it is told what that means
        let is_refused = run.state == RunState::Skipped && run.conversation_id().is_some();
        let refusal = if is_refused { missing_answer(run) } else { None };
        let Some(fault) = run.error.as_ref().or(refusal.as_ref()).filter(|_| has_ended) else { return };
        let error = Some(digest_of(&json!([run.attempt, fault.code, fault.message])));
        if self.memory.position.error != error {
            self.memory.position.error = error;
            self.tell(StreamEvent::Error { code: fault.code.clone(), message: fault.message.clone() });
        }
    }

    /// Ends the stream. A client that comes back after it is told the end again, and nothing else.
    fn tell_end(&mut self, run: &Run) {
        let (usage, finish) = (json!(run.usage), run.finish);
        self.outbox.push_back(ClientEvent::passing(StreamEvent::ExecutionEnd {
            conversation_id: run.conversation_id().map(|id| id.to_string()),
            usage,
            finish,
        }));
        self.ended = true;
    }

    /// Tells an event once: the client's place is behind it already.
    fn tell(&mut self, event: StreamEvent) {
        let id = Some(self.memory.position.to_string());
        self.outbox.push_back(ClientEvent { event: Some(event), id });
    }
}

/// A stream of these events alone.
pub(in crate::http) fn told<const N: usize>(events: [StreamEvent; N]) -> Response {
    let events = events.map(|event| Ok::<_, Infallible>(written(ClientEvent::passing(event))));
    Sse::new(futures::stream::iter(events)).into_response()
}

/// The state in which a run waits, or has waited, for the answer.
fn waiting_state(now: RunState, approval: &Approval) -> RunState {
    match (now, approval.proposal.kind) {
        (RunState::PendingApproval | RunState::WaitingForInput, _) => now,
        (_, QuestionKind::Input) => RunState::WaitingForInput,
        (_, QuestionKind::Approval) => RunState::PendingApproval,
    }
}
