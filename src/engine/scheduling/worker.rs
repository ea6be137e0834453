//! The worker: takes ready runs, starts claimed ones at their instant in batches, and hears when one is to be
//! cancelled. Each run is a task of its own, so a slow one delays no other.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::metrics::Metrics;
use crate::domain::halt::Halts;
use crate::engine::running::execution::Executions;
use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::scheduling::cancel_watch::CancelWatch;
use crate::engine::scheduling::claim_pace::{ClaimLoad, ClaimPace};
use crate::engine::scheduling::other_tenants::OtherTenants;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::scheduling::scheduler::HORIZON;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NOW, NextTick, ServiceLoop, TickError};
use crate::store::{ClaimCursor, Lease, RunLimits, Starts, Store, TakeRequest, Topic, tenant_hash, with_timeout};

/// How long before an instant halts are looked at: within the time that a look is good for.
const LOOK_AHEAD: TimeDelta = TimeDelta::milliseconds(200);
/// Runs taken or started in one transaction.
const BATCH: usize = 500;

/// Starts ready runs and those whose instant has come.
pub struct Worker {
    store: Store,
    prefetch: Arc<PrefetchBuffer>,
    executions: Executions,
    active: ActiveRuns,
    id: Uuid,
    lease: Duration,
    /// Whether more could be done if there were more room: only then does a slot that is left wake the worker.
    short_of_room: Arc<AtomicBool>,
    /// Where to go on among the tenants, while there is more than can be taken.
    turn: Mutex<Option<ClaimCursor>>,
    limits: RunLimits,
    other_tenants: OtherTenants,
    pace: Arc<ClaimPace>,
    cancels: Mutex<CancelWatch>,
    claims: Counter,
}

impl Worker {
    /// The service, with its metrics.
    pub fn new(
        store: Store,
        prefetch: Arc<PrefetchBuffer>,
        executions: Executions,
        active: ActiveRuns,
        id: Uuid,
        limits: RunLimits,
        metrics: &Metrics,
    ) -> Worker {
        let help = "Statements by which this instance claimed ready runs, or found none";
        let claims = metrics.registered("run_claims", help, Counter::default());
        let lease = executions.lease();
        let other_tenants = OtherTenants::new(store.clone(), Arc::clone(&prefetch));
        let cancels = Mutex::new(CancelWatch::new(store.listen(Topic::Cancels)));
        Worker {
            store,
            prefetch,
            executions,
            active,
            id,
            lease,
            short_of_room: Arc::default(),
            turn: Mutex::default(),
            limits,
            other_tenants,
            pace: Arc::default(),
            cancels,
            claims,
        }
    }

    /// Claims what is ready unless that is to wait for a moment; answers whether there may be more to claim at once.
    async fn claim_in_pace(&self, halts: &Halts) -> Result<bool, TickError> {
        let slots = self.active.slots();
        let behind = self.turn.lock().expect("turn lock").is_some();
        let fills_batch = behind && slots.free() >= BATCH.min(slots.most_started() / 4);
        let load = ClaimLoad { under_way: self.active.len(), fills_batch };
        match self.pace.may_claim(load, Instant::now()) {
            true => self.claim(halts).await,
            false => Ok(false),
        }
    }

    /// Leases what is ready, as far as there is room, and starts what is due of it; answers whether there may be more.
    async fn claim(&self, halts: &Halts) -> Result<bool, TickError> {
        if halts.all() {
            return Ok(false);
        }
        // while the runs of one batch are read the next is taken; where limits are kept, takes come one after the other
        let in_turn = self.turn.lock().expect("turn lock").is_some();
        let limits = RunLimits { own: self.prefetch.has_own_limits(), ..self.limits };
        let by_two = in_turn && !limits.any();
        let permit = self.prefetch.acquire_for_ready(if by_two { 2 * BATCH } else { BATCH }, in_turn);
        self.short_of_room.store(permit.slots == 0, Ordering::Relaxed);
        if permit.slots == 0 {
            return Ok(false);
        }
        let turn = self.turn.lock().expect("turn lock").take();
        // the most urgent may be anybody's: no more of them than is left to everybody, and else it goes in turn
        let urgent = permit.shares.available_to_any();
        let only_in_turn = limits.any() || urgent == 0 || !halts.is_empty();
        // and among the runs of one tenant there are no turns
        let fair = match permit.shares.single_tenant && !only_in_turn {
            true => None,
            false => turn.or_else(|| only_in_turn.then(ClaimCursor::default)),
        };
        let now = self.store.clock().now();
        // who holds all that it can start leaves what is not due yet to the others
        let (room, ahead) = match permit.prefetch {
            0 => (permit.slots, now),
            room => (room, now + to_delta(HORIZON)),
        };
        let take = TakeRequest {
            worker: self.id,
            now,
            ahead,
            lease_until: now + to_delta(self.lease),
            limit: if fair.is_some() { room } else { room.min(urgent) } as i64,
            fair,
            limits,
            shares: permit.shares.of_tenants(),
        };
        let full = match by_two && room > 1 {
            false => self.claim_batch(&take).await?,
            true => {
                let [less, more] = take.shares.as_ref().map_or([None, None], |shares| shares.halves().map(Some));
                let half = TakeRequest { limit: take.limit / 2, shares: less, ..take.clone() };
                let rest = TakeRequest { limit: take.limit - half.limit, shares: more, ..take };
                let (one, other) = tokio::join!(self.claim_batch(&half), self.claim_batch(&rest));
                one? | other?
            }
        };
        // a tenant that was passed over may have another slot when one of its runs has ended
        self.short_of_room.store(full || limits.any() || urgent == 0, Ordering::Relaxed);
        Ok(full || self.turn.lock().expect("turn lock").is_some())
    }

    /// Answers whether as many were taken as were asked for.
    async fn claim_batch(&self, take: &TakeRequest) -> Result<bool, TickError> {
        self.claims.inc();
        let taken = self.store.take_runs(take).await?;
        let full = taken.len() as i64 == take.limit;
        // who has more than can be taken must not keep the others waiting: from now on it goes in turn, until none is
        // left a look at as many tenants as fit, of whom none could have more, is no reason to forget those who follow
        if full || (take.fair.is_some() && (!taken.is_empty() || taken.turn != ClaimCursor::default())) {
            *self.turn.lock().expect("turn lock") = Some(taken.turn);
        }
        self.prefetch.add(taken.claims);
        self.spawn(taken.starts);
        Ok(full)
    }

    /// Forgets claims that must not start now; their runs stay in the queue.
    fn forget_halted(&self, halts: &Halts) {
        if halts.is_empty() {
            return;
        }
        let halted: HashSet<u32> = halts.tenants().map(tenant_hash).collect();
        self.prefetch.forget_tenants(|tenant_hash| halts.all() || halted.contains(&tenant_hash));
    }

    fn spawn(&self, starts: Starts) {
        for started in starts.started {
            self.executions.spawn(started);
        }
    }

    /// Starts those whose instant has come; answers whether there may be more.
    async fn start_due(&self) -> Result<bool, TickError> {
        let (due, _places) = self.prefetch.take_due(self.store.clock().now(), BATCH);
        if due.is_empty() {
            return Ok(false);
        }
        let leases: Vec<Lease> = due.iter().map(|claim| claim.lease).collect();
        let lease_until = self.store.clock().now() + to_delta(self.lease);
        match with_timeout(self.store.start_runs(&leases, lease_until)).await {
            Ok(starts) => {
                self.spawn(starts);
                Ok(due.len() == BATCH)
            }
            Err(error) => {
                // it may have taken effect; the next tick asks again, which is safe
                self.prefetch.add(due);
                Err(error.into())
            }
        }
    }

    /// When to wake for an instant: a moment before it, so that halts are known by then, or at it where that moment has
    /// come.
    fn look_before(&self, next: DateTime<Utc>) -> DateTime<Utc> {
        let look = next - LOOK_AHEAD;
        if look > self.store.clock().now() { look } else { next }
    }

    async fn apply_cancels(&self) -> Result<(), TickError> {
        let elapsed = self.store.clock().elapsed();
        if self.active.is_empty() || !self.cancels.lock().expect("cancels lock").is_due(elapsed) {
            return Ok(());
        }
        let asked = self.store.cancels_asked(self.id).await;
        for beat in asked.inspect_err(|_| self.cancels.lock().expect("cancels lock").look_failed())? {
            self.active.cancel(beat.run_id, beat.cancel_reason.as_deref().unwrap_or("cancelled"));
        }
        Ok(())
    }
}

impl ServiceLoop for Worker {
    const NAME: &'static str = "worker";
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    // runs that are held, or under way and may be cancelled, are looked after
    const IDLE: Option<IdlePolicy<Self>> = Some(IdlePolicy {
        max_wait: MAX_IDLE_WAIT,
        next: |worker, pending| {
            let rests = !pending.ready && worker.active.is_empty() && worker.prefetch.next().is_none();
            (!rests).then_some(NOW)
        },
    });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        self.prefetch.forget_expired(self.store.clock().now());
        let halts = self.store.halts().await?;
        self.forget_halted(&halts);
        let more_due = self.start_due().await?;
        // after the starts, which wait for nothing that may be known already
        self.other_tenants.refresh().await;
        let more_ready = self.claim_in_pace(&halts).await?;
        self.apply_cancels().await?;
        if self.prefetch.has_skipped() {
            self.short_of_room.store(true, Ordering::Relaxed);
        }
        let next = match (more_due || more_ready, self.prefetch.next()) {
            (true, _) if self.prefetch.has_free_slot() => NextTick::Now,
            (false, Some(next)) if self.prefetch.has_free_slot() => NextTick::At(self.look_before(next)),
            (false, None) => NextTick::OnWake,
            _ => {
                self.short_of_room.store(true, Ordering::Relaxed);
                NextTick::OnWake
            }
        };
        if self.short_of_room.load(Ordering::Relaxed) {
            self.store.forward(Topic::Queue);
        }
        Ok(next)
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut queue = self.store.listen(Topic::Queue);
        let mut cancels = self.store.listen(Topic::Cancels);
        let (prefetch, freed) = (self.prefetch.wakeup(), self.active.slots().freed_wakeup());
        let (short_of_room, pace) = (Arc::clone(&self.short_of_room), Arc::clone(&self.pace));
        Box::pin(async move {
            let room = async {
                // it wakes for a slot that was left before, too; what the last tick found decides whether it matters
                match short_of_room.load(Ordering::Relaxed) {
                    true => freed.notified().await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = queue.changed() => {}
                _ = cancels.changed() => {}
                () = prefetch.notified() => {}
                () = room => {}
                () = pace.wakeup() => {}
            }
        })
    }
}
