//! The stream of a run in the form of Open Responses: a message begins, its text comes in pieces, and the response
//! ends, or is incomplete while a person is waited for.

mod event;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{iter, unfold};
use futures::{Stream, StreamExt};
use serde_json::json;
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::compute::{Compute, steps_to_parse};
use crate::base::id::Scope;
use crate::domain::conversation::RequestEcho;
use crate::domain::run::{RunState, StreamEvent};
use crate::http::HttpState;
use crate::http::api::conversations::response_object::{AnsweredMessage, OutputMessage, OutputText, ResponseObject};
use crate::http::error::ApiError;
use crate::http::request::AuthenticatedCaller;
use crate::http::streaming::limiter::{self, StreamPermit};
use crate::http::streaming::response::event::{DONE, ResponseEvent};
use crate::http::streaming::run::{ClientEvent, FollowedRun, events_of};

pub(in crate::http) use crate::http::streaming::response::event::AnswerStream;

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
    let name = caller.computes_for().into();
    let events = Box::pin(events_of(state.clone(), caller, followed));
    let mut writer = ResponseEventWriter::new(begun.run.id);
    writer.begin(&begun);
    let AnsweredMessage { conversation_id, request, .. } = begun;
    let told = StreamedResponse { state, name, scope, conversation_id, request, events, writer };
    let told = unfold(told, |mut told| async move { Some((Ok::<_, Infallible>(told.next().await?), told)) });
    Sse::new(limiter::detached(permit, told)).keep_alive(keep_alive).into_response()
}

/// The stream of a message that is asked back.
pub(in crate::http) async fn asked_back(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    asked: AnsweredMessage,
) -> Response {
    let mut writer = ResponseEventWriter::new(asked.run.id);
    let words = asked.words();
    let steps = steps_of_texts([words.as_ref()]);
    let write = move |writer: &mut ResponseEventWriter| {
        writer.begin(&asked);
        writer.end(&asked, words);
    };
    writer.write_in_turn(&state.compute, caller.computes_for(), steps, write).await;
    Sse::new(iter(writer.outbox.into_iter().map(Ok::<_, Infallible>))).into_response()
}

/// A response that is told while it happens.
struct StreamedResponse {
    state: HttpState,
    /// In whose name its events are written.
    name: Arc<str>,
    scope: Scope,
    conversation_id: Uuid,
    request: RequestEcho,
    events: Pin<Box<dyn Stream<Item = ClientEvent> + Send>>,
    writer: ResponseEventWriter,
}

impl StreamedResponse {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.writer.outbox.pop_front() {
                return Some(event);
            }
            if self.writer.has_ended {
                return None;
            }
            let Some(ClientEvent { event, .. }) = self.events.next().await else {
                // the service stops, or the token is good no more
                self.writer.break_off();
                continue;
            };
            match event {
                Some(StreamEvent::MessageStart { .. }) => {
                    self.write(steps_of_texts([self.writer.open_text()]), |writer| writer.close(None)).await;
                }
                Some(StreamEvent::MessageChunk { turn, text }) => {
                    self.write(steps_to_parse(text.len()), move |writer| writer.add(turn, &text)).await;
                }
                Some(StreamEvent::MessageEnd { turn, text, .. }) => {
                    self.write(steps_of_texts([Some(&text)]), move |writer| writer.close(Some((turn, text)))).await;
                }
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
                Ok(standing) => {
                    let words = standing.words();
                    let steps = steps_of_texts([self.writer.open_text(), words.as_ref()]);
                    return self.write(steps, move |writer| writer.end(&standing, words)).await;
                }
                Err(ApiError::NotFound(_)) => return self.writer.break_off(),
                Err(error) => tracing::warn!(run_id = %self.writer.run_id, ?error, "a response can't be read"),
            }
            if self.state.stop.run_until_cancelled(pause(ASK_AGAIN)).await.is_none() {
                return self.writer.break_off();
            }
        }
    }

    /// Has the events written that this work tells; long ones on a computing thread, in the turn of the client's name.
    async fn write(&mut self, steps: u64, work: impl FnOnce(&mut ResponseEventWriter) + Send + 'static) {
        self.writer.write_in_turn(&self.state.compute, &self.name, steps, work).await;
    }

    async fn standing(&mut self) -> Result<AnsweredMessage, ApiError> {
        let run = self.state.store.get_run(&self.scope, self.writer.run_id).await?;
        let standing = AnsweredMessage::read(&self.state, &self.scope, run, self.conversation_id).await?;
        Ok(standing.to(self.request))
    }
}

/// Whether a run in this state waits for a person.
fn waits(state: &str) -> bool {
    [RunState::PendingApproval, RunState::WaitingForInput].iter().any(|waiting| waiting.as_str() == state)
}

/// The steps that it takes at most to write the events that repeat these texts: at the end of a message three have its
/// text, and the response has it once more.
fn steps_of_texts<const N: usize>(texts: [Option<&String>; N]) -> u64 {
    texts.into_iter().flatten().map(|text| steps_to_parse(text.len().saturating_mul(4))).fold(0, u64::saturating_add)
}

/// Makes the events of a response, each with its number. Messages of all turns are told; the response has its words
/// alone.
struct ResponseEventWriter {
    run_id: Uuid,
    outbox: VecDeque<Event>,
    /// Number of the next event.
    next: u64,
    /// Messages that were told.
    told: u64,
    /// The text of the last message that is whole.
    last: Option<String>,
    /// The message that has begun: its id and its text.
    open: Option<(String, String)>,
    has_ended: bool,
}

impl ResponseEventWriter {
    fn new(run_id: Uuid) -> ResponseEventWriter {
        ResponseEventWriter {
            run_id,
            outbox: VecDeque::new(),
            next: 0,
            told: 0,
            last: None,
            open: None,
            has_ended: false,
        }
    }

    /// The text of the message that has begun.
    fn open_text(&self) -> Option<&String> {
        self.open.as_ref().map(|(_, text)| text)
    }

    /// Does this work, in place where it takes few steps, else on a computing thread in the turn of this name. Where it
    /// panics, the stream ends.
    async fn write_in_turn(
        &mut self,
        compute: &Compute,
        name: &str,
        steps: u64,
        work: impl FnOnce(&mut ResponseEventWriter) + Send + 'static,
    ) {
        let rest = ResponseEventWriter { next: self.next, ..ResponseEventWriter::new(self.run_id) };
        let mut writer = std::mem::replace(self, rest);
        let write = move || {
            work(&mut writer);
            writer
        };
        match compute.run_if_costly(name, steps, write).await {
            Ok(writer) => *self = writer,
            Err(panicked) => {
                tracing::error!(run_id = %self.run_id, %panicked, "the events of a response can't be written");
                self.break_off();
            }
        }
    }

    fn begin(&mut self, begun: &AnsweredMessage) {
        let begun = ResponseObject {
            status: "in_progress".into(),
            incomplete_details: None,
            output: vec![],
            completed_at: None,
            ..begun.response()
        };
        let response = Box::new(begun);
        let created = response.clone();
        self.tell(|sequence_number| ResponseEvent::Created { sequence_number, response: created });
        self.tell(|sequence_number| ResponseEvent::InProgress { sequence_number, response });
    }

    /// A piece of a text; the first one begins a message.
    fn add(&mut self, turn: i64, piece: &str) {
        let (output_index, content_index) = (self.told, 0);
        let (id, mut text) = match self.open.take() {
            Some(open) => open,
            None => {
                let id = format!("msg_{}_{turn}_{output_index}", self.run_id);
                let item = OutputMessage::begun(id.clone());
                self.tell(|sequence_number| ResponseEvent::ItemAdded { sequence_number, output_index, item });
                let (item_id, part) = (id.clone(), OutputText::of(String::new()));
                self.tell(|sequence_number| ResponseEvent::PartAdded {
                    sequence_number,
                    item_id,
                    output_index,
                    content_index,
                    part,
                });
                (id, String::new())
            }
        };
        let (item_id, delta, logprobs) = (id.clone(), piece.to_owned(), vec![]);
        self.tell(|sequence_number| ResponseEvent::TextDelta {
            sequence_number,
            item_id,
            output_index,
            content_index,
            delta,
            logprobs,
        });
        text.push_str(piece);
        self.open = Some((id, text));
    }

    /// The end of a message. `whole`: its turn and text, of which pieces may not have come; `None`: its call is made
    /// once more, and it stays what it is.
    fn close(&mut self, whole: Option<(i64, String)>) {
        if let (None, Some((turn, text))) = (&self.open, &whole)
            && !text.is_empty()
        {
            self.add(*turn, text);
        }
        let Some((id, begun)) = self.open.take() else { return };
        let status = if whole.is_some() { "completed" } else { "incomplete" };
        let last = whole.map_or(begun, |(_, text)| text);
        let (output_index, content_index) = (self.told, 0);
        let item = OutputMessage { status: status.into(), ..OutputMessage::of(id.clone(), last.clone()) };
        let (item_id, text, logprobs) = (id.clone(), last.clone(), vec![]);
        self.tell(|sequence_number| ResponseEvent::TextDone {
            sequence_number,
            item_id,
            output_index,
            content_index,
            text,
            logprobs,
        });
        let (item_id, part) = (id, OutputText::of(last.clone()));
        self.tell(|sequence_number| ResponseEvent::PartDone {
            sequence_number,
            item_id,
            output_index,
            content_index,
            part,
        });
        self.tell(|sequence_number| ResponseEvent::ItemDone { sequence_number, output_index, item });
        self.told += 1;
        self.last = Some(last);
    }

    /// The end of the response: a question, or an answer that no event has told, is told as a message, too.
    fn end(&mut self, standing: &AnsweredMessage, words: Option<String>) {
        self.close(None);
        if words != self.last {
            self.close(words.map(|words| (0, words)));
        }
        let response = Box::new(standing.response());
        self.tell(|sequence_number| match standing.status() {
            "completed" => ResponseEvent::Completed { sequence_number, response },
            "incomplete" => ResponseEvent::Incomplete { sequence_number, response },
            _ => ResponseEvent::Failed { sequence_number, response },
        });
        self.done();
    }

    /// The end of the stream before that of the response.
    fn break_off(&mut self) {
        let (code, message) = ("stream_ended".into(), "the stream ends here; read the response by its id".into());
        self.tell(|sequence_number| ResponseEvent::Error { sequence_number, code, message, param: None });
        self.done();
    }

    fn done(&mut self) {
        self.outbox.push_back(Event::default().data(DONE));
        self.has_ended = true;
    }

    /// Tells the event with the next number. Its name is its `type`.
    fn tell(&mut self, numbered: impl FnOnce(u64) -> ResponseEvent) {
        let data = json!(numbered(self.next));
        self.next += 1;
        let name = data["type"].as_str().unwrap_or_default();
        self.outbox.push_back(Event::default().event(name).data(data.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;
    use crate::base::compute::JSON_IN_PLACE;

    #[tokio::test]
    async fn long_message_is_written_on_a_computing_thread_and_a_short_one_where_it_is() {
        let compute = Compute::new(1);
        let (release, released) = mpsc::channel::<()>();
        let mut held = pin!(compute.run("bob", move || released.recv()));
        assert!((&mut held).now_or_never().is_none(), "the only thread is taken");
        let mut writer = ResponseEventWriter::new(Uuid::nil());
        let short = "x".repeat(JSON_IN_PLACE / 4);
        let steps = steps_of_texts([Some(&short)]);
        let close = move |writer: &mut ResponseEventWriter| writer.close(Some((1, short)));
        assert!(writer.write_in_turn(&compute, "ann", steps, close).now_or_never().is_some());
        assert_eq!((writer.outbox.len(), writer.next), (6, 6));
        let long = "x".repeat(JSON_IN_PLACE / 4 + 1);
        let steps = steps_of_texts([Some(&long)]);
        {
            let close = move |writer: &mut ResponseEventWriter| writer.close(Some((2, long)));
            let mut written = pin!(writer.write_in_turn(&compute, "ann", steps, close));
            assert!((&mut written).now_or_never().is_none(), "it waits for the thread");
            drop(release);
            written.await;
        }
        assert_eq!((writer.outbox.len(), writer.next, writer.told), (12, 12, 2));
        let panics = |_: &mut ResponseEventWriter| panic!("on purpose");
        writer.write_in_turn(&compute, "ann", u64::MAX, panics).await;
        assert!(writer.has_ended, "a stream whose events can't be written ends");
        assert_eq!(writer.next, 13);
    }
}
