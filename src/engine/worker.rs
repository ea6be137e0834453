//! The worker: leases ready runs, starts them at their instant in batches, and hears when one is to be cancelled.
//! Each run is a task of its own, so a slow one delays no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::clock::signed;
use crate::engine::active::Active;
use crate::engine::execution::Executions;
use crate::engine::held::Held;
use crate::engine::scheduler::HORIZON;
use crate::engine::service::{Next, Service, TickError};
use crate::metrics::Metrics;
use crate::store::{Claim, Lease, Store, Topic};

/// Runs claimed or started in one transaction.
const BATCH: usize = 256;

pub struct Worker {
    store: Store,
    held: Arc<Held>,
    executions: Executions,
    active: Active,
    id: Uuid,
    lease: Duration,
    /// Whether more could be done if there were more room: only then does the end of a run wake the worker.
    short_of_room: Arc<AtomicBool>,
    started: Counter,
}

impl Worker {
    pub fn new(
        store: Store,
        held: Arc<Held>,
        executions: Executions,
        active: Active,
        id: Uuid,
        lease: Duration,
        metrics: &Metrics,
    ) -> Worker {
        let started = Counter::default();
        metrics.register("run_starts", "Runs started by this instance", started.clone());
        Worker { store, held, executions, active, id, lease, short_of_room: Arc::default(), started }
    }

    /// Leases what is ready, as far as there is room; answers whether there may be more.
    async fn claim(&self) -> Result<bool, TickError> {
        let room = self.held.room().min(BATCH);
        self.short_of_room.store(room == 0, Ordering::Relaxed);
        if room == 0 {
            return Ok(false);
        }
        let until = self.store.clock().now() + signed(HORIZON);
        let claims = self.store.claim_runs(self.id, until, room as i64).await?;
        let full = claims.len() == room;
        self.short_of_room.store(full, Ordering::Relaxed);
        self.held.add(claims);
        Ok(full)
    }

    /// Starts those whose instant has come; answers whether there may be more.
    async fn start_due(&self) -> Result<bool, TickError> {
        let limit = self.held.free().min(BATCH);
        let due = self.held.take_due(self.store.clock().now(), limit);
        if due.is_empty() {
            return Ok(false);
        }
        let leases: Vec<Lease> = due.iter().map(|claim: &Claim| claim.lease).collect();
        let lease_until = self.store.clock().now() + signed(self.lease);
        let starts = match self.store.start_runs(&leases, lease_until).await {
            Ok(starts) => starts,
            Err(error) => {
                // it may have taken effect; the next tick asks again, which is safe
                self.held.add(due);
                return Err(error.into());
            }
        };
        self.started.inc_by(starts.started.len() as u64);
        for started in starts.started {
            self.executions.spawn(started);
        }
        Ok(leases.len() == limit)
    }

    async fn hear_cancels(&self) -> Result<(), TickError> {
        if self.active.is_empty() {
            return Ok(());
        }
        for beat in self.store.cancels_asked(self.id).await? {
            self.active.cancel(beat.run_id, beat.cancel_reason.as_deref().unwrap_or("cancelled"));
        }
        Ok(())
    }
}

impl Service for Worker {
    const NAME: &'static str = "worker";
    const LOOK_AGAIN: Duration = Duration::from_secs(1);

    async fn tick(&self) -> Result<Next, TickError> {
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        self.held.forget_expired(self.store.clock().now());
        let more_due = self.start_due().await?;
        let more_ready = self.claim().await?;
        self.hear_cancels().await?;
        if (more_due || more_ready) && self.held.free() > 0 {
            return Ok(Next::Now);
        }
        Ok(match self.held.next() {
            Some(next) if self.held.free() > 0 => Next::At(next),
            _ => Next::OnWake,
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        let mut queue = self.store.listen(Topic::Queue);
        let mut cancels = self.store.listen(Topic::Cancels);
        let (held, ended) = (self.held.bell(), self.active.ended());
        let short_of_room = Arc::clone(&self.short_of_room);
        Box::pin(async move {
            let room = async {
                // it rings for an end that came before, too; what the last tick found decides whether it matters
                match short_of_room.load(Ordering::Relaxed) {
                    true => ended.notified().await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = queue.changed() => {}
                _ = cancels.changed() => {}
                () = held.notified() => {}
                () = room => {}
            }
        })
    }
}
