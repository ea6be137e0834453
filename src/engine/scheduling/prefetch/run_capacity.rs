//! How many more runs this instance may start (`engine.max_concurrent_runs`, and those ahead of their slots), and lease
//! ahead of their instant (`engine.prefetch`): reserved before the database is asked, by tenants' shares.

use std::collections::HashMap;

use crate::engine::scheduling::run_slots::RunSlots;
use crate::store::Shares;

/// Capacity beside the claims that the instance holds already.
pub(super) struct RunCapacity {
    prefetch: usize,
    /// Where limits on runs are kept, a take alone leases.
    limited: bool,
    /// Tenants have limits of their own, as far as is known.
    own_limits: bool,
    slots: RunSlots,
    /// Runs that may be leased by all reservations together.
    reserved: usize,
    /// Whether the worker found no slot because others have reserved all of them.
    starved: bool,
}

/// Numbers of claims that are held and not started.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeldClaims {
    /// Claims whose instant is to come.
    pub waiting: usize,
    /// Claims whose instant has come.
    pub due: usize,
    /// Due claims of tenants that may have another slot.
    pub startable: usize,
}

/// Capacity that is set aside while a database call is in flight.
pub(super) struct ReservedCapacity {
    /// How many runs may be leased, those that start included.
    pub prefetch: usize,
    /// How many of them may start.
    pub slots: usize,
    /// The tenants that may have them.
    pub shares: Shares,
}

impl RunCapacity {
    pub(super) fn new(prefetch: usize, limited: bool, slots: RunSlots) -> RunCapacity {
        RunCapacity { prefetch, limited, own_limits: false, slots, reserved: 0, starved: false }
    }

    pub(super) fn set_own_limits(&mut self, own: bool) {
        self.own_limits = own;
    }

    pub(super) fn has_own_limits(&self) -> bool {
        self.own_limits
    }

    pub(super) fn set_single_tenant(&self, single_tenant: bool) {
        self.slots.set_single_tenant(single_tenant);
    }

    /// For so many runs of each tenant, by its hash, that are leased as they are recorded, and of which those that are
    /// late may start at once. What none of these tenants may have stays free for others.
    pub(super) fn reserve_for_recorded(
        &mut self,
        held: HeldClaims,
        runs: &HashMap<u32, usize>,
        behind: bool,
    ) -> ReservedCapacity {
        let shares = self.shares_beside(held);
        let (mut most, mut may_start) = (0, 0);
        for (tenant, count) in runs {
            let available = shares.available_to(*tenant);
            most += if available > 0 { *count } else { 0 };
            may_start += available.min(*count);
        }
        let (prefetch, slots) = self.available_for_recorded(held);
        let slots = leave_reserve(slots.saturating_sub(held.waiting), behind).min(may_start);
        self.reserve_with_shares(shares, prefetch.min(most), slots)
    }

    /// For runs that are leased as they are recorded, and none of which starts with it.
    pub(super) fn reserve_ahead(&mut self, held: HeldClaims, most: usize) -> ReservedCapacity {
        let (prefetch, _) = self.available_for_recorded(held);
        self.reserve(prefetch.min(most), 0)
    }

    /// For runs that are ready, no more than could start.
    pub(super) fn reserve_for_ready(&mut self, held: HeldClaims, most: usize, behind: bool) -> ReservedCapacity {
        let (prefetch, slots) = self.available(held);
        self.starved = slots == 0 && self.slots.has_reserved();
        let slots = leave_reserve(slots, behind).min(most);
        self.reserve_with_shares(self.shares_beside(held), prefetch.min(slots), slots)
    }

    /// For up to `most` of the due claims that are held.
    pub(super) fn reserve_for_due(&mut self, most: usize) -> ReservedCapacity {
        let shares = self.shares(self.slots.free());
        let slots = self.slots.reserve(most);
        self.reserved += slots;
        ReservedCapacity { prefetch: slots, slots, shares }
    }

    /// Gives back what was reserved; answers whether the worker waits for it.
    pub(super) fn release(&mut self, prefetch: usize, slots: usize) -> bool {
        self.reserved -= prefetch;
        self.slots.unreserve(slots);
        slots > 0 && self.starved
    }

    /// Whether a claim could start. Where others have reserved all slots, the worker waits for what they release.
    pub(super) fn has_free_slot(&mut self) -> bool {
        let slots = self.slots.free();
        self.starved |= slots == 0 && self.slots.has_reserved();
        slots > 0
    }

    /// Leased ahead may be those that could start now, and of the prefetch the same part: so a busy instance leaves to
    /// the others what it could not start itself. Starting may those that find a slot, or a place ahead of one, beside
    /// the claims whose instant has come.
    pub(super) fn available(&self, held: HeldClaims) -> (usize, usize) {
        let (free, slots) = (self.slots.unoccupied(), self.slots.capacity());
        let prefetch = if self.has_limits() { 0 } else { self.prefetch };
        let ahead = prefetch * free.min(slots) / slots.max(1);
        let prefetch = (free + ahead).saturating_sub(held.waiting + held.due + self.reserved);
        (prefetch, self.slots.free().saturating_sub(held.startable))
    }

    /// Nothing where only a take leases, or the worker missed a slot.
    fn available_for_recorded(&self, held: HeldClaims) -> (usize, usize) {
        match !self.has_limits() && !self.starved {
            true => self.available(held),
            false => (0, 0),
        }
    }

    fn has_limits(&self) -> bool {
        self.limited || self.own_limits
    }

    fn reserve(&mut self, prefetch: usize, slots: usize) -> ReservedCapacity {
        self.reserved += prefetch;
        ReservedCapacity { prefetch, slots: self.slots.reserve(slots), shares: Shares::default() }
    }

    /// For a caller that chooses among the tenants, whose shares these are.
    fn reserve_with_shares(&mut self, shares: Shares, prefetch: usize, slots: usize) -> ReservedCapacity {
        ReservedCapacity { shares, ..self.reserve(prefetch, slots) }
    }

    /// The shares of slots that are free beside the claims that have come to their instant. What others have asked for
    /// and do not know yet is nobody's: so two who ask in the same moment may together leave a tenant more than one
    /// after the other would.
    fn shares_beside(&self, held: HeldClaims) -> Shares {
        self.shares(self.slots.free().saturating_sub(held.startable))
    }

    /// The shares of slots that are free.
    fn shares(&self, free: usize) -> Shares {
        let single_tenant = self.slots.is_single_tenant();
        let occupants = if single_tenant || free == 0 { HashMap::new() } else { self.slots.occupants() };
        Shares { free, occupants, single_tenant }
    }
}

/// Unless there is more than can be done at once, a quarter of the slots is left.
fn leave_reserve(slots: usize, behind: bool) -> usize {
    if behind { slots } else { slots - slots / 4 }
}
