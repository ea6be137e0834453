//! Slices that wait to be recorded, in two lanes. A tenant of which few matches are to be recorded waits for no write
//! of many: its lane goes on beside it.

use crate::base::id::Tenant;
use crate::engine::events::matcher::received::{EventLoad, ReceivedEvent};
use crate::engine::events::matcher::slice::{FailedWrite, Slice, SlicePiece, SliceQueue};

/// Matches of a tenant that are few. They cost hardly more than the commit that records them.
const FEW: usize = 25;

/// Which lane a piece is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Few,
    Many,
}

/// Slices that are judged and not recorded. A tenant has its slice in one lane.
#[derive(Default)]
pub struct Lanes {
    few: SliceQueue,
    many: SliceQueue,
    /// The lane that was recorded from last.
    last: Option<Lane>,
    /// The tenants of which a piece of many is being written.
    writing: Vec<Tenant>,
    /// Slices of those tenants that were judged meanwhile. That write does not check by which tasks they were judged.
    late: Vec<Slice>,
}

impl Lanes {
    /// Whether no slice waits.
    pub fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty() && self.late.is_empty()
    }

    /// The bytes of what waits here, by tenant.
    pub fn bytes(&self) -> impl Iterator<Item = (Tenant, usize)> {
        let slices = self.few.iter().chain(self.many.iter()).chain(&self.late);
        slices.map(|slice| (slice.tenant.clone(), EventLoad::of(&slice.events).bytes))
    }

    /// Whether more of a tenant may be judged: not while a write's worth of it waits here.
    pub fn has_room(&self, tenant: &Tenant) -> bool {
        let is_late = self.late.iter().any(|slice| slice.tenant == *tenant);
        !is_late && self.few.has_room(tenant) && self.many.has_room(tenant)
    }

    /// Puts a slice behind what waits of its tenant. It goes by the lane of few unless it has many matches, or waits
    /// behind many.
    pub fn push(&mut self, slice: Slice) {
        if self.writing.contains(&slice.tenant) {
            return self.late.push(slice);
        }
        let slice = match self.few.take(&slice.tenant) {
            Some(mut before) => {
                before.append(slice);
                before
            }
            None => slice,
        };
        match slice.unrecorded() > FEW || self.many.contains(&slice.tenant) {
            true => self.many.push(slice),
            false => self.few.push(slice),
        }
    }

    /// The lane that is recorded from next, where both have something in turn; `None`: nothing waits.
    pub fn next(&mut self) -> Option<Lane> {
        self.last = match (self.few.is_empty(), self.many.is_empty()) {
            (true, true) => None,
            (false, true) => Some(Lane::Few),
            (true, false) => Some(Lane::Many),
            (false, false) if self.last == Some(Lane::Few) => Some(Lane::Many),
            (false, false) => Some(Lane::Few),
        };
        self.last
    }

    /// The next piece of a lane, of so many matches at most. Slices of its tenants that are judged before it is settled
    /// wait aside.
    pub fn next_piece(&mut self, lane: Lane, most: usize) -> Option<SlicePiece> {
        let piece = self.lane(lane).next(most)?;
        if lane == Lane::Many {
            self.writing = self.many.tenants_of(&piece);
        }
        Some(piece)
    }

    /// The piece is recorded. Answers the events that are recorded whole.
    pub fn recorded(&mut self, lane: Lane, piece: &SlicePiece) -> Vec<ReceivedEvent> {
        let whole = self.lane(lane).recorded(piece);
        self.settled(lane);
        whole
    }

    /// The index was older than the tasks. Answers the slices, whose events are to be judged anew.
    pub fn stale(&mut self, lane: Lane, piece: &SlicePiece) -> Vec<Slice> {
        let mut stale = self.lane(lane).stale(piece);
        // what was judged later stands behind them, and is judged anew, too
        if lane == Lane::Many {
            stale.append(&mut self.late);
        }
        self.settled(lane);
        stale
    }

    /// The piece can't be recorded.
    pub fn failed(&mut self, lane: Lane, piece: &SlicePiece) -> FailedWrite {
        let failed = self.lane(lane).failed(piece);
        self.settled(lane);
        failed
    }

    /// The piece is tried again as it is, once the store answers.
    pub fn not_recorded(&mut self, lane: Lane) {
        self.settled(lane);
    }

    fn settled(&mut self, lane: Lane) {
        if lane == Lane::Many {
            self.writing.clear();
            std::mem::take(&mut self.late).into_iter().for_each(|slice| self.push(slice));
        }
    }

    /// The slices of a lane.
    pub fn lane(&mut self, lane: Lane) -> &mut SliceQueue {
        match lane {
            Lane::Few => &mut self.few,
            Lane::Many => &mut self.many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::events::matcher::slice::tests::slice;

    fn waiting(lanes: &mut Lanes, lane: Lane) -> usize {
        lanes.lane(lane).next(500).map_or(0, |piece| piece.matches.len())
    }

    #[test]
    fn few_matches_of_a_tenant_are_not_in_the_lane_of_many() {
        let mut lanes = Lanes::default();
        lanes.push(slice("loud", 1, FEW + 1, 1));
        lanes.push(slice("quiet", 1, FEW, 1));
        assert_eq!((waiting(&mut lanes, Lane::Few), waiting(&mut lanes, Lane::Many)), (FEW, FEW + 1));
    }

    #[test]
    fn matches_of_a_tenant_keep_their_order_whichever_lane_they_go_by() {
        let mut lanes = Lanes::default();
        lanes.push(slice("a", 1, FEW, 1));
        lanes.push(slice("a", 1, 1, 1));
        assert_eq!((waiting(&mut lanes, Lane::Few), waiting(&mut lanes, Lane::Many)), (0, FEW + 1), "many together");
        lanes.push(slice("a", 1, 1, 1));
        assert_eq!((waiting(&mut lanes, Lane::Few), waiting(&mut lanes, Lane::Many)), (0, FEW + 2), "behind them");
    }

    #[test]
    fn events_that_are_judged_during_a_write_of_their_tenant_are_not_recorded_with_it() {
        let mut lanes = Lanes::default();
        lanes.push(slice("loud", 1, FEW + 1, 1));
        let piece = lanes.next_piece(Lane::Many, 500).unwrap();
        // by tasks that may have changed since the write looked at their version, and they matched none
        let mut late = slice("loud", 1, 0, 1);
        late.events[0].id = "late".into();
        lanes.push(late);
        assert!(!lanes.is_empty() && !lanes.has_room(&Tenant::new("loud").unwrap()));
        let whole: Vec<String> = lanes.recorded(Lane::Many, &piece).into_iter().map(|taken| taken.id).collect();
        assert_eq!(whole, ["loud0"]);
        let piece = lanes.next_piece(Lane::Few, 500).unwrap();
        assert_eq!((piece.matches.len(), piece.shards.len()), (0, 1), "its version is checked by a write of its own");
        assert_eq!(lanes.recorded(Lane::Few, &piece).len(), 1);
        assert!(lanes.is_empty());
    }

    #[test]
    fn lanes_take_turns() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.next(), None);
        lanes.push(slice("loud", 1, FEW + 1, 1));
        lanes.push(slice("quiet", 1, 1, 1));
        let turns: Vec<_> = (0..4).map(|_| lanes.next().unwrap()).collect();
        assert_eq!(turns, [Lane::Few, Lane::Many, Lane::Few, Lane::Many]);
    }
}
