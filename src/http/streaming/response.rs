//! The stream of a run in the form of Open Responses: a message begins, its text comes in pieces, and the response ends, or is
//! incomplete while a person is waited for.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{iter, unfold};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::{RunState, StreamEvent};
use crate::http::HttpState;
use crate::http::api::conversations::response_object::{AnsweredMessage, OutputMessage, OutputText, message_id};
use crate::http::request::AuthenticatedCaller;
use crate::http::streaming::limiter::{self, StreamPermit};
use crate::http::streaming::run::{FollowedRun, ToldEvent, events_of};

/// The stream of a run that has begun so.
pub(in crate::http) fn stream(
    state: HttpState,
    caller: AuthenticatedCaller,
    scope: Scope,
    followed: FollowedRun,
    begun: AnsweredMessage,
    permit: StreamPermit,
) -> Response {
    let keep_alive = KeepAlive::new().interval(state.limits.keep_alive);
    let events = Box::pin(events_of(state.clone(), caller, followed));
    let mut teller = ResponseTeller::new(begun.run.id);
    teller.begin(&begun);
    let told = ToldResponse { state, scope, conversation_id: begun.conversation_id, events, teller };
    let told = unfold(told, |mut told| async move { Some((Ok::<_, Infallible>(told.next().await?), told)) });
    Sse::new(limiter::detached(permit, told)).keep_alive(keep_alive).into_response()
}

/// The stream of a message that is asked back.
pub(in crate::http) fn asked_back(asked: &AnsweredMessage) -> Response {
    let mut teller = ResponseTeller::new(asked.run.id);
    teller.begin(asked);
    teller.end(asked);
    Sse::new(iter(teller.outbox.into_iter().map(Ok::<_, Infallible>))).into_response()
}

/// A response that is told while it happens.
struct ToldResponse {
    state: HttpState,
    scope: Scope,
    conversation_id: Uuid,
    events: Pin<Box<dyn Stream<Item = ToldEvent> + Send>>,
    teller: ResponseTeller,
}

impl ToldResponse {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.teller.outbox.pop_front() {
                return Some(event);
            }
            if self.teller.has_ended {
                return None;
            }
            let ToldEvent { event, .. } = self.events.next().await?;
            match event {
                Some(StreamEvent::MessageStart { .. }) => self.teller.close(None),
                Some(StreamEvent::MessageChunk { text, .. }) => self.teller.add(&text),
                Some(StreamEvent::MessageEnd { text, .. }) => self.teller.close(Some(text)),
                Some(StreamEvent::StateChange { state, .. }) if waits(&state) => self.end().await?,
                Some(StreamEvent::ExecutionEnd { .. }) => self.end().await?,
                _ => {}
            }
        }
    }

    /// Tells how the run stands; `None` where that can't be read, and the client has to ask for it.
    async fn end(&mut self) -> Option<()> {
        let run = self.state.store.get_run(&self.scope, self.teller.run_id).await.ok()?;
        // a person may have answered already, and the run goes on
        if run.state.is_final() || waits(run.state.as_str()) {
            let standing = AnsweredMessage::read(&self.state, &self.scope, run, self.conversation_id).await.ok()?;
            self.teller.end(&standing);
        }
        Some(())
    }
}

/// Whether a run in this state waits for a person.
fn waits(state: &str) -> bool {
    [RunState::PendingApproval, RunState::WaitingForInput].iter().any(|waiting| waiting.as_str() == state)
}

/// Makes the events of a response, each with its number.
struct ResponseTeller {
    run_id: Uuid,
    outbox: VecDeque<Event>,
    /// Number of the next event.
    next: u64,
    /// Messages that are whole.
    output: Vec<OutputMessage>,
    /// The text of the message that has begun.
    open: Option<String>,
    has_ended: bool,
}

impl ResponseTeller {
    fn new(run_id: Uuid) -> ResponseTeller {
        ResponseTeller { run_id, outbox: VecDeque::new(), next: 0, output: Vec::new(), open: None, has_ended: false }
    }

    fn begin(&mut self, begun: &AnsweredMessage) {
        let mut response = begun.response(Some(vec![]));
        response.status = "in_progress".into();
        self.tell("response.created", json!({ "response": response }));
        self.tell("response.in_progress", json!({ "response": response }));
    }

    /// A piece of a text; the first one begins a message.
    fn add(&mut self, piece: &str) {
        if self.open.is_none() {
            let item = OutputMessage::begun(self.id());
            self.tell("response.output_item.added", json!({ "output_index": self.output.len(), "item": item }));
            self.tell_part("response.content_part.added", json!({ "part": OutputText::of(String::new()) }));
            self.open = Some(String::new());
        }
        self.tell_part("response.output_text.delta", json!({ "delta": piece, "logprobs": [] }));
        self.open.get_or_insert_default().push_str(piece);
    }

    /// The end of a message. `whole`: its text, of which pieces may not have come.
    fn close(&mut self, whole: Option<String>) {
        match (&self.open, &whole) {
            (None, Some(whole)) if !whole.is_empty() => self.add(whole),
            (None, _) => return,
            (Some(_), _) => {}
        }
        let text = whole.or(self.open.take()).unwrap_or_default();
        self.open = None;
        let item = OutputMessage::of(self.id(), text.clone());
        self.tell_part("response.output_text.done", json!({ "text": text, "logprobs": [] }));
        self.tell_part("response.content_part.done", json!({ "part": OutputText::of(text) }));
        self.tell("response.output_item.done", json!({ "output_index": self.output.len(), "item": item }));
        self.output.push(item);
    }

    /// The end of the response: what is asked, or an answer that no event has told, is told as a message, too.
    fn end(&mut self, standing: &AnsweredMessage) {
        self.close(None);
        let words = standing.words();
        let last = self.output.last().and_then(|message| message.content.first()).map(|part| &part.text);
        if words.as_ref() != last {
            self.close(words);
        }
        let response = standing.response(Some(std::mem::take(&mut self.output)));
        let name = match standing.status() {
            "completed" => "response.completed",
            "incomplete" => "response.incomplete",
            _ => "response.failed",
        };
        self.tell(name, json!({ "response": response }));
        self.has_ended = true;
    }

    fn id(&self) -> String {
        message_id(self.run_id, self.output.len())
    }

    fn tell_part(&mut self, name: &str, mut data: Value) {
        data["item_id"] = json!(self.id());
        data["output_index"] = json!(self.output.len());
        data["content_index"] = json!(0);
        self.tell(name, data);
    }

    fn tell(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.next);
        self.next += 1;
        self.outbox.push_back(Event::default().event(name).data(data.to_string()));
    }
}
