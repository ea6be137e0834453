//! Where batches of due tasks begin, so that those who read at the same time plan different ones.
//!
//! Due rows are read without a lock, and of two who have planned the same rows one loses. Within an instance the batches
//! that are under way are known, and the next begins behind them. Instances that lose to others begin a batch later for
//! a few times. A row is never passed over for longer: what is passed over is read first again after [`STAY`] batches, or
//! as soon as a batch is not full.

use std::sync::{Mutex, MutexGuard};

use crate::store::tasks::tenant_turns::TenantCursor;

/// Batches in a row that begin behind those of other instances.
const STAY: u32 = 8;
/// The most batches that are left to other instances.
const MOST: i64 = 4;

/// Offsets of batches: behind those that this instance has under way, and behind what it leaves to others.
#[derive(Default)]
pub(in crate::store) struct BatchOffsets {
    places: Mutex<BatchSlots>,
    tenants: TenantCursor,
}

#[derive(Default)]
struct BatchSlots {
    under_way: i64,
    left_to_others: i64,
    stay: u32,
    /// The last batch was a whole one: more is due.
    behind: bool,
}

/// The place of one batch, until it is dropped.
pub(super) struct BatchSlot<'a> {
    apart: &'a BatchOffsets,
    limit: i64,
    /// So many of the earliest rows are passed over.
    pub offset: i64,
    /// Tenants have their turn in it: more is due than a batch has, and no batch under way has taken what is theirs.
    pub takes_turns: bool,
}

impl BatchOffsets {
    /// A place for a batch of at most `limit` rows.
    pub(super) fn place(&self, limit: i64) -> BatchSlot<'_> {
        let mut places = self.lock();
        let offset = places.under_way + places.left_to_others;
        let takes_turns = places.behind && places.under_way == 0;
        places.under_way += limit;
        BatchSlot { apart: self, limit, offset, takes_turns }
    }

    /// The tenant that had the last turn.
    pub(super) fn tenants(&self) -> &TenantCursor {
        &self.tenants
    }

    fn lock(&self) -> MutexGuard<'_, BatchSlots> {
        self.places.lock().expect("places lock")
    }
}

impl BatchSlot<'_> {
    /// Learns how many of the rows that were read were still there to be moved.
    pub(super) fn settle(&self, read: usize, kept: usize) {
        let mut places = self.apart.lock();
        places.behind = read as i64 >= self.limit;
        if !places.behind {
            (places.left_to_others, places.stay) = (0, 0);
        } else if kept * 2 < read {
            places.left_to_others = (places.left_to_others + self.limit) % (MOST * self.limit.max(1));
            places.stay = STAY;
        } else {
            places.stay = places.stay.saturating_sub(1);
            if places.stay == 0 {
                places.left_to_others = 0;
            }
        }
    }
}

impl Drop for BatchSlot<'_> {
    fn drop(&mut self) {
        self.apart.lock().under_way -= self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_one_instance_begin_behind_each_other() {
        let apart = BatchOffsets::default();
        let first = apart.place(500);
        assert_eq!((first.offset, apart.place(100).offset), (0, 500));
        drop(first);
        assert_eq!(apart.place(500).offset, 0);
    }

    #[test]
    fn tenants_have_their_turn_in_one_batch_at_a_time_while_more_is_due() {
        let apart = BatchOffsets::default();
        let first = apart.place(500);
        assert!(!first.takes_turns, "nothing is known yet");
        first.settle(500, 500);
        drop(first);
        let next = apart.place(500);
        assert_eq!((next.takes_turns, apart.place(500).takes_turns), (true, false));
        next.settle(499, 499);
        drop(next);
        assert!(!apart.place(500).takes_turns, "all that was due is planned");
    }

    #[test]
    fn instance_that_lost_its_rows_begins_later_and_returns_after_a_few_batches() {
        let apart = BatchOffsets::default();
        let next = |read, kept| {
            let place = apart.place(500);
            place.settle(read, kept);
            place.offset
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
