//! Claims that wait in memory for their instant, earliest first. Lost in a crash, they run out and are claimed again.
//!
//! Due claims are queued per tenant and served round-robin, so a tenant with a thousand due runs delays no other. A
//! queue is skipped while its tenant has all the slots that it may have.

mod run_capacity;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, Utc};

use crate::engine::Wakeup;
use crate::engine::scheduling::prefetch::run_capacity::{HeldClaims, ReservedCapacity, RunCapacity};
use crate::engine::scheduling::run_slots::RunSlots;
use crate::engine::scheduling::tenant_queues::TenantQueues;
use crate::store::{RunClaim, Shares};

/// Claims of this instance that are not started.
pub struct PrefetchBuffer {
    claims: Mutex<Claims>,
    wakeup: Wakeup,
}

struct Claims {
    /// By instant, then by token.
    waiting: BTreeMap<(DateTime<Utc>, i64), RunClaim>,
    due: TenantQueues<RunClaim>,
    capacity: RunCapacity,
}

/// Capacity that is reserved while a database call is in flight. It is dropped after what was leased was
/// [added](PrefetchBuffer::add) or has started.
pub struct PrefetchPermit {
    buffer: Arc<PrefetchBuffer>,
    /// How many runs may be leased, those that start included.
    pub prefetch: usize,
    /// How many of them may start.
    pub slots: usize,
    /// The tenants that may have them.
    pub shares: Shares,
}

impl PrefetchBuffer {
    /// A buffer of so many claims beside the slots of this instance.
    pub fn new(prefetch: usize, slots: RunSlots) -> Arc<PrefetchBuffer> {
        PrefetchBuffer::with(RunCapacity::new(prefetch, false, slots))
    }

    /// Of an instance that keeps limits: nothing is leased but by a take.
    pub fn under_limits(slots: RunSlots) -> Arc<PrefetchBuffer> {
        PrefetchBuffer::with(RunCapacity::new(0, true, slots))
    }

    fn with(capacity: RunCapacity) -> Arc<PrefetchBuffer> {
        let claims = Claims { waiting: BTreeMap::new(), due: TenantQueues::default(), capacity };
        Arc::new(PrefetchBuffer { claims: Mutex::new(claims), wakeup: Wakeup::default() })
    }

    /// From now on tenants have limits of their own, or have none: as long as they do, nothing is leased but by a take.
    pub fn set_own_limits(&self, own: bool) {
        self.lock().capacity.set_own_limits(own);
    }

    /// Whether tenants have limits of their own.
    pub fn has_own_limits(&self) -> bool {
        self.lock().capacity.has_own_limits()
    }

    /// From now on all tasks are of one tenant, or are not: then no tenant may have all slots.
    pub fn set_single_tenant(&self, single_tenant: bool) {
        self.lock().capacity.set_single_tenant(single_tenant);
    }

    /// Whether claims whose instant has come wait until their tenants have fewer slots.
    pub fn has_skipped(&self) -> bool {
        self.lock().due.has_skipped()
    }

    /// Whether a claim could start. Where others have all slots just now, the worker is woken as soon as they know what
    /// they need.
    pub fn has_free_slot(&self) -> bool {
        self.lock().capacity.has_free_slot()
    }

    /// Keeps claims until their instant, and wakes who starts them.
    pub fn add(&self, claims: Vec<RunClaim>) {
        if claims.is_empty() {
            return;
        }
        let entries = claims.into_iter().map(|claim| ((claim.run_at, claim.lease.token), claim));
        self.lock().waiting.extend(entries);
        self.wakeup.notify_one();
    }

    /// Forgets claims that have run out: they are someone else's to take.
    pub fn forget_expired(&self, now: DateTime<Utc>) {
        let mut claims = self.lock();
        claims.due.retain(|claim| claim.until > now);
        // one runs out after its instant, so none that waits behind one that stands has
        while let Some(first) = claims.waiting.first_entry().filter(|first| first.get().until <= now) {
            first.remove();
        }
    }

    /// Forgets claims of tenants with these hashes, which must not start: they run out, and a take looks at their
    /// tenants by name.
    pub fn forget_tenants(&self, halted: impl Fn(u32) -> bool) {
        let mut claims = self.lock();
        claims.due.retain(|claim| !halted(claim.tenant_hash));
        claims.waiting.retain(|_, claim| !halted(claim.tenant_hash));
    }

    /// Takes up to `limit` claims whose instant has come and that find a slot, a tenant's after another's; the slots
    /// are theirs until they have started. A tenant that has all it may have is passed over.
    pub fn take_due(self: &Arc<PrefetchBuffer>, now: DateTime<Utc>, limit: usize) -> (Vec<RunClaim>, PrefetchPermit) {
        let mut claims = self.lock();
        let Claims { waiting, due, capacity } = &mut *claims;
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            let claim = first.remove();
            due.push(claim.tenant_hash, claim);
        }
        due.requeue_skipped();
        let ReservedCapacity { slots, mut shares, .. } = capacity.reserve_for_due(limit.min(due.len()));
        let mut may = |tenant| shares.take_for_hash(tenant);
        let taken: Vec<RunClaim> = std::iter::from_fn(|| due.pop(&mut may)).take(slots).collect();
        let (used, unused) = (taken.len(), slots - taken.len());
        capacity.release(unused, unused);
        (taken, self.permit(ReservedCapacity { prefetch: used, slots: used, shares: Shares::default() }))
    }

    /// The earliest instant that is waited for.
    pub fn next(&self) -> Option<DateTime<Utc>> {
        let claims = self.lock();
        claims.due.front().map(|claim| claim.run_at).or_else(|| claims.waiting.keys().next().map(|(run_at, _)| *run_at))
    }

    /// Wakes when claims were added.
    pub fn wakeup(&self) -> Wakeup {
        Arc::clone(&self.wakeup)
    }

    /// Room for so many runs of each tenant, by its hash, that are leased as they are recorded, and of which those that
    /// are late may start at once: beside all that is held, so that nothing that is on time waits for them, and no slot
    /// that these tenants may not have. A caller that is not `behind` leaves slots to runs that become ready meanwhile.
    pub fn acquire_for_recorded(
        self: &Arc<PrefetchBuffer>,
        runs: &HashMap<u32, usize>,
        behind: bool,
    ) -> PrefetchPermit {
        self.acquire(|capacity, held| capacity.reserve_for_recorded(held, runs, behind))
    }

    /// Room for up to `most` runs that are leased as they are recorded, and none of which starts with it.
    pub fn acquire_ahead(self: &Arc<PrefetchBuffer>, most: usize) -> PrefetchPermit {
        self.acquire(|capacity, held| capacity.reserve_ahead(held, most))
    }

    /// Room for up to `most` runs that are ready, no more than could start. A caller that is not `behind` leaves slots
    /// to runs that become ready meanwhile. Where others have all of them just now, the worker is woken as soon as they
    /// know what they need, and they get no more before it was asked for again.
    pub fn acquire_for_ready(self: &Arc<PrefetchBuffer>, most: usize, behind: bool) -> PrefetchPermit {
        self.acquire(|capacity, held| capacity.reserve_for_ready(held, most, behind))
    }

    fn acquire(
        self: &Arc<PrefetchBuffer>,
        reserve: impl FnOnce(&mut RunCapacity, HeldClaims) -> ReservedCapacity,
    ) -> PrefetchPermit {
        let mut claims = self.lock();
        let held = claims.held();
        self.permit(reserve(&mut claims.capacity, held))
    }

    fn permit(self: &Arc<PrefetchBuffer>, reserved: ReservedCapacity) -> PrefetchPermit {
        let ReservedCapacity { prefetch, slots, shares } = reserved;
        PrefetchPermit { buffer: Arc::clone(self), prefetch, slots, shares }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().expect("prefetch lock")
    }
}

impl Claims {
    fn held(&self) -> HeldClaims {
        HeldClaims { waiting: self.waiting.len(), due: self.due.len(), startable: self.due.startable() }
    }
}

impl Drop for PrefetchPermit {
    fn drop(&mut self) {
        if self.buffer.lock().capacity.release(self.prefetch, self.slots) {
            self.buffer.wakeup.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::base::clock::Clock;
    use crate::engine::scheduling::active::ActiveRuns;
    use crate::store::{Lease, tenant_hash};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    /// Runs of an instance with so many slots.
    fn active(capacity: usize) -> ActiveRuns {
        ActiveRuns::new(RunSlots::new(capacity, 0))
    }

    /// Of an instance whose tasks are all of one tenant, as far as the slots go.
    fn single_tenant_buffer(prefetch: usize, active: &ActiveRuns) -> Arc<PrefetchBuffer> {
        let buffer = PrefetchBuffer::new(prefetch, active.slots().clone());
        buffer.set_single_tenant(true);
        buffer
    }

    /// A claim of a run that is due at `seconds`, good for five more.
    fn claim(token: i64, seconds: i64) -> RunClaim {
        of(0, token, seconds)
    }

    fn of(tenant_hash: u32, token: i64, seconds: i64) -> RunClaim {
        let lease = Lease { run_id: Uuid::from_u128(token as u128), token };
        RunClaim { lease, run_at: at(seconds), until: at(seconds + 5), tenant_hash }
    }

    /// Room for so many runs of one tenant that are recorded.
    fn acquire_recorded(buffer: &Arc<PrefetchBuffer>, count: usize, behind: bool) -> PrefetchPermit {
        buffer.acquire_for_recorded(&HashMap::from([(tenant_hash("a"), count)]), behind)
    }

    fn due(buffer: &Arc<PrefetchBuffer>, seconds: i64, limit: usize) -> Vec<i64> {
        tokens(buffer.take_due(at(seconds), limit).0)
    }

    fn tokens(claims: Vec<RunClaim>) -> Vec<i64> {
        claims.iter().map(|claim| claim.lease.token).collect()
    }

    /// Room to lease, and slots to start.
    fn available(buffer: &PrefetchBuffer) -> (usize, usize) {
        let claims = buffer.lock();
        claims.capacity.available(claims.held())
    }

    #[test]
    fn claims_come_out_at_their_instant_the_earliest_first_and_equal_ones_as_they_were_claimed() {
        let buffer = single_tenant_buffer(10, &active(10));
        buffer.add(vec![claim(3, 7), claim(2, 5), claim(1, 5), claim(4, 6)]);
        assert_eq!(buffer.next(), Some(at(5)));
        assert!(due(&buffer, 4, 10).is_empty());
        assert_eq!(due(&buffer, 6, 2), [1, 2]);
        assert_eq!(buffer.next(), Some(at(6)));
        assert_eq!(due(&buffer, 6, 10), [4]);
        assert_eq!(buffer.next(), Some(at(7)));
    }

    #[test]
    fn tenants_take_turns_and_the_one_with_many_gets_what_the_others_leave() {
        let buffer = single_tenant_buffer(10, &active(10));
        buffer.add((1..=6).map(|token| of(1, token, 5)).collect());
        assert_eq!(due(&buffer, 5, 2), [1, 2]);
        buffer.add(vec![of(2, 7, 5), of(3, 8, 6), of(3, 9, 6)]);
        assert_eq!(due(&buffer, 6, 4), [3, 7, 8, 4]);
        assert_eq!(due(&buffer, 6, 10), [9, 5, 6]);
        assert_eq!((buffer.next(), available(&buffer)), (None, (20, 10)));
    }

    #[test]
    fn tenant_with_its_share_of_the_places_is_passed_over_and_another_one_starts_at_once() {
        let active = active(8);
        let buffer = PrefetchBuffer::new(8, active.slots().clone());
        buffer.add((1..=9).map(|token| of(tenant_hash("a"), token, 5)).collect());
        assert_eq!(due(&buffer, 5, 10), [1, 2, 3, 4, 5, 6], "two are left");
        let mut runs: Vec<_> = (1..=6).map(|token| active.add(claim(token, 0).lease, "a", at(60))).collect();
        assert!(due(&buffer, 5, 10).is_empty() && buffer.has_skipped() && buffer.has_free_slot());
        assert_eq!((buffer.next(), available(&buffer).1), (None, 2), "nothing is waited for, and others may start");
        let shares = acquire_recorded(&buffer, 9, true).shares.clone();
        assert_eq!(
            [shares.available_to(tenant_hash("a")), shares.available_to(tenant_hash("b")), shares.available_to_any()],
            [0, 2, 0]
        );
        buffer.add(vec![of(tenant_hash("b"), 10, 5)]);
        assert_eq!(due(&buffer, 5, 10), [10]);
        runs.pop();
        assert_eq!(due(&buffer, 5, 10), [7], "a slot that frees goes to who waits");
        buffer.set_single_tenant(true);
        assert_eq!(due(&buffer, 5, 10), [8, 9], "there is nobody to keep them for");
        assert!(!buffer.has_skipped());
    }

    #[test]
    fn runs_of_tenants_at_their_shares_keep_no_place_from_others_while_they_are_recorded() {
        let active = active(8);
        let buffer = PrefetchBuffer::new(8, active.slots().clone());
        let runs: Vec<_> = (1..=6).map(|token| active.add(claim(token, 0).lease, "a", at(60))).collect();
        let acquire_by = |behind: bool, runs: &[(&str, usize)]| {
            let runs = runs.iter().map(|(tenant, count)| (tenant_hash(tenant), *count)).collect();
            buffer.acquire_for_recorded(&runs, behind)
        };
        let acquire = |runs: &[(&str, usize)]| acquire_by(false, runs);
        let flood = (acquire(&[("a", 100)]), acquire_by(true, &[("a", 100)]));
        assert_eq!((flood.0.slots, flood.1.slots, available(&buffer).1), (0, 0, 2), "it has all that it may have");
        let one = acquire(&[("a", 100), ("b", 1)]);
        assert_eq!((one.slots, available(&buffer).1), (1, 1));
        let ready = buffer.acquire_for_ready(9, true);
        assert_eq!((ready.prefetch, ready.slots), (1, 1));
        drop((flood, one, ready, runs));
        assert_eq!(acquire(&[("a", 100)]).slots, 6, "a quarter is left");
        assert_eq!(acquire(&[("a", 2), ("b", 3)]).slots, 5);
        assert_eq!([false, true].map(|behind| acquire_by(behind, &[("a", 100), ("b", 100)]).slots), [6, 8]);
        assert_eq!(acquire(&[]).slots, 0);
    }

    #[test]
    fn prefetch_shrinks_with_the_free_places() {
        let active = active(4);
        let buffer = single_tenant_buffer(8, &active);
        assert_eq!(available(&buffer), (12, 4));
        let slots: Vec<_> = (1..=3).map(|token| active.add(claim(token, 0).lease, "a", at(60))).collect();
        assert_eq!(available(&buffer), (3, 1));
        buffer.add(vec![claim(9, 1)]);
        assert_eq!(available(&buffer), (2, 1));
        assert!(due(&buffer, 1, 0).is_empty());
        assert_eq!((available(&buffer), buffer.has_free_slot()), ((2, 0), true));
        let last = active.add(claim(4, 0).lease, "a", at(60));
        assert_eq!((available(&buffer), buffer.has_free_slot()), ((0, 0), false));
        assert!(due(&buffer, 1, 1).is_empty(), "there is no slot");
        drop((slots, last));
        assert_eq!((available(&buffer), buffer.has_free_slot()), ((11, 3), true));
    }

    #[test]
    fn room_asked_for_by_one_is_not_counted_by_others_until_its_need_is_known() {
        let active = active(6);
        let buffer = single_tenant_buffer(6, &active);
        let one = acquire_recorded(&buffer, 4, true);
        assert_eq!((one.prefetch, one.slots, available(&buffer)), (4, 4, (8, 2)));
        let other = buffer.acquire_for_ready(100, true);
        assert_eq!((other.prefetch, other.slots, available(&buffer)), (2, 2, (6, 0)));
        buffer.add(vec![claim(1, 1), claim(2, 1)]);
        let _started = active.add(claim(3, 0).lease, "a", at(60));
        assert!(due(&buffer, 1, 2).is_empty(), "none of the slots is free that others asked for");
        drop(one);
        assert_eq!(available(&buffer), (6, 1));
        drop(other);
        assert_eq!(available(&buffer), (8, 3));
        let starting = buffer.take_due(at(1), 2);
        assert_eq!((starting.0.len(), available(&buffer)), (2, (8, 3)));
        drop(starting);
        assert_eq!(available(&buffer), (10, 5));
    }

    #[test]
    fn late_runs_start_beside_runs_held_for_their_instant() {
        let buffer = single_tenant_buffer(4, &active(4));
        buffer.add(vec![claim(1, 9), claim(2, 9), claim(3, 9)]);
        let late = acquire_recorded(&buffer, 100, true);
        assert_eq!((late.prefetch, late.slots), (5, 1));
        assert_eq!(due(&buffer, 9, 100), [1, 2, 3]);
    }

    #[test]
    fn lease_that_does_not_start_takes_no_place() {
        let buffer = single_tenant_buffer(2, &active(2));
        let ahead = buffer.acquire_ahead(3);
        assert_eq!((ahead.prefetch, ahead.slots, available(&buffer)), (3, 0, (1, 2)));
    }

    /// Runs have held these slots for no time at all, by a clock that stands still: 256 may start ahead.
    #[test]
    fn runs_are_asked_for_ahead_of_their_slots_on_each_way_while_runs_are_short() {
        let slots = RunSlots::starting_ahead(4, 0, Clock::manual(DateTime::UNIX_EPOCH));
        for token in 0..64 {
            slots.start(token, "a");
            slots.end(token);
        }
        let buffer = PrefetchBuffer::new(8, slots);
        buffer.set_single_tenant(true);
        assert_eq!(available(&buffer), (268, 260));
        let ready = buffer.acquire_for_ready(500, true);
        assert_eq!((ready.prefetch, ready.slots, available(&buffer)), (260, 260, (8, 0)));
        drop(ready);
        assert_eq!(acquire_recorded(&buffer, 9, true).slots, 9);
        buffer.add((1..=9).map(|token| claim(token, 5)).collect());
        assert_eq!(due(&buffer, 5, 100).len(), 9);
        buffer.set_single_tenant(false);
        assert_eq!(acquire_recorded(&buffer, 500, true).slots, 195, "a quarter is left to others");
    }

    #[test]
    fn permits_cover_exactly_the_slots_that_may_start() {
        let buffer = single_tenant_buffer(0, &active(2));
        let [one, other, third] = std::array::from_fn(|_| buffer.acquire_for_ready(1, true));
        assert_eq!([one.slots, other.slots, third.slots], [1, 1, 0]);
        drop(one);
        assert_eq!(buffer.acquire_for_ready(1, true).slots, 1);
    }

    #[test]
    fn worker_that_is_not_behind_leaves_places_to_runs_that_are_asked_for() {
        for capacity in [1, 3, 8] {
            let buffer = single_tenant_buffer(0, &active(capacity));
            assert_eq!(acquire_recorded(&buffer, 100, false).slots, capacity - capacity / 4);
            let ready = buffer.acquire_for_ready(100, false);
            assert_eq!((ready.slots, available(&buffer).1), (capacity - capacity / 4, capacity / 4));
        }
    }

    #[test]
    fn instance_limits_prevent_leasing_at_recording() {
        let buffer = PrefetchBuffer::under_limits(active(4).slots().clone());
        buffer.set_single_tenant(true);
        let (recorded, ahead) = (acquire_recorded(&buffer, 4, true), buffer.acquire_ahead(4));
        assert_eq!((recorded.prefetch, recorded.slots, ahead.prefetch), (0, 0, 0));
        let ready = buffer.acquire_for_ready(4, true);
        assert_eq!((ready.prefetch, ready.slots), (4, 4));
    }

    #[test]
    fn tenant_limits_prevent_leasing_at_recording() {
        let buffer = single_tenant_buffer(4, &active(4));
        buffer.set_own_limits(true);
        let (recorded, ahead) = (acquire_recorded(&buffer, 4, true), buffer.acquire_ahead(4));
        assert_eq!((recorded.prefetch, recorded.slots, ahead.prefetch), (0, 0, 0));
        let ready = buffer.acquire_for_ready(4, true);
        assert_eq!((ready.prefetch, ready.slots), (4, 4));
        drop(ready);
        buffer.set_own_limits(false);
        assert_eq!(acquire_recorded(&buffer, 4, true).prefetch, 4);
    }

    #[tokio::test]
    async fn claimer_that_missed_places_is_woken_at_their_return_and_comes_first() {
        let rings = async |buffer: &PrefetchBuffer| {
            tokio::time::timeout(Duration::ZERO, buffer.wakeup().notified()).await.is_ok()
        };
        let buffer = single_tenant_buffer(0, &active(2));
        let some = (acquire_recorded(&buffer, 1, true), buffer.acquire_for_ready(2, true));
        assert_eq!(some.1.slots, 1);
        drop(some);
        assert!(!rings(&buffer).await, "nobody missed all of it");
        let all = acquire_recorded(&buffer, 2, true);
        assert_eq!(buffer.acquire_for_ready(1, true).slots, 0);
        assert!(!rings(&buffer).await);
        drop(all);
        assert!(rings(&buffer).await);
        assert_eq!((acquire_recorded(&buffer, 2, true).slots, buffer.acquire_ahead(2).prefetch), (0, 0));
        assert_eq!(buffer.acquire_for_ready(1, true).slots, 1);
        let (one, other) = (acquire_recorded(&buffer, 1, true), acquire_recorded(&buffer, 1, true));
        assert_eq!((one.slots, other.slots, buffer.has_free_slot()), (1, 1, false));
        drop(one);
        assert!(rings(&buffer).await);
    }

    #[test]
    fn claim_that_has_run_out_is_forgotten_whether_its_instant_was_seen_or_not() {
        let buffer = single_tenant_buffer(8, &active(4));
        buffer.add(vec![claim(1, 1), claim(2, 2), of(3, 3, 1)]);
        buffer.forget_expired(at(5));
        assert!(due(&buffer, 1, 0).is_empty());
        assert_eq!(available(&buffer), (9, 2));
        buffer.forget_expired(at(6));
        assert_eq!((available(&buffer), buffer.next()), ((11, 4), Some(at(2))));
        assert!(due(&buffer, 2, 0).is_empty());
        buffer.forget_expired(at(7));
        assert_eq!((available(&buffer), buffer.next()), ((12, 4), None));
    }
}
