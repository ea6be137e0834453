//! The engine: services that turn instants into runs, and runs into ends. They meet everything else in the store.
//!
//! Every instance runs all of them; row locks, unique keys and lease tokens do what an election would. Reading order:
//! [`service`] is the loop, [`scheduling::scheduler`] fires, [`events::matcher`] and [`events::windows`] make runs of
//! events, [`events::watcher`] polls, [`scheduling::worker`] starts, [`running::execution`] is one run from start to
//! end, [`running::finisher`] writes ends in batches, [`scheduling::heartbeat`] keeps leases, [`scheduling::halt_keeper`]
//! asks back what the operator has halted, [`scheduling::rescuer`] picks up what dead workers left,
//! `running::approval_reminder` sees to runs that wait for people, [`delivery::notifier`] sends, [`maintenance::sealer`]
//! chains the audit log, [`events::forwarder`] hands on events that were taken while the bus was away,
//! [`maintenance::extractor`] notes facts from runs that have ended, [`maintenance::embedder`] makes their vectors, [`maintenance::housekeeping`] forgets, [`maintenance::zones`] plans anew what a change of the rules of time zones
//! concerns.

pub mod delivery;
pub mod events;
pub mod maintenance;
pub mod run_metrics;
pub mod running;
pub mod scheduling;
pub mod service;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::agent::MemorySettings;
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
use crate::engine::scheduling::run_slots::{RunSlots, SlotCounts};
use crate::engine::scheduling::scheduler::Scheduler;
use crate::engine::scheduling::worker::Worker;
use crate::engine::service::ServiceLoop;
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
use crate::store::{Store, with_timeout};

pub use settings::Settings;

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

/// All services of one instance, built and not yet running: `start` loops them, tests tick them by hand.
pub struct Engine {
    /// Keeps the zone rules up to date.
    pub zones: Arc<ZoneKeeper>,
    /// Records due fires.
    pub scheduler: Arc<Scheduler>,
    /// Records runs of events.
    pub matcher: Arc<EventMatcher>,
    /// Closes windows of events.
    pub windows: Arc<WindowCloser>,
    /// Polls conditions.
    pub watcher: Arc<Watcher>,
    /// Starts ready runs.
    pub worker: Arc<Worker>,
    /// Renews leases.
    pub heartbeat: Arc<Heartbeat>,
    /// Asks runs of halted tenants back.
    pub halt_keeper: Arc<HaltKeeper>,
    /// Takes back runs of dead workers.
    pub rescuer: Arc<Rescuer>,
    /// Ends waits that have lasted too long.
    pub expirer: Arc<Expirer>,
    /// Resumes tasks whose credential was saved.
    pub resumer: Arc<Resumer>,
    /// Asks people and reminds them.
    pub approval_reminder: Arc<ApprovalReminder>,
    /// Seals audit rows into the chain.
    pub sealer: Arc<Sealer>,
    /// Counts rows from before the quota of stored bytes.
    pub byte_counter: Arc<ByteCounter>,
    /// Extracts facts from runs that have ended; `None`: no model is configured for it.
    pub extractor: Option<Arc<FactExtractor>>,
    /// Makes vectors of facts; `None`: no endpoint is configured for it.
    pub embedder: Option<Arc<FactEmbedder>>,
    /// Gives data files up.
    pub file_cleaner: Arc<FileCleaner>,
    /// Sends messages.
    pub notifier: Arc<Notifier>,
    /// Forwards events that were kept while the bus was away.
    pub forwarder: Arc<Forwarder>,
    /// Deletes rows after their retention.
    pub housekeeping: Housekeeping,
    /// Writes the ends of runs.
    pub finisher: Finisher,
    active: ActiveRuns,
    store: Store,
    metrics: Metrics,
    worker_id: Uuid,
    grace: Duration,
}

impl Engine {
    /// The id of this instance: its claims and leases carry it.
    pub fn instance(&self) -> Uuid {
        self.worker_id
    }

    /// Builds the services; nothing runs before [`Engine::start`].
    pub fn new(parts: EngineParts) -> Engine {
        let EngineParts {
            store,
            executors,
            channels,
            require_verified,
            host,
            bus,
            max_deliveries,
            poller,
            compute,
            polls_at_once,
            hub,
            post_processing,
            vault,
            public_url,
            approvals,
            metrics,
            settings,
            models,
            memory,
            nearest,
            data_files,
            time,
        } = parts;
        let zones = Arc::new(ZoneKeeper::new(store.clone(), time, Zones::of_process(), metrics.clone()));
        let links = Links { vault: vault.clone(), public_url };
        let worker_id = new_id(store.clock().now());
        let slots = RunSlots::new(settings.max_concurrent_runs, settings.max_waiting_runs);
        slots.register(&metrics);
        let active = ActiveRuns::new(slots.clone());
        let prefetch = match settings.limits().any() {
            false => PrefetchBuffer::new(settings.prefetch, slots),
            true => PrefetchBuffer::under_limits(slots),
        };
        let measures = RunMetrics::new(&metrics);
        let finisher = Finisher::new(store.clone());
        let embedder = FactEmbedder::new(store.clone(), nearest.as_ref().map(|one| one.embeddings.clone()), &metrics);
        let extractor = FactExtractor::new(store.clone(), models, memory, nearest, compute.clone(), &metrics);
        let executions = Executions::new(
            store.clone(),
            executors.clone(),
            channels.clone(),
            host,
            hub,
            finisher.clone(),
            active.clone(),
            measures.clone(),
            post_processing,
            settings.lease(),
        );
        Engine {
            scheduler: Arc::new(Scheduler::new(
                store.clone(),
                Arc::clone(&prefetch),
                executions.clone(),
                worker_id,
                zones.wakeup(),
                &metrics,
            )),
            zones,
            matcher: Arc::new(EventMatcher::new(
                store.clone(),
                Arc::clone(&bus),
                Arc::clone(&prefetch),
                compute.clone(),
                worker_id,
                max_deliveries,
                &metrics,
            )),
            windows: Arc::new(WindowCloser::new(store.clone(), Arc::clone(&prefetch), compute.clone(), worker_id)),
            watcher: Arc::new(Watcher::new(store.clone(), poller, compute, polls_at_once, &metrics)),
            worker: Arc::new(Worker::new(
                store.clone(),
                prefetch,
                executions,
                active.clone(),
                worker_id,
                settings.limits(),
                &metrics,
            )),
            heartbeat: Arc::new(Heartbeat::new(store.clone(), active.clone(), settings.lease())),
            halt_keeper: Arc::new(HaltKeeper::new(store.clone(), active.clone())),
            rescuer: Arc::new(Rescuer::new(store.clone(), settings.lease())),
            expirer: Arc::new(Expirer::new(store.clone())),
            resumer: Arc::new(Resumer::new(store.clone())),
            approval_reminder: Arc::new(ApprovalReminder::new(store.clone(), approvals)),
            sealer: Arc::new(Sealer::new(store.clone(), vault)),
            byte_counter: Arc::new(ByteCounter::new(store.clone())),
            extractor: extractor.map(Arc::new),
            embedder: embedder.map(Arc::new),
            file_cleaner: Arc::new(FileCleaner::new(store.clone(), data_files)),
            notifier: Arc::new(Notifier::new(DeliverySender {
                store: store.clone(),
                channels,
                links,
                breakers: Breakers::new(&metrics),
                require_verified,
                measures,
            })),
            forwarder: Arc::new(Forwarder::new(Arc::clone(&bus), store.clock().clone())),
            housekeeping: Housekeeping::new(store.clone(), bus, &settings),
            finisher,
            active,
            store,
            metrics,
            worker_id,
            grace: settings.shutdown_grace(),
        }
    }

    /// How many runs are executed here now, until all that follows from their ends is recorded.
    pub fn running_count(&self) -> usize {
        self.active.len()
    }

    /// How many of them have a place, and how many wait.
    pub fn slot_counts(&self) -> SlotCounts {
        self.active.slots().counts()
    }

    /// Loops every service until `RunningEngine::stop`.
    ///
    /// # Errors
    /// `housekeeping` is no cron expression, or never comes; then nothing runs.
    pub async fn start(self) -> anyhow::Result<RunningEngine> {
        let housekeeping = self.housekeeping.start()?;
        // before anything fires, so that it is known which rules plan; without an answer now the first tick asks again
        if !matches!(timeout(ZoneKeeper::TIME_LIMIT, self.zones.tick()).await, Ok(Ok(_))) {
            tracing::warn!("it is not known yet by which rules of time zones others plan");
        }
        let stop_claiming = CancellationToken::new();
        let stop_all = CancellationToken::new();
        let finisher = self.finisher.run(stop_all.clone());
        let looped = service::ServiceRunner {
            clock: self.store.clock().clone(),
            metrics: self.metrics.clone(),
            pending_work: Arc::new(self.store.clone()),
            phase: fastrand::f64(),
        };
        let mut claiming = vec![
            looped.spawn(Arc::clone(&self.zones), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.scheduler), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.matcher), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.windows), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.watcher), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.worker), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.rescuer), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.expirer), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.resumer), stop_claiming.clone()),
            looped.spawn(Arc::clone(&self.approval_reminder), stop_claiming.clone()),
        ];
        claiming.extend(self.extractor.iter().map(|one| looped.spawn(Arc::clone(one), stop_claiming.clone())));
        claiming.extend(self.embedder.iter().map(|one| looped.spawn(Arc::clone(one), stop_claiming.clone())));
        let keeping = vec![
            looped.spawn(Arc::clone(&self.heartbeat), stop_all.clone()),
            looped.spawn(Arc::clone(&self.halt_keeper), stop_all.clone()),
            looped.spawn(Arc::clone(&self.notifier), stop_all.clone()),
            looped.spawn(Arc::clone(&self.forwarder), stop_all.clone()),
            looped.spawn(Arc::clone(&self.sealer), stop_all.clone()),
            looped.spawn(Arc::clone(&self.byte_counter), stop_all.clone()),
            looped.spawn(Arc::clone(&self.file_cleaner), stop_all.clone()),
            finisher,
        ];
        self.store.begin_reads();
        self.store.begin_work();
        Ok(RunningEngine { engine: self, stop_claiming, stop_all, claiming, keeping, housekeeping })
    }
}

/// A running engine.
pub struct RunningEngine {
    engine: Engine,
    stop_claiming: CancellationToken,
    stop_all: CancellationToken,
    claiming: Vec<JoinHandle<()>>,
    keeping: Vec<JoinHandle<()>>,
    housekeeping: maintenance::housekeeping::Rounds,
}

impl RunningEngine {
    /// Stops claiming, gives runs their grace, hands back the rest, and returns once nothing is executed or sent here.
    pub async fn stop(self) {
        let RunningEngine { engine, stop_claiming, stop_all, claiming, keeping, housekeeping } = self;
        engine.store.end_work();
        stop_claiming.cancel();
        engine.store.end_reads();
        engine.embedder.iter().for_each(|embedder| embedder.stop());
        futures::future::join_all(claiming).await;
        engine.watcher.drain().await;
        if let Err(error) = with_timeout(engine.store.release_claims(engine.worker_id)).await {
            tracing::warn!(%error, "claims could not be given back; they run out by themselves");
        }
        if let Some(extractor) = &engine.extractor {
            extractor.drain().await;
        }
        if !engine.active.drained_within(engine.grace, engine.store.clock()).await {
            engine.active.hand_back_all();
            engine.active.drained_within(running::execution::HAND_BACK_LIMIT * 2, engine.store.clock()).await;
        }
        housekeeping.stop().await;
        stop_all.cancel();
        futures::future::join_all(keeping).await;
        engine.notifier.drain().await;
    }
}

/// Tells a service that something it waits for may be there; kept until it listens.
pub(crate) type Wakeup = Arc<Notify>;
