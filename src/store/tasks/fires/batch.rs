//! Everything that one batch of due tasks writes: decided before the first write, by one
//! [`DueRow`] after the other.
//!
//! [`DueRow`]: super::due_row::DueRow

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::request::FireDue;
use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, notices};
use crate::domain::task::change::FaultyPart;
use crate::domain::task::{Output, Task};
use crate::store::StoreError;
use crate::store::runs::NewRun;
use crate::store::runs::lease::{Lease, StartedRow};
use crate::store::runs::shares::{Shares, tenant_hash};
use crate::store::tasks::task_cache::CachedTask;

/// Everything that one call writes, decided before the first write.
#[derive(Default)]
pub(in crate::store) struct FireBatch {
    /// The due rows as they were read, and are to be still when this is written.
    pub read: Vec<DueSnapshot>,
    pub moves: Vec<DueUpdate>,
    pub runs: Vec<PlannedRun>,
    pub skipped: Vec<NewRun>,
    /// Statuses change by themselves here, so the epoch stays: the last fire must not be taken for void.
    pub completed: Vec<(Uuid, &'static str)>,
    pub disabled: Vec<(Uuid, String)>,
    /// Messages to the owners of those that are disabled, by the task.
    pub notices: Vec<(Uuid, NewDelivery)>,
    /// Tasks that were read as a whole, and were not known.
    pub read_tasks: Vec<CachedTask>,
}

/// A due row as it was read, and the version of its task.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub(in crate::store) struct DueSnapshot {
    pub task_id: Uuid,
    pub epoch: i64,
    pub next_at: Option<DateTime<Utc>>,
    pub nominal_at: Option<DateTime<Utc>>,
    pub fire_count: i64,
    pub version: i64,
}

/// A task that can't be scheduled any more, and who is to be told.
pub(super) struct UnplannableTask {
    pub task_id: Uuid,
    pub tenant_id: String,
    pub name: String,
    pub version: i64,
    pub output: Output,
    pub why: String,
}

impl UnplannableTask {
    /// The message to its owner; `None` where there is no way to tell.
    pub fn notice(&self, recipient: Option<&Recipient>) -> Option<NewDelivery> {
        let about = SubjectRef::notice(NoticeKind::Disabled, self.task_id, self.version);
        let words = notices::disabled(Recipient::language_of(recipient), &self.name, FaultyPart::Trigger, &self.why);
        NewDelivery::notice_of(&self.tenant_id, &self.output, recipient, about, words)
    }
}

impl FireBatch {
    /// Leaves out what is not as it was read: somebody else has moved or changed it, or is about to.
    pub fn keep(&mut self, now: Vec<DueSnapshot>) {
        let now: HashMap<Uuid, DueSnapshot> = now.into_iter().map(|row| (row.task_id, row)).collect();
        self.read.retain(|row| now.get(&row.task_id) == Some(row));
        if self.read.len() == self.moves.len() {
            return;
        }
        let kept: HashSet<Uuid> = self.read.iter().map(|row| row.task_id).collect();
        self.moves.retain(|to| kept.contains(&to.task_id));
        self.runs.retain(|ready| kept.contains(&ready.run.task_id));
        self.skipped.retain(|run| kept.contains(&run.task_id));
        self.completed.retain(|(id, _)| kept.contains(id));
        self.disabled.retain(|(id, _)| kept.contains(id));
        self.notices.retain(|(id, _)| kept.contains(id));
    }
}

/// Where the `due` row of a task goes.
pub(in crate::store) struct DueUpdate {
    pub task_id: Uuid,
    pub epoch: i64,
    pub next_at: Option<DateTime<Utc>>,
    pub nominal_at: Option<DateTime<Utc>>,
    pub fires: i64,
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
        let run = self.run.running(at);
        let (task_id, tenant_id) = (run.task_id, run.tenant_id.clone());
        StartedRow {
            lease,
            task_id,
            tenant_id,
            deadline_at: self.deadline(at),
            is_first: true,
            task_version: None,
            run: Some(run),
            task: self.task.clone(),
        }
    }
}

/// Capacity that remains while a batch is decided: runs that may be leased, and runs that may start.
pub(super) struct RemainingCapacity {
    room: usize,
    places: usize,
    shares: Option<Shares>,
}

impl RemainingCapacity {
    pub fn of(ask: &FireDue) -> RemainingCapacity {
        let places = ask.start.as_ref().map_or(0, |start| start.places);
        let shares = ask.start.as_ref().and_then(|start| start.shares.clone());
        RemainingCapacity { room: ask.room, places: places.min(ask.room), shares }
    }

    /// Whether a run of this tenant is leased, and whether it starts. Where a tenant has all the places that it may have,
    /// neither: any instance may take it.
    pub fn take_share(&mut self, tenant: &str, is_due: bool) -> (bool, bool) {
        let may_have_one = self.shares.as_ref().is_none_or(|shares| shares.available_to(tenant_hash(tenant)) > 0);
        if self.room == 0 || !may_have_one {
            return (false, false);
        }
        self.room -= 1;
        let starts = is_due && self.places > 0;
        if starts {
            self.places -= 1;
            if let Some(shares) = &mut self.shares {
                shares.take(tenant);
            }
        }
        (true, starts)
    }
}

/// Whether all due rows moved on: they are locked, and their epochs were read under the lock.
pub(in crate::store) fn all_moved(moved: u64, batch: &FireBatch) -> Result<(), StoreError> {
    match moved == batch.moves.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Corrupt(format!(
            "of {} due tasks {moved} moved on, though all were locked",
            batch.moves.len()
        ))),
    }
}
