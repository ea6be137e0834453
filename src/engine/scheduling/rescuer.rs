//! The rescuer: runs whose worker died or hangs go on elsewhere or are closed with their reason; claims that were never
//! started become ready; waits that a lost hand-over would prolong are ended.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;

use crate::base::clock::to_delta;
use crate::domain::notification::Recipient;
use crate::domain::run::{RunError, RunState, Usage};
use crate::engine::running::ending::RunEnding;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NOW, NextTick, ServiceLoop, TickError};
use crate::store::{Finish, PendingWork, Store, StoreError, StrandedRun};

/// Runs rescued in one tick: a tick has an end, however many were left.
const PAGE: i64 = 100;
/// Tasks in one tick whose waiting runs are looked at, each with a commit of its own.
const WAKES: i64 = 25;
/// A worker that is alive ends its run at its time limit by itself; this is how long it is given for it.
const GRACE: TimeDelta = TimeDelta::seconds(10);

/// The time between two looks for slots that nobody has.
const SLOTS_EVERY: Duration = Duration::from_secs(60);

/// Takes back runs whose worker died or hangs.
pub struct Rescuer {
    store: Store,
    lease: Duration,
    /// When slots were looked at last, by the clock's running time.
    slots_at: Mutex<Option<Duration>>,
}

impl Rescuer {
    /// The service for leases of this length.
    pub fn new(store: Store, lease: Duration) -> Rescuer {
        Rescuer { store, lease, slots_at: Mutex::default() }
    }

    /// A slot that nobody has is a loss that never was seen yet, and looking for it means looking at all: at first, and
    /// then once in a while.
    fn slots_are_due(&self) -> bool {
        let last = *self.slots_at.lock().expect("slots lock");
        last.is_none_or(|last| self.store.clock().elapsed().saturating_sub(last) >= SLOTS_EVERY)
    }

    /// Frees slots that nobody has, and sets rows aside that no service finds, as their instants can't be read.
    async fn free_lost(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        // one that fails is tried again as late: it must not keep the others from being rescued
        *self.slots_at.lock().expect("slots lock") = Some(self.store.clock().elapsed());
        self.store.free_lost_slots(now, PAGE).await?;
        self.store.set_aside_instants().await?;
        Ok(())
    }

    /// Ends or requeues what was taken over, with one commit for all: where others write much, each commit waits for
    /// its turn.
    async fn rescue(&self, page: Vec<StrandedRun>) -> Result<(), StoreError> {
        let tenants: BTreeSet<&str> = page.iter().map(|stranded| stranded.run.tenant_id.as_str()).collect();
        let recipients = self.store.recipients_by_tenant(&tenants.into_iter().collect::<Vec<_>>()).await?;
        let mut finishes = Vec::with_capacity(page.len());
        for stranded in &page {
            let usage = match self.store.usage_of(stranded.run.id).await {
                Ok(usage) => usage,
                Err(error @ StoreError::Unavailable(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(run_id = %stranded.run.id, %error, "a run could not be rescued, it is tried again");
                    continue;
                }
            };
            let recipient = recipients.get(stranded.run.tenant_id.as_str());
            finishes.extend(self.finish_of(stranded, recipient, usage));
        }
        self.finish_all(&finishes).await?;
        for finish in finishes.iter().filter(|finish| finish.state == RunState::Failed) {
            let stranded = page.iter().find(|stranded| stranded.run.id == finish.lease.run_id);
            if let Some(task) = stranded.and_then(|stranded| stranded.task.as_ref())
                && let Some(limit) = task.spec.pause_after_failures
            {
                self.store.pause_if_failing(task.id, limit).await?;
            }
        }
        Ok(())
    }

    /// The end of a run whose worker is gone or hangs; `None` where nothing may be written.
    fn finish_of(&self, stranded: &StrandedRun, recipient: Option<&Recipient>, usage: Usage) -> Option<Finish> {
        let ending = RunEnding {
            lease: stranded.lease,
            run: &stranded.run,
            task: stranded.task.as_ref(),
            recipient,
            usage,
            ran: stranded.ran,
            now: self.store.clock().now(),
            owner_notified: false,
            random: fastrand::f64(),
        };
        let ended = match (&stranded.cancel_reason, stranded.crashed) {
            (Some(reason), _) => ending.finish(Err(RunError::Cancelled { reason: reason.clone() })),
            (None, true) => ending.crashed().map(Some),
            (None, false) => ending.finish(Err(RunError::fail("timeout", "the run did not end at its time limit"))),
        };
        let finish = ended.ok().flatten()?;
        tracing::warn!(
            run_id = %stranded.run.id, crashes = stranded.run.crashes + i32::from(stranded.crashed),
            state = finish.state.as_str(), "a run was left by its worker"
        );
        Some(finish)
    }

    /// Records all of these; where that fails for a reason of one of them, each alone. One that can't be recorded keeps
    /// none waiting: its new lease runs out, too.
    async fn finish_all(&self, finishes: &[Finish]) -> Result<(), StoreError> {
        match self.store.finish_runs(finishes).await {
            Ok(_) => return Ok(()),
            Err(error @ StoreError::Unavailable(_)) => return Err(error),
            Err(error) => tracing::warn!(%error, "runs could not be rescued together, each is tried alone"),
        }
        for finish in finishes {
            if let Err(error) = self.store.finish_runs(std::slice::from_ref(finish)).await {
                tracing::warn!(run_id = %finish.lease.run_id, %error, "a run could not be rescued, it is tried again");
            }
        }
        Ok(())
    }
}

/// The earliest instant at which anything can be left as it is known now: a lease has ended, a time limit passed a
/// while ago, or a parked run is to be looked at.
fn next_due_at(pending: &PendingWork) -> Option<DateTime<Utc>> {
    let limit = pending.deadline.map(|at| at + GRACE);
    let first = [pending.lease, limit, pending.parked].into_iter().flatten().min();
    // the instant itself still belongs to who has the lease
    first.map(|at| at + TimeDelta::milliseconds(1))
}

impl ServiceLoop for Rescuer {
    const NAME: &'static str = "rescuer";
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    const IDLE: Option<IdlePolicy<Self>> = Some(IdlePolicy {
        max_wait: MAX_IDLE_WAIT,
        next: |rescuer, pending| if rescuer.slots_are_due() { Some(NOW) } else { next_due_at(pending) },
    });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let now = self.store.clock().now();
        if self.slots_are_due() {
            self.free_lost(now).await?;
        }
        let soonest = now + to_delta(Self::POLL_INTERVAL);
        match self.store.pending_work().await.map(|pending| next_due_at(&pending)) {
            Ok(None) => return Ok(NextTick::OnWake),
            Ok(Some(at)) if at > now => return Ok(NextTick::At(at.max(soonest))),
            Ok(Some(_)) => {}
            // it reads more than is needed here
            Err(error) => tracing::debug!(%error, "whether anything was left is not known beforehand"),
        }
        // what an execution holds is the most urgent: its task fires in vain until then
        let page = self.store.take_over_expired(now, GRACE, now + to_delta(self.lease), PAGE).await?;
        let more = page.len() as i64 == PAGE;
        if !page.is_empty() {
            self.rescue(page).await?;
        }
        self.store.requeue_expired_claims(now).await?;
        self.store.wake_parked(now, WAKES).await?;
        Ok(if more { NextTick::Now } else { NextTick::At(soonest) })
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
