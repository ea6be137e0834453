//! Runs that are leased, and start, with the commit that records them: of schedules that are due, of events, and of
//! requests. It has how many may, what is recorded of each, and what is answered of those that did. The slots of
//! requests, and of messages of conversations, are in `local_starter`.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::task::Task;
use crate::store::runs::NewRun;
use crate::store::runs::lease::{Lease, RunClaim, StartedRow, StartedRows};
use crate::store::runs::shares::{Shares, tenant_hash};

/// How runs start with the commit that records them.
#[derive(Debug, Clone)]
pub struct ImmediateStart {
    /// Free slots for runs that start at once.
    pub slots: usize,
    /// The end of their leases.
    pub lease_until: DateTime<Utc>,
    /// The tenants that may have these slots; `None`: every tenant.
    pub shares: Option<Shares>,
}

/// The worker that leases the runs of a batch, and the end of the leases of those that start with it.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct LeaseTerms {
    pub now: DateTime<Utc>,
    pub worker: Uuid,
    /// `None`: none of them starts.
    pub started_until: Option<DateTime<Utc>>,
}

/// Capacity that remains while a batch is decided: runs that may be leased, and runs that may start.
pub(in crate::store) struct RemainingCapacity {
    room: usize,
    slots: usize,
    shares: Option<Shares>,
}

impl RemainingCapacity {
    /// Room to lease so many runs, and to start as many of them as `start` has slots.
    pub fn new(room: usize, start: Option<&ImmediateStart>) -> RemainingCapacity {
        let slots = start.map_or(0, |start| start.slots);
        let shares = start.and_then(|start| start.shares.clone());
        RemainingCapacity { room, slots: slots.min(room), shares }
    }

    /// Whether a fire of this tenant is leased, and whether it starts. Where a tenant has all the slots that it may
    /// have, neither: any instance may take it.
    pub fn take_share(&mut self, tenant: &str, is_due: bool) -> (bool, bool) {
        let may_have_one = self.shares.as_ref().is_none_or(|shares| shares.available_to(tenant_hash(tenant)) > 0);
        match may_have_one {
            true => self.take(tenant, is_due),
            false => (false, false),
        }
    }

    /// Whether a run of this tenant is leased, and whether it starts. One that its tenant has no slot for is leased all
    /// the same: it waits here for the next.
    pub fn take(&mut self, tenant: &str, may_start: bool) -> (bool, bool) {
        if self.room == 0 {
            return (false, false);
        }
        self.room -= 1;
        (true, may_start && self.take_slot(tenant))
    }

    fn take_slot(&mut self, tenant: &str) -> bool {
        let may_have_one = self.slots > 0 && self.shares.as_mut().is_none_or(|shares| shares.take(tenant));
        self.slots -= usize::from(may_have_one);
        may_have_one
    }
}

/// A run for the queue; with a lease where the instance has room for it.
pub(in crate::store) struct PlannedRun {
    pub run: NewRun,
    pub epoch: i64,
    pub run_at: DateTime<Utc>,
    pub lease_until: Option<DateTime<Utc>>,
    /// Its own policy instead of its task's.
    pub overlap: Option<&'static str>,
    /// It starts with this commit, if it gets the slot that it may need.
    pub starts: bool,
    pub needs_slot: bool,
    pub timeout_seconds: i64,
    /// Of a run that starts, the version of its task, where that was looked at.
    pub task_version: Option<i64>,
    /// Of a run that starts, the task as far as it is known: a worker need not read it again.
    pub task: Option<Arc<Task>>,
}

impl PlannedRun {
    /// Until when it may run if it starts then.
    pub fn deadline(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        at + TimeDelta::seconds(self.timeout_seconds)
    }

    /// The run, started then with this lease.
    pub fn started_row(&self, lease: Lease, at: DateTime<Utc>) -> StartedRow {
        StartedRow {
            task_version: self.task_version,
            task: self.task.clone(),
            ..started_with_record(&self.run, lease, at, self.deadline(at))
        }
    }
}

/// A run that has started as it was recorded, then and with this lease; nothing is known of its task.
pub(in crate::store) fn started_with_record(
    run: &NewRun,
    lease: Lease,
    at: DateTime<Utc>,
    deadline_at: DateTime<Utc>,
) -> StartedRow {
    StartedRow {
        lease,
        task_id: Some(run.task_id),
        tenant_id: run.tenant_id.clone(),
        deadline_at,
        is_first: true,
        task_version: None,
        run: Some(run.running(at)),
        cause: run.cause.clone(),
        task: None,
    }
}

/// Rows that the database took of a batch.
#[derive(Default)]
pub(in crate::store) struct WrittenRows {
    /// Claims with their tokens.
    pub claims: Vec<RunClaim>,
    /// Runs that have started.
    pub started: StartedRows,
    /// New runs that are to be executed, those with a claim and those that have started among them.
    pub recorded: usize,
    pub skipped: usize,
}
