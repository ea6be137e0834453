//! Where batches of due tasks begin, so that those who read at the same time plan different ones.
//!
//! Due rows are read without a lock, and of two who have planned the same rows one loses. Within an instance the
//! batches that are under way are known, and the next begins behind them. Instances that lose to others begin a batch
//! later for a few times. A row is never passed over for longer: it is read first again after [`STAY`]
//! batches, or as soon as a batch is not full.

use std::sync::{Mutex, MutexGuard};

use crate::store::tasks::tenant_turns::TenantCursor;

/// Batches in a row that begin behind those of other instances.
const STAY: u32 = 8;
/// The most batches that are left to other instances.
const MOST: i64 = 4;

/// Offsets of batches: behind those that this instance has under way, and behind what it leaves to others.
#[derive(Default)]
pub(in crate::store) struct BatchOffsets {
    state: Mutex<OffsetState>,
    tenants: TenantCursor,
}

#[derive(Default)]
struct OffsetState {
    under_way: i64,
    left_to_others: i64,
    stay: u32,
    /// The last batch was a whole one: more is due.
    behind: bool,
}

/// A batch that is under way until it is dropped.
pub(super) struct DueBatch<'a> {
    offsets: &'a BatchOffsets,
    limit: i64,
    /// So many of the earliest rows are passed over.
    pub offset: i64,
    /// Tenants have their turn in it: more is due than a batch has, and no batch under way has taken what is theirs.
    pub takes_turns: bool,
}

impl BatchOffsets {
    /// Begins a batch of at most `limit` rows.
    pub(super) fn begin(&self, limit: i64) -> DueBatch<'_> {
        let mut state = self.lock();
        let offset = state.under_way + state.left_to_others;
        let takes_turns = state.behind && state.under_way == 0;
        state.under_way += limit;
        DueBatch { offsets: self, limit, offset, takes_turns }
    }

    /// The tenant that had the last turn.
    pub(super) fn tenants(&self) -> &TenantCursor {
        &self.tenants
    }

    fn lock(&self) -> MutexGuard<'_, OffsetState> {
        self.state.lock().expect("offsets lock")
    }
}

impl DueBatch<'_> {
    /// Learns how many of the rows that were read were still there to be moved.
    pub(super) fn settle(&self, read: usize, kept: usize) {
        let mut state = self.offsets.lock();
        state.behind = read as i64 >= self.limit;
        if !state.behind {
            (state.left_to_others, state.stay) = (0, 0);
        } else if kept * 2 < read {
            state.left_to_others = (state.left_to_others + self.limit) % (MOST * self.limit.max(1));
            state.stay = STAY;
        } else {
            state.stay = state.stay.saturating_sub(1);
            if state.stay == 0 {
                state.left_to_others = 0;
            }
        }
    }
}

impl Drop for DueBatch<'_> {
    fn drop(&mut self) {
        self.offsets.lock().under_way -= self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_one_instance_begin_behind_each_other() {
        let batches = BatchOffsets::default();
        let first = batches.begin(500);
        assert_eq!((first.offset, batches.begin(100).offset), (0, 500));
        drop(first);
        assert_eq!(batches.begin(500).offset, 0);
    }

    #[test]
    fn tenants_have_their_turn_in_one_batch_at_a_time_while_more_is_due() {
        let batches = BatchOffsets::default();
        let first = batches.begin(500);
        assert!(!first.takes_turns, "nothing is known yet");
        first.settle(500, 500);
        drop(first);
        let next = batches.begin(500);
        assert_eq!((next.takes_turns, batches.begin(500).takes_turns), (true, false));
        next.settle(499, 499);
        drop(next);
        assert!(!batches.begin(500).takes_turns, "all that was due is planned");
    }

    #[test]
    fn instance_that_lost_its_rows_begins_later_and_returns_after_a_few_batches() {
        let batches = BatchOffsets::default();
        let next = |read, kept| {
            let batch = batches.begin(500);
            batch.settle(read, kept);
            batch.offset
        };
        assert_eq!([next(500, 0), next(500, 249), next(500, 250)], [0, 500, 1000]);
        assert_eq!((next(499, 499), next(500, 500)), (1000, 0), "fewer than a batch were left");
        next(500, 0);
        let offsets: Vec<i64> = (0..10).map(|_| next(500, 500)).collect();
        assert_eq!(offsets, [500, 500, 500, 500, 500, 500, 500, 500, 0, 0]);
        for _ in 0..MOST {
            next(500, 0);
        }
        assert_eq!(next(500, 500), 0, "there is a most");
    }
}
