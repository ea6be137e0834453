//! One connection with an MCP server: its life, and the calls that go over it.
//!
//! It lives on the runtime of servers, wherever it is asked from: foreign JSON is read there, and not on the engine's
//! threads. Dropping it ends it, and with it the process of a server that runs here.

#[cfg(test)]
pub(super) mod fixture;
pub(super) mod live_calls;
mod opening;
pub(super) mod progress;
mod subscription;

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ElicitRequestParams,
    ListToolsResult, PaginatedRequestParams, RequestId, RequestMetaObject, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::id::Tenant;
use crate::base::unicode_safety::on_one_line;
use crate::ports::tool::mcp::connection::live_calls::{LiveCall, LiveCalls};
use crate::ports::tool::mcp::connection::progress::{ProgressRoutes, ProgressTeller};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::http::call_origin::CallOrigin;
use crate::ports::tool::mcp::output_budget::OutputBudget;
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::tool::mcp::stdio::stderr_tail::StderrTail;
use crate::ports::vault::credentials::{Credentials, UsedSecrets};

/// The name under which a call carries its idempotency key, for servers that know it.
const IDEMPOTENCY_KEY: &str = "reveille/idempotency-key";
/// Longest revision that is shown, in characters.
const REVISION_CHARS: usize = 40;
/// How long a connection that ends is waited for. A supervisor gives its server four seconds.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// The era of a server, once it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServerEra {
    /// It was not asked yet, or did not answer.
    #[default]
    Unknown,
    /// Each request says which revision it is of: from 2026-07-28 on.
    Modern,
    /// A handshake comes first.
    Legacy,
}

/// The parts of which a connection is made. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionParts {
    /// The server, as it is configured.
    pub server: Arc<PreparedServer>,
    /// The door by which requests leave, with a credential where one goes along.
    pub credentials: Credentials,
    /// The program that supervises servers with a `command`; `None`: there can be none.
    pub supervisor: Option<Arc<Path>>,
    /// The runtime on which connections live.
    pub runtime: Handle,
}

/// A call as it goes out.
pub struct ToolRequest<'a> {
    /// The tool, by its name at the server.
    pub tool: &'a str,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// The key by which a server knows a repetition.
    pub key: &'a str,
    /// The run that it is made for.
    pub origin: CallOrigin,
    /// How long the answer is waited for.
    pub limit: Duration,
    /// Answers of people with which it goes on.
    pub answers: CallAnswers,
    /// Where its progress is told.
    pub progress: ProgressTeller,
}

/// Answers of people to what a server has asked in an earlier call, by the keys of the questions.
#[derive(Debug, Clone, Default)]
pub enum CallAnswers {
    /// There are none.
    #[default]
    None,
    /// They go along with the request.
    Continue {
        /// The answers.
        responses: BTreeMap<String, Value>,
        /// The server's opaque text, handed back as it came.
        request_state: Option<String>,
    },
    /// They lie ready for when the server asks.
    Prepared(BTreeMap<String, Value>),
}

impl CallAnswers {
    /// The request with the answers that go along with it, and those that lie ready.
    fn put_into(self, request: CallToolRequestParams) -> (CallToolRequestParams, BTreeMap<String, Value>) {
        match self {
            CallAnswers::None => (request, BTreeMap::new()),
            CallAnswers::Prepared(prepared) => (request, prepared),
            CallAnswers::Continue { responses, request_state } => {
                let mut request = request;
                request.input_responses = Some(responses).filter(|responses| !responses.is_empty());
                request.request_state = request_state;
                (request, BTreeMap::new())
            }
        }
    }
}

/// The end of a call, and what its server has asked meanwhile.
#[derive(Debug)]
pub struct ToolAnswer {
    /// The answer, as the library tells it.
    pub result: Result<ServerResult, ServiceError>,
    /// Questions in the middle of the call that were answered with `cancel`: nobody made a choice.
    pub asked: Vec<ElicitRequestParams>,
    /// A question of this or another call came, nobody knows of which.
    pub is_unplaced: bool,
}

/// A connection with a server.
pub struct McpConnection {
    peer: Peer<RoleClient>,
    /// Cancelled once the transport has ended.
    closed: CancellationToken,
    /// Cancelled once the server's process has ended as well, where there is one.
    ended: CancellationToken,
    stop: CancellationToken,
    changed: Arc<Notify>,
    stderr: Option<StderrTail>,
    /// Secrets that were sent to the server and must not come back in a listing.
    used_secrets: UsedSecrets,
    runtime: Handle,
    era: ServerEra,
    /// Calls that the server has answered.
    answered: AtomicU64,
    /// Of what the server writes.
    budget: OutputBudget,
    /// For what the server asks in the middle of one.
    live: Arc<LiveCalls>,
    /// For what it tells of how far one is.
    progress: ProgressRoutes,
}

impl McpConnection {
    /// Connects within the server's time, as this tenant where the server has a credential.
    ///
    /// # Errors
    /// Why it can't. Nothing but the handshake was sent.
    pub async fn open(
        parts: &ConnectionParts,
        tenant: Option<Tenant>,
        era: ServerEra,
    ) -> Result<McpConnection, McpFault> {
        let (parts, runtime) = (parts.clone(), parts.runtime.clone());
        let (server, after) = (parts.server.name.clone(), parts.server.connect_limit);
        // where nobody waits for it any more, the connection is made all the same, and dropped
        let opening = runtime.spawn(async move { timeout(after, opening::connect(parts, tenant, era)).await });
        match opening.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(_)) => Err(McpFault::Slow { server, after }),
            Err(error) => Err(McpFault::Away { server, why: error.to_string() }),
        }
    }

    /// The era of the server.
    pub fn era(&self) -> ServerEra {
        self.era
    }

    /// The revision that was agreed on.
    pub fn revision(&self) -> String {
        let written = self.peer.peer_info().map(|info| info.protocol_version.to_string()).unwrap_or_default();
        // a server may answer the handshake with anything
        on_one_line(&written.chars().take(REVISION_CHARS).collect::<String>())
    }

    /// Whether nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns once nothing can be sent any more.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Whether it is closed because the server has written more than it may.
    pub fn has_flooded(&self) -> bool {
        self.budget.has_flooded()
    }

    /// Returns once the server has said that its list changed, or might have.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Its changes and its end, for those who do not keep it open.
    pub fn events(&self) -> ConnectionEvents {
        ConnectionEvents { changed: Arc::clone(&self.changed), closed: self.closed.clone() }
    }

    /// How many calls the server has answered, be it with an error.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The last line that the server has written to its standard error; empty: none.
    pub fn stderr_line(&self) -> String {
        self.stderr.as_ref().map(StderrTail::last_line).unwrap_or_default()
    }

    /// The secrets that were sent to the server; they are taken out of its lists.
    pub fn used_secrets(&self) -> &UsedSecrets {
        &self.used_secrets
    }

    /// One page of its tools.
    ///
    /// # Errors
    /// As the library tells it.
    pub async fn list_page(&self, cursor: Option<String>) -> Result<ListToolsResult, ServiceError> {
        let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        self.peer.list_tools(params).await
    }

    /// Calls a tool. The server is told where nobody waits for the answer any more: once the time is over, or when the
    /// future is dropped. A question of the server in the middle of the call is answered at once.
    pub async fn call(&self, request: ToolRequest<'_>) -> ToolAnswer {
        let ToolRequest { tool, arguments, key, origin, limit, answers, progress } = request;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let (params, prepared) = answers.put_into(params);
        let mut request = CallToolRequest::new(params);
        request.extensions.insert(origin);
        let mut meta = RequestMetaObject::new();
        meta.0.0.insert(IDEMPOTENCY_KEY.to_owned(), json!(key));
        let options = PeerRequestOptions::no_options().with_meta(meta);
        let live = self.live.enter(prepared);
        // the own limit of the library ends once the cancellation is written: a server that reads nothing prevents that
        let answered = timeout(limit, async {
            let handle = self.peer.send_request_with_option(ClientRequest::CallToolRequest(request), options).await?;
            live.sent_as(handle.id.clone());
            self.answer(handle, &live, &progress).await
        });
        let result = answered.await.unwrap_or(Err(ServiceError::Timeout { timeout: limit }));
        let (asked, is_unplaced) = live.take();
        ToolAnswer { result, asked, is_unplaced }
    }

    /// The answer to a call, which is cancelled where it is not waited for.
    async fn answer(
        &self,
        handle: RequestHandle<RoleClient>,
        live: &LiveCall,
        progress: &ProgressTeller,
    ) -> Result<ServerResult, ServiceError> {
        let mut guard = CancelOnDrop { connection: self, id: Some(handle.id.clone()) };
        let mut followed = self.progress.follow(&handle.progress_token);
        let mut response = pin!(handle.await_response());
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut response => break answer,
                note = followed.next(), if progress.to.is_heard() => progress.tell(note).await,
            }
        };
        guard.id = None;
        if matches!(answer, Ok(_) | Err(ServiceError::McpError(_))) {
            self.answered.fetch_add(1, Ordering::Relaxed);
            live.answered();
        }
        answer
    }

    /// Ends it, and waits a moment for its process.
    pub async fn close(&self) {
        self.stop.cancel();
        let _ = timeout(CLOSED_WITHIN, self.ended.cancelled()).await;
    }
}

impl Drop for McpConnection {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The changes of a connection, and its end.
pub struct ConnectionEvents {
    changed: Arc<Notify>,
    closed: CancellationToken,
}

impl ConnectionEvents {
    /// Returns once the server has said that its list changed, or might have; `false`: the connection has closed.
    pub async fn next_change(&self) -> bool {
        self.closed.run_until_cancelled(self.changed.notified()).await.is_some()
    }
}

/// Tells the server, once this is dropped, that nobody waits for the answer to a request.
struct CancelOnDrop<'a> {
    connection: &'a McpConnection,
    /// `None`: the answer is there.
    id: Option<RequestId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.id.is_none() {
            return;
        }
        let peer = self.connection.peer.clone();
        let cancelled = CancelledNotificationParam::new(self.id.take(), Some("nobody waits for the answer".to_owned()));
        self.connection.runtime.spawn(async move {
            // a connection that has ended has no calls
            let _ = peer.notify_cancelled(cancelled).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;

    use super::*;
    use crate::ports::tool::mcp::connection::fixture::{NewServer, OldServer};
    use crate::ports::tool::mcp::input::asked_key;
    use crate::ports::tool::progress::{ProgressNote, ToolProgress};

    const LONG: Duration = Duration::from_secs(60);

    fn origin() -> CallOrigin {
        let tenant = Tenant::new("ann-the-tenant").unwrap();
        CallOrigin { tenant, run_id: None, task_id: None, used_secrets: UsedSecrets::default() }
    }

    /// A call of this tool with these arguments, and a minute of time.
    fn request(tool: &str, arguments: Value) -> ToolRequest<'_> {
        let Value::Object(arguments) = arguments else { panic!("{arguments}") };
        ToolRequest {
            tool,
            arguments,
            key: "k",
            origin: origin(),
            limit: LONG,
            answers: CallAnswers::None,
            progress: ProgressTeller::default(),
        }
    }

    /// A call that has a millisecond, and gets no answer.
    fn late() -> ToolRequest<'static> {
        ToolRequest { limit: Duration::from_millis(1), ..request("hang", json!({})) }
    }

    /// A question of the server, as its tool `ask` is told to put it.
    fn question(message: &str) -> Value {
        let sure = json!({ "type": "object", "properties": { "sure": { "type": "boolean" } } });
        json!({ "mode": "form", "message": message, "requestedSchema": sure })
    }

    /// The text of a result.
    fn text(result: Result<ServerResult, ServiceError>) -> String {
        let result = serde_json::to_value(result.unwrap()).unwrap();
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    }

    #[tokio::test]
    async fn old_server_is_greeted_once_it_has_refused_discovery_and_at_once_where_it_is_known() {
        for (era, methods) in [
            (ServerEra::Unknown, &["server/discover", "initialize", "notifications/initialized"][..]),
            (ServerEra::Legacy, &["initialize", "notifications/initialized"][..]),
        ] {
            let (mut server, connection) = OldServer::connected(era).await;
            assert_eq!((connection.era(), connection.revision()), (ServerEra::Legacy, "2025-11-25".to_owned()));
            for method in methods {
                assert_eq!(server.told.recv().await.unwrap()["method"], *method);
            }
        }
    }

    #[tokio::test]
    async fn call_carries_its_key_and_nothing_of_where_it_comes_from() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let request = ToolRequest { key: "key-1", ..request("echo", json!({ "text": "hello" })) };
        assert_eq!(text(connection.call(request).await.result), "hello");
        let sent = server.next("tools/call").await;
        assert_eq!(sent["params"]["arguments"], json!({ "text": "hello" }));
        assert_eq!(sent["params"]["_meta"]["reveille/idempotency-key"], "key-1");
        assert!(!sent.to_string().contains("ann-the-tenant"), "{sent}");
    }

    #[tokio::test]
    async fn progress_of_a_call_is_told_while_its_answer_is_waited_for() {
        let (mut server, connection) = NewServer::connected().await;
        let heard: Arc<Mutex<Vec<ProgressNote>>> = Arc::default();
        let listener = Arc::clone(&heard);
        let to = ToolProgress::to(move |note| listener.lock().unwrap().push(note));
        let progress = ProgressTeller { to, used_secrets: UsedSecrets::default() };
        let called = connection.call(ToolRequest { progress, ..request("climb", json!({})) });
        let served = async {
            let sent = server.next("tools/call").await;
            let token = &sent["params"]["_meta"]["progressToken"];
            let params = json!({ "progressToken": token, "progress": 1, "total": 2, "message": "on" });
            server.say(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
            while heard.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let result = json!({ "content": [{ "type": "text", "text": "up" }], "resultType": "complete" });
            server.say(json!({ "jsonrpc": "2.0", "id": sent["id"], "result": result }));
        };
        let (answer, ()) = tokio::join!(called, served);
        assert_eq!(text(answer.result), "up");
        let note = ProgressNote { progress: 1.0, total: Some(2.0), message: Some("on".into()) };
        assert_eq!(*heard.lock().unwrap(), [note]);
    }

    #[tokio::test]
    async fn call_that_nobody_waits_for_is_cancelled_at_the_server() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let late = connection.call(late()).await.result;
        assert!(matches!(late, Err(ServiceError::Timeout { .. })), "{late:?}");
        let (call, cancelled) = (server.next("tools/call").await, server.next("notifications/cancelled").await);
        assert_eq!(cancelled["params"]["requestId"], call["id"]);
        {
            let mut dropped = pin!(connection.call(request("hang", json!({}))));
            assert!((&mut dropped).now_or_never().is_none());
        }
        let (call, cancelled) = (server.next("tools/call").await, server.next("notifications/cancelled").await);
        assert_eq!(cancelled["params"]["requestId"], call["id"]);
    }

    #[tokio::test]
    async fn calls_that_were_answered_are_counted_and_others_are_not() {
        let (_server, connection) = OldServer::connected(ServerEra::Legacy).await;
        assert_eq!(text(connection.call(request("echo", json!({}))).await.result), "hello");
        assert_eq!(connection.answered(), 1);
        let late = connection.call(late()).await.result;
        assert!(late.is_err(), "{late:?}");
        assert_eq!(connection.answered(), 1);
    }

    #[tokio::test]
    async fn connection_is_closed_once_its_server_has_gone_and_its_calls_with_it() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let mut call = pin!(connection.call(request("hang", json!({}))));
        assert!((&mut call).now_or_never().is_none());
        server.next("tools/call").await;
        assert!(!connection.is_closed());
        server.stop();
        let broken = call.await.result;
        assert!(matches!(broken, Err(ServiceError::TransportClosed)), "{broken:?}");
        connection.closed().await;
        assert!(connection.is_closed());
    }

    #[tokio::test]
    async fn answers_and_state_go_along_with_a_call_that_goes_on() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let responses = BTreeMap::from([("sure".to_owned(), json!({ "action": "decline" }))]);
        let request_state = Some("s\0é".to_owned());
        for (responses, expected) in [(responses, json!({ "sure": { "action": "decline" } })), Default::default()] {
            let answers = CallAnswers::Continue { responses, request_state: request_state.clone() };
            connection.call(ToolRequest { answers, ..request("echo", json!({})) }).await.result.unwrap();
            let sent = server.next("tools/call").await;
            assert_eq!(
                (&sent["params"]["inputResponses"], &sent["params"]["requestState"]),
                (&expected, &json!("s\0é"))
            );
        }
        connection.call(request("echo", json!({}))).await.result.unwrap();
        let sent = server.next("tools/call").await;
        assert_eq!([&sent["params"]["inputResponses"], &sent["params"]["requestState"]], [&Value::Null; 2]);
    }

    #[tokio::test]
    async fn server_is_told_that_it_may_ask_a_person_in_both_modes() {
        let (mut server, _connection) = OldServer::connected(ServerEra::Legacy).await;
        let greeted = server.next("initialize").await;
        assert_eq!(greeted["params"]["capabilities"], json!({ "elicitation": { "form": {}, "url": {} } }));
    }

    #[tokio::test]
    async fn question_in_mid_call_is_told_that_nobody_chose_and_the_next_time_the_answer_of_the_person() {
        let (_server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let ToolAnswer { result, asked, is_unplaced } = connection.call(request("ask", question("Sure?"))).await;
        assert_eq!(text(result), json!({ "action": "cancel" }).to_string());
        let expected = asked_key(&serde_json::from_value(question("Sure?")).unwrap());
        assert_eq!((asked.iter().map(asked_key).collect::<Vec<_>>(), is_unplaced), (vec![expected], false));

        let yes = json!({ "action": "accept", "content": { "sure": true } });
        let prepared = BTreeMap::from([(asked_key(&asked[0]), yes.clone())]);
        let again = ToolRequest { answers: CallAnswers::Prepared(prepared), ..request("ask", question("Sure?")) };
        let ToolAnswer { result, asked, is_unplaced } = connection.call(again).await;
        let told: Value = serde_json::from_str(&text(result)).unwrap();
        assert_eq!((told, asked, is_unplaced), (yes, vec![], false));
    }

    #[tokio::test]
    async fn question_while_two_calls_are_under_way_is_put_to_neither() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let mut other = pin!(connection.call(request("hang", json!({}))));
        assert!((&mut other).now_or_never().is_none());
        server.next("tools/call").await;
        let ToolAnswer { result, asked, is_unplaced } = connection.call(request("ask", question("Sure?"))).await;
        assert_eq!(text(result), json!({ "action": "cancel" }).to_string());
        assert_eq!((asked, is_unplaced), (vec![], true));
        server.stop();
        let other = other.await;
        assert_eq!((other.asked, other.is_unplaced), (vec![], true));
    }

    #[tokio::test]
    async fn question_after_a_call_that_nobody_waited_for_is_put_to_nobody() {
        let (_server, connection) = OldServer::connected(ServerEra::Legacy).await;
        connection.call(late()).await.result.unwrap_err();
        let ToolAnswer { asked, is_unplaced, .. } = connection.call(request("ask", question("Sure?"))).await;
        assert_eq!((asked, is_unplaced), (vec![], true));
    }

    #[tokio::test]
    async fn server_sees_the_end_of_a_connection_that_is_dropped() {
        let (server, connection) = OldServer::connected(ServerEra::Legacy).await;
        drop(connection);
        server.task.await.unwrap();
    }
}
