//! The rule of overlap: whether a run that finds its task's slot taken is skipped, waits, or ends the one before.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::domain::trigger::Overlap;
use crate::store::runs::lease::OverlapOutcome;

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
    /// The policy it goes by. A word that is none is read as the default.
    pub(in crate::store) fn policy(&self) -> Overlap {
        Overlap::parse(&self.overlap).unwrap_or_default()
    }

    /// Whether it takes the slot from `holder`, which only waits for a person or a completion.
    pub(in crate::store) fn takes_over(&self, holder: Option<Uuid>, waiting: &[Uuid], held: &[LockedHolder]) -> bool {
        let waits = held.iter().any(|held| Some(held.run_id) == holder && held.waits);
        let wanted = self.policy() == Overlap::CancelPrevious && self.cancel_reason.is_none();
        waits && wanted && waiting.iter().all(|other| *other < self.run_id)
    }

    /// Whether any run that has the slot is a reason to skip it, whoever else waits.
    pub(in crate::store) fn is_skipped_by_any(&self) -> bool {
        self.cancel_reason.is_none() && matches!(self.policy(), Overlap::Skip | Overlap::Allow)
    }

    /// `waiting` are the runs of the task that wait for its slot; `held` the runs whose row this transaction has
    /// locked, as it must before it asks one to end.
    pub(in crate::store) fn decide(
        &self,
        holder: Option<Uuid>,
        waiting: &[Uuid],
        held: &[LockedHolder],
    ) -> OverlapOutcome {
        let Some(holder) = holder.filter(|holder| *holder != self.run_id) else {
            return if self.cancel_reason.is_some() { OverlapOutcome::Cancelled } else { OverlapOutcome::Again };
        };
        match self.policy() {
            _ if self.cancel_reason.is_some() => OverlapOutcome::Cancelled,
            Overlap::QueueAll => OverlapOutcome::Behind,
            Overlap::QueueOne if waiting.is_empty() => OverlapOutcome::Behind,
            Overlap::CancelPrevious if waiting.iter().any(|other| *other > self.run_id) => OverlapOutcome::Cancelled,
            Overlap::CancelPrevious if held.iter().all(|held| held.run_id != holder) => OverlapOutcome::Again,
            Overlap::CancelPrevious => OverlapOutcome::Behind,
            // a task that allows overlap has no slot; its policy may have been another when the slot was taken
            Overlap::QueueOne | Overlap::Skip | Overlap::Allow => OverlapOutcome::Skipped,
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
pub(in crate::store) struct LockedHolder {
    pub run_id: Uuid,
    /// It only waits, and no policy of its own protects it: nobody is to be asked.
    pub waits: bool,
}

/// The claims that are skipped because another run has their task's slot, each with that one; and the others. A run
/// that has a slot and is judged here, too, may give it up: that is looked at one by one.
pub(in crate::store) fn skipped_at_once(
    rows: Vec<BlockedRow>,
    holders: &HashMap<Uuid, Uuid>,
) -> (Vec<(Uuid, Uuid)>, Vec<BlockedRow>) {
    let judged: HashSet<Uuid> = rows.iter().map(|row| row.run_id).collect();
    let holder = |row: &BlockedRow| holders.get(&row.task_id?).copied().filter(|holder| !judged.contains(holder));
    let mut skipped = Vec::new();
    let mut others = Vec::new();
    for row in rows {
        match holder(&row).filter(|_| row.is_skipped_by_any()) {
            Some(holder) => skipped.push((row.run_id, holder)),
            None => others.push(row),
        }
    }
    (skipped, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Uuid = Uuid::from_u128(1);
    const OLDER: Uuid = Uuid::from_u128(2);
    const OWN: Uuid = Uuid::from_u128(3);
    const YOUNGER: Uuid = Uuid::from_u128(4);

    fn row(overlap: &str) -> BlockedRow {
        BlockedRow {
            run_id: OWN,
            task_id: Some(Uuid::nil()),
            tenant_id: "a".into(),
            cancel_reason: None,
            own_overlap: None,
            overlap: overlap.into(),
        }
    }

    fn previous(run_id: Uuid, waits: bool) -> LockedHolder {
        LockedHolder { run_id, waits }
    }

    fn fates(overlap: &str) -> [OverlapOutcome; 4] {
        let fate = |waiting: &[Uuid]| row(overlap).decide(Some(HOLDER), waiting, &[previous(HOLDER, false)]);
        [fate(&[]), fate(&[OLDER]), fate(&[YOUNGER]), row(overlap).decide(None, &[], &[])]
    }

    #[test]
    fn each_policy_judges_by_who_waits() {
        use OverlapOutcome::*;
        assert_eq!(fates("skip"), [Skipped, Skipped, Skipped, Again]);
        assert_eq!(fates("queue_one"), [Behind, Skipped, Skipped, Again]);
        assert_eq!(fates("queue_all"), [Behind, Behind, Behind, Again]);
        assert_eq!(fates("cancel_previous"), [Behind, Behind, Cancelled, Again]);
    }

    #[test]
    fn claims_are_skipped_together_where_another_run_has_the_slot_and_nobody_waits_by_their_policy() {
        let of = |run: u128, task: u128, overlap: &str| BlockedRow {
            run_id: Uuid::from_u128(run),
            task_id: Some(Uuid::from_u128(task)),
            ..row(overlap)
        };
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..of(15, 1, "skip") };
        let rows = vec![
            of(10, 1, "skip"),
            of(11, 1, "queue_one"),
            of(12, 2, "skip"),
            of(13, 2, "skip"),
            of(14, 3, "skip"),
            cancelled,
        ];
        let holders = [(1, 1), (2, 12)].map(|(task, run)| (Uuid::from_u128(task), Uuid::from_u128(run))).into();
        let (skipped, others) = skipped_at_once(rows, &holders);
        assert_eq!(skipped, [(Uuid::from_u128(10), Uuid::from_u128(1))]);
        let others: Vec<u128> = others.iter().map(|row| row.run_id.as_u128()).collect();
        assert_eq!(others, [11, 12, 13, 14, 15], "run 12 has the slot of run 13 and may give it up");
    }

    #[test]
    fn cancelled_one_is_cancelled_whoever_has_the_slot() {
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..row("skip") };
        for holder in [None, Some(OWN), Some(HOLDER)] {
            assert_eq!(cancelled.decide(holder, &[], &[]), OverlapOutcome::Cancelled);
        }
    }

    #[test]
    fn run_is_never_in_its_own_way_and_only_a_locked_holder_is_asked_to_end() {
        assert_eq!(row("skip").decide(Some(OWN), &[], &[]), OverlapOutcome::Again);
        assert_eq!(row("cancel_previous").decide(Some(HOLDER), &[], &[previous(OLDER, false)]), OverlapOutcome::Again);
    }

    #[test]
    fn slot_is_taken_only_from_one_that_waits_by_the_youngest_that_nobody_has_cancelled() {
        let (waits, works) = ([previous(HOLDER, true)], [previous(HOLDER, false)]);
        let takes =
            |row: &BlockedRow, waiting: &[Uuid], held: &[LockedHolder]| row.takes_over(Some(HOLDER), waiting, held);
        let own = row("cancel_previous");
        assert!(takes(&own, &[], &waits) && takes(&own, &[OLDER], &waits));
        assert!(!takes(&own, &[], &works) && !takes(&own, &[], &[]) && !takes(&own, &[YOUNGER], &waits));
        assert!(!own.takes_over(None, &[], &waits) && !own.takes_over(Some(OLDER), &[], &waits));
        let cancelled = BlockedRow { cancel_reason: Some("no".into()), ..row("cancel_previous") };
        assert!(!takes(&cancelled, &[], &waits));
        for policy in ["skip", "queue_one", "queue_all"] {
            assert!(!takes(&row(policy), &[], &waits), "{policy}");
        }
    }
}
