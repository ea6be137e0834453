//! The scheduler: due tasks become runs, a short horizon ahead of their instant.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::clock::signed;
use crate::engine::execution::Executions;
use crate::engine::held::Held;
use crate::engine::service::{Next, Service, TickError};
use crate::metrics::Metrics;
use crate::store::{FireDue, StartNow, Store, Topic};

/// How far ahead of their instant fires are recorded and leased.
pub const HORIZON: Duration = Duration::from_millis(1500);
/// Tasks fired in one transaction.
const BATCH: i64 = 500;

pub struct Scheduler {
    store: Store,
    held: Arc<Held>,
    executions: Executions,
    worker: Uuid,
    lease: Duration,
    fired: Counter,
    skipped: Counter,
    conflicts: Counter,
}

impl Scheduler {
    pub fn new(
        store: Store,
        held: Arc<Held>,
        executions: Executions,
        worker: Uuid,
        lease: Duration,
        metrics: &Metrics,
    ) -> Scheduler {
        let scheduler = Scheduler {
            store,
            held,
            executions,
            worker,
            lease,
            fired: Counter::default(),
            skipped: Counter::default(),
            conflicts: Counter::default(),
        };
        metrics.register("fires", "Fires that became runs", scheduler.fired.clone());
        metrics.register("fires_skipped", "Instants recorded as skipped when they fell due", scheduler.skipped.clone());
        metrics.register(
            "fire_conflicts",
            "Fires that had their record already; should stay 0",
            scheduler.conflicts.clone(),
        );
        scheduler
    }
}

impl Service for Scheduler {
    const NAME: &'static str = "scheduler";
    const LOOK_AGAIN: Duration = Duration::from_secs(1);

    async fn tick(&self) -> Result<Next, TickError> {
        let clock = self.store.clock();
        if !clock.trusted() {
            return Err(TickError::ClockUnknown);
        }
        let now = clock.now();
        let start = StartNow { places: self.held.places(), lease_until: now + signed(self.lease) };
        let ask = FireDue {
            now,
            horizon: HORIZON,
            limit: BATCH,
            worker: self.worker,
            room: self.held.room(),
            prepare: self.executions.prepares(),
            start: Some(start),
        };
        let fired = self.store.fire_due(&ask).await?;
        self.fired.inc_by(fired.recorded as u64);
        self.skipped.inc_by(fired.skipped as u64);
        self.conflicts.inc_by(fired.conflicts as u64);
        for (task_id, why) in &fired.disabled {
            tracing::error!(%task_id, why, "a task can't be scheduled any more, it is disabled");
        }
        self.held.prepare(fired.prepared.into_iter().filter(|run| self.executions.may_begin(run)));
        self.held.add(fired.claims);
        for started in fired.started {
            self.executions.spawn(started);
        }
        if fired.tasks as i64 == BATCH {
            return Ok(Next::Now);
        }
        Ok(match self.store.next_due().await? {
            Some(next) => Next::At(next - signed(HORIZON)),
            None => Next::OnWake,
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        let mut due = self.store.listen(Topic::Due);
        Box::pin(async move {
            let _ = due.changed().await;
        })
    }
}
