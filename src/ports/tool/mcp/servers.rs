//! The MCP servers of an instance: connected with at its start, and let go at its end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::ports::tool::catalog::ToolCatalog;
use crate::ports::tool::mcp::keeper::keep;
use crate::ports::tool::mcp::mcp_metrics::McpMetrics;
use crate::ports::tool::mcp::server::{McpHealth, McpServer};
use crate::ports::tool::mcp::settings::PreparedServer;
use crate::ports::vault::credentials::Credentials;

/// How long the start of the service waits for servers; those that take longer come later.
const START_WITHIN: Duration = Duration::from_secs(10);
/// How long the end of the service waits for servers.
const STOP_WITHIN: Duration = Duration::from_secs(6);

/// The MCP servers of an instance. Cheap to clone.
#[derive(Clone)]
pub struct McpServers(Arc<KeptServers>);

struct KeptServers {
    /// Each with the catalog that its tools go to.
    servers: Vec<(Arc<McpServer>, ToolCatalog)>,
    clock: Clock,
    stop: CancellationToken,
    keepers: Mutex<Vec<JoinHandle<()>>>,
}

impl McpServers {
    /// These servers, whose tools go to the catalog once they are started. Without a supervisor none with a `command`
    /// can be.
    pub fn new(
        servers: Vec<Arc<PreparedServer>>,
        credentials: &Credentials,
        catalog: &ToolCatalog,
        supervisor: Option<PathBuf>,
        clock: Clock,
        metrics: &Metrics,
    ) -> McpServers {
        let metrics = McpMetrics::new(metrics);
        let supervisor: Option<Arc<Path>> = supervisor.map(Arc::from);
        let server = |prepared| {
            let server = McpServer::new(prepared, credentials.clone(), supervisor.clone(), metrics.clone());
            (server, catalog.clone())
        };
        McpServers::over(servers.into_iter().map(server).collect(), clock)
    }

    /// No servers, for who embeds a part of the service.
    pub fn none() -> McpServers {
        McpServers::over(Vec::new(), Clock::system())
    }

    fn over(servers: Vec<(Arc<McpServer>, ToolCatalog)>, clock: Clock) -> McpServers {
        let (stop, keepers) = (CancellationToken::new(), Mutex::default());
        McpServers(Arc::new(KeptServers { servers, clock, stop, keepers }))
    }

    /// Connects them all on this runtime, and returns once each was tried once, or after 10 s.
    pub async fn start(&self, runtime: &Handle) {
        let (mut keepers, mut tried) = (Vec::new(), Vec::new());
        for (server, catalog) in &self.0.servers {
            let (first, was_tried) = oneshot::channel();
            server.run_on(runtime, &self.0.clock);
            let kept = keep(Arc::clone(server), catalog.clone(), first, self.0.stop.clone());
            keepers.push(runtime.spawn(kept));
            tried.push(was_tried);
        }
        self.keepers().extend(keepers);
        let _ = timeout(START_WITHIN, join_all(tried)).await;
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
