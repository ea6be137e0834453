//! Parts that the providers over HTTP share: sending, and reading within bounds.

mod endpoint;

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::HeaderValue;
use http_body_util::Full;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use sse_stream::SseStream;

use crate::base::clock::Clock;
use crate::base::compute::{ComputeTurn, IN_PLACE, steps_to_parse};
use crate::base::metrics::trace;
use crate::base::secret::Secret;
use crate::domain::run::transcript::TranscriptMessage;
use crate::ports::llm::failure::{self, redacted};
use crate::ports::llm::text_size::message_bytes;
use crate::ports::llm::{LlmError, ModelAnswer, ModelRequest, ModelTokens, OnDelta};

pub use endpoint::ModelEndpoint;

/// Largest answer of a model in bytes, frames of a stream included.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
/// As much of an error body as is looked at, in bytes.
const ERROR_LIMIT: usize = 64 * 1024;
/// Steps to write a byte of a conversation, or to put together a byte of an answer that was streamed, as
/// [`Compute`](crate::base::compute::Compute) counts them.
const WRITE_BYTE: u64 = 10;

/// A provider's wire format: how a question is written, and how its answer is read. Cheap to clone.
pub trait Format: Clone + Send + Sync + 'static {
    /// Each event of a stream, put together.
    type Gathered: Default + Send + 'static;

    /// The address of the model, and its key.
    fn endpoint(&self) -> &ModelEndpoint;

    /// The request with its address and the headers of the format, and the key, if one is needed: as a bearer token,
    /// unless the format has a header of its own for it.
    fn post(&self, client: &reqwest::Client) -> Result<reqwest::RequestBuilder, LlmError> {
        let ModelEndpoint { url, key, .. } = self.endpoint();
        post_with_bearer(client, url, key.as_ref())
    }

    /// The body of a request.
    fn body(&self, request: &ModelRequest, stream: bool) -> RequestBody;

    /// An answer that came in one piece, as JSON and as it was written.
    fn whole(&self, body: &Value, text: &[u8]) -> Result<ModelAnswer, LlmError>;

    /// Adds an event of a stream.
    fn add(gathered: &mut Self::Gathered, event: &SseEvent, on_delta: Option<OnDelta<'_>>) -> Progress;

    /// The answer that was streamed; `None`: it is not there to its end.
    fn streamed(&self, gathered: Self::Gathered) -> Option<Result<ModelAnswer, LlmError>>;
}

/// One event of a stream.
pub struct SseEvent {
    /// Its data.
    pub data: Value,
    /// Its data as it was written.
    pub text: String,
}

/// Whether a stream goes on behind an event.
#[derive(PartialEq)]
pub enum Progress {
    GoesOn,
    Ended,
}

/// Asks a model, and tells of its text as it comes. A long request is written in this turn, and so is a long answer
/// read.
pub async fn ask<F: Format>(
    format: &F,
    request: &ModelRequest,
    on_delta: Option<OnDelta<'_>>,
    turn: Option<&ComputeTurn>,
) -> Result<ModelAnswer, LlmError> {
    let endpoint = format.endpoint();
    let stream = endpoint.streams && on_delta.is_some();
    // until the answer is read
    let place = endpoint.connections.acquire();
    let built = written(format, &place.client, request, stream, turn).await?;
    let response = send(built, endpoint.key.as_ref(), &endpoint.clock).await?;
    let answer = read_answer(format, response, stream, on_delta, turn).await;
    let answer = answer.map(|answer| request.tools.own_names(answer));
    // from here on the provider may have charged for it, unless it has said why it does not answer
    answer.or_else(|error| match error {
        LlmError::Transient { .. } | LlmError::Timeout { .. } => Ok(ModelAnswer::failed(error, ModelTokens::default())),
        other => Err(other),
    })
}

async fn read_answer<F: Format>(
    format: &F,
    response: reqwest::Response,
    stream: bool,
    on_delta: Option<OnDelta<'_>>,
    turn: Option<&ComputeTurn>,
) -> Result<ModelAnswer, LlmError> {
    if stream && is_event_stream(&response) {
        return streamed(format, response, on_delta, turn).await;
    }
    let (text, own) = (read_whole(response).await?, format.clone());
    let steps = steps_to_parse(text.len());
    let read = move || -> Result<(Option<String>, ModelAnswer), LlmError> {
        let body = json(&text, own.endpoint().key.as_ref())?;
        Ok((named_model(&body).map(str::to_owned), own.whole(&body, &text)?))
    };
    let (model, answer) = computed(turn, steps, read).await?;
    if let Some(model) = model {
        trace::answered_by(&model);
    }
    if let (Some(on_delta), Some(text)) = (on_delta, &answer.text) {
        on_delta(text);
    }
    Ok(answer)
}

/// Computes where it is asked for, or in this turn.
async fn computed<T: Send + 'static>(
    turn: Option<&ComputeTurn>,
    steps: u64,
    work: impl FnOnce() -> Result<T, LlmError> + Send + 'static,
) -> Result<T, LlmError> {
    match turn {
        None => work(),
        Some(turn) => {
            turn.run_if_costly(steps, work).await.unwrap_or_else(|panicked| Err(transient(panicked.to_string())))
        }
    }
}

/// The request as text alone, which is gone once it is sent: nothing of it is to be kept while the model thinks.
async fn written<F: Format>(
    format: &F,
    client: &reqwest::Client,
    request: &ModelRequest,
    stream: bool,
    turn: Option<&ComputeTurn>,
) -> Result<reqwest::RequestBuilder, LlmError> {
    let write = move |format: &F, request: &ModelRequest| {
        serde_json::to_vec(&format.body(request, stream)).expect("what is sent is JSON")
    };
    let bytes: usize = request.messages.iter().map(message_bytes).sum();
    let steps = WRITE_BYTE * bytes as u64;
    let text = match turn.filter(|_| steps > IN_PLACE) {
        None => write(format, request),
        Some(_) => {
            let (own, request) = (format.clone(), request.clone());
            computed(turn, steps, move || Ok(write(&own, &request))).await?
        }
    };
    let post = format.post(client)?.header(http::header::CONTENT_TYPE, "application/json");
    Ok(post.body(reqwest::Body::wrap(Full::new(Bytes::from(text)))))
}

async fn streamed<F: Format>(
    format: &F,
    response: reqwest::Response,
    on_delta: Option<OnDelta<'_>>,
    turn: Option<&ComputeTurn>,
) -> Result<ModelAnswer, LlmError> {
    let mut events = events(response, format.endpoint().key.as_ref(), turn);
    let mut gathered = F::Gathered::default();
    let (mut is_named, mut bytes) = (false, 0);
    while let Some(event) = events.next().await {
        let event = event?;
        bytes += event.text.len();
        if !is_named && let Some(model) = named_model(&event.data) {
            trace::answered_by(model);
            is_named = true;
        }
        if F::add(&mut gathered, &event, on_delta) == Progress::Ended {
            break;
        }
    }
    let own = format.clone();
    let end =
        move || own.streamed(gathered).unwrap_or_else(|| Err(transient("the stream ended before the answer did")));
    computed(turn, WRITE_BYTE * bytes as u64, end).await
}

/// The model that an answer, or an event of a stream, says it is of. Where it stands differs by the wire.
fn named_model(answer: &Value) -> Option<&str> {
    ["/model", "/message/model", "/response/model"].iter().find_map(|place| answer.pointer(place)?.as_str())
}

/// Sends a request and returns the response, if it is a success.
pub async fn send(
    request: reqwest::RequestBuilder,
    key: Option<&Secret>,
    clock: &Clock,
) -> Result<reqwest::Response, LlmError> {
    let response = request.send().await.map_err(broken)?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let headers = response.headers().clone();
    let body = read(response, ERROR_LIMIT).await.unwrap_or_default();
    let wait = failure::requested_wait(&headers, clock.now());
    Err(failure::of_response(status, wait, &redacted(&String::from_utf8_lossy(&body), key)))
}

/// The whole answer as JSON.
fn json(text: &[u8], key: Option<&Secret>) -> Result<Value, LlmError> {
    let answer = serde_json::from_slice(text).map_err(|error| transient(format!("the answer is no JSON: {error}")))?;
    failure::without_error(answer, key)
}

/// A request's body. Conversation and tools are JSON that is written already.
#[derive(Debug)]
pub struct RequestBody {
    /// Name of the field that holds the conversation.
    pub field: &'static str,
    pub conversation: Vec<Box<RawValue>>,
    pub tools: Option<Arc<RawValue>>,
    pub rest: Map<String, Value>,
}

impl Serialize for RequestBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut body = to.serialize_map(None)?;
        if let Some(tools) = &self.tools {
            body.serialize_entry("tools", tools)?;
        }
        body.serialize_entry(self.field, &self.conversation)?;
        for (name, value) in &self.rest {
            body.serialize_entry(name, value)?;
        }
        body.end()
    }
}

/// A value as JSON text.
pub fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("what is sent is JSON")
}

/// The key as a header's value, which no log shows.
pub fn key_header(prefix: &str, key: &Secret) -> Result<HeaderValue, LlmError> {
    let mut value = HeaderValue::from_str(&format!("{prefix}{}", key.expose()))
        .map_err(|_| LlmError::Auth { message: "the key has characters that no header can carry".into() })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Inserts a field that has a value.
pub fn insert(body: &mut Map<String, Value>, name: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        body.insert(name.to_owned(), serde_json::to_value(value).expect("what is sent is JSON"));
    }
}

/// A request with the key as a bearer token, if there is one.
pub fn post_with_bearer(
    client: &reqwest::Client,
    url: &str,
    key: Option<&Secret>,
) -> Result<reqwest::RequestBuilder, LlmError> {
    let post = client.post(url);
    Ok(match key {
        Some(key) => post.header(http::header::AUTHORIZATION, key_header("Bearer ", key)?),
        None => post,
    })
}

/// All system messages, for APIs that have one place for them.
pub fn system(messages: &[TranscriptMessage]) -> Option<String> {
    let texts = messages.iter().filter_map(|message| match message {
        TranscriptMessage::System { text, .. } => Some(text.as_str()),
        _ => None,
    });
    Some(texts.collect::<Vec<_>>().join("\n\n")).filter(|text| !text.is_empty())
}

/// The arguments of a call as JSON; a text that is none stays text, which no tool's schema accepts, and the model is
/// told so.
pub fn arguments(text: &str) -> Value {
    match text.trim() {
        "" => Value::Object(Map::new()),
        trimmed => serde_json::from_str(trimmed).unwrap_or_else(|_| Value::String(text.to_owned())),
    }
}

/// Arguments as a text of JSON; what the model wrote and was none goes back as it was.
pub fn written_arguments(arguments: &Value) -> String {
    match arguments {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether the server answers with a stream.
fn is_event_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// Each server-sent event as it comes, up to OpenAI's `[DONE]` or the end.
fn events<'a>(
    response: reqwest::Response,
    key: Option<&'a Secret>,
    turn: Option<&'a ComputeTurn>,
) -> impl Stream<Item = Result<SseEvent, LlmError>> + Send + Unpin + 'a {
    let mut total = 0;
    let bounded = response.bytes_stream().map(move |piece| {
        let piece = piece.map_err(broken)?;
        total += piece.len();
        if total > ANSWER_LIMIT { Err(too_large(ANSWER_LIMIT)) } else { Ok(piece) }
    });
    SseStream::from_bytes_stream(bounded.boxed())
        .map_err(|error| match error {
            sse_stream::Error::Body(cause) => match cause.downcast::<LlmError>() {
                Ok(error) => *error,
                Err(cause) => transient(cause.to_string()),
            },
            other => malformed(other),
        })
        .try_filter_map(|event| async move { Ok(event.data.filter(|data| !data.trim().is_empty())) })
        .try_take_while(|data| std::future::ready(Ok(data.trim() != "[DONE]")))
        .and_then(move |text| read_event(text, key, turn))
        .boxed()
}

async fn read_event(text: String, key: Option<&Secret>, turn: Option<&ComputeTurn>) -> Result<SseEvent, LlmError> {
    let (steps, key) = (steps_to_parse(text.len()), key.cloned());
    let read = move || -> Result<SseEvent, LlmError> {
        let data = serde_json::from_str(&text).map_err(malformed)?;
        Ok(SseEvent { data: failure::without_error(data, key.as_ref())?, text })
    };
    computed(turn, steps, read).await
}

/// The whole answer, as it was written.
pub async fn read_whole(response: reqwest::Response) -> Result<Vec<u8>, LlmError> {
    read(response, ANSWER_LIMIT).await
}

async fn read(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, LlmError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(broken)? {
        if body.len() + piece.len() > limit {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn too_large(limit: usize) -> LlmError {
    transient(format!("the answer is larger than {limit} bytes"))
}

fn broken(error: reqwest::Error) -> LlmError {
    let error = error.without_url();
    if error.is_timeout() {
        return LlmError::Timeout { message: "the provider did not answer in time".into() };
    }
    // reqwest says what it was doing, the causes say what went wrong
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    transient(message)
}

fn malformed(error: impl std::fmt::Display) -> LlmError {
    transient(format!("the stream is malformed: {error}"))
}

/// The model stopped, and nobody can tell whether it has said all.
pub fn unknown_stop(reason: &str) -> LlmError {
    transient(format!("the model stopped for a reason that is not known: `{reason}`"))
}

/// The error of a call that may be made again.
pub fn transient(message: impl Into<String>) -> LlmError {
    LlmError::Transient { retry_after: None, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_no_header_can_carry_is_refused_without_being_shown() {
        let header = key_header("Bearer ", &Secret::new("sk-1")).unwrap();
        assert_eq!((header.to_str().unwrap(), header.is_sensitive()), ("Bearer sk-1", true));
        let error = key_header("", &Secret::new("canary\n")).unwrap_err();
        assert_eq!(error, LlmError::Auth { message: "the key has characters that no header can carry".into() });
    }
}
