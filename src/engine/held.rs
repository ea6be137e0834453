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
