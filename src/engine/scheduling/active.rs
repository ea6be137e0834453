//! Runs that this instance executes now: their leases, until when those are valid, and how to ask for their end. A run
//! that waits for an answer is one of them, whether it has a [slot](RunSlots) or not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::StopSignal;
use crate::base::clock::{Clock, to_delta};
use crate::domain::halt::Halts;
use crate::domain::run::RunError;
use crate::engine::Wakeup;
use crate::engine::scheduling::run_slots::{LeasedSlot, RunSlots};
use crate::engine::scheduling::start_ahead::LONGEST_WAIT;
use crate::store::Lease;

/// The runs that this instance executes now. Cheap to clone; all clones are one list.
#[derive(Clone)]
pub struct ActiveRuns(Arc<Shared>);

struct Shared {
    runs: Mutex<HashMap<Uuid, ActiveRun>>,
    slots: RunSlots,
    /// Wakes when a run has ended.
    ended: Wakeup,
    /// Wakes when a run has begun and there was none.
    begun: Wakeup,
}

struct ActiveRun {
    lease: Lease,
    tenant: Box<str>,
    stop: StopSignal,
    /// Moved on by heartbeats; set to the past when the lease is lost.
    valid_until: watch::Sender<DateTime<Utc>>,
}

/// One run's place in the list; dropping it gives the place up.
pub struct RunGuard {
    active: ActiveRuns,
    lease: Lease,
    /// The signal that stops the run.
    pub stop: StopSignal,
    /// The slot in which it computes.
    pub slot: Arc<LeasedSlot>,
    /// The instant until which the lease holds, as it is renewed.
    pub valid_until: watch::Receiver<DateTime<Utc>>,
}

impl ActiveRuns {
    /// No runs yet; they compute in these slots.
    pub fn new(slots: RunSlots) -> ActiveRuns {
        ActiveRuns(Arc::new(Shared {
            runs: Mutex::default(),
            slots,
            ended: Wakeup::default(),
            begun: Wakeup::default(),
        }))
    }

    /// The slots in which runs compute.
    pub fn slots(&self) -> &RunSlots {
        &self.0.slots
    }

    /// Adds a run for as long as the guard lives.
    pub fn add(&self, lease: Lease, tenant: &str, valid_until: DateTime<Utc>) -> RunGuard {
        let stop = StopSignal::new();
        let (sender, receiver) = watch::channel(valid_until);
        let slot = Arc::new(self.0.slots.start(lease.token, tenant));
        let entry = ActiveRun { lease, tenant: tenant.into(), stop: stop.clone(), valid_until: sender };
        let mut runs = self.lock();
        let is_first = runs.is_empty();
        runs.insert(lease.run_id, entry);
        drop(runs);
        if is_first {
            self.0.begun.notify_one();
        }
        RunGuard { active: self.clone(), lease, stop, slot, valid_until: receiver }
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no run is executed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every lease, in the order in which batches lock them.
    pub fn leases(&self) -> Vec<Lease> {
        let mut leases: Vec<Lease> = self.lock().values().map(|entry| entry.lease).collect();
        leases.sort_by_key(|lease| lease.run_id);
        leases
    }

    /// The lease was renewed.
    pub fn renew(&self, lease: Lease, until: DateTime<Utc>) {
        self.with(lease, |entry| entry.valid_until.send_modify(|valid| *valid = until.max(*valid)));
    }

    /// The lease is someone else's now: whatever is done for this run must end at once.
    pub fn revoke(&self, lease: Lease) {
        self.with(lease, |entry| entry.valid_until.send_modify(|valid| *valid = DateTime::UNIX_EPOCH));
    }

    /// Asks a run to end, if it is executed here.
    pub fn cancel(&self, run_id: Uuid, reason: &str) {
        if let Some(entry) = self.lock().get(&run_id) {
            entry.stop.cancel(reason);
        }
    }

    /// Asks every run for a checkpoint and itself back.
    pub fn hand_back_all(&self) {
        for entry in self.lock().values() {
            entry.stop.hand_back();
        }
    }

    /// Asks for the runs of halted tenants back.
    pub fn halt(&self, halts: &Halts) {
        for entry in self.lock().values().filter(|entry| halts.halt_of(&entry.tenant).is_some()) {
            entry.stop.halt();
        }
    }

    /// Wakes when a run has begun and there was none.
    pub fn begun_wakeup(&self) -> Wakeup {
        Arc::clone(&self.0.begun)
    }

    /// Waits until nothing is executed; false when it still is after `limit`.
    pub async fn drained_within(&self, limit: Duration, clock: &Clock) -> bool {
        let deadline = clock.now() + to_delta(limit);
        while !self.is_empty() {
            tokio::select! {
                () = self.0.ended.notified() => {}
                () = clock.sleep_until(deadline) => return self.is_empty(),
            }
        }
        true
    }

    fn with(&self, lease: Lease, act: impl FnOnce(&ActiveRun)) {
        if let Some(entry) = self.lock().get(&lease.run_id)
            && entry.lease == lease
        {
            act(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, ActiveRun>> {
        self.0.runs.lock().expect("active lock")
    }
}

impl RunGuard {
    /// Waits for the slot of a run that was started ahead of it, no longer than until its end is asked for. One whose
    /// slot does not come in time is handed back: another instance may have one.
    ///
    /// # Errors
    /// The end of a run that does not begin.
    pub async fn wait_for_slot(&self, clock: &Clock) -> Result<(), RunError> {
        let Some(turn) = self.slot.begin() else { return Ok(()) };
        // boxed: few runs wait
        let wait = Box::pin(async move {
            tokio::select! {
                biased;
                () = self.stop.requested() => self.stop.check(),
                () = turn => Ok(()),
                () = clock.sleep(LONGEST_WAIT) => Err(RunError::HandBack),
            }
        });
        wait.await
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut runs = self.active.lock();
        // a later execution of the same run may stand there by now
        if runs.get(&self.lease.run_id).is_some_and(|entry| entry.lease == self.lease) {
            runs.remove(&self.lease.run_id);
        }
        drop(runs);
        self.active.0.slots.end(self.lease.token);
        self.active.0.ended.notify_one();
    }
}
