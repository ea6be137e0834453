//! One MCP server of this instance: its connection, those of its tenants, and how it stands.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::clock::{Clock, machine_now};
use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::base::compute::Compute;
use crate::base::id::Tenant;
use crate::base::words::words;
use crate::ports::tool::mcp::connection::{ConnectionParts, McpConnection, ServerEra};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::listing::{LISTED_WITHIN, comes_before_calls, list_within};
use crate::ports::tool::mcp::mcp_metrics::McpMetrics;
use crate::ports::tool::mcp::pinning::served::ServedDefinitions;
use crate::ports::tool::mcp::relisting::relist;
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::tool::mcp::tenant_connections::TenantConnections;
use crate::ports::vault::credentials::Credentials;

/// Calls of one server that may be under way at once, of all tenants.
pub const CALLS_AT_ONCE: usize = 32;
/// Places among them that a tenant which has one leaves to others.
const FOR_OTHERS: usize = 8;
/// Longest wait of a call for a connection that is being made.
const CONNECTION_WAIT: Duration = Duration::from_secs(10);

words! {
    /// How an MCP server stands.
    #[derive(utoipa::ToSchema)]
    pub enum McpState {
        /// A connection is being made.
        Connecting = "connecting",
        /// It can be called.
        Connected = "connected",
        /// It is away, and tried again.
        Unavailable = "unavailable",
        /// The service is being stopped.
        Stopped = "stopped",
    }
}

/// How an MCP server of this instance stands. Names and states only: whoever asks whether the service is ready sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct McpHealth {
    /// Name of the server.
    #[schema(example = "github")]
    pub name: String,
    /// How it stands.
    pub state: McpState,
    /// The kind of fault, while it is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<&'static str>,
    /// Since when it stands so.
    pub since: DateTime<Utc>,
    /// How many of its tools wait until the operator accepts their definitions; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_tools: Option<usize>,
}

/// How a server stands, with what that means for its calls.
#[derive(Clone)]
pub enum ServerStatus {
    /// Calls wait a moment.
    Connecting,
    /// Calls go over this connection, unless each tenant has its own.
    Connected(Arc<McpConnection>),
    /// Calls fail with this.
    Unavailable(McpFault),
    /// There are no more calls.
    Stopped,
}

impl ServerStatus {
    fn state(&self) -> McpState {
        match self {
            ServerStatus::Connecting => McpState::Connecting,
            ServerStatus::Connected(_) => McpState::Connected,
            ServerStatus::Unavailable(_) => McpState::Unavailable,
            ServerStatus::Stopped => McpState::Stopped,
        }
    }

    /// Whether a call knows by it what becomes of it.
    fn is_settled(&self) -> bool {
        match self {
            ServerStatus::Connecting => false,
            // its keeper is about to see it
            ServerStatus::Connected(connection) => !connection.is_closed(),
            ServerStatus::Unavailable(_) | ServerStatus::Stopped => true,
        }
    }
}

struct StampedStatus {
    status: ServerStatus,
    since: DateTime<Utc>,
}

/// One server of this instance: its connection, its tenants' connections, how it stands.
pub struct McpServer {
    prepared: Arc<PreparedServer>,
    credentials: Credentials,
    supervisor: Option<Arc<Path>>,
    metrics: McpMetrics,
    /// Where schemas are compiled.
    compute: Compute,
    /// Not there before the service is started.
    started: OnceLock<StartedServer>,
    status: watch::Sender<StampedStatus>,
    tenants: TenantConnections,
    places: FairQueue<String>,
    served: ServedDefinitions,
    /// Tools that nobody has accepted.
    waiting: AtomicUsize,
}

struct StartedServer {
    opener: ConnectionOpener,
    clock: Clock,
}

/// Opens connections with one server, counts them, and remembers its era. Cheap to clone.
#[derive(Clone)]
struct ConnectionOpener {
    parts: ConnectionParts,
    metrics: McpMetrics,
    era: Arc<Mutex<ServerEra>>,
}

impl ConnectionOpener {
    async fn open(self, tenant: Option<Tenant>) -> Result<McpConnection, McpFault> {
        let era = *self.era.lock().expect("era lock");
        let opened = McpConnection::open(&self.parts, tenant, era).await;
        self.metrics.record_connection(&self.parts.server.name, opened.is_ok());
        match &opened {
            Ok(connection) => self.remember(connection.era()),
            Err(fault) if tells_of_the_server(fault) => self.remember(ServerEra::Unknown),
            Err(_) => {}
        }
        opened
    }

    /// A connection of a tenant, over which its tools were listed where calls need that. A list that can't be had holds
    /// up no call: the server may list its tools to others alone. They are listed again when they change.
    async fn open_for_calls(self, tenant: Tenant) -> Result<Arc<McpConnection>, McpFault> {
        let (server, runtime) = (Arc::clone(&self.parts.server), self.parts.runtime.clone());
        let connection = Arc::new(self.open(Some(tenant)).await?);
        if !comes_before_calls(&connection, &server) {
            return Ok(connection);
        }
        match list_within(&connection, &server, LISTED_WITHIN).await {
            Err(fault) if connection.is_closed() => Err(fault),
            _ => {
                runtime.spawn(relist(Arc::downgrade(&connection), connection.events(), server));
                Ok(connection)
            }
        }
    }

    fn remember(&self, era: ServerEra) {
        *self.era.lock().expect("era lock") = era;
    }
}

/// Whether a failure may come of another era than the one that was taken for granted: one of a credential, or of the
/// way there, does not.
fn tells_of_the_server(fault: &McpFault) -> bool {
    !matches!(
        fault,
        McpFault::Unauthorized { .. } | McpFault::Scope { .. } | McpFault::Credential(_) | McpFault::Egress(_)
    )
}

impl McpServer {
    /// A server that nobody has connected with yet.
    pub fn new(
        prepared: Arc<PreparedServer>,
        credentials: Credentials,
        supervisor: Option<Arc<Path>>,
        metrics: McpMetrics,
    ) -> Arc<McpServer> {
        let current = StampedStatus { status: ServerStatus::Connecting, since: machine_now() };
        metrics.set_up(&prepared.name, false);
        let compute = credentials.computing().cloned().unwrap_or_else(|| Compute::new(1));
        Arc::new(McpServer {
            compute,
            tenants: TenantConnections::new(&prepared.name),
            prepared,
            credentials,
            supervisor,
            metrics,
            started: OnceLock::new(),
            status: watch::Sender::new(current),
            places: FairQueue::with_reserve(CALLS_AT_ONCE, FOR_OTHERS),
            served: ServedDefinitions::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// The server as it is configured.
    pub fn prepared(&self) -> &Arc<PreparedServer> {
        &self.prepared
    }

    /// The threads on which the schemas of its tools are compiled.
    pub(super) fn compute(&self) -> &Compute {
        &self.compute
    }

    /// The metrics of all servers.
    pub fn metrics(&self) -> &McpMetrics {
        &self.metrics
    }

    /// The connection for a call of this tenant; waits while one is being made, within `limit` and 10 s.
    ///
    /// # Errors
    /// There is none. Nothing was sent.
    pub async fn connection(&self, tenant: &Tenant, limit: Duration) -> Result<Arc<McpConnection>, McpFault> {
        let after = limit.min(CONNECTION_WAIT);
        let found = match self.prepared.is_per_tenant() {
            true => timeout(after, self.own_connection(tenant)).await,
            false => timeout(after, self.shared_connection()).await,
        };
        let slow = |_| Err(McpFault::Slow { server: self.prepared.name.clone(), after });
        found.unwrap_or_else(slow).map_err(|fault| fault.before_call(&self.prepared.name))
    }

    /// The connection of this tenant alone.
    async fn own_connection(&self, tenant: &Tenant) -> Result<Arc<McpConnection>, McpFault> {
        let opener = self.opener()?.clone();
        if matches!(self.status.borrow().status, ServerStatus::Stopped) {
            return Err(self.away("it was stopped"));
        }
        let runtime = opener.parts.runtime.clone();
        self.tenants.get(tenant, &runtime, opener.open_for_calls(tenant.clone())).await
    }

    /// The connection of all tenants.
    async fn shared_connection(&self) -> Result<Arc<McpConnection>, McpFault> {
        self.opener()?;
        let mut status = self.status.subscribe();
        let settled = match status.wait_for(|current| current.status.is_settled()).await {
            Ok(current) => current.status.clone(),
            Err(_) => ServerStatus::Stopped,
        };
        match settled {
            ServerStatus::Connected(connection) => Ok(connection),
            ServerStatus::Unavailable(fault) => Err(fault),
            ServerStatus::Connecting | ServerStatus::Stopped => Err(self.away("it was stopped")),
        }
    }

    /// A place among the calls under way, in turn with other tenants.
    pub async fn place(&self, tenant: &Tenant) -> QueuePermit<String> {
        self.places.acquire(tenant.as_str()).await
    }

    /// How it stands.
    pub fn health(&self) -> McpHealth {
        let current = self.status.borrow();
        let fault = match &current.status {
            ServerStatus::Unavailable(fault) => Some(fault.word()),
            _ => None,
        };
        let waiting_tools = Some(self.waiting.load(Ordering::Relaxed)).filter(|count| *count > 0);
        let (name, state) = (self.prepared.name.clone(), current.status.state());
        McpHealth { name, state, fault, since: current.since, waiting_tools }
    }

    /// The definitions that it serves now.
    pub fn served(&self) -> &ServedDefinitions {
        &self.served
    }

    /// Says how many of its tools wait until the operator accepts their definitions.
    pub(super) fn set_waiting(&self, count: usize) {
        self.waiting.store(count, Ordering::Relaxed);
    }

    /// Its connections live on this runtime from now on. Says it once.
    pub(super) fn run_on(&self, runtime: &Handle, clock: &Clock) {
        let parts = ConnectionParts {
            server: Arc::clone(&self.prepared),
            credentials: self.credentials.clone(),
            supervisor: self.supervisor.clone(),
            runtime: runtime.clone(),
        };
        let opener = ConnectionOpener { parts, metrics: self.metrics.clone(), era: Arc::default() };
        let _ = self.started.set(StartedServer { opener, clock: clock.clone() });
    }

    /// Connects as the tenant whose credential the tools are listed with.
    pub(super) async fn connect(&self) -> Result<Arc<McpConnection>, McpFault> {
        let opener = self.opener()?.clone();
        opener.open(self.prepared.lister().cloned()).await.map(Arc::new)
    }

    /// Says how it stands from now on.
    pub(super) fn set(&self, status: ServerStatus) {
        let now = self.started.get().map_or_else(machine_now, |started| started.clock.now());
        self.metrics.set_up(&self.prepared.name, matches!(status, ServerStatus::Connected(_)));
        self.status.send_modify(|current| {
            if current.status.state() != status.state() {
                current.since = now;
            }
            current.status = status;
        });
    }

    /// Ends connections of tenants over which nothing was called for so long.
    pub(super) fn sweep(&self, idle: Duration) {
        self.tenants.sweep(idle);
    }

    /// Takes no more calls, and ends the connections of tenants.
    pub(super) async fn stop(&self) {
        self.set(ServerStatus::Stopped);
        let connections = self.tenants.take_all();
        futures::future::join_all(connections.iter().map(|connection| connection.close())).await;
    }

    fn opener(&self) -> Result<&ConnectionOpener, McpFault> {
        let started = self.started.get().ok_or_else(|| self.away("the service has not connected with it yet"))?;
        Ok(&started.opener)
    }

    fn away(&self, why: &str) -> McpFault {
        McpFault::Away { server: self.prepared.name.clone(), why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::base::metrics::Metrics;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::connection::fixture::OldServer;
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};

    const LIMIT: Duration = Duration::from_secs(60);

    fn server(metrics: &Metrics, written: Value) -> Arc<McpServer> {
        let egress = Egress::new(&Settings::default()).unwrap();
        let definition: McpServerDefinition = serde_json::from_value(written).unwrap();
        let prepared = read(&[definition], &egress).unwrap().remove(0);
        McpServer::new(prepared, Credentials::none(egress), None, McpMetrics::new(metrics))
    }

    fn local(metrics: &Metrics) -> Arc<McpServer> {
        server(metrics, json!({ "name": "local", "command": ["server"] }))
    }

    fn ann() -> Tenant {
        Tenant::new("ann").unwrap()
    }

    fn why(fault: Option<McpFault>) -> String {
        match fault {
            Some(McpFault::Away { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn call_before_the_start_finds_no_connection() {
        let server = local(&Metrics::new());
        let found = server.connection(&ann(), LIMIT).await;
        assert_eq!(why(found.err()), "the service has not connected with it yet");
    }

    #[tokio::test]
    async fn call_waits_while_a_connection_is_made_and_fails_at_once_while_the_server_is_away() {
        let (metrics, clock) = (Metrics::new(), Clock::manual("2026-11-21T09:00:00Z".parse().unwrap()));
        let server = local(&metrics);
        server.run_on(&Handle::current(), &clock);
        let tenant = ann();
        {
            let mut waiting = pin!(server.connection(&tenant, LIMIT));
            assert!((&mut waiting).now_or_never().is_none());
            let connection = Arc::new(OldServer::connected(ServerEra::Legacy).await.1);
            server.set(ServerStatus::Connected(Arc::clone(&connection)));
            assert!(Arc::ptr_eq(&waiting.await.unwrap(), &connection));
        }
        assert!(metrics.text().contains(r#"mcp_server_up{server="local"} 1"#));
        let fault = McpFault::Unauthorized { server: "local".into() };
        server.set(ServerStatus::Unavailable(fault.clone()));
        assert_eq!(server.connection(&tenant, LIMIT).now_or_never().unwrap().err(), Some(fault));
        server.stop().await;
        assert_eq!(why(server.connection(&tenant, LIMIT).await.err()), "it was stopped");
        assert!(metrics.text().contains(r#"mcp_server_up{server="local"} 0"#));
    }

    #[tokio::test]
    async fn call_waits_for_the_connection_after_one_that_has_closed() {
        let server = local(&Metrics::new());
        server.run_on(&Handle::current(), &Clock::system());
        let (process, first) = OldServer::connected(ServerEra::Legacy).await;
        let first = Arc::new(first);
        server.set(ServerStatus::Connected(Arc::clone(&first)));
        process.stop();
        first.closed().await;
        let tenant = ann();
        let mut waiting = pin!(server.connection(&tenant, LIMIT));
        assert!((&mut waiting).now_or_never().is_none());
        let second = Arc::new(OldServer::connected(ServerEra::Legacy).await.1);
        server.set(ServerStatus::Connected(Arc::clone(&second)));
        assert!(Arc::ptr_eq(&waiting.await.unwrap(), &second));
    }

    #[tokio::test]
    async fn health_names_the_kind_of_fault_and_since_when_it_lasts() {
        let clock = Clock::manual("2026-11-21T09:00:00Z".parse().unwrap());
        let server = local(&Metrics::new());
        server.run_on(&Handle::current(), &clock);
        let away = || ServerStatus::Unavailable(server.away("its password is canary"));
        server.set(away());
        clock.advance(chrono::TimeDelta::minutes(1));
        server.set(away());
        let health = serde_json::to_value(server.health()).unwrap();
        let since = "2026-11-21T09:00:00Z";
        assert_eq!(health, json!({ "name": "local", "state": "unavailable", "fault": "away", "since": since }));
        server.set(ServerStatus::Connecting);
        let health = serde_json::to_value(server.health()).unwrap();
        assert_eq!(health, json!({ "name": "local", "state": "connecting", "since": "2026-11-21T09:01:00Z" }));
        server.set_waiting(2);
        assert_eq!(server.health().waiting_tools, Some(2));
    }

    #[tokio::test]
    async fn tenant_without_the_credential_has_no_connection_and_others_are_not_asked_for_theirs() {
        let written = json!({ "name": "github", "url": "https://mcp.example.org/mcp", "credential": "github" });
        let server = server(&Metrics::new(), written);
        server.run_on(&Handle::current(), &Clock::system());
        let missing = server.connection(&ann(), LIMIT).await.err();
        assert!(matches!(missing, Some(McpFault::Credential(_))), "{missing:?}");
    }

    #[tokio::test]
    async fn failure_to_connect_never_says_that_a_call_may_have_had_its_effect() {
        let server = local(&Metrics::new());
        server.run_on(&Handle::current(), &Clock::system());
        server.set(ServerStatus::Unavailable(McpFault::Broken { server: "local".into() }));
        let found = server.connection(&ann(), LIMIT).await.err();
        assert_eq!(found.map(|fault| fault.word()), Some("away"));
        assert_eq!(server.health().fault, Some("broken"), "operators are told as it is");
    }

    #[tokio::test]
    async fn tenant_with_many_calls_leaves_places_to_others() {
        let server = local(&Metrics::new());
        let mut held = Vec::new();
        while let Some(place) = server.place(&ann()).now_or_never() {
            held.push(place);
        }
        assert_eq!(held.len(), CALLS_AT_ONCE - FOR_OTHERS);
        let ben = Tenant::new("ben").unwrap();
        assert!(server.place(&ben).now_or_never().is_some());
    }
}
