//! Claims that wait in memory for their instant, earliest first. Lost in a crash, they run out and are claimed again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};

use crate::engine::Bell;
use crate::engine::active::Active;
use crate::store::Claim;

/// Claims of this instance that are not started.
pub struct Held {
    heap: Mutex<BinaryHeap<Reverse<(DateTime<Utc>, i64, Entry)>>>,
    capacity: usize,
    prefetch: usize,
    active: Active,
    bell: Bell,
}

/// A claim, ordered by nothing of its own.
#[derive(Clone, Copy)]
struct Entry(Claim);

impl PartialEq for Entry {
    fn eq(&self, _: &Entry) -> bool {
        true
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, _: &Entry) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Held {
    pub fn new(capacity: usize, prefetch: usize, active: Active) -> Arc<Held> {
        Arc::new(Held { heap: Mutex::default(), capacity, prefetch, active, bell: Bell::default() })
    }

    /// How many more runs may be leased ahead: those that could start now, and of the prefetch the same share. So a busy
    /// instance leaves to the others what it could not start itself.
    pub fn room(&self) -> usize {
        let free = self.free();
        let ahead = self.prefetch * free / self.capacity.max(1);
        (free + ahead).saturating_sub(self.heap.lock().expect("held lock").len())
    }

    /// How many runs may start now.
    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.active.len())
    }

    /// Keeps claims until their instant, and wakes who starts them.
    pub fn add(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let entries = claims.into_iter().map(|claim| Reverse((claim.run_at, claim.lease.token, Entry(claim))));
        self.heap.lock().expect("held lock").extend(entries);
        self.bell.notify_one();
    }

    /// Forgets claims that have run out: they are someone else's to take.
    pub fn forget_expired(&self, now: DateTime<Utc>) {
        self.heap.lock().expect("held lock").retain(|Reverse((.., Entry(claim)))| claim.until > now);
    }

    /// Takes up to `limit` claims whose instant has come.
    pub fn take_due(&self, now: DateTime<Utc>, limit: usize) -> Vec<Claim> {
        let mut heap = self.heap.lock().expect("held lock");
        let mut due = Vec::new();
        while due.len() < limit && heap.peek().is_some_and(|Reverse((run_at, ..))| *run_at <= now) {
            due.extend(heap.pop().map(|Reverse((.., Entry(claim)))| claim));
        }
        due
    }

    /// The earliest instant that is waited for.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.heap.lock().expect("held lock").peek().map(|Reverse((run_at, ..))| *run_at)
    }

    /// Rings when claims were added.
    pub fn bell(&self) -> Bell {
        Arc::clone(&self.bell)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::store::Lease;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    /// A claim of a run that is due at `seconds`, good for five more.
    fn claim(token: i64, seconds: i64) -> Claim {
        let lease = Lease { run_id: Uuid::from_u128(token as u128), token };
        Claim { lease, run_at: at(seconds), until: at(seconds + 5) }
    }

    #[test]
    fn claims_come_out_at_their_instant_the_earliest_first_and_equal_ones_as_they_were_claimed() {
        let held = Held::new(10, 10, Active::default());
        held.add(vec![claim(3, 7), claim(2, 5), claim(1, 5), claim(4, 6)]);
        assert_eq!(held.next(), Some(at(5)));
        assert_eq!(held.take_due(at(4), 10), []);
        let tokens = |claims: Vec<Claim>| claims.iter().map(|claim| claim.lease.token).collect::<Vec<_>>();
        assert_eq!(tokens(held.take_due(at(6), 2)), [1, 2]);
        assert_eq!(tokens(held.take_due(at(6), 10)), [4]);
        assert_eq!(held.next(), Some(at(7)));
    }

    #[test]
    fn what_is_leased_ahead_shrinks_with_the_places_that_are_free() {
        let active = Active::default();
        let held = Held::new(4, 8, active.clone());
        assert_eq!((held.free(), held.room()), (4, 12));
        let places: Vec<_> = (1..=3).map(|token| active.add(claim(token, 0).lease, at(60))).collect();
        assert_eq!((held.free(), held.room()), (1, 3));
        held.add(vec![claim(9, 1)]);
        assert_eq!(held.room(), 2);
        let last = active.add(claim(4, 0).lease, at(60));
        assert_eq!((held.free(), held.room()), (0, 0));
        drop((places, last));
        assert_eq!((held.free(), held.room()), (4, 11));
    }

    #[test]
    fn a_claim_that_has_run_out_is_forgotten() {
        let held = Held::new(4, 8, Active::default());
        held.add(vec![claim(1, 1), claim(2, 2)]);
        held.forget_expired(at(5));
        assert_eq!(held.room(), 10);
        held.forget_expired(at(6));
        assert_eq!((held.room(), held.next()), (11, Some(at(2))));
    }
}
