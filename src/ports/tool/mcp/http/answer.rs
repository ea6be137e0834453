//! Answers of HTTP to a message that was posted, as the library knows them.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, StatusCode, header};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, JsonRpcRequest, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::transport::common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpError,
    StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use sse_stream::Sse;

use crate::base::clock::pause;
use crate::ports::egress::{EgressError, OpenResponse};
use crate::ports::tool::mcp::http::event_meter::bounded_events;
use crate::ports::tool::mcp::http::http_error::{McpHttpError, McpHttpResult, failed};
use crate::ports::tool::mcp::output_budget::OutputBudget;
use crate::ports::vault::credentials::UsedSecrets;

/// Longest text of an answer that a person is shown, in characters.
const SHOWN: usize = 500;
/// How long the answer to a greeting is read: longer than connecting may take. The library reads it to its end, whether
/// anybody waits for it or not.
const GREETED_WITHIN: Duration = Duration::from_secs(310);

/// A message that was posted, and what its answer depends on.
pub struct PostedMessage<'a> {
    /// The message.
    pub message: &'a ClientJsonRpcMessage,
    /// Whether it was posted in a session.
    pub has_session: bool,
    /// Bounds of its answer.
    pub limits: StreamableHttpResponseLimits,
    /// Taken out of what is shown of its answer.
    pub used_secrets: &'a UsedSecrets,
    /// Of the connection, for an answer that is a stream.
    pub budget: &'a OutputBudget,
}

/// Words of a server that does not do what it was asked for.
enum AnsweredRefusal {
    /// An error of the protocol.
    Rpc(ErrorData),
    Text(String),
}

impl PostedMessage<'_> {
    /// Reads the answer.
    ///
    /// # Errors
    /// It is none that the message can have.
    pub async fn read(&self, response: OpenResponse) -> McpHttpResult<StreamableHttpPostResponse> {
        match response.status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(StreamableHttpPostResponse::Accepted),
            // the library greets the server again, and posts it once more
            StatusCode::NOT_FOUND if self.has_session => Err(StreamableHttpError::SessionExpired),
            status if status.is_success() => self.read_success(response).await,
            _ => self.read_failure(response).await,
        }
    }

    async fn read_success(&self, response: OpenResponse) -> McpHttpResult<StreamableHttpPostResponse> {
        if self.request().is_none() {
            // nothing waits for an answer, and some servers send one
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = session_id(&response.headers);
        match media_type(&response.headers).as_deref() {
            Some(EVENT_STREAM_MIME_TYPE) => {
                let events = bounded_events(response.pieces(), self.limits.max_sse_event_size, self.budget.clone());
                let events = if self.is_greeting() { ended_by(events, pause(GREETED_WITHIN)) } else { events };
                Ok(StreamableHttpPostResponse::Sse(events, session))
            }
            Some(JSON_MIME_TYPE) => {
                let message = self.read_message(response).await?;
                if self.is_discovery() && is_no_discovery(&message) {
                    return Ok(self.refused(ErrorData::invalid_request("the answer to the discovery is none", None)));
                }
                Ok(StreamableHttpPostResponse::Json(message, session))
            }
            other => Err(StreamableHttpError::UnexpectedContentType(other.map(str::to_owned))),
        }
    }

    async fn read_message(&self, response: OpenResponse) -> McpHttpResult<ServerJsonRpcMessage> {
        let max_size = self.limits.max_json_response_size;
        let body = response.read(max_size).await.map_err(|error| match error {
            EgressError::TooLarge { .. } => StreamableHttpError::ResponseBodyTooLarge { max_size },
            error => failed(error),
        })?;
        Ok(serde_json::from_slice(&body)?)
    }

    async fn read_failure(&self, response: OpenResponse) -> McpHttpResult<StreamableHttpPostResponse> {
        let status = response.status;
        let is_json = media_type(&response.headers).as_deref() == Some(JSON_MIME_TYPE);
        let passing = match status_error(status, &response.headers) {
            Some(error) if !is_json || status == StatusCode::TOO_MANY_REQUESTS => return Err(error.into()),
            passing => passing,
        };
        match (self.read_refusal(response, is_json).await, passing) {
            (AnsweredRefusal::Rpc(error), _) if status != StatusCode::FORBIDDEN => Ok(self.refused(error)),
            (_, Some(error)) => Err(error.into()),
            (AnsweredRefusal::Text(text), None) if self.is_discovery() && status != StatusCode::FORBIDDEN => {
                Ok(self.refused(ErrorData::invalid_request(self.shown(status, text).await, None)))
            }
            (AnsweredRefusal::Rpc(ErrorData { message, .. }), None) => {
                Err(self.unexpected(status, message.into_owned()).await)
            }
            (AnsweredRefusal::Text(text), None) => Err(self.unexpected(status, text).await),
        }
    }

    async fn read_refusal(&self, response: OpenResponse, is_json: bool) -> AnsweredRefusal {
        let limit = if is_json { self.limits.max_json_response_size } else { self.limits.max_error_response_size };
        let body = match response.read(limit).await {
            Ok(body) => body,
            Err(error) => return AnsweredRefusal::Text(error.to_string()),
        };
        match serde_json::from_slice(&body) {
            Ok(ServerJsonRpcMessage::Error(error)) if is_json => AnsweredRefusal::Rpc(error.error),
            _ => AnsweredRefusal::Text(String::from_utf8_lossy(&body).into_owned()),
        }
    }

    /// An error of the protocol in answer to the message: a server that refuses one before it has read it knows no id,
    /// and without it nobody would be told.
    fn refused(&self, error: ErrorData) -> StreamableHttpPostResponse {
        let id: Option<RequestId> = self.request().map(|request| request.id.clone());
        StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, id), None)
    }

    async fn unexpected(&self, status: StatusCode, text: String) -> StreamableHttpError<McpHttpError> {
        StreamableHttpError::UnexpectedServerResponse(self.shown(status, text).await.into())
    }

    async fn shown(&self, status: StatusCode, text: String) -> String {
        let clean = self.used_secrets.cleaned(text).await;
        format!("HTTP {status}: {}", clean.trim().chars().take(SHOWN).collect::<String>())
    }

    fn request(&self) -> Option<&JsonRpcRequest<ClientRequest>> {
        match self.message {
            JsonRpcMessage::Request(request) => Some(request),
            _ => None,
        }
    }

    /// Whether it is a message by which a connection begins.
    fn is_greeting(&self) -> bool {
        let is_greeting = |request: &JsonRpcRequest<_>| {
            matches!(request.request, ClientRequest::DiscoverRequest(_) | ClientRequest::InitializeRequest(_))
        };
        self.request().is_some_and(is_greeting)
    }

    /// Whether it is the first message to a server whose era is not known. A refusal of any kind says that the server
    /// is of the old one.
    fn is_discovery(&self) -> bool {
        let is_discovery = |request: &JsonRpcRequest<_>| matches!(request.request, ClientRequest::DiscoverRequest(_));
        !self.has_session && self.request().is_some_and(is_discovery)
    }
}

/// Whether a result is not that of a discovery: a server of the old era may answer a method that it does not know with
/// an empty one.
fn is_no_discovery(message: &ServerJsonRpcMessage) -> bool {
    match message {
        JsonRpcMessage::Response(response) => !matches!(response.result, ServerResult::DiscoverResult(_)),
        _ => false,
    }
}

/// The events of a stream until then.
fn ended_by(
    events: BoxStream<'static, Result<Sse, SseError>>,
    end: impl Future<Output = ()> + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    events.take_until(end).boxed()
}

/// The answer, unless it asks for authorisation or sends us on to another address.
///
/// # Errors
/// It does one of these.
pub fn check_admitted(response: OpenResponse) -> McpHttpResult<OpenResponse> {
    // one of several headers may be of another scheme
    let lines = response.headers.get_all(header::WWW_AUTHENTICATE).iter();
    let challenge =
        lines.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).reduce(|a, b| a + ", " + &b);
    match (response.status, challenge) {
        (StatusCode::UNAUTHORIZED, challenge) => {
            Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge.unwrap_or_default())))
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, None)))
        }
        (status, _) if status.is_redirection() => Err(StreamableHttpError::Client(McpHttpError::Redirected)),
        _ => Ok(response),
    }
}

/// The error of a server that can't do now what it may do later; `None`: the status says something else.
pub fn status_error(status: StatusCode, headers: &HeaderMap) -> Option<HttpStatusError> {
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let retry_after = headers.get(header::RETRY_AFTER).and_then(|wait| wait.to_str().ok());
    Some(HttpStatusError::new(status.as_u16(), retry_after.map(str::to_owned)))
}

/// The kind of a body, in lower case and without parameters.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let written = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(written.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(HEADER_SESSION_ID)?.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::stream;
    use rmcp::model::NumberOrString;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn stream_without_an_end_ends_with_its_time() {
        let endless: BoxStream<'static, Result<Sse, SseError>> = stream::pending().boxed();
        assert_eq!(ended_by(endless, ready(())).count().await, 0);
    }

    #[test]
    fn connection_begins_with_a_greeting_and_with_nothing_else() {
        let (used_secrets, budget) = (UsedSecrets::default(), OutputBudget::default());
        let greets = |method: &str, params: serde_json::Value| {
            let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            let message: ClientJsonRpcMessage = serde_json::from_value(message).unwrap();
            assert!(matches!(&message, JsonRpcMessage::Request(request) if request.id == NumberOrString::Number(7)));
            let limits = StreamableHttpResponseLimits::default();
            let (used_secrets, budget) = (&used_secrets, &budget);
            PostedMessage { message: &message, has_session: false, limits, used_secrets, budget }.is_greeting()
        };
        let client = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        assert!(greets("initialize", hello) && greets("server/discover", json!({})));
        assert!(!greets("tools/call", json!({ "name": "echo" })) && !greets("ping", json!({})));
    }
}
