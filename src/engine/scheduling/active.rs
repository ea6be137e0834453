//! Runs that this instance executes now: their leases, until when those are valid, and how to ask for their end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::StopSignal;
use crate::base::clock::{Clock, to_delta};
use crate::engine::Wakeup;
use crate::store::{Lease, Occupant, tenant_hash};

/// Cheap to clone; all clones are one list.
#[derive(Clone, Default)]
pub struct Active(Arc<Shared>);

#[derive(Default)]
struct Shared {
    runs: Mutex<Runs>,
    /// Wakes when a run has ended.
    ended: Wakeup,
}

#[derive(Default)]
struct Runs {
    runs: HashMap<Uuid, ActiveRun>,
    /// By the lines of the tenants.
    occupants: HashMap<u32, Occupant>,
}

struct ActiveRun {
    lease: Lease,
    tenant_hash: u32,
    stop: StopSignal,
    /// Moved on by heartbeats; set to the past when the lease is lost.
    valid_until: watch::Sender<DateTime<Utc>>,
}

/// One run's place in the list; dropping it gives the place up.
pub struct RunGuard {
    active: Active,
    lease: Lease,
    /// The signal that stops the run.
    pub stop: StopSignal,
    /// The instant until which the lease holds, as it is renewed.
    pub valid_until: watch::Receiver<DateTime<Utc>>,
}

impl Runs {
    fn release(&mut self, tenant_hash: u32) {
        if let Some(occupant) = self.occupants.get_mut(&tenant_hash) {
            occupant.runs -= 1;
            if occupant.runs == 0 {
                self.occupants.remove(&tenant_hash);
            }
        }
    }
}

impl Active {
    /// Adds a run for as long as the guard lives.
    pub fn add(&self, lease: Lease, tenant: &str, valid_until: DateTime<Utc>) -> RunGuard {
        let stop = StopSignal::new();
        let (sender, receiver) = watch::channel(valid_until);
        let tenant_hash = tenant_hash(tenant);
        let entry = ActiveRun { lease, tenant_hash, stop: stop.clone(), valid_until: sender };
        let mut active = self.0.runs.lock().expect("active lock");
        active.occupants.entry(tenant_hash).or_insert_with(|| Occupant { tenant: tenant.into(), runs: 0 }).runs += 1;
        if let Some(before) = active.runs.insert(lease.run_id, entry) {
            active.release(before.tenant_hash);
        }
        drop(active);
        RunGuard { active: self.clone(), lease, stop, valid_until: receiver }
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.0.runs.lock().expect("active lock").runs.len()
    }

    /// The tenants that have runs here, by their lines, and how many.
    pub fn occupants(&self) -> HashMap<u32, Occupant> {
        self.0.runs.lock().expect("active lock").occupants.clone()
    }

    /// Whether no run is executed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every lease, in the order in which batches lock them.
    pub fn leases(&self) -> Vec<Lease> {
        let mut leases: Vec<Lease> =
            self.0.runs.lock().expect("active lock").runs.values().map(|entry| entry.lease).collect();
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
        if let Some(entry) = self.0.runs.lock().expect("active lock").runs.get(&run_id) {
            entry.stop.cancel(reason);
        }
    }

    /// Asks every run for a checkpoint and itself back.
    pub fn hand_back_all(&self) {
        for entry in self.0.runs.lock().expect("active lock").runs.values() {
            entry.stop.hand_back();
        }
    }

    /// Wakes when a run has ended.
    pub fn ended(&self) -> Wakeup {
        Arc::clone(&self.0.ended)
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
        if let Some(entry) = self.0.runs.lock().expect("active lock").runs.get(&lease.run_id)
            && entry.lease == lease
        {
            act(entry);
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        let mut active = self.active.0.runs.lock().expect("active lock");
        // a later execution of the same run may have the place by now
        if active.runs.get(&self.lease.run_id).is_some_and(|entry| entry.lease == self.lease)
            && let Some(entry) = active.runs.remove(&self.lease.run_id)
        {
            active.release(entry.tenant_hash);
        }
        drop(active);
        self.active.0.ended.notify_one();
    }
}
