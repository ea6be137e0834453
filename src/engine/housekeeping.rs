//! Housekeeping: a handful of in-process jobs on cron times in UTC. Tasks of tenants never come here.

use std::sync::Arc;

use chrono::TimeDelta;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::bus::Bus;
use crate::engine::Settings;
use crate::store::{Store, StoreError};

/// Runs, deliveries, uses of credentials, or answers forgotten in one transaction.
const BATCH: i64 = 200;
/// How long a day's interruptions are known: no zone's today is older.
const COUNTS_MEMORY: TimeDelta = TimeDelta::days(2);
/// How long an instance may go without a look at the index of event tasks and need not read all of it anew.
const INDEX_MEMORY: TimeDelta = TimeDelta::days(1);

/// How long a session that comes back may be told what it has missed.
const LIVE_MEMORY: TimeDelta = TimeDelta::hours(1);

pub struct Housekeeping {
    store: Store,
    bus: Arc<dyn Bus>,
    cron: String,
    retention: TimeDelta,
}

/// The jobs while they are running.
pub struct Jobs(JobScheduler);

impl Housekeeping {
    pub fn new(store: Store, bus: Arc<dyn Bus>, settings: &Settings) -> Housekeeping {
        Housekeeping {
            store,
            bus,
            cron: settings.housekeeping.clone(),
            retention: TimeDelta::days(settings.retention_days.max(1).into()),
        }
    }

    /// Forgets what is older than it is kept; answers how many runs.
    pub async fn clean(store: &Store, retention: TimeDelta) -> Result<usize, StoreError> {
        let now = store.clock().now();
        let mut forgotten = 0;
        loop {
            let batch = store.forget_runs(now - retention, BATCH).await?;
            forgotten += batch;
            if (batch as i64) < BATCH {
                break;
            }
        }
        while store.forget_deliveries(now - retention, BATCH).await? == BATCH as u64 {}
        while store.forget_credential_uses(now - retention, BATCH).await? == BATCH as u64 {}
        while store.forget_counts(now - COUNTS_MEMORY, BATCH).await? >= BATCH as u64 {}
        while store.forget_answers(now, BATCH).await? == BATCH as u64 {}
        while store.forget_event_rules(now, now - retention, BATCH).await? >= BATCH as u64 {}
        while store.forget_live_messages(now - LIVE_MEMORY, BATCH).await? == BATCH as u64 {}
        store.forget_event_tasks(now - INDEX_MEMORY).await?;
        Ok(forgotten)
    }

    pub(super) async fn start(&self) -> anyhow::Result<Jobs> {
        let scheduler = JobScheduler::new().await?;
        let (store, retention) = (self.store.clone(), self.retention);
        let clean = Job::new_async(self.cron.as_str(), move |_, _| {
            let store = store.clone();
            Box::pin(async move {
                match Housekeeping::clean(&store, retention).await {
                    Ok(0) => {}
                    Ok(runs) => tracing::info!(runs, "old runs are forgotten"),
                    Err(error) => tracing::warn!(%error, "housekeeping failed, it is done again at its next time"),
                }
            })
        })?;
        scheduler.add(clean).await?;
        let (bus, clock) = (Arc::clone(&self.bus), self.store.clock().clone());
        let trim = Job::new_async(self.cron.as_str(), move |_, _| {
            let (bus, now) = (Arc::clone(&bus), clock.now());
            Box::pin(async move {
                match bus.trim(now).await {
                    Ok(0) => {}
                    Ok(events) => tracing::info!(events, "old events are forgotten"),
                    Err(error) => {
                        tracing::warn!(%error, "the bus could not be trimmed, it is done again at its next time")
                    }
                }
            })
        })?;
        scheduler.add(trim).await?;
        scheduler.start().await?;
        Ok(Jobs(scheduler))
    }
}

impl Jobs {
    pub(super) async fn stop(mut self) {
        if let Err(error) = self.0.shutdown().await {
            tracing::warn!(%error, "housekeeping could not be stopped");
        }
    }
}
