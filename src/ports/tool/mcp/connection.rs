//! One connection with an MCP server: its life, and the calls that go over it.
//!
//! It lives on the runtime of servers, wherever it is asked from: foreign JSON is read there, and not on the engine's
//! threads. Dropping it ends it, and with it the process of a server that runs here.

#[cfg(test)]
pub(super) mod fixture;
mod opening;
mod subscription;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ListToolsResult,
    PaginatedRequestParams, RequestId, RequestMetaObject, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::id::Tenant;
use crate::base::unicode_safety::on_one_line;
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::http::call_origin::CallOrigin;
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

    /// Returns once the server has said that its list changed, or might have.
    pub async fn changed(&self) {
        self.changed.notified().await;
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
    /// future is dropped.
    ///
    /// # Errors
    /// As the library tells it.
    pub async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        key: &str,
        origin: CallOrigin,
        limit: Duration,
    ) -> Result<ServerResult, ServiceError> {
        let mut request = CallToolRequest::new(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments));
        request.extensions.insert(origin);
        let mut meta = RequestMetaObject::new();
        meta.0.0.insert(IDEMPOTENCY_KEY.to_owned(), json!(key));
        let options = PeerRequestOptions::no_options().with_meta(meta);
        // the own limit of the library ends once the cancellation is written: a server that reads nothing prevents that
        let answered = timeout(limit, async {
            let handle = self.peer.send_request_with_option(ClientRequest::CallToolRequest(request), options).await?;
            self.answer(handle).await
        });
        answered.await.unwrap_or(Err(ServiceError::Timeout { timeout: limit }))
    }

    /// The answer to a request, which is cancelled where it is not waited for.
    async fn answer(&self, handle: RequestHandle<RoleClient>) -> Result<ServerResult, ServiceError> {
        let mut guard = CancelOnDrop { connection: self, id: Some(handle.id.clone()) };
        let answer = handle.await_response().await;
        guard.id = None;
        if matches!(answer, Ok(_) | Err(ServiceError::McpError(_))) {
            self.answered.fetch_add(1, Ordering::Relaxed);
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
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;
    use crate::ports::tool::mcp::connection::fixture::OldServer;

    const LONG: Duration = Duration::from_secs(60);

    fn origin() -> CallOrigin {
        let tenant = Tenant::new("ann-the-tenant").unwrap();
        CallOrigin { tenant, run_id: None, task_id: None, used_secrets: UsedSecrets::default() }
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
        let arguments = Map::from_iter([("text".to_owned(), json!("hello"))]);
        let result = connection.call("echo", arguments, "key-1", origin(), LONG).await.unwrap();
        assert_eq!(serde_json::to_value(result).unwrap()["content"][0]["text"], "hello");
        let sent = server.next("tools/call").await;
        assert_eq!(sent["params"]["arguments"], json!({ "text": "hello" }));
        assert_eq!(sent["params"]["_meta"]["reveille/idempotency-key"], "key-1");
        assert!(!sent.to_string().contains("ann-the-tenant"), "{sent}");
    }

    #[tokio::test]
    async fn call_that_nobody_waits_for_is_cancelled_at_the_server() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let late = connection.call("hang", Map::new(), "k", origin(), Duration::from_millis(1)).await;
        assert!(matches!(late, Err(ServiceError::Timeout { .. })), "{late:?}");
        let (call, cancelled) = (server.next("tools/call").await, server.next("notifications/cancelled").await);
        assert_eq!(cancelled["params"]["requestId"], call["id"]);
        {
            let mut dropped = pin!(connection.call("hang", Map::new(), "k", origin(), LONG));
            assert!((&mut dropped).now_or_never().is_none());
        }
        let (call, cancelled) = (server.next("tools/call").await, server.next("notifications/cancelled").await);
        assert_eq!(cancelled["params"]["requestId"], call["id"]);
    }

    #[tokio::test]
    async fn calls_that_were_answered_are_counted_and_others_are_not() {
        let (_server, connection) = OldServer::connected(ServerEra::Legacy).await;
        connection.call("echo", Map::new(), "k", origin(), LONG).await.unwrap();
        assert_eq!(connection.answered(), 1);
        let late = connection.call("hang", Map::new(), "k", origin(), Duration::from_millis(1)).await;
        assert!(late.is_err(), "{late:?}");
        assert_eq!(connection.answered(), 1);
    }

    #[tokio::test]
    async fn connection_is_closed_once_its_server_has_gone_and_its_calls_with_it() {
        let (mut server, connection) = OldServer::connected(ServerEra::Legacy).await;
        let mut call = pin!(connection.call("hang", Map::new(), "k", origin(), LONG));
        assert!((&mut call).now_or_never().is_none());
        server.next("tools/call").await;
        assert!(!connection.is_closed());
        server.stop();
        let broken = call.await;
        assert!(matches!(broken, Err(ServiceError::TransportClosed)), "{broken:?}");
        connection.closed().await;
        assert!(connection.is_closed());
    }

    #[tokio::test]
    async fn server_sees_the_end_of_a_connection_that_is_dropped() {
        let (server, connection) = OldServer::connected(ServerEra::Legacy).await;
        drop(connection);
        server.task.await.unwrap();
    }
}
