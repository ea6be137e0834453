//! Claims that wait in memory for their instant, earliest first. Lost in a crash, they run out and are claimed again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};

use crate::engine::Bell;
use crate::engine::active::Active;
use crate::store::Claim;

/// Claims of this instance that are not started.
pub struct Held {
    /// By instant, then by token.
    claims: Mutex<BTreeMap<(DateTime<Utc>, i64), Claim>>,
    capacity: usize,
    prefetch: usize,
    active: Active,
    bell: Bell,
}

impl Held {
    pub fn new(capacity: usize, prefetch: usize, active: Active) -> Arc<Held> {
        Arc::new(Held { claims: Mutex::default(), capacity, prefetch, active, bell: Bell::default() })
    }

    /// How many more runs may be leased ahead: those that could start now, and of the prefetch the same share. So a busy
    /// instance leaves to the others what it could not start itself.
    pub fn room(&self) -> usize {
        let free = self.free();
        let ahead = self.prefetch * free / self.capacity.max(1);
        (free + ahead).saturating_sub(self.claims.lock().expect("held lock").len())
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
        let entries = claims.into_iter().map(|claim| ((claim.run_at, claim.lease.token), claim));
        self.claims.lock().expect("held lock").extend(entries);
        self.bell.notify_one();
    }

    /// Forgets claims that have run out: they are someone else's to take.
    pub fn forget_expired(&self, now: DateTime<Utc>) {
        self.claims.lock().expect("held lock").retain(|_, claim| claim.until > now);
    }

    /// Takes up to `limit` claims whose instant has come.
    pub fn take_due(&self, now: DateTime<Utc>, limit: usize) -> Vec<Claim> {
        let mut claims = self.claims.lock().expect("held lock");
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(first) = claims.first_entry().filter(|first| first.key().0 <= now)
        {
            due.push(first.remove());
        }
        due
    }

    /// The earliest instant that is waited for.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.claims.lock().expect("held lock").keys().next().map(|(run_at, _)| *run_at)
    }

    /// Rings when claims were added.
    pub fn bell(&self) -> Bell {
        Arc::clone(&self.bell)
    }
}
