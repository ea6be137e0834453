//! The HTTP client of one connection with a server, as the library wants it.
//!
//! Each request leaves by egress, with the credential of the connection's tenant where the server has one, which is
//! opened for this request and recorded. Redirects are not followed, and all that comes back is bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::common::http_header::{EVENT_STREAM_MIME_TYPE, JSON_MIME_TYPE};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use sse_stream::Sse;
use tokio::time::{Instant, timeout};

use crate::base::clock::pause;
use crate::base::id::Tenant;
use crate::domain::credential::Reference;
use crate::ports::egress::{EgressError, EgressRequest, OpenResponse};
use crate::ports::tool::mcp::http::answer::{PostedMessage, check_admitted, media_type, status_error};
use crate::ports::tool::mcp::http::call_origin::CallOrigin;
use crate::ports::tool::mcp::http::event_meter::bounded_events;
use crate::ports::tool::mcp::http::http_error::{McpHttpResult, failed};
use crate::ports::tool::mcp::http::stream_pace::StreamPace;
use crate::ports::tool::mcp::output_budget::OutputBudget;
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::vault::credentials::{CredentialFault, Credentials, FetchError, OpenAnswer, Use, UsedSecrets};

pub use crate::ports::tool::mcp::http::http_error::McpHttpError;

/// How long an answer may take to begin, or to be there where it is no stream: longer than a connection or a list may.
const ANSWERED_WITHIN: Duration = Duration::from_secs(310);
/// For the answer of a call: longer than any call may take. A step may have an hour.
const CALLED_WITHIN: Duration = Duration::from_secs(3_610);
/// Both forms in which a message may be answered.
const ACCEPTED: &str = "application/json, text/event-stream";
/// The header with the session of a server of the old era.
const SESSION: &str = "mcp-session-id";
/// The header with the event behind which a stream goes on.
const LAST_EVENT: &str = "last-event-id";
/// Headers that the library leaves to its client.
const RESERVED: [&str; 3] = ["accept", SESSION, LAST_EVENT];

/// The client of one connection. Cheap to clone.
#[derive(Clone)]
pub struct McpHttpClient(Arc<McpHttpParts>);

struct McpHttpParts {
    credentials: Credentials,
    /// The credential that goes along, and the tenant that owns it; `None`: none does.
    credential: Option<(Tenant, Reference)>,
    /// The user of the credential on the record: `mcp:NAME`.
    used_by: String,
    /// Of requests that no run is behind.
    used_secrets: UsedSecrets,
    pace: StreamPace,
    /// Of all that the server writes in streams.
    budget: OutputBudget,
}

impl McpHttpClient {
    /// A client of a server, for one tenant's credential where one goes along.
    pub fn new(server: Arc<PreparedServer>, credentials: Credentials, tenant: Option<Tenant>) -> McpHttpClient {
        let credential = server.credential.as_ref().and_then(|credential| {
            let owner = credential.owner.clone().or(tenant)?;
            Some((owner, credential.reference.clone()))
        });
        McpHttpClient(Arc::new(McpHttpParts {
            credentials,
            credential,
            used_by: format!("mcp:{}", server.name),
            used_secrets: UsedSecrets::default(),
            pace: StreamPace::default(),
            budget: OutputBudget::default(),
        }))
    }

    /// The secrets that were sent without a run: with the handshake, and for the list of tools.
    pub fn used_secrets(&self) -> &UsedSecrets {
        &self.0.used_secrets
    }

    /// The budget of what the server writes in streams of events.
    pub fn budget(&self) -> &OutputBudget {
        &self.0.budget
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: HeaderMap,
        limits: StreamableHttpResponseLimits,
    ) -> McpHttpResult<StreamableHttpPostResponse> {
        let origin = CallOrigin::of(message);
        let mut request = request(Method::POST, uri, headers);
        request.timeout = time_of(message);
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        request.body = serde_json::to_vec(message)?.into();
        self.0.budget.grant(1);
        let response = self.send(request, origin).await?;
        let used_secrets = origin.map_or(self.used_secrets(), |origin| &origin.used_secrets);
        let budget = self.budget();
        let posted = PostedMessage { message, has_session: session.is_some(), limits, used_secrets, budget };
        posted.read(response).await
    }

    async fn stream(
        &self,
        uri: &str,
        headers: HeaderMap,
        limit: usize,
    ) -> McpHttpResult<BoxStream<'static, Result<Sse, SseError>>> {
        let is_resumed = headers.contains_key(LAST_EVENT);
        pause(self.0.pace.take_turn(Instant::now(), is_resumed)).await;
        let response = self.send(request(Method::GET, uri, headers), None).await?;
        if response.status == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        let response = check_success(response)?;
        match media_type(&response.headers) {
            Some(kind) if kind == EVENT_STREAM_MIME_TYPE => {
                Ok(bounded_events(response.pieces(), limit, self.0.budget.clone()))
            }
            other => Err(StreamableHttpError::UnexpectedContentType(other)),
        }
    }

    async fn delete(&self, uri: &str, headers: HeaderMap) -> McpHttpResult<()> {
        let response = self.send(request(Method::DELETE, uri, headers), None).await?;
        match response.status {
            // sessions of this server end by themselves
            StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            _ => check_success(response).map(drop),
        }
    }

    /// Sends a request, and answers once the headers of its answer have come.
    async fn send(&self, request: EgressRequest, origin: Option<&CallOrigin>) -> McpHttpResult<OpenResponse> {
        let answer = self.open(request, origin).await.map_err(failed)?;
        match answer.refused {
            Some(refused) => Err(failed(refused)),
            None => check_admitted(answer.response),
        }
    }

    async fn open(&self, request: EgressRequest, origin: Option<&CallOrigin>) -> Result<OpenAnswer, FetchError> {
        let McpHttpParts { credentials, used_secrets, .. } = &*self.0;
        let with = self.credential_use(origin);
        if let Some(origin) = origin {
            return credentials.open(request, with.as_ref(), &origin.used_secrets).await;
        }
        let answered = credentials.open(request.clone(), with.as_ref(), used_secrets).await;
        if !knows_too_many(&answered) {
            return answered;
        }
        // a connection outlives many renewals of its credential; nothing was sent
        used_secrets.forget();
        credentials.open(request, with.as_ref(), used_secrets).await
    }

    /// The use of the credential, for the run where that is the owner's.
    fn credential_use<'a>(&'a self, origin: Option<&CallOrigin>) -> Option<Use<'a>> {
        let McpHttpParts { credential, used_by, .. } = &*self.0;
        let (tenant, reference) = credential.as_ref()?;
        let origin = origin.filter(|origin| origin.tenant == *tenant);
        let run_id = origin.and_then(|origin| origin.run_id);
        let task_id = origin.and_then(|origin| origin.task_id);
        Some(Use { tenant, reference, run_id, task_id, by: used_by })
    }
}

impl StreamableHttpClient for McpHttpClient {
    type Error = McpHttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> McpHttpResult<StreamableHttpPostResponse> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> McpHttpResult<StreamableHttpPostResponse> {
        let headers = headers(custom_headers, session_id.as_deref(), None)?;
        in_time(time_of(&message), self.post(&uri, &message, session_id.as_deref(), headers, limits)).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> McpHttpResult<()> {
        in_time(ANSWERED_WITHIN, self.delete(&uri, headers(custom_headers, Some(&session_id), None)?)).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> McpHttpResult<BoxStream<'static, Result<Sse, SseError>>> {
        let limit = StreamableHttpResponseLimits::default().max_sse_event_size;
        let (session, last, headers) = (session_id, last_event_id, custom_headers);
        self.get_stream_with_max_sse_event_size(uri, session, last, auth_header, headers, limit).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> McpHttpResult<BoxStream<'static, Result<Sse, SseError>>> {
        let headers = headers(custom_headers, session_id.as_deref(), last_event_id.as_deref())?;
        in_time(ANSWERED_WITHIN, self.stream(&uri, headers, max_sse_event_size)).await
    }
}

/// How long the answer to a message may take.
fn time_of(message: &ClientJsonRpcMessage) -> Duration {
    CallOrigin::of(message).map_or(ANSWERED_WITHIN, |_| CALLED_WITHIN)
}

async fn in_time<T>(after: Duration, answered: impl Future<Output = McpHttpResult<T>>) -> McpHttpResult<T> {
    timeout(after, answered).await.unwrap_or_else(|_| Err(failed(EgressError::Timeout { after })))
}

fn request(method: Method, uri: &str, headers: HeaderMap) -> EgressRequest {
    EgressRequest { headers, timeout: ANSWERED_WITHIN, follow_redirects: false, ..EgressRequest::new(method, uri) }
}

/// The headers of a request: those of the library, and those that it leaves to its client.
fn headers(
    custom: HashMap<HeaderName, HeaderValue>,
    session: Option<&str>,
    last_event: Option<&str>,
) -> McpHttpResult<HeaderMap> {
    if let Some(name) = custom.keys().find(|name| RESERVED.contains(&name.as_str())) {
        return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
    }
    let mut headers: HeaderMap = custom.into_iter().collect();
    headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPTED));
    for (name, text) in [(SESSION, session), (LAST_EVENT, last_event)] {
        if let Some(text) = text {
            headers.insert(name, sent_back(text)?);
        }
    }
    Ok(headers)
}

/// A text of the server as the value of a header.
fn sent_back(text: &str) -> McpHttpResult<HeaderValue> {
    let why = "the id of a session or an event can't be the value of a header";
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| StreamableHttpError::UnexpectedServerResponse(why.into()))
}

fn check_success(response: OpenResponse) -> McpHttpResult<OpenResponse> {
    let status = response.status;
    match status_error(status, &response.headers) {
        Some(error) => Err(error.into()),
        None if status.is_success() => Ok(response),
        None => Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}").into())),
    }
}

fn knows_too_many(answered: &Result<OpenAnswer, FetchError>) -> bool {
    matches!(answered, Err(FetchError::Credential(error)) if error.kind == CredentialFault::TooMany)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::StreamExt;
    use rmcp::model::{ErrorCode, JsonRpcMessage, NumberOrString, ServerJsonRpcMessage};
    use serde_json::{Value, json};
    use url::Url;
    use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

    use super::*;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::settings::ServerTarget;

    const JSON: &str = "application/json";

    fn client() -> McpHttpClient {
        let server = PreparedServer {
            name: "test".into(),
            target: ServerTarget::Url(Url::parse("http://127.0.0.1/mcp").unwrap()),
            credential: None,
            allow: None,
            call_limit: None,
            connect_limit: Duration::from_secs(30),
            is_trusted: false,
            tools: BTreeMap::new(),
        };
        let egress = Egress::new(&Settings { allow: vec!["127.0.0.1:*".into()], ..Settings::default() }).unwrap();
        McpHttpClient::new(Arc::new(server), Credentials::none(egress), None)
    }

    fn message(method: &str) -> ClientJsonRpcMessage {
        let message = match method.starts_with("notifications/") {
            true => json!({ "jsonrpc": "2.0", "method": method }),
            false => json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": {} }),
        };
        serde_json::from_value(message).unwrap()
    }

    async fn answering(answer: ResponseTemplate) -> MockServer {
        let server = MockServer::start().await;
        Mock::given(matchers::any()).respond_with(answer).mount(&server).await;
        server
    }

    fn body(status: u16, kind: &str, text: impl Into<String>) -> ResponseTemplate {
        ResponseTemplate::new(status).set_body_raw(text.into().into_bytes(), kind)
    }

    fn rpc_error(id: Value) -> String {
        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32600, "message": "no" } }).to_string()
    }

    fn limits() -> StreamableHttpResponseLimits {
        let mut limits = StreamableHttpResponseLimits::default();
        (limits.max_json_response_size, limits.max_error_response_size) = (1_000, 100);
        limits
    }

    async fn post(
        server: &MockServer,
        message: ClientJsonRpcMessage,
        session: Option<&str>,
    ) -> McpHttpResult<StreamableHttpPostResponse> {
        let (uri, session) = (server.uri().into(), session.map(Arc::from));
        client().post_message_with_response_limits(uri, message, session, None, HashMap::new(), limits()).await
    }

    /// The outcome of a post that was answered so, in a word.
    async fn outcome(answer: ResponseTemplate, method: &str, session: Option<&str>) -> String {
        match post(&answering(answer).await, message(method), session).await {
            Ok(StreamableHttpPostResponse::Accepted) => "accepted".into(),
            Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _)) => {
                format!("error {} of {:?}", error.error.code.0, error.id)
            }
            Ok(StreamableHttpPostResponse::Json(..)) => "answer".into(),
            Ok(other) => format!("{other:?}"),
            Err(StreamableHttpError::Client(McpHttpError::Redirected)) => "redirected".into(),
            Err(StreamableHttpError::HttpStatus(error)) => format!("status {} {:?}", error.status, error.retry_after),
            Err(StreamableHttpError::AuthRequired(error)) => format!("asks for {}", error.www_authenticate_header),
            Err(StreamableHttpError::InsufficientScope(error)) => format!("lacks {}", error.www_authenticate_header),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn message_is_posted_with_its_session_and_both_forms_of_an_answer_are_taken() {
        let result = json!({ "jsonrpc": "2.0", "id": 7, "result": {} }).to_string();
        let server =
            answering(body(200, "Application/JSON; charset=utf-8", result).insert_header(SESSION, "s-2")).await;
        let answer = post(&server, message("ping"), Some("s-1")).await.unwrap();
        let StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Response(response), session) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((response.id, session.as_deref()), (NumberOrString::Number(7), Some("s-2")));
        let sent = server.received_requests().await.unwrap().remove(0);
        assert_eq!(sent.headers[SESSION], "s-1");
        assert_eq!(sent.headers["accept"], "application/json, text/event-stream");
        assert_eq!(sent.headers["content-type"], JSON);
        assert_eq!(sent.body_json::<Value>().unwrap()["method"], "ping");
    }

    #[tokio::test]
    async fn events_come_as_they_were_sent() {
        let events = "id: e-1\ndata: {\"a\":1}\n\n: still there\n\ndata: {\"b\":2}\n\n";
        let server = answering(body(200, "text/event-stream", events)).await;
        let answer = post(&server, message("ping"), None).await.unwrap();
        let StreamableHttpPostResponse::Sse(events, None) = answer else { panic!("{answer:?}") };
        let events: Vec<Sse> = events.map(Result::unwrap).collect().await;
        assert_eq!(
            events.iter().map(|event| event.data.as_deref().unwrap()).collect::<Vec<_>>(),
            [r#"{"a":1}"#, r#"{"b":2}"#]
        );
        assert_eq!(events[0].id.as_deref(), Some("e-1"));
    }

    #[tokio::test]
    async fn discovery_that_an_old_server_refuses_is_answered_under_its_own_id() {
        for (answer, code) in [
            (body(400, JSON, rpc_error(Value::Null)), -32600),
            (body(404, JSON, rpc_error(json!("server-error"))), -32600),
            (body(400, "text/plain", "Bad Request"), ErrorCode::INVALID_REQUEST.0),
            (body(405, "text/plain", "x".repeat(10_000)), ErrorCode::INVALID_REQUEST.0),
            // or answers as it answers every method that it does not know
            (
                body(200, JSON, json!({ "jsonrpc": "2.0", "id": 7, "result": {} }).to_string()),
                ErrorCode::INVALID_REQUEST.0,
            ),
        ] {
            let expected = format!("error {code} of {:?}", Some(NumberOrString::Number(7)));
            assert_eq!(outcome(answer, "server/discover", None).await, expected);
        }
    }

    #[tokio::test]
    async fn answers_without_success_keep_their_meaning() {
        let refused = format!("error -32600 of {:?}", Some(NumberOrString::Number(7)));
        let challenged =
            |status: u16| ResponseTemplate::new(status).insert_header("www-authenticate", "Bearer scope=\"a\"");
        let moved = ResponseTemplate::new(307).insert_header("location", "http://169.254.169.254/");
        for (answer, session, expected) in [
            (body(400, JSON, rpc_error(Value::Null)), None, &*refused),
            (body(503, JSON, rpc_error(json!(7))), None, &*refused),
            (body(404, "text/plain", "gone"), Some("s-1"), "Session expired (HTTP 404)"),
            (body(404, "text/plain", "gone"), None, "unexpected server response: HTTP 404 Not Found: gone"),
            (body(403, JSON, rpc_error(json!(7))), None, "unexpected server response: HTTP 403 Forbidden: no"),
            (body(503, "text/plain", "down"), None, "status 503 None"),
            (body(429, JSON, "{}").insert_header("retry-after", "7"), None, "status 429 Some(\"7\")"),
            (challenged(401), None, "asks for Bearer scope=\"a\""),
            (ResponseTemplate::new(401), None, "asks for "),
            (challenged(403), None, "lacks Bearer scope=\"a\""),
            (challenged(403).append_header("www-authenticate", "Basic"), None, "lacks Bearer scope=\"a\", Basic"),
            (moved, None, "redirected"),
        ] {
            assert_eq!(outcome(answer, "ping", session).await, expected);
        }
    }

    #[tokio::test]
    async fn success_that_is_no_answer_is_an_error_unless_nothing_waits_for_one() {
        let too_long = format!("{}{}", " ".repeat(1_000), rpc_error(json!(7)));
        let too_large = "HTTP response body exceeded the maximum size of 1000 bytes";
        let no_answer = "Unexpected content type: Some(\"text/html\")";
        for (answer, expected) in [
            (body(202, "text/plain", ""), "accepted"),
            (body(200, "text/html", "<p>"), no_answer),
            (body(200, JSON, too_long), too_large),
        ] {
            assert_eq!(outcome(answer.clone(), "ping", None).await, expected);
            assert_eq!(outcome(answer, "notifications/initialized", None).await, "accepted");
        }
        assert!(outcome(body(200, JSON, "{}"), "ping", None).await.starts_with("Deserialize error"));
    }

    #[tokio::test]
    async fn stream_goes_on_behind_an_event_and_is_opened_where_the_server_has_one() {
        let server = answering(body(200, "text/event-stream", "data: {}\n\n")).await;
        let (client, uri): (McpHttpClient, Arc<str>) = (client(), server.uri().into());
        let (session, last) = (Some(Arc::from("s-1")), Some("e-1".to_owned()));
        let opened = client.get_stream(Arc::clone(&uri), session, last, None, HashMap::new()).await;
        assert_eq!(opened.unwrap().count().await, 1);
        let sent = server.received_requests().await.unwrap().remove(0);
        assert_eq!([&sent.headers[SESSION], &sent.headers[LAST_EVENT]], ["s-1", "e-1"]);

        for (answer, expected) in [
            (ResponseTemplate::new(405), "Server does not support SSE"),
            (body(200, JSON, "{}"), "Unexpected content type: Some(\"application/json\")"),
            (ResponseTemplate::new(500), "HTTP 500"),
            (ResponseTemplate::new(404), "unexpected server response: HTTP 404 Not Found"),
        ] {
            let server = answering(answer).await;
            let refused = self::client().get_stream(server.uri().into(), None, None, None, HashMap::new()).await;
            assert_eq!(refused.err().unwrap().to_string(), expected);
        }
    }

    #[tokio::test]
    async fn stream_takes_a_turn_of_its_kind() {
        let server = answering(body(200, "text/event-stream", "data: {}\n\n")).await;
        for last in [None, Some("e-1".to_owned())] {
            let (client, start, is_resumed) = (client(), Instant::now(), last.is_some());
            drop(client.get_stream(server.uri().into(), None, last, None, HashMap::new()).await.unwrap());
            assert!(!client.0.pace.take_turn(start, is_resumed).is_zero());
            assert!(client.0.pace.take_turn(start, !is_resumed).is_zero());
        }
    }

    #[tokio::test]
    async fn session_is_ended_where_the_server_lets_it() {
        for (status, is_ended) in [(200_u16, true), (405, true), (404, false)] {
            let server = answering(ResponseTemplate::new(status)).await;
            let ended = client().delete_session(server.uri().into(), "s-1".into(), None, HashMap::new()).await;
            assert_eq!(ended.is_ok(), is_ended, "{ended:?}");
            let sent = server.received_requests().await.unwrap().remove(0);
            assert_eq!(sent.method.as_str(), "DELETE");
            assert_eq!(sent.headers[SESSION], "s-1");
        }
    }

    #[tokio::test]
    async fn headers_that_are_the_clients_own_are_refused_and_others_sent() {
        let server = answering(ResponseTemplate::new(202)).await;
        let custom =
            |name: &'static str| HashMap::from([(HeaderName::from_static(name), HeaderValue::from_static("x"))]);
        let posted = |name| {
            let uri = server.uri().into();
            async move {
                client()
                    .post_message_with_response_limits(uri, message("ping"), None, None, custom(name), limits())
                    .await
            }
        };
        assert!(matches!(posted(LAST_EVENT).await, Err(StreamableHttpError::ReservedHeaderConflict(_))));
        posted("mcp-protocol-version").await.unwrap();
        let sent = server.received_requests().await.unwrap();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].headers["mcp-protocol-version"], "x");
    }
}
