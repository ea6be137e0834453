//! The scheduler: due tasks become runs, a short horizon ahead of their instant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::metrics::Metrics;
use crate::engine::Wakeup;
use crate::engine::running::execution::Executions;
use crate::engine::scheduling::other_tenants::OtherTenants;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::store::{FireDue, ImmediateStart, Store, Topic};

/// How far ahead of their instant fires are recorded and leased.
pub const HORIZON: Duration = Duration::from_millis(1500);
/// Tasks fired in one transaction at most.
const BATCH: i64 = 500;
/// Runs leased by the transactions of one tick: a task may have several that it missed.
const SHARE: usize = 2 * BATCH as usize;

/// Records due fires ahead of their instants.
pub struct Scheduler {
    store: Store,
    prefetch: Arc<PrefetchBuffer>,
    executions: Executions,
    worker: Uuid,
    lease: Duration,
    /// Wakes the service that sees to the rules of time zones.
    zones: Wakeup,
    neighbours: OtherTenants,
    /// Whether the last batch was a whole one.
    behind: AtomicBool,
    fired: Counter,
    skipped: Counter,
    conflicts: Counter,
}

impl Scheduler {
    /// The service, with its metrics.
    pub fn new(
        store: Store,
        prefetch: Arc<PrefetchBuffer>,
        executions: Executions,
        worker: Uuid,
        zones: Wakeup,
        metrics: &Metrics,
    ) -> Scheduler {
        let lease = executions.lease();
        let neighbours = OtherTenants::new(store.clone(), Arc::clone(&prefetch));
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        Scheduler {
            store,
            neighbours,
            prefetch,
            executions,
            worker,
            lease,
            zones,
            behind: AtomicBool::default(),
            fired: counted("fires", "Fires that became runs"),
            skipped: counted("fires_skipped", "Instants recorded as skipped when they fell due"),
            conflicts: counted("fire_conflicts", "Fires that had their record already; should stay 0"),
        }
    }
}

/// When a fire is recorded.
fn plan_ahead_of(instant: DateTime<Utc>) -> DateTime<Utc> {
    instant - to_delta(HORIZON)
}

impl ServiceLoop for Scheduler {
    const NAME: &'static str = "scheduler";
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.fire.map(plan_ahead_of) });

    async fn tick(&self) -> Result<NextTick, TickError> {
        let clock = self.store.clock();
        if !clock.trusted() {
            return Err(TickError::ClockUnknown);
        }
        self.neighbours.refresh().await;
        let behind = self.behind.load(Ordering::Relaxed);
        let fired = match behind {
            false => self.fire(SHARE, behind).await?,
            // while one batch is planned the other is written
            true => {
                let (one, other) = tokio::join!(self.fire(SHARE / 2, behind), self.fire(SHARE / 2, behind));
                one?.zip(other?).map(|(one, other)| one | other)
            }
        };
        let full = match fired {
            Some(full) => full,
            None => {
                self.zones.notify_one();
                return Ok(NextTick::OnWake);
            }
        };
        self.behind.store(full, Ordering::Relaxed);
        if full {
            return Ok(NextTick::Now);
        }
        Ok(match self.store.next_due().await? {
            Some(next) => NextTick::At(plan_ahead_of(next)),
            None => NextTick::OnWake,
        })
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut due = self.store.listen(Topic::Due);
        Box::pin(async move {
            let _ = due.changed().await;
        })
    }
}

impl Scheduler {
    /// Fires a batch of what is due; answers whether it was a whole one, so that there may be more. `None`: not by these
    /// rules of time zones.
    async fn fire(&self, most: usize, behind: bool) -> Result<Option<bool>, TickError> {
        let limit = BATCH.min(self.store.fires_at_once() as i64);
        let permit = self.prefetch.acquire_for_recorded(most, behind);
        let now = self.store.clock().now();
        let shares = Some(permit.shares.clone());
        let start = ImmediateStart { places: permit.slots, lease_until: now + to_delta(self.lease), shares };
        let ask =
            FireDue { now, horizon: HORIZON, limit, worker: self.worker, room: permit.prefetch, start: Some(start) };
        let fired = self.store.fire_due(&ask).await?;
        if fired.other_zones {
            return Ok(None);
        }
        self.fired.inc_by(fired.recorded as u64);
        self.skipped.inc_by(fired.skipped as u64);
        self.conflicts.inc_by(fired.conflicts as u64);
        for (task_id, why) in &fired.disabled {
            tracing::error!(%task_id, why, "a task can't be scheduled any more, it is disabled");
        }
        self.prefetch.add(fired.claims);
        for started in fired.started {
            self.executions.spawn(started);
        }
        Ok(Some((fired.tasks + fired.lost + fired.left) as i64 >= limit))
    }
}
