//! The MCP servers of an instance: connected with from its start on, and let go at its end. Nothing waits for them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::ports::tool::catalog::ToolCatalog;
use crate::ports::tool::mcp::keeper::keep;
use crate::ports::tool::mcp::mcp_metrics::McpMetrics;
use crate::ports::tool::mcp::pinning::Pinning;
use crate::ports::tool::mcp::server::{McpHealth, McpServer};
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::tool::pins::ToolPins;
use crate::ports::vault::credentials::Credentials;

/// How long the end of the service waits for servers.
const STOP_WITHIN: Duration = Duration::from_secs(6);

/// The MCP servers of an instance. Cheap to clone.
#[derive(Clone)]
pub struct McpServers(Arc<KeptServers>);

struct KeptServers {
    /// Each with the catalog that its tools go to.
    servers: Vec<(Arc<McpServer>, ToolCatalog)>,
    clock: Clock,
    /// `None`: every definition is accepted.
    pins: Option<Arc<dyn ToolPins>>,
    /// Keepers hear of acceptances on this instance.
    accepted: Arc<Notify>,
    stop: CancellationToken,
    keepers: Mutex<Vec<JoinHandle<()>>>,
    /// Each hears of it once its server was tried.
    first_tries: Mutex<Vec<oneshot::Receiver<()>>>,
}

impl McpServers {
    /// These servers, whose tools go to the catalog once they are started. Without a supervisor none with a `command`
    /// can be. Tools are offered whose definitions the pins have accepted; without pins all are.
    pub fn new(
        servers: Vec<Arc<PreparedServer>>,
        credentials: &Credentials,
        catalog: &ToolCatalog,
        supervisor: Option<PathBuf>,
        clock: Clock,
        metrics: &Metrics,
        pins: Option<Arc<dyn ToolPins>>,
    ) -> McpServers {
        let metrics = McpMetrics::new(metrics);
        let supervisor: Option<Arc<Path>> = supervisor.map(Arc::from);
        let server = |prepared| {
            let server = McpServer::new(prepared, credentials.clone(), supervisor.clone(), metrics.clone());
            (server, catalog.clone())
        };
        McpServers::over(servers.into_iter().map(server).collect(), clock, pins)
    }

    /// No servers, for who embeds a part of the service.
    pub fn none() -> McpServers {
        McpServers::over(Vec::new(), Clock::system(), None)
    }

    fn over(servers: Vec<(Arc<McpServer>, ToolCatalog)>, clock: Clock, pins: Option<Arc<dyn ToolPins>>) -> McpServers {
        let (accepted, stop) = (Arc::default(), CancellationToken::new());
        let (keepers, first_tries) = (Mutex::default(), Mutex::default());
        McpServers(Arc::new(KeptServers { servers, clock, pins, accepted, stop, keepers, first_tries }))
    }

    /// Connects them all on this runtime, and waits for none: one that hangs holds up no start.
    pub fn start(&self, runtime: &Handle) {
        let (mut keepers, mut tried) = (Vec::new(), Vec::new());
        for (server, catalog) in &self.0.servers {
            let (first, was_tried) = oneshot::channel();
            server.run_on(runtime, &self.0.clock);
            let pinning = Pinning::new(self.0.pins.clone(), Arc::clone(&self.0.accepted));
            let kept = keep(Arc::clone(server), catalog.clone(), pinning, first, self.0.stop.clone());
            keepers.push(runtime.spawn(kept));
            tried.push(was_tried);
        }
        self.keepers().extend(keepers);
        self.0.first_tries.lock().expect("the lock of first tries").extend(tried);
    }

    /// Returns once each server was tried since the start. Only the first who asks waits.
    pub async fn first_tried(&self) {
        let tried = std::mem::take(&mut *self.0.first_tries.lock().expect("the lock of first tries"));
        join_all(tried).await;
    }

    /// Definitions of tools were accepted on this instance: all servers are asked for their tools again.
    pub fn tools_accepted(&self) {
        self.0.accepted.notify_waiters();
    }

    /// Closes all, within 6 s: supervisors end what is left by themselves.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        let keepers = std::mem::take(&mut *self.keepers());
        if timeout(STOP_WITHIN, join_all(keepers)).await.is_err() {
            tracing::warn!("MCP servers take long to end, and are left to their supervisors");
        }
    }

    /// How they stand, in the order of the configuration.
    pub fn health(&self) -> Vec<McpHealth> {
        self.0.servers.iter().map(|(server, _)| server.health()).collect()
    }

    fn keepers(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.0.keepers.lock().expect("the lock of keepers")
    }
}
