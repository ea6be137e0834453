//! How a connection comes to be: a process or an address, then the handshake of the server's era.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rmcp::model::{ProtocolVersion, ServerPeerInfo};
use rmcp::service::{
    ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, Peer, RoleClient, serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::SseRetryPolicy;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, Transport, TransportAdapterIdentity};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::base::clock::pause;
use crate::base::id::Tenant;
use crate::base::secret::Secret;
use crate::ports::tool::mcp::connection::live_calls::LiveCalls;
use crate::ports::tool::mcp::connection::progress::ProgressRoutes;
use crate::ports::tool::mcp::connection::subscription::watch;
use crate::ports::tool::mcp::connection::{ConnectionParts, McpConnection, ServerEra};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::handler::McpHandler;
use crate::ports::tool::mcp::http::client::McpHttpClient;
use crate::ports::tool::mcp::output_budget::{ANSWER_BYTES, OutputBudget};
use crate::ports::tool::mcp::settings::ServerTarget;
use crate::ports::tool::mcp::stdio::bounded_lines::MESSAGE_BYTES;
use crate::ports::tool::mcp::stdio::process::ServerProcess;
use crate::ports::tool::mcp::stdio::stderr_tail::StderrTail;
use crate::ports::tool::mcp::stdio::watched_input::WatchedInput;
use crate::ports::vault::credentials::UsedSecrets;

/// Requests of one connection over HTTP at once: more than there are calls, so that a list waits for none of these.
const REQUESTS_AT_ONCE: usize = 40;
/// Longest text of an HTTP answer that is an error.
const ERROR_BYTES: usize = 64 * 1_024;
/// Longer than any message that is let through, by what an error in the place of a longer one takes.
const LINE_BYTES: usize = MESSAGE_BYTES + 1_024;
/// How long a process that failed is waited for: what it writes last says why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the output of a process that has ended is read.
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// How often a stream of events that broke off is opened again, the wait before, and the longest.
const RECONNECTS: usize = 5;
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
const LONGEST_RECONNECT: Duration = Duration::from_secs(30);

// each message that is sent to a server may have the longest answer
const _: () = assert!(ANSWER_BYTES == MESSAGE_BYTES as u64);

/// Connects with the server, on the runtime of servers.
pub(super) async fn connect(
    parts: ConnectionParts,
    tenant: Option<Tenant>,
    era: ServerEra,
) -> Result<McpConnection, McpFault> {
    match &parts.server.target {
        ServerTarget::Command { command, env } => connect_process(&parts, command, env, era).await,
        ServerTarget::Url(url) => connect_address(&parts, url, tenant, era).await,
    }
}

/// Starts the program, and speaks with it over its input and output.
async fn connect_process(
    parts: &ConnectionParts,
    command: &[String],
    env: &[(String, Secret)],
    era: ServerEra,
) -> Result<McpConnection, McpFault> {
    let name = &parts.server.name;
    let away = |why: String| McpFault::Away { server: name.clone(), why };
    let Some(supervisor) = &parts.supervisor else {
        return Err(away("no program is there to supervise it: AppBuilder::mcp_supervisor names one".to_owned()));
    };
    let budget = OutputBudget::default();
    let started = ServerProcess::start(supervisor, command, env, budget.clone());
    let (process, (output, input)) =
        started.map_err(|error| away(format!("the program that supervises it can't be started: {error}")))?;
    let stderr = process.stderr();
    let ended = end_of(process);
    let used_secrets = UsedSecrets::default();
    used_secrets.add(parts.server.secrets());
    let stuck = CancellationToken::new();
    let input = WatchedInput::new(input, stuck.clone(), budget.clone());
    let transport = AsyncRwTransport::new_client(output, input).with_max_line_length(LINE_BYTES);
    match Handshake::with(transport, era).await {
        Ok(done) => {
            tokio::spawn(end_with(done.stop.clone(), (ended.clone(), LAST_OUTPUT), stuck));
            Ok(done.bounded_by(budget).into_connection(used_secrets, parts.runtime.clone(), Some((ended, stderr))))
        }
        Err(error) => {
            let _ = timeout(LAST_WORDS, ended.cancelled()).await;
            Err(McpFault::of_start(name, &error, &stderr.last_line()).cleaned(&used_secrets).await)
        }
    }
}

/// Cancelled once the process has ended.
fn end_of(process: ServerProcess) -> CancellationToken {
    let ended = CancellationToken::new();
    let end = ended.clone().drop_guard();
    tokio::spawn(async move {
        process.ended().await;
        drop(end);
    });
    ended
}

/// Ends a connection whose process has ended, though another that it has started may hold its output open, or reads
/// nothing any more.
async fn end_with(
    stop: CancellationToken,
    (ended, last_output): (CancellationToken, Duration),
    stuck: CancellationToken,
) {
    tokio::select! {
        () = ended.cancelled() => pause(last_output).await,
        () = stuck.cancelled() => {}
    }
    stop.cancel();
}

/// Speaks with the address over streamable HTTP.
async fn connect_address(
    parts: &ConnectionParts,
    url: &Url,
    tenant: Option<Tenant>,
    era: ServerEra,
) -> Result<McpConnection, McpFault> {
    let client = McpHttpClient::new(Arc::clone(&parts.server), parts.credentials.clone(), tenant);
    let (used_secrets, budget) = (client.used_secrets().clone(), client.budget().clone());
    let transport = StreamableHttpClientTransport::with_client(client, transport_config(url));
    match Handshake::with(transport, era).await {
        Ok(done) => Ok(done.bounded_by(budget).into_connection(used_secrets, parts.runtime.clone(), None)),
        Err(error) => Err(McpFault::of_start(&parts.server.name, &error, "").cleaned(&used_secrets).await),
    }
}

fn transport_config(url: &Url) -> StreamableHttpClientTransportConfig {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .max_json_response_size(MESSAGE_BYTES)
        .max_sse_event_size(MESSAGE_BYTES)
        .max_error_response_size(ERROR_BYTES)
        .max_concurrent_requests(REQUESTS_AT_ONCE);
    config.retry_config = Arc::new(Reconnecting);
    config
}

/// When a stream of events is opened again. The library would go on for ever.
#[derive(Debug)]
struct Reconnecting;

impl SseRetryPolicy for Reconnecting {
    fn retry(&self, current_times: usize) -> Option<Duration> {
        let doubled = 2_u32.saturating_pow(u32::try_from(current_times).unwrap_or(u32::MAX));
        let wait = RECONNECT_AFTER.saturating_mul(doubled).min(LONGEST_RECONNECT);
        (current_times < RECONNECTS).then_some(wait)
    }
}

/// A handshake that was done.
pub(super) struct Handshake {
    peer: Peer<RoleClient>,
    era: ServerEra,
    closed: CancellationToken,
    stop: CancellationToken,
    changed: Arc<Notify>,
    budget: OutputBudget,
    live: Arc<LiveCalls>,
    progress: ProgressRoutes,
}

impl Handshake {
    /// Serves a transport, by the handshake of the server's era.
    pub(super) async fn with<T>(transport: T, era: ServerEra) -> Result<Handshake, Box<ClientInitializeError>>
    where
        T: Transport<RoleClient> + 'static,
    {
        let (stop, closed, changed) = (CancellationToken::new(), CancellationToken::new(), Arc::new(Notify::new()));
        let (mode, version) = lifecycle(era);
        let (live, progress) = (Arc::new(LiveCalls::default()), ProgressRoutes::default());
        let handler = McpHandler::new(Arc::clone(&changed), Arc::clone(&live), progress.clone(), version);
        let running = serve_client_with_lifecycle_and_ct::<_, _, T::Error, TransportAdapterIdentity>(
            handler,
            transport,
            mode,
            stop.clone(),
        )
        .await
        .map_err(Box::new)?;
        let peer = running.peer().clone();
        // lists would come from its cache, and stale ones where a server answers with an error
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        let end = closed.clone().drop_guard();
        tokio::spawn(async move {
            let _ = running.waiting().await;
            drop(end);
        });
        let info = peer.peer_info();
        let era = era_of(info.as_deref());
        if era == ServerEra::Modern && info.as_deref().is_some_and(announces_changes) {
            tokio::spawn(watch(peer.clone(), Arc::clone(&changed), closed.clone()));
        }
        Ok(Handshake { peer, era, closed, stop, changed, budget: OutputBudget::default(), live, progress })
    }

    /// Ends the connection once its server has written more than this budget has.
    fn bounded_by(self, budget: OutputBudget) -> Handshake {
        let (flooded, stop, closed) = (budget.clone(), self.stop.clone(), self.closed.clone());
        tokio::spawn(async move {
            if closed.run_until_cancelled(flooded.flooded()).await.is_some() {
                stop.cancel();
            }
        });
        Handshake { budget, ..self }
    }

    /// The connection, with the end of its process and what that writes, where there is one.
    pub(super) fn into_connection(
        self,
        used_secrets: UsedSecrets,
        runtime: Handle,
        process: Option<(CancellationToken, StderrTail)>,
    ) -> McpConnection {
        let Handshake { peer, era, closed, stop, changed, budget, live, progress } = self;
        let (ended, stderr) = match process {
            Some((ended, stderr)) => (ended, Some(stderr)),
            None => (closed.clone(), None),
        };
        let answered = AtomicU64::default();
        McpConnection {
            peer,
            closed,
            ended,
            stop,
            changed,
            stderr,
            used_secrets,
            runtime,
            era,
            answered,
            budget,
            live,
            progress,
        }
    }
}

/// How a connection begins, and the revision that a handshake offers.
fn lifecycle(era: ServerEra) -> (ClientLifecycleMode, ProtocolVersion) {
    let legacy = ProtocolVersion::LATEST_WITH_INITIALIZE;
    match era {
        ServerEra::Legacy => (ClientLifecycleMode::Initialize, legacy),
        ServerEra::Unknown | ServerEra::Modern => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            let mode = ClientLifecycleMode::Auto { preferred_versions, legacy_version: Some(legacy) };
            (mode, ProtocolVersion::LATEST)
        }
    }
}

fn era_of(info: Option<&ServerPeerInfo>) -> ServerEra {
    match info {
        Some(info) if !info.protocol_version.has_initialize() => ServerEra::Modern,
        _ => ServerEra::Legacy,
    }
}

fn announces_changes(info: &ServerPeerInfo) -> bool {
    info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_that_breaks_off_is_opened_again_a_few_times_and_less_and_less_often() {
        let waits: Vec<Option<u64>> = (0..7).map(|n| Reconnecting.retry(n).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(1), Some(2), Some(4), Some(8), Some(16), None, None]);
        assert_eq!(Reconnecting.retry(usize::MAX), None);
    }

    #[test]
    fn server_that_is_known_to_be_old_is_not_asked_what_it_is() {
        assert_eq!(lifecycle(ServerEra::Legacy).0, ClientLifecycleMode::Initialize);
        for era in [ServerEra::Unknown, ServerEra::Modern] {
            assert!(matches!(lifecycle(era).0, ClientLifecycleMode::Auto { .. }), "{era:?}");
        }
    }

    #[tokio::test]
    async fn connection_ends_with_its_process_and_when_that_is_stuck() {
        for end in 0..2 {
            let [stop, ended, stuck] = std::array::from_fn(|_| CancellationToken::new());
            let ending = tokio::spawn(end_with(stop.clone(), (ended.clone(), Duration::ZERO), stuck.clone()));
            assert!(!stop.is_cancelled());
            [ended, stuck][end].cancel();
            ending.await.unwrap();
            assert!(stop.is_cancelled());
        }
    }
}
