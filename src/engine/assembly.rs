//! The engine from its parts: first all that the services of runs share, then each service with its share of the parts.

use std::sync::Arc;

use uuid::Uuid;

use crate::agent::MemorySettings;
use crate::agent::configured::AgentDefinition;
use crate::base::compute::Compute;
use crate::base::id::new_id;
use crate::base::metrics::Metrics;
use crate::domain::approval;
use crate::domain::data_file::DataFileSettings;
use crate::domain::trigger::zone::{self, Zones};
use crate::engine::delivery::approval_links::Links;
use crate::engine::delivery::breaker::Breakers;
use crate::engine::delivery::notifier::Notifier;
use crate::engine::delivery::sending::DeliverySender;
use crate::engine::events::forwarder::Forwarder;
use crate::engine::events::matcher::EventMatcher;
use crate::engine::events::watcher::Watcher;
use crate::engine::events::windows::WindowCloser;
use crate::engine::maintenance::byte_counter::ByteCounter;
use crate::engine::maintenance::embedder::FactEmbedder;
use crate::engine::maintenance::extractor::FactExtractor;
use crate::engine::maintenance::file_cleaner::FileCleaner;
use crate::engine::maintenance::housekeeping::Housekeeping;
use crate::engine::maintenance::resumer::Resumer;
use crate::engine::maintenance::sealer::Sealer;
use crate::engine::maintenance::tool_announcer::ToolAnnouncer;
use crate::engine::maintenance::zones::ZoneKeeper;
use crate::engine::run_metrics::RunMetrics;
use crate::engine::running::approval_reminder::ApprovalReminder;
use crate::engine::running::execution::Executions;
use crate::engine::running::expirer::Expirer;
use crate::engine::running::finisher::Finisher;
use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::scheduling::halt_keeper::HaltKeeper;
use crate::engine::scheduling::heartbeat::Heartbeat;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::scheduling::rescuer::Rescuer;
use crate::engine::scheduling::run_slots::RunSlots;
use crate::engine::scheduling::run_starter::RunStarter;
use crate::engine::scheduling::scheduler::Scheduler;
use crate::engine::scheduling::worker::Worker;
use crate::engine::{Engine, Settings};
use crate::executor::ExecutorRegistry;
use crate::executor::host::StoreHost;
use crate::executor::host::nearest::NearestFacts;
use crate::executor::hub::Hub;
use crate::executor::post_process::PostProcessing;
use crate::ports::bus::Bus;
use crate::ports::channel::ChannelRegistry;
use crate::ports::llm::Models;
use crate::ports::poll::Poller;
use crate::ports::vault::Vault;
use crate::store::Store;

/// The parts from which the engine is built.
pub struct EngineParts {
    /// The store of everything.
    pub store: Store,
    /// Executors by name.
    pub executors: ExecutorRegistry,
    /// Channels by name.
    pub channels: ChannelRegistry,
    /// Whether addresses that nobody proved get codes alone.
    pub require_verified: bool,
    /// The host of tools.
    pub host: Arc<StoreHost>,
    /// The event bus.
    pub bus: Arc<dyn Bus>,
    /// Where what tenants have written is computed.
    pub compute: Compute,
    /// An entry of the bus that failed this often is put among the dead letters.
    pub max_deliveries: u32,
    /// Looks at what conditions watch.
    pub poller: Poller,
    /// Polls at the same time.
    pub polls_at_once: usize,
    /// Watchers of runs.
    pub hub: Hub,
    /// Steps behind an answer.
    pub post_processing: PostProcessing,
    /// Makes the links of questions and the hashes of the audit log.
    pub vault: Vault,
    /// Where links lead.
    pub public_url: String,
    /// When people are reminded, and who else is asked.
    pub approvals: approval::Settings,
    /// The registry of metrics.
    pub metrics: Metrics,
    /// Whether any MCP server is configured.
    pub has_mcp_servers: bool,
    /// Agents that are configured.
    pub agents: Vec<AgentDefinition>,
    /// Settings of `[engine]`.
    pub settings: Settings,
    /// Models, for the extraction of facts.
    pub models: Models,
    /// Settings of `[memory]`.
    pub memory: MemorySettings,
    /// Finds facts by vectors, and makes these; `None`: nothing does.
    pub nearest: Option<NearestFacts>,
    /// Settings of `[data_files]`.
    pub data_files: DataFileSettings,
    /// Where the rules of time zones are looked for.
    pub time: zone::Settings,
}

/// Shared by the services that start, execute and end runs.
struct RunCore {
    /// The id of this instance.
    worker_id: Uuid,
    active: ActiveRuns,
    prefetch: Arc<PrefetchBuffer>,
    metrics: RunMetrics,
    finisher: Finisher,
    executions: Executions,
    starter: RunStarter,
}

impl RunCore {
    /// Makes the slots and the buffer of runs, and all that executes one.
    fn new(parts: &EngineParts) -> RunCore {
        let EngineParts { store, settings, .. } = parts;
        let worker_id = new_id(store.clock().now());
        let (computing, waiting) = (settings.max_concurrent_runs, settings.max_waiting_runs);
        let slots = RunSlots::starting_ahead(computing, waiting, store.clock().clone());
        slots.register(&parts.metrics);
        let active = ActiveRuns::new(slots.clone());
        let prefetch = match settings.limits().any() {
            false => PrefetchBuffer::new(settings.prefetch, slots),
            true => PrefetchBuffer::under_limits(slots),
        };
        let metrics = RunMetrics::new(&parts.metrics);
        let finisher = Finisher::new(store.clone());
        let executions = Executions::new(
            store.clone(),
            parts.executors.clone(),
            parts.channels.clone(),
            Arc::clone(&parts.host),
            parts.hub.clone(),
            finisher.clone(),
            active.clone(),
            metrics.clone(),
            parts.post_processing.clone(),
            settings.lease(),
        );
        let starter = RunStarter::new(store.clone(), Arc::clone(&prefetch), executions.clone(), worker_id);
        RunCore { worker_id, active, prefetch, metrics, finisher, executions, starter }
    }
}

impl Engine {
    /// Builds the services; nothing runs before [`Engine::start`].
    pub fn new(parts: EngineParts) -> Engine {
        let zones = Arc::new(zone_keeper(&parts));
        let runs = RunCore::new(&parts);
        let EngineParts { store, bus, settings, .. } = &parts;
        Engine {
            embedder: embedder(&parts).map(Arc::new),
            extractor: extractor(&parts).map(Arc::new),
            scheduler: Arc::new(Scheduler::new(store.clone(), runs.starter.clone(), zones.wakeup(), &parts.metrics)),
            zones,
            matcher: Arc::new(matcher(&parts, &runs)),
            windows: Arc::new(window_closer(&parts, &runs)),
            watcher: Arc::new(watcher(&parts)),
            worker: Arc::new(worker(&parts, &runs)),
            heartbeat: Arc::new(Heartbeat::new(store.clone(), runs.active.clone(), settings.lease(), runs.worker_id)),
            halt_keeper: Arc::new(HaltKeeper::new(store.clone(), runs.active.clone())),
            rescuer: Arc::new(Rescuer::new(store.clone(), settings.lease())),
            expirer: Arc::new(Expirer::new(store.clone())),
            resumer: Arc::new(Resumer::new(store.clone())),
            approval_reminder: Arc::new(ApprovalReminder::new(store.clone(), parts.approvals.clone())),
            sealer: Arc::new(Sealer::new(store.clone(), parts.vault.clone())),
            byte_counter: Arc::new(ByteCounter::new(store.clone())),
            tool_announcer: tool_announcer(&parts).map(Arc::new),
            file_cleaner: Arc::new(FileCleaner::new(store.clone(), parts.data_files.clone())),
            notifier: Arc::new(notifier(&parts, &runs)),
            forwarder: Arc::new(Forwarder::new(Arc::clone(bus), store.clock().clone())),
            housekeeping: Housekeeping::new(store.clone(), Arc::clone(bus), settings),
            finisher: runs.finisher,
            active: runs.active,
            starter: Arc::new(runs.starter),
            worker_id: runs.worker_id,
            grace: settings.shutdown_grace(),
            store: parts.store,
            metrics: parts.metrics,
        }
    }
}

/// The announcer of tools that wait; `None`: no server lists any.
fn tool_announcer(parts: &EngineParts) -> Option<ToolAnnouncer> {
    let announcer = || ToolAnnouncer::new(parts.store.clone()).with_agents(parts.agents.clone());
    parts.has_mcp_servers.then(announcer)
}

/// The keeper of zone rules; it plans by those of this process.
fn zone_keeper(parts: &EngineParts) -> ZoneKeeper {
    ZoneKeeper::new(parts.store.clone(), parts.time.clone(), Zones::of_process(), parts.metrics.clone())
}

/// The service that makes vectors of facts, where an endpoint is configured for it.
fn embedder(parts: &EngineParts) -> Option<FactEmbedder> {
    let embeddings = parts.nearest.as_ref().map(|one| one.embeddings.clone());
    FactEmbedder::new(parts.store.clone(), embeddings, &parts.metrics)
}

/// The service that extracts facts, where a model is configured for it.
fn extractor(parts: &EngineParts) -> Option<FactExtractor> {
    FactExtractor::new(
        parts.store.clone(),
        parts.models.clone(),
        parts.memory.clone(),
        parts.nearest.clone(),
        parts.compute.clone(),
        &parts.metrics,
    )
}

/// The service that makes runs of events, and starts them here where there is a slot.
fn matcher(parts: &EngineParts, runs: &RunCore) -> EventMatcher {
    EventMatcher::new(
        parts.store.clone(),
        Arc::clone(&parts.bus),
        runs.starter.clone(),
        parts.compute.clone(),
        parts.max_deliveries,
        &parts.metrics,
    )
}

/// The service that closes windows of events.
fn window_closer(parts: &EngineParts, runs: &RunCore) -> WindowCloser {
    WindowCloser::new(parts.store.clone(), Arc::clone(&runs.prefetch), parts.compute.clone(), runs.worker_id)
}

/// The service that polls conditions.
fn watcher(parts: &EngineParts) -> Watcher {
    Watcher::new(parts.store.clone(), parts.poller.clone(), parts.compute.clone(), parts.polls_at_once, &parts.metrics)
}

/// The service that claims runs and starts them.
fn worker(parts: &EngineParts, runs: &RunCore) -> Worker {
    Worker::new(
        parts.store.clone(),
        Arc::clone(&runs.prefetch),
        runs.executions.clone(),
        runs.active.clone(),
        runs.worker_id,
        parts.settings.limits(),
        &parts.metrics,
    )
}

/// The service that sends messages, with links that lead to this service.
fn notifier(parts: &EngineParts, runs: &RunCore) -> Notifier {
    Notifier::new(DeliverySender {
        store: parts.store.clone(),
        channels: parts.channels.clone(),
        links: Links { vault: parts.vault.clone(), public_url: parts.public_url.clone() },
        breakers: Breakers::new(&parts.metrics),
        require_verified: parts.require_verified,
        metrics: runs.metrics.clone(),
    })
}
