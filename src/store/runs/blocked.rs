//! A run that finds its task's slot taken, and the rule for what becomes of it.

use uuid::Uuid;

use crate::store::runs::lease::Blocked;

/// Why a run that `cancel_previous` ended was cancelled.
pub(in crate::store) const REASON_SUPERSEDED: &str = "superseded";

/// Facts that decide about a claim that did not start.
#[derive(Debug, sqlx_macros::FromRow)]
pub(in crate::store) struct BlockedRow {
    pub run_id: Uuid,
    pub task_id: Option<Uuid>,
    pub tenant_id: String,
    pub cancel_reason: Option<String>,
    /// The run's own policy, where it has one.
    pub own_overlap: Option<String>,
    /// Its own, or else its task's.
    pub overlap: String,
}

impl BlockedRow {
    /// Whether it takes the slot from `holder`, which only waits for a person or a completion.
    pub(in crate::store) fn takes_over(&self, holder: Option<Uuid>, waiting: &[Uuid], held: &[Previous]) -> bool {
        let waits = held.iter().any(|held| Some(held.run_id) == holder && held.waits);
        let wanted = self.overlap == "cancel_previous" && self.cancel_reason.is_none();
        waits && wanted && waiting.iter().all(|other| *other < self.run_id)
    }

    /// Whether any run that has the slot is a reason to skip it, whoever else waits.
    pub(in crate::store) fn is_skipped_by_any(&self) -> bool {
        self.cancel_reason.is_none() && !["queue_all", "queue_one", "cancel_previous"].contains(&self.overlap.as_str())
    }

    /// `waiting` are the runs of the task that wait for its slot; `held` the runs whose row this transaction has locked,
    /// as it must before it asks one to end.
    pub(in crate::store) fn decide(&self, holder: Option<Uuid>, waiting: &[Uuid], held: &[Previous]) -> Blocked {
        let Some(holder) = holder.filter(|holder| *holder != self.run_id) else {
            return if self.cancel_reason.is_some() { Blocked::Cancelled } else { Blocked::Again };
        };
        match self.overlap.as_str() {
            _ if self.cancel_reason.is_some() => Blocked::Cancelled,
            "queue_all" => Blocked::Behind,
            "queue_one" if waiting.is_empty() => Blocked::Behind,
            "cancel_previous" if waiting.iter().any(|other| *other > self.run_id) => Blocked::Cancelled,
            "cancel_previous" if held.iter().all(|held| held.run_id != holder) => Blocked::Again,
            "cancel_previous" => Blocked::Behind,
            _ => Blocked::Skipped,
        }
    }

    /// Why it was cancelled: someone said so, or a younger run is to take its place.
    pub(in crate::store) fn cancel_reason(&self) -> &str {
        self.cancel_reason.as_deref().unwrap_or(REASON_SUPERSEDED)
    }
}

/// The policy of runs that were asked for together, as a backfill's: each waits for the one before it, whatever the
/// policy of their task, and none is superseded.
pub(in crate::store) const EACH_IN_TURN: &str = "queue_all";

/// A run that has a task's slot, with its row locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Previous {
    pub run_id: Uuid,
    /// It only waits, and no policy of its own protects it: nobody is to be asked.
    pub waits: bool,
}
