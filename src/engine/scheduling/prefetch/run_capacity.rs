//! How many more runs this instance may start (`engine.max_concurrent_runs`), and lease ahead of their instant
//! (`engine.prefetch`): permits that are taken before the database is asked, by tenants' shares.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::scheduling::prefetch::{Claims, PrefetchBuffer};
use crate::store::Shares;

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
    /// From now on tenants have limits of their own, or have none: as long as they do, nothing is leased but by a take.
    pub fn set_own_limits(&self, own: bool) {
        self.own_limits.store(own, Ordering::Relaxed);
    }

    /// Whether tenants have limits of their own.
    pub fn has_own_limits(&self) -> bool {
        self.own_limits.load(Ordering::Relaxed)
    }

    fn has_limits(&self) -> bool {
        self.limited || self.has_own_limits()
    }

    /// From now on all tasks are of one tenant, or are not: then no tenant may have all places.
    pub fn set_single_tenant(&self, single_tenant: bool) {
        self.slots.set_single_tenant(single_tenant);
    }

    /// Room for up to `most` runs that are leased as they are recorded, of which those that are late may start at once:
    /// beside all that is held, so that nothing that is on time waits for them. A caller that is not `behind` leaves
    /// places to runs that become ready meanwhile.
    pub fn acquire_for_recorded(self: &Arc<PrefetchBuffer>, most: usize, behind: bool) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("prefetch lock");
        let (prefetch, slots) = self.available_for_recorded(&claims);
        let slots = leave_reserve(slots.saturating_sub(claims.waiting.len()), behind);
        self.acquire_with_shares(&mut claims, prefetch.min(most), slots.min(most))
    }

    /// Room for up to `most` runs that are leased as they are recorded, and none of which starts with it.
    pub fn acquire_ahead(self: &Arc<PrefetchBuffer>, most: usize) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("prefetch lock");
        let (prefetch, _) = self.available_for_recorded(&claims);
        self.acquire(&mut claims, prefetch.min(most), 0)
    }

    /// The shares of places that are free.
    pub(super) fn shares(&self, free: usize) -> Shares {
        let single_tenant = self.slots.is_single_tenant();
        let occupants = if single_tenant || free == 0 { HashMap::new() } else { self.slots.occupants() };
        Shares { free, occupants, single_tenant }
    }

    /// Room for up to `most` runs that are ready, no more than could start. A caller that is not `behind` leaves places
    /// to runs that become ready meanwhile. Where others have all of them just now, the worker is woken as soon as they
    /// know what they need, and they get no more before it was asked for again.
    pub fn acquire_for_ready(self: &Arc<PrefetchBuffer>, most: usize, behind: bool) -> PrefetchPermit {
        let mut claims = self.claims.lock().expect("prefetch lock");
        let (prefetch, slots) = self.available(&claims);
        claims.starved = slots == 0 && self.slots.has_reserved();
        let slots = leave_reserve(slots, behind).min(most);
        self.acquire_with_shares(&mut claims, prefetch.min(slots), slots)
    }

    /// Leased ahead may be those that could start now, and of the prefetch the same part: so a busy instance leaves to
    /// the others what it could not start itself. Starting may those that find a place beside the claims whose instant
    /// has come.
    pub(super) fn available(&self, claims: &Claims) -> (usize, usize) {
        let free = self.slots.unoccupied();
        let prefetch = if self.has_limits() { 0 } else { self.prefetch };
        let ahead = prefetch * free / self.slots.capacity().max(1);
        let prefetch = (free + ahead).saturating_sub(claims.waiting.len() + claims.due.len() + claims.reserved);
        (prefetch, self.slots.free().saturating_sub(claims.due.startable()))
    }

    /// Nothing where only a take leases, or the worker missed a place.
    fn available_for_recorded(&self, claims: &Claims) -> (usize, usize) {
        match !self.has_limits() && !claims.starved {
            true => self.available(claims),
            false => (0, 0),
        }
    }

    fn acquire(self: &Arc<PrefetchBuffer>, claims: &mut Claims, prefetch: usize, slots: usize) -> PrefetchPermit {
        let slots = self.slots.reserve(slots);
        self.permit(claims, prefetch, slots)
    }

    /// A permit for places that are asked for already.
    pub(super) fn permit(
        self: &Arc<PrefetchBuffer>,
        claims: &mut Claims,
        prefetch: usize,
        slots: usize,
    ) -> PrefetchPermit {
        claims.reserved += prefetch;
        PrefetchPermit { buffer: Arc::clone(self), prefetch, slots, shares: Shares::default() }
    }

    /// For a caller that chooses among the tenants. What others have asked for and do not know yet is nobody's: so two
    /// who ask in the same moment may together leave a tenant more than one after the other would.
    fn acquire_with_shares(
        self: &Arc<PrefetchBuffer>,
        claims: &mut Claims,
        prefetch: usize,
        slots: usize,
    ) -> PrefetchPermit {
        let shares = self.shares(self.slots.free().saturating_sub(claims.due.startable()));
        let mut permit = self.acquire(claims, prefetch, slots);
        permit.shares = shares;
        permit
    }

    /// Whether a claim could start. Where others have all places just now, the worker is woken as soon as they know what they
    /// need.
    pub fn has_free_slot(&self) -> bool {
        let mut claims = self.claims.lock().expect("prefetch lock");
        let slots = self.slots.free();
        claims.starved |= slots == 0 && self.slots.has_reserved();
        slots > 0
    }
}

/// Unless there is more than can be done at once, a quarter of the places is left.
fn leave_reserve(slots: usize, behind: bool) -> usize {
    if behind { slots } else { slots - slots / 4 }
}

impl Drop for PrefetchPermit {
    fn drop(&mut self) {
        let mut claims = self.buffer.claims.lock().expect("prefetch lock");
        claims.reserved -= self.prefetch;
        self.buffer.slots.unreserve(self.slots);
        if self.slots > 0 && claims.starved {
            self.buffer.wakeup.notify_one();
        }
    }
}
