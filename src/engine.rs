//! The engine: services that turn instants into runs, and runs into ends. They meet everything else in the store.
//!
//! Every instance runs all of them; row locks, unique keys and lease tokens do what an election would. Reading order:
//! [`service`] is the loop, [`scheduling::scheduler`] fires, [`events::matcher`] and [`events::windows`] make runs of
//! events, [`events::watcher`] polls, [`scheduling::worker`] starts, [`running::execution`] is one run from start to
//! end, [`running::finisher`] writes ends in batches, [`scheduling::heartbeat`] keeps leases,
//! [`scheduling::halt_keeper`] asks back what the operator has halted, [`scheduling::rescuer`] picks up what dead
//! workers left, `running::approval_reminder` sees to runs that wait for people, [`delivery::notifier`] sends,
//! [`maintenance::sealer`] chains the audit log, [`events::forwarder`] hands on events that were taken while the bus
//! was away, [`maintenance::extractor`] notes facts from runs that have ended, [`maintenance::embedder`] makes their
//! vectors, [`maintenance::tool_announcer`] tells of tools that wait to be accepted, [`maintenance::housekeeping`]
//! forgets, [`maintenance::zones`] plans anew what a change of the rules of time zones concerns. `assembly` builds them
//! all.

mod assembly;
pub mod delivery;
pub mod events;
mod fair_limiter;
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

use crate::base::metrics::Metrics;
use crate::engine::delivery::notifier::Notifier;
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
use crate::engine::running::approval_reminder::ApprovalReminder;
use crate::engine::running::expirer::Expirer;
use crate::engine::running::finisher::Finisher;
use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::scheduling::halt_keeper::HaltKeeper;
use crate::engine::scheduling::heartbeat::Heartbeat;
use crate::engine::scheduling::rescuer::Rescuer;
use crate::engine::scheduling::run_slots::SlotCounts;
use crate::engine::scheduling::scheduler::Scheduler;
use crate::engine::scheduling::worker::Worker;
use crate::engine::service::ServiceLoop;
use crate::store::{LocalStarter, Store, with_timeout};

pub use assembly::EngineParts;
pub use settings::Settings;

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
    /// Tells owners of tools that wait to be accepted; `None`: no MCP server is configured.
    pub tool_announcer: Option<Arc<ToolAnnouncer>>,
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
    starter: Arc<dyn LocalStarter>,
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
        claiming.extend(self.tool_announcer.iter().map(|one| looped.spawn(Arc::clone(one), stop_claiming.clone())));
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
        self.store.begin_local_starts(Arc::downgrade(&self.starter)).await;
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
        engine.store.stop_event_reads();
        engine.embedder.iter().for_each(|embedder| embedder.stop());
        engine.store.end_local_starts().await;
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
        if let Err(error) = with_timeout(engine.store.withdraw_instance(engine.worker_id)).await {
            tracing::debug!(%error, "the row of this instance stays for a day");
        }
    }
}

/// Tells a service that something it waits for may be there; kept until it listens.
pub(crate) type Wakeup = Arc<Notify>;
