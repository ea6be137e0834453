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
    /// Whether runs may be leased as they are recorded. Where limits are kept, a take alone leases.
    as_recorded: bool,
    active: Active,
    bell: Bell,
}

impl Held {
    pub fn new(capacity: usize, prefetch: usize, active: Active) -> Arc<Held> {
        Arc::new(Held {
            claims: Mutex::default(),
            capacity,
            prefetch,
            as_recorded: true,
            active,
            bell: Bell::default(),
        })
    }

    /// Of an instance that keeps limits: nothing is leased but by a take.
    pub fn under_limits(capacity: usize, active: Active) -> Arc<Held> {
        let (claims, bell) = (Mutex::default(), Bell::default());
        Arc::new(Held { claims, capacity, prefetch: 0, as_recorded: false, active, bell })
    }

    /// Whether a run may start here with the commit that records it.
    pub fn starts_as_recorded(&self) -> bool {
        self.as_recorded && self.free() > 0
    }

    /// How many more runs may be leased ahead: those that could start now, and of the prefetch the same share. So a busy
    /// instance leaves to the others what it could not start itself.
    pub fn room(&self) -> usize {
        if !self.as_recorded {
            return 0;
        }
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
