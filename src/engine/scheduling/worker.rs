//! The worker: takes ready runs, starts claimed ones at their instant in batches, and hears when one is to be cancelled.
//! Each run is a task of its own, so a slow one delays no other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::base::clock::signed;
use crate::base::metrics::Metrics;
use crate::engine::running::execution::Executions;
use crate::engine::scheduling::active::Active;
use crate::engine::scheduling::neighbours::Neighbours;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::scheduling::scheduler::HORIZON;
use crate::engine::service::{AtRest, NOW, NextTick, REST, ServiceLoop, TickError};
use crate::store::{ClaimCursor, Lease, RunLimits, Starts, Store, Take, Topic, answered};

/// Runs taken or started in one transaction.
const BATCH: usize = 500;

/// Starts ready runs and those whose instant has come.
pub struct Worker {
    store: Store,
    held: Arc<PrefetchBuffer>,
    executions: Executions,
    active: Active,
    id: Uuid,
    lease: Duration,
    /// Whether more could be done if there were more room: only then does the end of a run wake the worker.
    short_of_room: Arc<AtomicBool>,
    /// Where to go on among the tenants, while there is more than can be taken.
    turn: Mutex<Option<ClaimCursor>>,
    limits: RunLimits,
    neighbours: Neighbours,
    started: Counter,
}

impl Worker {
    /// The service, with its metrics.
    pub fn new(
        store: Store,
        held: Arc<PrefetchBuffer>,
        executions: Executions,
        active: Active,
        id: Uuid,
        limits: RunLimits,
        metrics: &Metrics,
    ) -> Worker {
        let started = metrics.registered("run_starts", "Runs started by this instance", Counter::default());
        let lease = executions.lease();
        let neighbours = Neighbours::new(store.clone(), Arc::clone(&held));
        Worker {
            store,
            held,
            executions,
            active,
            id,
            lease,
            short_of_room: Arc::default(),
            turn: Mutex::default(),
            limits,
            neighbours,
            started,
        }
    }

    /// Leases what is ready, as far as there is room, and starts what is due of it; answers whether there may be more.
    async fn take(&self) -> Result<bool, TickError> {
        // while the runs of one batch are read the next is taken; where limits are kept, takes come one after the other
        let in_turn = self.turn.lock().expect("turn lock").is_some();
        let limits = RunLimits { own: self.held.has_own_limits(), ..self.limits };
        let by_two = in_turn && !limits.any();
        let share = self.held.share_of_ready(if by_two { 2 * BATCH } else { BATCH }, in_turn);
        self.short_of_room.store(share.places == 0, Ordering::Relaxed);
        if share.places == 0 {
            return Ok(false);
        }
        let turn = self.turn.lock().expect("turn lock").take();
        // the most urgent may be anybody's: no more of them than is left to everybody, and else it goes in turn
        let urgent = share.shares.left_to_each();
        let fair = turn.or_else(|| (limits.any() || urgent == 0).then(ClaimCursor::default));
        let now = self.store.clock().now();
        // who holds all that it can start leaves what is not due yet to the others
        let (room, ahead) = match share.room {
            0 => (share.places, now),
            room => (room, now + signed(HORIZON)),
        };
        let take = Take {
            worker: self.id,
            now,
            ahead,
            lease_until: now + signed(self.lease),
            limit: if fair.is_some() { room } else { room.min(urgent) } as i64,
            fair,
            limits,
            shares: share.shares.of_tenants(),
        };
        let full = match by_two && room > 1 {
            false => self.take_batch(&take).await?,
            true => {
                let [less, more] = take.shares.as_ref().map_or([None, None], |shares| shares.halves().map(Some));
                let half = Take { limit: take.limit / 2, shares: less, ..take.clone() };
                let rest = Take { limit: take.limit - half.limit, shares: more, ..take };
                let (one, other) = tokio::join!(self.take_batch(&half), self.take_batch(&rest));
                one? | other?
            }
        };
        // a tenant that was passed over may have another place when one of its runs has ended
        self.short_of_room.store(full || limits.any() || urgent == 0, Ordering::Relaxed);
        Ok(full || self.turn.lock().expect("turn lock").is_some())
    }

    /// Answers whether as many were taken as were asked for.
    async fn take_batch(&self, take: &Take) -> Result<bool, TickError> {
        let taken = self.store.take_runs(take).await?;
        let full = taken.len() as i64 == take.limit;
        // who has more than can be taken must not keep the others waiting: from now on it goes in turn, until none is left
        // a look at as many tenants as fit, of whom none could have more, is no reason to forget those who follow
        if full || (take.fair.is_some() && (!taken.is_empty() || taken.turn != ClaimCursor::default())) {
            *self.turn.lock().expect("turn lock") = Some(taken.turn);
        }
        self.held.add(taken.claims);
        self.spawn(taken.starts);
        Ok(full)
    }

    fn spawn(&self, starts: Starts) {
        self.started.inc_by(starts.started.len() as u64);
        for started in starts.started {
            self.executions.spawn(started);
        }
    }

    /// Starts those whose instant has come; answers whether there may be more.
    async fn start_due(&self) -> Result<bool, TickError> {
        let (due, _places) = self.held.take_due(self.store.clock().now(), BATCH);
        if due.is_empty() {
            return Ok(false);
        }
        let leases: Vec<Lease> = due.iter().map(|claim| claim.lease).collect();
        let lease_until = self.store.clock().now() + signed(self.lease);
        match answered(self.store.start_runs(&leases, lease_until)).await {
            Ok(starts) => {
                self.spawn(starts);
                Ok(due.len() == BATCH)
            }
            Err(error) => {
                // it may have taken effect; the next tick asks again, which is safe
                self.held.add(due);
                Err(error.into())
            }
        }
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

impl ServiceLoop for Worker {
    const NAME: &'static str = "worker";
    const LOOK_AGAIN: Duration = Duration::from_secs(1);
    // what is held, or under way and may be cancelled, is looked after
    const AT_REST: Option<AtRest<Self>> = Some(AtRest {
        longest: REST,
        next: |worker, outlook| {
            let rests = !outlook.ready && worker.active.is_empty() && worker.held.next().is_none();
            (!rests).then_some(NOW)
        },
    });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        self.held.forget_expired(self.store.clock().now());
        self.neighbours.look().await;
        let more_due = self.start_due().await?;
        let more_ready = self.take().await?;
        self.hear_cancels().await?;
        if self.held.passes_over() {
            self.short_of_room.store(true, Ordering::Relaxed);
        }
        let next = match (more_due || more_ready, self.held.next()) {
            (true, _) if self.held.has_place() => NextTick::Now,
            (false, Some(next)) if self.held.has_place() => NextTick::At(next),
            (false, None) => NextTick::OnWake,
            _ => {
                self.short_of_room.store(true, Ordering::Relaxed);
                NextTick::OnWake
            }
        };
        if self.short_of_room.load(Ordering::Relaxed) {
            self.store.pass_on(Topic::Queue);
        }
        Ok(next)
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
