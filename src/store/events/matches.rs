//! Events that tasks matched, and the rows that are written of them: shared by the hot path and those who call it.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::task::{FIRST_EPOCH, TaskStatus};
use crate::domain::trigger::event::{Arrival, EventVerdict};
use crate::store::runs::lease::RunClaim;
use crate::store::runs::starting::StartedRun;
use crate::store::runs::{NewRun, SkipTallies};

/// An event that a task was found to be fired by, or skipped for.
#[derive(Clone)]
pub struct Match {
    /// The task that matched.
    pub task_id: Uuid,
    /// Epoch of the task as it was judged.
    pub epoch: i64,
    /// Status of the task as it was judged.
    pub status: TaskStatus,
    /// Whether the task, paused, collects.
    pub buffer_while_paused: bool,
    /// Automatic fires that the task may have in all.
    pub max_runs: Option<i64>,
    /// The event.
    pub arrival: Arc<Arrival>,
    /// Never `No`.
    pub verdict: EventVerdict,
}

impl Match {
    pub(in crate::store) fn subject(&self) -> RecordedSubject<'_> {
        let tenant = self.arrival.event.tenant.as_str();
        RecordedSubject { task_id: self.task_id, tenant, epoch: self.epoch, max_runs: self.max_runs }
    }

    /// Whether it becomes a run whatever the task's other events did: no rule with a memory is asked.
    pub fn is_stateless(&self) -> bool {
        let plain = matches!(&self.verdict, EventVerdict::Fires(way) if way.is_plain());
        plain && self.status != TaskStatus::Paused && self.max_runs.is_none()
    }

    /// Whether it fires its task now, straight or through a window.
    pub fn is_fire(&self) -> bool {
        matches!(self.verdict, EventVerdict::Fires(_)) && self.status != TaskStatus::Paused
    }

    /// Whether the event may have a place in a window of its task: not where the task never had one.
    pub(in crate::store) fn may_be_in_window(&self) -> bool {
        self.epoch > FIRST_EPOCH || !matches!(&self.verdict, EventVerdict::Fires(way) if way.is_plain())
    }
}

/// Result of writing a batch of events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventsRecorded {
    /// Runs that were recorded to be executed, and matches that were recorded as skipped.
    pub recorded: usize,
    /// Events that were recorded as skipped, those that have one record together each for itself.
    pub skipped: usize,
    /// Matches that wait in a window.
    pub collected: usize,
    /// Matches that had their record already.
    pub duplicates: usize,
    /// Runs leased to the worker that asked, which are yet to start.
    pub claims: Vec<RunClaim>,
    /// Runs that have started, under leases of the worker that asked.
    pub started: Vec<StartedRun>,
}

/// Conditions that must still hold when a batch is written.
#[derive(Default)]
pub(in crate::store) struct MatchGuard<'a> {
    /// Tasks with their epochs; in the order of the ids, in which they are locked.
    pub tasks: Vec<(Uuid, i64)>,
    /// Shards with the versions of the index.
    pub shards: &'a [(i32, i64)],
}

/// Rows that one transaction writes of events.
#[derive(Default)]
pub(in crate::store) struct EventBatch {
    pub runs: Vec<EventRun>,
    pub skipped: Vec<NewRun>,
    /// Matches that are skipped for a quota or a halt, and all of full tenants that are skipped.
    pub tallies: SkipTallies,
}

/// A run for the queue.
pub(in crate::store) struct EventRun {
    pub run: NewRun,
    pub epoch: i64,
    pub claimed: bool,
    /// It starts with this commit, if it gets the slot that it may need; it is claimed.
    pub may_start: bool,
    /// The event that it is of; none where it is of a window.
    pub arrival: Option<Arc<Arrival>>,
}

/// A task whose events are recorded, as its locked row says.
#[derive(Debug, Clone, Copy, sqlx_macros::FromRow)]
pub(in crate::store) struct LockedTask {
    pub task_id: Uuid,
    pub epoch: i64,
    pub fire_count: i64,
}

/// Reads tasks and locks them; SQLite has one writer, so that reading is locking.
pub(in crate::store) const LOCK_TASKS: &str = "select task_id, epoch, fire_count from due where task_id in ";

/// The task that a run is of.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct RecordedSubject<'a> {
    pub task_id: Uuid,
    pub tenant: &'a str,
    pub epoch: i64,
    pub max_runs: Option<i64>,
}
