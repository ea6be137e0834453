//! The scheduler: due tasks become runs, a short horizon ahead of their instant.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;

use crate::base::clock::to_delta;
use crate::base::metrics::Metrics;
use crate::engine::Wakeup;
use crate::engine::scheduling::run_starter::RunStarter;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::store::{FireDue, Store, Topic};

/// How far ahead of their instant fires are recorded and leased.
pub const HORIZON: Duration = Duration::from_millis(1500);
/// Tasks fired in one transaction at most.
const BATCH: i64 = 500;
/// Runs of a due task for which there is room: it may have several that it missed. Two batches side by side have room
/// for one each.
const RUNS_PER_TASK: usize = 2;

/// Records due fires ahead of their instants.
pub struct Scheduler {
    store: Store,
    starter: RunStarter,
    /// Wakes the service that sees to the rules of time zones.
    zones: Wakeup,
    /// Whether the last batch was a whole one.
    behind: AtomicBool,
    fired: Counter,
    skipped: Counter,
    conflicts: Counter,
}

impl Scheduler {
    /// The service, with its metrics.
    pub fn new(store: Store, starter: RunStarter, zones: Wakeup, metrics: &Metrics) -> Scheduler {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        Scheduler {
            store,
            starter,
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
        if !clock.is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let behind = self.behind.load(Ordering::Relaxed);
        let fired = match behind {
            false => self.fire(behind).await?,
            // while one batch is planned the other is written
            true => {
                let (one, other) = tokio::join!(self.fire(behind), self.fire(behind));
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
    /// Fires a batch of what is due; answers whether it was a whole one, so that there may be more. `None`: not by
    /// these rules of time zones.
    async fn fire(&self, behind: bool) -> Result<Option<bool>, TickError> {
        let limit = BATCH.min(self.store.fires_at_once() as i64);
        self.starter.refresh_tenants().await;
        let now = self.store.clock().now();
        let ask = FireDue { now, horizon: HORIZON, limit, worker: self.starter.worker(), ..FireDue::default() };
        let runs_per_task = if behind { 1 } else { RUNS_PER_TASK };
        let mut permit = None;
        // once it is known of which tenants the due tasks are: a slot that these may not have is not held meanwhile
        let reserve = |mut runs: HashMap<u32, usize>| {
            runs.values_mut().for_each(|count| *count *= runs_per_task);
            let permit = permit.insert(self.starter.acquire(&runs, behind));
            (permit.prefetch, self.starter.start(permit, now))
        };
        let fired = self.store.fire_due_with(&ask, reserve).await?;
        if fired.other_zones {
            return Ok(None);
        }
        self.fired.inc_by(fired.recorded as u64);
        self.skipped.inc_by(fired.skipped as u64);
        self.conflicts.inc_by(fired.conflicts as u64);
        for (task_id, why) in &fired.disabled {
            tracing::error!(%task_id, why, "a task can't be scheduled any more, it is disabled");
        }
        self.starter.take_in(fired.claims, fired.started);
        drop(permit);
        Ok(Some((fired.tasks + fired.lost + fired.left) as i64 >= limit))
    }
}
