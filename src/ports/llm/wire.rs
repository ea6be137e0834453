//! Parts that the providers over HTTP share: sending, reading within bounds, and telling failures apart.

use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use sse_stream::SseStream;

use crate::base::secret::{REDACTED, Secret};
use crate::ports::llm::connections::ModelConnections;
use crate::ports::llm::{LlmError, ModelAnswer, ModelRequest, OnDelta};

/// Largest answer of a model in bytes, frames of a stream included.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;
/// As much of an error body as is looked at, in bytes.
const ERROR_LIMIT: usize = 64 * 1024;
/// As much of a provider's error message as is passed on, in characters.
const MESSAGE_LENGTH: usize = 300;

/// A provider's wire format: how a question is written, and how its answer is read.
pub trait Format: Sync {
    /// Each event of a stream, put together.
    type Gathered: Default + Send;

    /// Connections to the provider.
    fn connections(&self) -> &ModelConnections;

    /// The request with its address and the headers of the format, and the key, if one is needed.
    fn post(&self, client: &reqwest::Client) -> Result<reqwest::RequestBuilder, LlmError>;

    /// The key with which the request goes.
    fn key(&self) -> Option<&Secret>;

    /// Whether answers are streamed where somebody reads along.
    fn streams(&self) -> bool;

    /// The body of a request.
    fn body(&self, request: &ModelRequest, stream: bool) -> RequestBody;

    /// An answer that came in one piece, as JSON and as it was written.
    fn whole(&self, body: &Value, text: &[u8]) -> Result<ModelAnswer, LlmError>;

    /// Adds an event of a stream.
    fn add(gathered: &mut Self::Gathered, event: &Value, on_delta: Option<OnDelta<'_>>) -> Progress;

    /// The answer that was streamed; `None`: it is not there to its end.
    fn streamed(&self, gathered: Self::Gathered) -> Option<Result<ModelAnswer, LlmError>>;
}

/// Whether a stream goes on behind an event.
#[derive(PartialEq)]
pub enum Progress {
    GoesOn,
    Ended,
}

/// Asks a model, and tells of its text as it comes.
pub async fn ask<F: Format>(
    format: &F,
    request: &ModelRequest,
    on_delta: Option<OnDelta<'_>>,
) -> Result<ModelAnswer, LlmError> {
    let stream = format.streams() && on_delta.is_some();
    // until the answer is read
    let place = format.connections().acquire();
    let response = send(written(format, &place.client, request, stream)?, format.key()).await?;
    if stream && is_event_stream(&response) {
        return streamed(format, response, on_delta).await;
    }
    let (body, text) = json(response, format.key()).await?;
    let answer = format.whole(&body, &text)?;
    if let (Some(on_delta), Some(text)) = (on_delta, &answer.text) {
        on_delta(text);
    }
    Ok(answer)
}

/// The request as text alone: what it is written from is not to be kept while the model thinks.
fn written<F: Format>(
    format: &F,
    client: &reqwest::Client,
    request: &ModelRequest,
    stream: bool,
) -> Result<reqwest::RequestBuilder, LlmError> {
    Ok(format.post(client)?.json(&format.body(request, stream)))
}

async fn streamed<F: Format>(
    format: &F,
    response: reqwest::Response,
    on_delta: Option<OnDelta<'_>>,
) -> Result<ModelAnswer, LlmError> {
    let mut events = events(response, format.key());
    let mut gathered = F::Gathered::default();
    while let Some(event) = events.next().await {
        if F::add(&mut gathered, &event?, on_delta) == Progress::Ended {
            break;
        }
    }
    format.streamed(gathered).unwrap_or_else(|| Err(transient("the stream ended before the answer did")))
}

/// Sends a request and returns the response, if it is a success.
async fn send(request: reqwest::RequestBuilder, key: Option<&Secret>) -> Result<reqwest::Response, LlmError> {
    let response = request.send().await.map_err(broken)?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let headers = response.headers().clone();
    let body = read(response, ERROR_LIMIT).await.unwrap_or_default();
    Err(failure(status, &headers, &redacted(&String::from_utf8_lossy(&body), key)))
}

/// The whole answer as JSON, and as it was written.
async fn json(response: reqwest::Response, key: Option<&Secret>) -> Result<(Value, Vec<u8>), LlmError> {
    let body = read(response, ANSWER_LIMIT).await?;
    let answer = serde_json::from_slice(&body).map_err(|error| transient(format!("the answer is no JSON: {error}")))?;
    Ok((without_error(answer, key)?, body))
}

/// A request's body: the messages are JSON that is written already.
#[derive(Debug, Serialize)]
pub struct RequestBody {
    pub messages: Vec<Box<RawValue>>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
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

/// Whether the server took the wish for a stream.
fn is_event_stream(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// Each server-sent event as it comes, up to OpenAI's `[DONE]` or the end.
fn events<'a>(
    response: reqwest::Response,
    key: Option<&'a Secret>,
) -> impl Stream<Item = Result<Value, LlmError>> + Send + Unpin + 'a {
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
        .and_then(move |data| {
            let event = serde_json::from_str(&data).map_err(malformed);
            std::future::ready(event.and_then(|event| without_error(event, key)))
        })
        .boxed()
}

/// Some servers say `200 OK` and mean the `error` in the body or in the middle of a stream.
fn without_error(body: Value, key: Option<&Secret>) -> Result<Value, LlmError> {
    match body.get("error").filter(|error| !error.is_null()) {
        None => Ok(body),
        Some(_) => Err(failure(status_in(&body), &HeaderMap::new(), &redacted(&body.to_string(), key))),
    }
}

/// The status that a failure in the middle of a stream would have had in its head.
fn status_in(event: &Value) -> StatusCode {
    let code = &event["error"]["code"];
    let number = code.as_u64().or_else(|| code.as_str()?.parse().ok());
    if let Some(status) = number.and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok()) {
        return status;
    }
    match event["error"]["type"].as_str().unwrap_or_default() {
        "rate_limit_error" | "rate_limit_exceeded" | "overloaded_error" => StatusCode::TOO_MANY_REQUESTS,
        "authentication_error" | "permission_error" => StatusCode::UNAUTHORIZED,
        "invalid_request_error" | "not_found_error" => StatusCode::BAD_REQUEST,
        "request_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "timeout_error" => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Judges a response that is no success. `body` has passed the redactor.
fn failure(status: StatusCode, headers: &HeaderMap, body: &str) -> LlmError {
    let message = format!("{}: {}", status.as_u16(), message_in(body));
    match status.as_u16() {
        401 | 403 => LlmError::Auth { message },
        // not a matter of waiting: this key has nothing left
        402 => LlmError::Auth { message },
        429 if body.contains("insufficient_quota") => LlmError::Auth { message },
        429 | 529 => LlmError::RateLimited { retry_after: retry_after(headers), message },
        413 => LlmError::Overflow { message },
        400 | 422 if speaks_of_overflow(body) => LlmError::Overflow { message },
        408 | 504 => LlmError::Timeout { message },
        409 | 425 | 500..=599 => LlmError::Transient { message },
        _ => LlmError::Rejected { message },
    }
}

/// The words of OpenAI, Anthropic, vLLM, llama.cpp and OpenRouter for a conversation that is too long.
fn speaks_of_overflow(body: &str) -> bool {
    const WORDS: [&str; 6] = [
        "context_length_exceeded",
        "maximum context length",
        "prompt is too long",
        "exceed_context_size",
        "exceeds the available context size",
        "input length and `max_tokens` exceed context limit",
    ];
    let body = body.to_lowercase();
    WORDS.iter().any(|words| body.contains(words))
}

/// Seconds, or milliseconds in OpenAI's own header. A date is not read: none of the providers sends one.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The provider's sentence, wherever it puts it, cut to a length for logs.
fn message_in(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let places = [&parsed["error"]["message"], &parsed["message"], &parsed["detail"], &parsed["error"]];
    let sentence = places.into_iter().find_map(Value::as_str).unwrap_or(body).trim();
    match sentence.char_indices().nth(MESSAGE_LENGTH) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None if sentence.is_empty() => "no reason given".into(),
        None => sentence.into(),
    }
}

/// Providers like to quote the key that they refuse.
fn redacted(body: &str, key: Option<&Secret>) -> String {
    match key.map(Secret::expose).filter(|key| !key.is_empty()) {
        Some(key) => body.replace(key, REDACTED),
        None => body.to_owned(),
    }
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

pub fn transient(message: impl Into<String>) -> LlmError {
    LlmError::Transient { message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, body: &str) -> LlmError {
        failure(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body)
    }

    #[test]
    fn failure_is_told_apart_by_status_and_body() {
        let mut table = String::new();
        for (status, body) in [
            (400, r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#),
            (400, r#"{"error":{"message":"This model's maximum context length is 8192 tokens"}}"#),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#),
            (400, r#"{"error":{"message":"unknown field"}}"#),
            (401, ""),
            (402, r#"{"error":{"message":"no credits"}}"#),
            (403, r#"{"error":"no access"}"#),
            (404, r#"{"detail":"no such model"}"#),
            (408, ""),
            (413, r#"{"error":{"message":"request_too_large"}}"#),
            (429, r#"{"error":{"message":"slow down"}}"#),
            (429, r#"{"error":{"message":"no money","code":"insufficient_quota"}}"#),
            (500, "<html>"),
            (503, r#"{"message":"warming up"}"#),
            (504, ""),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
        ] {
            table.push_str(&format!("{}\n", told(status, body)));
        }
        insta::assert_snapshot!(table, @r"
        the conversation is too long for the model: 400: too long
        the conversation is too long for the model: 400: This model's maximum context length is 8192 tokens
        the conversation is too long for the model: 400: prompt is too long: 9 > 8
        refused: 400: unknown field
        the key was refused: 401: no reason given
        the key was refused: 402: no credits
        the key was refused: 403: no access
        refused: 404: no such model
        no answer in time: 408: no reason given
        the conversation is too long for the model: 413: request_too_large
        rate limited: 429: slow down
        the key was refused: 429: no money
        unavailable: 500: <html>
        unavailable: 503: warming up
        no answer in time: 504: no reason given
        rate limited: 529: Overloaded
        ");
    }

    #[test]
    fn wait_that_a_provider_asks_for_is_read_in_both_units() {
        let wait = |name: &'static str, value: &str| {
            retry_after(&HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]))
        };
        assert_eq!(wait("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        for odd in ["-1", "soon", "inf", "1e300"] {
            assert_eq!(wait("retry-after", odd), None, "{odd}");
        }
    }

    #[test]
    fn key_that_the_provider_quotes_does_not_get_out() {
        let key = Secret::new("sk-canary");
        assert_eq!(redacted("bad key sk-canary!", Some(&key)), "bad key [redacted]!");
        assert_eq!(redacted("bad key", Some(&Secret::new(""))), "bad key");
    }

    #[test]
    fn key_that_no_header_can_carry_is_refused_without_being_shown() {
        let header = key_header("Bearer ", &Secret::new("sk-1")).unwrap();
        assert_eq!((header.to_str().unwrap(), header.is_sensitive()), ("Bearer sk-1", true));
        let error = key_header("", &Secret::new("canary\n")).unwrap_err();
        assert_eq!(error, LlmError::Auth { message: "the key has characters that no header can carry".into() });
    }

    #[test]
    fn failure_in_the_middle_of_a_stream_is_told_apart_too() {
        let read = |event: &str| without_error(serde_json::from_str(event).unwrap(), None);
        let rate = read(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
        assert!(matches!(rate, Err(LlmError::RateLimited { .. })), "{rate:?}");
        let down = read(r#"{"error":{"code":502,"message":"upstream"}}"#);
        assert!(matches!(down, Err(LlmError::Transient { .. })), "{down:?}");
        assert!(read(r#"{"error":null,"choices":[]}"#).is_ok());
    }
}
