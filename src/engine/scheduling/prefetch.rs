//! Claims that wait in memory for their instant, earliest first. Lost in a crash, they run out and are claimed again.
//!
//! Those whose instant has come stand in lines, one for each tenant, and start in turn: whose thousand runs are due does
//! not keep another's one waiting. A line is passed over while its tenant has all the places that it may have.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};

use crate::engine::Wakeup;
use crate::engine::scheduling::active::Active;
use crate::store::{RunClaim, Shares};

/// Claims of this instance that are not started.
pub struct PrefetchBuffer {
    claims: Mutex<Claims>,
    capacity: usize,
    prefetch: usize,
    /// Where limits on runs are kept, a take alone leases.
    limited: bool,
    /// Tenants have limits of their own, as far as is known.
    own_limits: AtomicBool,
    /// All tasks are of one tenant, as far as is known.
    alone: AtomicBool,
    active: Active,
    bell: Wakeup,
}

#[derive(Default)]
struct Claims {
    /// By instant, then by token.
    waiting: BTreeMap<(DateTime<Utc>, i64), RunClaim>,
    due: ClaimQueues,
    shared: Shared,
    /// Whether the worker found no place because of what others have asked for.
    missed: bool,
}

/// State that all shares have together.
#[derive(Default)]
struct Shared {
    room: usize,
    places: usize,
}

/// Room that somebody has asked the database to fill, and does not know yet whether it does: nobody else counts on it
/// until this is dropped, after what was leased was [added](PrefetchBuffer::add) or has started.
pub struct PrefetchPermit {
    held: Arc<PrefetchBuffer>,
    /// How many runs may be leased, those that start included.
    pub room: usize,
    /// How many of them may start.
    pub places: usize,
    /// The tenants that may have them.
    pub shares: Shares,
}

/// Claims in lines.
#[derive(Default)]
struct ClaimQueues {
    lines: HashMap<u32, VecDeque<RunClaim>>,
    /// The lines that are not empty and were not passed over, in the order of their turns.
    turns: VecDeque<u32>,
    /// The lines of tenants that had all the places that they may have.
    passed: Vec<u32>,
    len: usize,
}

impl ClaimQueues {
    fn push(&mut self, claim: RunClaim) {
        let line = self.lines.entry(claim.line).or_default();
        if line.is_empty() {
            self.turns.push_back(claim.line);
        }
        line.push_back(claim);
        self.len += 1;
    }

    /// The next claim of a tenant that may have another place.
    fn pop(&mut self, may: &mut impl FnMut(u32) -> bool) -> Option<RunClaim> {
        let turn = loop {
            let turn = self.turns.pop_front()?;
            if may(turn) {
                break turn;
            }
            self.passed.push(turn);
        };
        let line = self.lines.get_mut(&turn)?;
        let claim = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&turn);
        } else {
            self.turns.push_back(turn);
        }
        self.len -= 1;
        Some(claim)
    }

    /// Those that were passed over have their turn again.
    fn look_again(&mut self) {
        self.turns.extend(self.passed.drain(..));
    }

    /// Claims in lines that were not passed over.
    fn in_turn(&self) -> usize {
        self.len - self.passed.iter().map(|line| self.lines[line].len()).sum::<usize>()
    }

    fn retain(&mut self, keep: impl Fn(&RunClaim) -> bool) {
        if self.len == 0 {
            return;
        }
        self.lines.values_mut().for_each(|line| line.retain(&keep));
        self.lines.retain(|_, line| !line.is_empty());
        let lines = &self.lines;
        self.turns.retain(|turn| lines.contains_key(turn));
        self.passed.retain(|turn| lines.contains_key(turn));
        self.len = self.lines.values().map(VecDeque::len).sum();
    }
}

impl PrefetchBuffer {
    /// A buffer of so many claims beside the places of this instance.
    pub fn new(capacity: usize, prefetch: usize, active: Active) -> Arc<PrefetchBuffer> {
        Arc::new(PrefetchBuffer {
            claims: Mutex::default(),
            capacity,
            prefetch,
            limited: false,
            own_limits: AtomicBool::default(),
            alone: AtomicBool::default(),
            active,
            bell: Wakeup::default(),
        })
    }

    /// Of an instance that keeps limits: nothing is leased but by a take.
    pub fn under_limits(capacity: usize, active: Active) -> Arc<PrefetchBuffer> {
        let (claims, bell) = (Mutex::default(), Wakeup::default());
        let (own_limits, alone) = (AtomicBool::default(), AtomicBool::default());
        Arc::new(PrefetchBuffer { claims, capacity, prefetch: 0, limited: true, own_limits, alone, active, bell })
    }

    /// From now on tenants have limits of their own, or have none: as long as they do, nothing is leased but by a take.
    pub fn set_own_limits(&self, own: bool) {
        self.own_limits.store(own, Ordering::Relaxed);
    }

    /// Whether tenants have limits of their own.
    pub fn has_own_limits(&self) -> bool {
        self.own_limits.load(Ordering::Relaxed)
    }

    fn keeps_limits(&self) -> bool {
        self.limited || self.has_own_limits()
    }

    /// From now on all tasks are of one tenant, or are not: then no tenant may have all places.
    pub fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Relaxed);
    }

    /// Room for up to `most` runs that are leased as they are recorded, of which those that are late may start at once:
    /// beside all that is held, so that nothing that is on time waits for them. A caller that is not `behind` leaves
    /// places to runs that become ready meanwhile.
    pub fn share_as_recorded(self: &Arc<PrefetchBuffer>, most: usize, behind: bool) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("held lock");
        let (room, places) = self.left_as_recorded(&claims);
        let places = asked_for(places.saturating_sub(claims.waiting.len()), behind);
        self.share_of_tenants(&mut claims, room.min(most), places.min(most))
    }

    /// Room for up to `most` runs that are leased as they are recorded, and none of which starts with it.
    pub fn share_ahead(self: &Arc<PrefetchBuffer>, most: usize) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("held lock");
        let (room, _) = self.left_as_recorded(&claims);
        self.share(&mut claims, room.min(most), 0)
    }

    /// The shares of places that are free.
    fn shares(&self, free: usize) -> Shares {
        let alone = self.alone.load(Ordering::Relaxed);
        let held = if alone || free == 0 { HashMap::new() } else { self.active.held() };
        Shares { free, held, alone }
    }

    /// Whether claims whose instant has come wait until their tenants have fewer places.
    pub fn passes_over(&self) -> bool {
        !self.claims.lock().expect("held lock").due.passed.is_empty()
    }

    /// Room for up to `most` runs that are ready, no more than could start. A caller that is not `behind` leaves places
    /// to runs that become ready meanwhile. Where others have all of them just now, the bell rings as soon as they
    /// know what they need, and they get no more before it was asked for again.
    pub fn share_of_ready(self: &Arc<PrefetchBuffer>, most: usize, behind: bool) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("held lock");
        let (room, places) = self.left(&claims);
        claims.missed = places == 0 && claims.shared.places > 0;
        let places = asked_for(places, behind).min(most);
        self.share_of_tenants(&mut claims, room.min(places), places)
    }

    /// Leased ahead may be those that could start now, and of the prefetch the same part: so a busy instance leaves to
    /// the others what it could not start itself. Starting may those that find a place beside the claims whose instant
    /// has come.
    fn left(&self, claims: &Claims) -> (usize, usize) {
        let free = self.free();
        let prefetch = if self.keeps_limits() { 0 } else { self.prefetch };
        let ahead = prefetch * free / self.capacity.max(1);
        let room = (free + ahead).saturating_sub(claims.waiting.len() + claims.due.len + claims.shared.room);
        (room, self.places(claims).saturating_sub(claims.due.in_turn()))
    }

    /// Nothing where only a take leases, or the worker missed a place.
    fn left_as_recorded(&self, claims: &Claims) -> (usize, usize) {
        match !self.keeps_limits() && !claims.missed {
            true => self.left(claims),
            false => (0, 0),
        }
    }

    fn share(self: &Arc<PrefetchBuffer>, claims: &mut Claims, room: usize, places: usize) -> PrefetchPermit {
        claims.shared.room += room;
        claims.shared.places += places;
        PrefetchPermit { held: Arc::clone(self), room, places, shares: Shares::default() }
    }

    /// For a caller that chooses among the tenants. What others have asked for and do not know yet is nobody's: so two
    /// who ask in the same moment may together leave a tenant more than one after the other would.
    fn share_of_tenants(self: &Arc<PrefetchBuffer>, claims: &mut Claims, room: usize, places: usize) -> PrefetchPermit {
        let shares = self.shares(self.places(claims).saturating_sub(claims.due.in_turn()));
        let mut share = self.share(claims, room, places);
        share.shares = shares;
        share
    }

    /// Keeps claims until their instant, and wakes who starts them.
    pub fn add(&self, claims: Vec<RunClaim>) {
        if claims.is_empty() {
            return;
        }
        let entries = claims.into_iter().map(|claim| ((claim.run_at, claim.lease.token), claim));
        self.claims.lock().expect("held lock").waiting.extend(entries);
        self.bell.notify_one();
    }

    /// Forgets claims that have run out: they are someone else's to take.
    pub fn forget_expired(&self, now: DateTime<Utc>) {
        let mut claims = self.claims.lock().expect("held lock");
        claims.due.retain(|claim| claim.until > now);
        // one runs out after its instant, so none that waits behind one that stands has
        while let Some(first) = claims.waiting.first_entry().filter(|first| first.get().until <= now) {
            first.remove();
        }
    }

    /// Takes up to `limit` claims whose instant has come and that find a place, a tenant's after another's; the places are
    /// theirs until they have started. A tenant that has all it may have is passed over.
    pub fn take_due(self: &Arc<PrefetchBuffer>, now: DateTime<Utc>, limit: usize) -> (Vec<RunClaim>, PrefetchPermit) {
        let mut claims = self.claims.lock().expect("held lock");
        let places = self.places(&claims);
        let Claims { waiting, due, .. } = &mut *claims;
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due.look_again();
        let mut shares = self.shares(places);
        let mut may = |line| shares.take_in(line);
        let taken: Vec<RunClaim> = std::iter::from_fn(|| due.pop(&mut may)).take(limit.min(places)).collect();
        let share = self.share(&mut claims, taken.len(), taken.len());
        (taken, share)
    }

    /// Whether a claim could start. Where others have all places just now, the bell rings as soon as they know what they
    /// need.
    pub fn has_place(&self) -> bool {
        let mut claims = self.claims.lock().expect("held lock");
        let places = self.places(&claims);
        claims.missed |= places == 0 && claims.shared.places > 0;
        places > 0
    }

    fn places(&self, claims: &Claims) -> usize {
        self.free().saturating_sub(claims.shared.places)
    }

    /// How many more runs may be under way.
    fn free(&self) -> usize {
        self.capacity.saturating_sub(self.active.len())
    }

    /// The earliest instant that is waited for.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        let claims = self.claims.lock().expect("held lock");
        let due = claims.due.turns.front().and_then(|turn| claims.due.lines[turn].front());
        due.map(|claim| claim.run_at).or_else(|| claims.waiting.keys().next().map(|(run_at, _)| *run_at))
    }

    /// Rings when claims were added.
    pub fn bell(&self) -> Wakeup {
        Arc::clone(&self.bell)
    }
}

/// Unless there is more than can be done at once, a quarter of the places is left.
fn asked_for(places: usize, behind: bool) -> usize {
    if behind { places } else { places - places / 4 }
}

impl Drop for PrefetchPermit {
    fn drop(&mut self) {
        let mut claims = self.held.claims.lock().expect("held lock");
        claims.shared.room -= self.room;
        claims.shared.places -= self.places;
        if self.places > 0 && claims.missed {
            self.held.bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::store::{Lease, line};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    /// Of an instance whose tasks are all of one tenant, as far as the places go.
    fn lone(capacity: usize, prefetch: usize, active: Active) -> Arc<PrefetchBuffer> {
        let held = PrefetchBuffer::new(capacity, prefetch, active);
        held.set_alone(true);
        held
    }

    /// A claim of a run that is due at `seconds`, good for five more.
    fn claim(token: i64, seconds: i64) -> RunClaim {
        of(0, token, seconds)
    }

    fn of(line: u32, token: i64, seconds: i64) -> RunClaim {
        let lease = Lease { run_id: Uuid::from_u128(token as u128), token };
        RunClaim { lease, run_at: at(seconds), until: at(seconds + 5), line }
    }

    fn due(held: &Arc<PrefetchBuffer>, seconds: i64, limit: usize) -> Vec<i64> {
        tokens(held.take_due(at(seconds), limit).0)
    }

    fn tokens(claims: Vec<RunClaim>) -> Vec<i64> {
        claims.iter().map(|claim| claim.lease.token).collect()
    }

    /// Room to lease, and places to start.
    fn left(held: &PrefetchBuffer) -> (usize, usize) {
        held.left(&held.claims.lock().unwrap())
    }

    #[test]
    fn claims_come_out_at_their_instant_the_earliest_first_and_equal_ones_as_they_were_claimed() {
        let held = lone(10, 10, Active::default());
        held.add(vec![claim(3, 7), claim(2, 5), claim(1, 5), claim(4, 6)]);
        assert_eq!(held.next(), Some(at(5)));
        assert!(due(&held, 4, 10).is_empty());
        assert_eq!(due(&held, 6, 2), [1, 2]);
        assert_eq!(held.next(), Some(at(6)));
        assert_eq!(due(&held, 6, 10), [4]);
        assert_eq!(held.next(), Some(at(7)));
    }

    #[test]
    fn tenants_take_turns_and_the_one_with_many_gets_what_the_others_leave() {
        let held = lone(10, 10, Active::default());
        held.add((1..=6).map(|token| of(1, token, 5)).collect());
        assert_eq!(due(&held, 5, 2), [1, 2]);
        held.add(vec![of(2, 7, 5), of(3, 8, 6), of(3, 9, 6)]);
        assert_eq!(due(&held, 6, 4), [3, 7, 8, 4]);
        assert_eq!(due(&held, 6, 10), [9, 5, 6]);
        assert_eq!((held.next(), left(&held)), (None, (20, 10)));
    }

    #[test]
    fn a_tenant_with_its_share_of_the_places_is_passed_over_and_another_one_starts_at_once() {
        let active = Active::default();
        let held = PrefetchBuffer::new(8, 8, active.clone());
        held.add((1..=9).map(|token| of(line("a"), token, 5)).collect());
        assert_eq!(due(&held, 5, 10), [1, 2, 3, 4, 5, 6], "two are left");
        let mut runs: Vec<_> = (1..=6).map(|token| active.add(claim(token, 0).lease, "a", at(60))).collect();
        assert!(due(&held, 5, 10).is_empty() && held.passes_over() && held.has_place());
        assert_eq!((held.next(), left(&held).1), (None, 2), "nothing is waited for, and others may start");
        let shares = held.share_as_recorded(9, true).shares.clone();
        assert_eq!([shares.left_to(line("a")), shares.left_to(line("b")), shares.left_to_each()], [0, 2, 0]);
        held.add(vec![of(line("b"), 10, 5)]);
        assert_eq!(due(&held, 5, 10), [10]);
        runs.pop();
        assert_eq!(due(&held, 5, 10), [7], "a place that frees goes to who waits");
        held.set_alone(true);
        assert_eq!(due(&held, 5, 10), [8, 9], "there is nobody to keep them for");
        assert!(!held.passes_over());
    }

    #[test]
    fn prefetch_shrinks_with_the_free_places() {
        let active = Active::default();
        let held = lone(4, 8, active.clone());
        assert_eq!(left(&held), (12, 4));
        let places: Vec<_> = (1..=3).map(|token| active.add(claim(token, 0).lease, "a", at(60))).collect();
        assert_eq!(left(&held), (3, 1));
        held.add(vec![claim(9, 1)]);
        assert_eq!(left(&held), (2, 1));
        assert!(due(&held, 1, 0).is_empty());
        assert_eq!((left(&held), held.has_place()), ((2, 0), true));
        let last = active.add(claim(4, 0).lease, "a", at(60));
        assert_eq!((left(&held), held.has_place()), ((0, 0), false));
        assert!(due(&held, 1, 1).is_empty(), "there is no place");
        drop((places, last));
        assert_eq!((left(&held), held.has_place()), ((11, 3), true));
    }

    #[test]
    fn room_asked_for_by_one_is_not_counted_by_others_until_its_need_is_known() {
        let active = Active::default();
        let held = lone(6, 6, active.clone());
        let one = held.share_as_recorded(4, true);
        assert_eq!((one.room, one.places, left(&held)), (4, 4, (8, 2)));
        let other = held.share_of_ready(100, true);
        assert_eq!((other.room, other.places, left(&held)), (2, 2, (6, 0)));
        held.add(vec![claim(1, 1), claim(2, 1)]);
        let _started = active.add(claim(3, 0).lease, "a", at(60));
        assert!(due(&held, 1, 2).is_empty(), "none of the places is free that others asked for");
        drop(one);
        assert_eq!(left(&held), (6, 1));
        drop(other);
        assert_eq!(left(&held), (8, 3));
        let starting = held.take_due(at(1), 2);
        assert_eq!((starting.0.len(), left(&held)), (2, (8, 3)));
        drop(starting);
        assert_eq!(left(&held), (10, 5));
    }

    #[test]
    fn late_runs_start_beside_runs_held_for_their_instant() {
        let held = lone(4, 4, Active::default());
        held.add(vec![claim(1, 9), claim(2, 9), claim(3, 9)]);
        let late = held.share_as_recorded(100, true);
        assert_eq!((late.room, late.places), (5, 1));
        assert_eq!(due(&held, 9, 100), [1, 2, 3]);
    }

    #[test]
    fn lease_that_does_not_start_takes_no_place() {
        let held = lone(2, 2, Active::default());
        let ahead = held.share_ahead(3);
        assert_eq!((ahead.room, ahead.places, left(&held)), (3, 0, (1, 2)));
    }

    #[test]
    fn as_many_places_are_shared_out_as_runs_may_start() {
        let held = lone(2, 0, Active::default());
        let [one, other, third] = std::array::from_fn(|_| held.share_of_ready(1, true));
        assert_eq!([one.places, other.places, third.places], [1, 1, 0]);
        drop(one);
        assert_eq!(held.share_of_ready(1, true).places, 1);
    }

    #[test]
    fn worker_that_is_not_behind_leaves_places_to_runs_that_are_asked_for() {
        for capacity in [1, 3, 8] {
            let held = lone(capacity, 0, Active::default());
            assert_eq!(held.share_as_recorded(100, false).places, capacity - capacity / 4);
            let ready = held.share_of_ready(100, false);
            assert_eq!((ready.places, left(&held).1), (capacity - capacity / 4, capacity / 4));
        }
    }

    #[test]
    fn where_limits_are_kept_nothing_is_leased_as_it_is_recorded() {
        let held = PrefetchBuffer::under_limits(4, Active::default());
        held.set_alone(true);
        let (recorded, ahead) = (held.share_as_recorded(4, true), held.share_ahead(4));
        assert_eq!((recorded.room, recorded.places, ahead.room), (0, 0, 0));
        let ready = held.share_of_ready(4, true);
        assert_eq!((ready.room, ready.places), (4, 4));
    }

    #[test]
    fn while_tenants_have_limits_of_their_own_nothing_is_leased_as_it_is_recorded() {
        let held = lone(4, 4, Active::default());
        held.set_own_limits(true);
        let (recorded, ahead) = (held.share_as_recorded(4, true), held.share_ahead(4));
        assert_eq!((recorded.room, recorded.places, ahead.room), (0, 0, 0));
        let ready = held.share_of_ready(4, true);
        assert_eq!((ready.room, ready.places), (4, 4));
        drop(ready);
        held.set_own_limits(false);
        assert_eq!(held.share_as_recorded(4, true).room, 4);
    }

    #[tokio::test]
    async fn claimer_that_missed_places_is_woken_at_their_return_and_comes_first() {
        let rings =
            async |held: &PrefetchBuffer| tokio::time::timeout(Duration::ZERO, held.bell().notified()).await.is_ok();
        let held = lone(2, 0, Active::default());
        let some = (held.share_as_recorded(1, true), held.share_of_ready(2, true));
        assert_eq!(some.1.places, 1);
        drop(some);
        assert!(!rings(&held).await, "nobody missed all of it");
        let all = held.share_as_recorded(2, true);
        assert_eq!(held.share_of_ready(1, true).places, 0);
        assert!(!rings(&held).await);
        drop(all);
        assert!(rings(&held).await);
        assert_eq!((held.share_as_recorded(2, true).places, held.share_ahead(2).room), (0, 0));
        assert_eq!(held.share_of_ready(1, true).places, 1);
        let (one, other) = (held.share_as_recorded(1, true), held.share_as_recorded(1, true));
        assert_eq!((one.places, other.places, held.has_place()), (1, 1, false));
        drop(one);
        assert!(rings(&held).await);
    }

    #[test]
    fn a_claim_that_has_run_out_is_forgotten_whether_its_instant_was_seen_or_not() {
        let held = lone(4, 8, Active::default());
        held.add(vec![claim(1, 1), claim(2, 2), of(3, 3, 1)]);
        held.forget_expired(at(5));
        assert!(due(&held, 1, 0).is_empty());
        assert_eq!(left(&held), (9, 2));
        held.forget_expired(at(6));
        assert_eq!((left(&held), held.next()), ((11, 4), Some(at(2))));
        assert!(due(&held, 2, 0).is_empty());
        held.forget_expired(at(7));
        assert_eq!((left(&held), held.next()), ((12, 4), None));
    }
}
