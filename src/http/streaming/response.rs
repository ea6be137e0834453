//! The stream of a run in the form of Open Responses: a message begins, its text comes in pieces, and the response ends, or is
//! incomplete while a person is waited for.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{iter, unfold};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Scope;
use crate::domain::run::{RunState, StreamEvent};
use crate::http::HttpState;
use crate::http::api::conversations::response_object::{
    AnsweredMessage, OutputMessage, OutputText, RequestEcho, ResponseObject,
};
use crate::http::error::ApiError;
use crate::http::request::AuthenticatedCaller;
use crate::http::streaming::limiter::{self, StreamPermit};
use crate::http::streaming::run::{FollowedRun, ToldEvent, events_of};

/// The wait before a database that is away is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

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
    let AnsweredMessage { conversation_id, request, .. } = begun;
    let told = ToldResponse { state, scope, conversation_id, request, events, teller };
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
    request: RequestEcho,
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
            let Some(ToldEvent { event, .. }) = self.events.next().await else {
                // the service stops, or the token is good no more
                self.teller.break_off();
                continue;
            };
            match event {
                Some(StreamEvent::MessageStart { .. }) => self.teller.close(None),
                Some(StreamEvent::MessageChunk { turn, text }) => self.teller.add(turn, &text),
                Some(StreamEvent::MessageEnd { turn, text, .. }) => self.teller.close(Some((turn, text))),
                Some(StreamEvent::StateChange { state, .. }) if waits(&state) => self.end().await,
                Some(StreamEvent::ExecutionEnd { .. }) => self.end().await,
                _ => {}
            }
        }
    }

    /// Tells how the run stands, if it has ended or a person has to answer. A database that is away is asked again.
    async fn end(&mut self) {
        loop {
            match self.standing().await {
                // a person may have answered already, and the run goes on
                Ok(standing) if !standing.run.state.is_final() && standing.awaits().is_none() => return,
                Ok(standing) => return self.teller.end(&standing),
                Err(ApiError::NotFound(_)) => return self.teller.break_off(),
                Err(error) => tracing::warn!(run_id = %self.teller.run_id, ?error, "a response can't be read"),
            }
            if self.state.stop.run_until_cancelled(pause(ASK_AGAIN)).await.is_none() {
                return self.teller.break_off();
            }
        }
    }

    async fn standing(&mut self) -> Result<AnsweredMessage, ApiError> {
        let run = self.state.store.get_run(&self.scope, self.teller.run_id).await?;
        let standing = AnsweredMessage::read(&self.state, &self.scope, run, self.conversation_id).await?;
        Ok(standing.to(self.request))
    }
}

/// Whether a run in this state waits for a person.
fn waits(state: &str) -> bool {
    [RunState::PendingApproval, RunState::WaitingForInput].iter().any(|waiting| waiting.as_str() == state)
}

/// Makes the events of a response, each with its number. Messages of all turns are told; the response has its words alone.
struct ResponseTeller {
    run_id: Uuid,
    outbox: VecDeque<Event>,
    /// Number of the next event.
    next: u64,
    /// Messages that were told.
    told: usize,
    /// The text of the last message that is whole.
    last: Option<String>,
    /// The message that has begun: its id and its text.
    open: Option<(String, String)>,
    has_ended: bool,
}

impl ResponseTeller {
    fn new(run_id: Uuid) -> ResponseTeller {
        ResponseTeller { run_id, outbox: VecDeque::new(), next: 0, told: 0, last: None, open: None, has_ended: false }
    }

    fn begin(&mut self, begun: &AnsweredMessage) {
        let begun =
            ResponseObject { status: "in_progress".into(), output: vec![], completed_at: None, ..begun.response() };
        self.tell("response.created", json!({ "response": begun }));
        self.tell("response.in_progress", json!({ "response": begun }));
    }

    /// A piece of a text; the first one begins a message.
    fn add(&mut self, turn: i64, piece: &str) {
        if self.open.is_none() {
            let id = format!("msg_{}_{turn}_{}", self.run_id, self.told);
            let item = OutputMessage::begun(id.clone());
            self.tell("response.output_item.added", json!({ "output_index": self.told, "item": item }));
            self.tell_part("response.content_part.added", &id, json!({ "part": OutputText::of(String::new()) }));
            self.open = Some((id, String::new()));
        }
        let Some((id, mut text)) = self.open.take() else { return };
        self.tell_part("response.output_text.delta", &id, json!({ "delta": piece, "logprobs": [] }));
        text.push_str(piece);
        self.open = Some((id, text));
    }

    /// The end of a message. `whole`: its turn and text, of which pieces may not have come; `None`: its call is made once more, and it
    /// stays what it is.
    fn close(&mut self, whole: Option<(i64, String)>) {
        if let (None, Some((turn, text))) = (&self.open, &whole)
            && !text.is_empty()
        {
            self.add(*turn, text);
        }
        let Some((id, begun)) = self.open.take() else { return };
        let status = if whole.is_some() { "completed" } else { "incomplete" };
        let text = whole.map_or(begun, |(_, text)| text);
        let item = OutputMessage { status: status.into(), ..OutputMessage::of(id.clone(), text.clone()) };
        self.tell_part("response.output_text.done", &id, json!({ "text": text, "logprobs": [] }));
        self.tell_part("response.content_part.done", &id, json!({ "part": OutputText::of(text.clone()) }));
        self.tell("response.output_item.done", json!({ "output_index": self.told, "item": item }));
        self.told += 1;
        self.last = Some(text);
    }

    /// The end of the response: what is asked, or an answer that no event has told, is told as a message, too.
    fn end(&mut self, standing: &AnsweredMessage) {
        self.close(None);
        let words = standing.words();
        if words != self.last {
            self.close(words.map(|words| (0, words)));
        }
        let name = match standing.status() {
            "completed" => "response.completed",
            "incomplete" => "response.incomplete",
            _ => "response.failed",
        };
        self.tell(name, json!({ "response": standing.response() }));
        self.done();
    }

    /// The end of the stream before that of the response.
    fn break_off(&mut self) {
        let message = "the stream ends here; read the response by its id";
        self.tell("error", json!({ "code": "stream_ended", "message": message, "param": null }));
        self.done();
    }

    fn done(&mut self) {
        self.outbox.push_back(Event::default().data("[DONE]"));
        self.has_ended = true;
    }

    fn tell_part(&mut self, name: &str, id: &str, mut data: Value) {
        data["item_id"] = json!(id);
        data["output_index"] = json!(self.told);
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
