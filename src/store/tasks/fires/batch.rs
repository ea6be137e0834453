//! Everything that one batch of due tasks writes. It is decided before the first write, by one [`DueRow`] after the
//! other.
//!
//! [`DueRow`]: super::due_row::DueRow

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, notices};
use crate::domain::task::Output;
use crate::domain::task::change::FaultyPart;
use crate::store::StoreError;
use crate::store::runs::starting::immediate_start::PlannedRun;
use crate::store::runs::{NewRun, SkipTallies};
use crate::store::tasks::task_cache::CachedTask;

/// Everything that one call writes, decided before the first write.
#[derive(Default)]
pub(in crate::store) struct FireBatch {
    /// The due rows as they were read. The batch is written for those that are still the same.
    pub read: Vec<DueSnapshot>,
    pub moves: Vec<DueUpdate>,
    pub runs: Vec<PlannedRun>,
    pub skipped: Vec<NewRun>,
    /// Fires that are skipped for a quota or a halt.
    pub tallies: SkipTallies,
    /// Tasks that are completed by their last fire, and the reasons. Their epochs stay, so that the last fire is not
    /// void.
    pub completed: Vec<(Uuid, &'static str)>,
    pub disabled: Vec<(Uuid, String)>,
    /// Messages to the owners of disabled tasks, by the task.
    pub notices: Vec<(Uuid, NewDelivery)>,
    /// Tasks that were read as a whole because they were not known.
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

/// A task that can't be scheduled any more, with the parts of the message to its owner.
pub(super) struct UnplannableTask {
    pub task_id: Uuid,
    pub tenant_id: String,
    pub name: String,
    pub version: i64,
    pub output: Output,
    pub why: String,
}

impl UnplannableTask {
    /// The message to its owner; `None` where no channel leads to the owner.
    pub fn notice(&self, recipient: Option<&Recipient>) -> Option<NewDelivery> {
        let about = SubjectRef::notice(NoticeKind::Disabled, self.task_id, self.version);
        let words = notices::disabled(Recipient::language_of(recipient), &self.name, FaultyPart::Trigger, &self.why);
        NewDelivery::notice_of(&self.tenant_id, &self.output, recipient, about, words)
    }
}

impl FireBatch {
    /// Leaves out tasks whose due rows are not as they were read: another writer has moved or changed them, or is about
    /// to.
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
        self.tallies.keep_tasks(|task_id| kept.contains(&task_id));
        self.completed.retain(|(id, _)| kept.contains(id));
        self.disabled.retain(|(id, _)| kept.contains(id));
        self.notices.retain(|(id, _)| kept.contains(id));
    }

    /// The number of fires, skipped ones included.
    pub fn all_fires(&self) -> usize {
        self.runs.len() + self.skipped.len() + self.tallies.fires()
    }

    /// The reason of each skipped fire.
    pub fn skip_reasons(&self) -> Vec<String> {
        let single = self.skipped.iter().filter_map(|run| run.reason.as_deref());
        single.chain(self.tallies.reasons()).map(str::to_owned).collect()
    }
}

/// The new state of the `due` row of a task.
pub(in crate::store) struct DueUpdate {
    pub task_id: Uuid,
    pub epoch: i64,
    pub next_at: Option<DateTime<Utc>>,
    pub nominal_at: Option<DateTime<Utc>>,
    pub fires: i64,
}

/// Checks that all due rows have moved on: they are locked, and their epochs were read under the lock.
pub(in crate::store) fn all_moved(moved: u64, batch: &FireBatch) -> Result<(), StoreError> {
    match moved == batch.moves.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Corrupt(format!(
            "of {} due tasks {moved} moved on, though all were locked",
            batch.moves.len()
        ))),
    }
}
