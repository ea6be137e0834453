//! Housekeeping: a handful of in-process jobs on cron times in UTC. Tasks of tenants never come here.
//!
//! What is old is forgotten in small transactions, each kind in its turn, and after each the database has a rest as long
//! as that took: so no start waits behind more than one of them, and at most half of one connection is used. A night's
//! backlog takes as many rounds as it takes; a round ends when nothing is left, when its time is over, or when the
//! service stops. A crash loses nothing: what is left is found again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use tokio::sync::Mutex;
use tokio_cron_scheduler::{Job, JobScheduler};
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::clock::pause;
use crate::engine::Settings;
use crate::store::{Store, StoreError};

/// Runs, deliveries, uses of credentials, or answers forgotten in one transaction.
pub const BATCH: i64 = 200;
/// The shortest rest between two transactions.
const REST: Duration = Duration::from_millis(20);
/// The longest round: what is left by then waits for the next.
const ROUND: Duration = Duration::from_secs(30 * 60);
/// How long a transaction that has begun is waited for when the service stops.
const LAST_BATCH: Duration = Duration::from_secs(5);
/// How long a day's interruptions are known: no zone's today is older.
const COUNTS_MEMORY: TimeDelta = TimeDelta::days(2);
/// How long an instance may go without a look at the index of event tasks and need not read all of it anew.
const INDEX_MEMORY: TimeDelta = TimeDelta::days(1);
/// How long a session that comes back may be told what it has missed.
const LIVE_MEMORY: TimeDelta = TimeDelta::hours(1);

/// What is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Runs,
    Links,
    Deliveries,
    CredentialUses,
    Counts,
    Answers,
    EventRules,
    LiveMessages,
    EventTasks,
}

const KINDS: [Kind; 9] = [
    Kind::Runs,
    Kind::Links,
    Kind::Deliveries,
    Kind::CredentialUses,
    Kind::Counts,
    Kind::Answers,
    Kind::EventRules,
    Kind::LiveMessages,
    Kind::EventTasks,
];

pub struct Housekeeping {
    store: Store,
    bus: Arc<dyn Bus>,
    cron: String,
    retention: TimeDelta,
}

/// The jobs while they are running.
pub struct Jobs {
    scheduler: JobScheduler,
    stop: CancellationToken,
    /// Held by the round that goes on: none begins beside it, and a stop waits for it.
    round: Arc<Mutex<()>>,
}

impl Housekeeping {
    pub fn new(store: Store, bus: Arc<dyn Bus>, settings: &Settings) -> Housekeeping {
        Housekeeping {
            store,
            bus,
            cron: settings.housekeeping.clone(),
            retention: TimeDelta::days(settings.retention_days.max(1).into()),
        }
    }

    /// Forgets what is older than it is kept, until nothing is left, the round's time is over, or `stop`; answers how many
    /// runs. What fails is left to the next round, and does not keep the rest from being forgotten.
    pub async fn clean(store: &Store, retention: TimeDelta, stop: &CancellationToken) -> usize {
        let began = Instant::now();
        let mut runs = 0;
        let mut left = KINDS.to_vec();
        while !left.is_empty() && began.elapsed() < ROUND {
            let mut more = Vec::new();
            for kind in left {
                if stop.is_cancelled() {
                    return runs;
                }
                let begun = Instant::now();
                match forget(store, kind, retention).await {
                    Ok(0) => continue,
                    Ok(count) => {
                        runs += if kind == Kind::Runs { count as usize } else { 0 };
                        more.push(kind);
                    }
                    Err(error) => {
                        tracing::warn!(?kind, %error, "housekeeping failed, it is done again at its next time")
                    }
                }
                stop.run_until_cancelled(pause(begun.elapsed().max(REST))).await;
            }
            left = more;
        }
        runs
    }

    pub(super) async fn start(&self) -> anyhow::Result<Jobs> {
        let scheduler = JobScheduler::new().await?;
        let (stop, round) = (CancellationToken::new(), Arc::<Mutex<()>>::default());
        let (store, bus, retention) = (self.store.clone(), Arc::clone(&self.bus), self.retention);
        let (asked, one) = (stop.clone(), Arc::clone(&round));
        let job = Job::new_async(self.cron.as_str(), move |_, _| {
            let (store, bus, stop, round) = (store.clone(), Arc::clone(&bus), asked.clone(), Arc::clone(&one));
            Box::pin(async move {
                // the one before may take longer than the cron says
                let Ok(_alone) = round.try_lock() else { return };
                match Housekeeping::clean(&store, retention, &stop).await {
                    0 => {}
                    runs => tracing::info!(runs, "old runs are forgotten"),
                }
                match stop.run_until_cancelled(bus.trim(store.clock().now())).await {
                    None | Some(Ok(0)) => {}
                    Some(Ok(events)) => tracing::info!(events, "old events are forgotten"),
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the bus could not be trimmed, it is done again at its next time");
                    }
                }
            })
        })?;
        scheduler.add(job).await?;
        scheduler.start().await?;
        Ok(Jobs { scheduler, stop, round })
    }
}

impl Jobs {
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        if let Err(error) = self.scheduler.shutdown().await {
            tracing::warn!(%error, "housekeeping could not be stopped");
        }
        let _ = tokio::time::timeout(LAST_BATCH, self.round.lock()).await;
    }
}

/// Forgets one batch of a kind; answers how much that was. None: nothing is left.
async fn forget(store: &Store, kind: Kind, retention: TimeDelta) -> Result<u64, StoreError> {
    let now = store.clock().now();
    let old = now - retention;
    match kind {
        Kind::Runs => store.forget_runs(old, BATCH).await.map(|runs| runs as u64),
        Kind::Links => store.forget_links(old, BATCH).await,
        Kind::Deliveries => store.forget_deliveries(old, BATCH).await,
        Kind::CredentialUses => store.forget_credential_uses(old, BATCH).await,
        Kind::Counts => store.forget_counts(now - COUNTS_MEMORY, BATCH).await,
        Kind::Answers => store.forget_answers(now, BATCH).await,
        Kind::EventRules => store.forget_event_rules(now, old, BATCH).await,
        Kind::LiveMessages => store.forget_live_messages(now - LIVE_MEMORY, BATCH).await,
        Kind::EventTasks => store.forget_event_tasks(now - INDEX_MEMORY, BATCH).await,
    }
}
