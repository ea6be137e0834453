//! Calls of the API in this process, by the program that the service is a part of and by tools of MCP clients: the same
//! way as a request, without a socket and without a token.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::base::compute::{Compute, steps_to_parse, steps_to_write};
use crate::base::id::Scope;
use crate::http::request::AuthenticatedCaller;
use crate::http::{HttpState, api_router};

/// Longest answer that is read, in bytes: pages of lists are much shorter.
const ANSWER_BYTES: usize = 64 << 20;

/// The header that makes a repetition safe.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The media type of answers that do not end.
const EVENT_STREAM: &str = "text/event-stream";
/// The header by which a stream goes on where another broke off.
const LAST_EVENT_ID: &str = "last-event-id";

/// Why a call did nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{status}: {}", self.words())]
pub struct CallError {
    /// The status with which the API answers.
    pub status: u16,
    /// The problem, as RFC 9457 has it: `type`, `title`, `detail`, and for invalid input `errors`.
    pub problem: Value,
}

/// The API in this process. Cheap to clone.
#[derive(Clone)]
pub struct InProcessApi {
    router: Router,
    compute: Compute,
}

impl InProcessApi {
    /// The API of a service with this state.
    pub fn new(state: &HttpState) -> InProcessApi {
        InProcessApi { router: api_router(state.clone()), compute: state.compute.clone() }
    }

    /// An operation, by its method and its path with query, of a caller who may do everything in this scope. Answers
    /// its body.
    ///
    /// # Errors
    /// The problem with which the API answers.
    pub async fn call(
        &self,
        scope: &Scope,
        operation: (Method, &str),
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Value, CallError> {
        self.call_as(&AuthenticatedCaller::embedder(scope.clone()), operation, body, key).await
    }

    /// As [`InProcessApi::call`], of this caller, who may do what their token permits.
    ///
    /// # Errors
    /// As [`InProcessApi::call`].
    pub(in crate::http) async fn call_as(
        &self,
        caller: &AuthenticatedCaller,
        (method, path): (Method, &str),
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Value, CallError> {
        let body = self.written(caller, body).await?;
        let mut request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let request = request.body(body).map_err(|error| CallError::of(StatusCode::BAD_REQUEST, error))?;
        let answer = self.answer(caller, request).await;
        let status = answer.status();
        if answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(EVENT_STREAM.as_bytes())) {
            return Err(CallError::of(StatusCode::NOT_ACCEPTABLE, "a stream is no answer to a call"));
        }
        let bytes = to_bytes(answer.into_body(), ANSWER_BYTES).await;
        let bytes = bytes.map_err(|error| CallError::of(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        let (name, steps) = (caller.computes_for(), steps_to_parse(bytes.len()));
        let read = self.compute.run_if_costly(name, steps, move || read_answer(&bytes)).await;
        let answer = read.map_err(|panicked| CallError::of(StatusCode::INTERNAL_SERVER_ERROR, panicked))?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(CallError { status: status.as_u16(), problem: answer }),
        }
    }

    /// The answer to a read of this caller as it is: a stream, or a problem.
    pub(in crate::http) async fn stream_as(
        &self,
        caller: &AuthenticatedCaller,
        path: &str,
        last_event_id: Option<HeaderValue>,
    ) -> Result<Response, CallError> {
        let mut request = Request::builder().uri(path).header(ACCEPT, EVENT_STREAM);
        if let Some(id) = last_event_id {
            request = request.header(LAST_EVENT_ID, id);
        }
        let request = request.body(Body::empty()).map_err(|error| CallError::of(StatusCode::BAD_REQUEST, error))?;
        Ok(self.answer(caller, request).await)
    }

    async fn answer(&self, caller: &AuthenticatedCaller, mut request: Request<Body>) -> Response {
        request.extensions_mut().insert(caller.clone());
        let Ok(answer) = self.router.clone().oneshot(request).await;
        answer
    }

    /// The body of a request; a long one is written in the caller's turn.
    async fn written(&self, caller: &AuthenticatedCaller, body: Option<Value>) -> Result<Body, CallError> {
        let Some(body) = body else { return Ok(Body::empty()) };
        let steps = steps_to_write(&body);
        let text = self.compute.run_if_costly(caller.computes_for(), steps, move || body.to_string()).await;
        text.map(Body::from).map_err(|panicked| CallError::of(StatusCode::INTERNAL_SERVER_ERROR, panicked))
    }
}

/// JSON, or what else it is as text.
fn read_answer(bytes: &[u8]) -> Value {
    match serde_json::from_slice(bytes) {
        Ok(answer) => answer,
        Err(_) if bytes.is_empty() => Value::Null,
        Err(_) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
    }
}

impl CallError {
    fn of(status: StatusCode, error: impl std::fmt::Display) -> CallError {
        CallError { status: status.as_u16(), problem: json!({ "detail": error.to_string() }) }
    }

    fn words(&self) -> String {
        let problem = &self.problem;
        let faults = problem["errors"].as_array().into_iter().flatten();
        let faults = faults.map(|fault| format!("{}: {}", text(&fault["pointer"]), text(&fault["message"])));
        let all: Vec<String> = std::iter::once(text(&problem["detail"]).to_owned()).chain(faults).collect();
        all.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
