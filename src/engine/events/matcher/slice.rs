//! Events of one tenant that were judged, with what is still to be recorded of them.
//!
//! A slice is recorded in pieces: each has a bounded number of matches and of bytes, so that no statement comes near
//! its time limit whatever one tenant's events match. Where a piece fails all the same, the next one is half as long,
//! down to one match, whose event is given up. A match that was recorded before is recorded no second time: its keys
//! are unique.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::base::id::Tenant;
use crate::engine::events::matcher::received::ReceivedEvent;
use crate::store::{Match, event_shard};

/// Matches that are recorded in one write.
pub const WRITE: usize = 500;
/// Of them such that rules with a memory decide, each by statements of its own.
pub const WRITE_BY_RULES: usize = 200;
/// Bytes of events in one write; each match has a copy of its event.
pub const WRITE_BYTES: usize = 4 * 1024 * 1024;
/// Least part of one slice in a write, where many slices wait.
const LEAST: usize = 50;

/// Judged events of one tenant.
pub struct Slice {
    pub tenant: Tenant,
    pub events: Vec<ReceivedEvent>,
    /// Those that become runs whatever else there was stand before those that rules decide.
    pub matches: Vec<Match>,
    /// The version of the index by which they were judged.
    pub version: i64,
    /// How many of the matches are recorded.
    recorded: usize,
    /// Matches of one write; less than [`WRITE`] after one that failed.
    most: usize,
    /// Whether it is written with no other slice: one of them has failed.
    alone: bool,
}

impl Slice {
    /// Events of a tenant that were judged by this version of the index; `alone`: they are written with no other slice.
    pub fn new(
        tenant: Tenant,
        events: Vec<ReceivedEvent>,
        mut matches: Vec<Match>,
        version: i64,
        alone: bool,
    ) -> Slice {
        matches.sort_by_key(|matched| !matched.is_stateless());
        Slice { tenant, events, matches, version, recorded: 0, most: WRITE, alone }
    }

    /// Puts one of the same tenant, judged later, behind it.
    pub fn append(&mut self, later: Slice) {
        self.events.extend(later.events);
        self.matches.extend(later.matches);
        self.version = self.version.min(later.version);
        self.alone |= later.alone;
    }

    /// How many of the matches are not recorded.
    pub fn unrecorded(&self) -> usize {
        self.matches.len() - self.recorded
    }

    fn is_recorded(&self) -> bool {
        self.recorded == self.matches.len()
    }

    /// The next matches, `room` and so many bytes at most; one at least.
    fn next(&self, room: usize, bytes: &mut usize) -> Range<usize> {
        let mut end = self.recorded;
        let last = self.matches.len().min(self.recorded + room.min(self.most));
        while end < last {
            let cost = self.matches[end].arrival.cause().get().len();
            if cost > *bytes && end > self.recorded {
                break;
            }
            *bytes = bytes.saturating_sub(cost);
            end += 1;
        }
        self.recorded..end
    }
}

/// Slices that wait to be recorded, in the order of their turns.
#[derive(Default)]
pub struct SliceQueue(VecDeque<Slice>);

/// The events of one write: a part of each of the first slices.
pub struct SlicePiece {
    parts: Vec<Range<usize>>,
    /// The shards of the tenants, each with the version of the index.
    pub shards: Vec<(i32, i64)>,
    pub matches: Vec<Match>,
}

/// A write that failed, and what follows from it.
pub enum FailedWrite {
    /// It is tried again in smaller parts.
    Again,
    /// The event is what fails; it is out of its slice.
    Event(ReceivedEvent),
}

impl SliceQueue {
    /// Whether no slice waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slices, in the order of their turns.
    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.0.iter()
    }

    /// Whether more of a tenant may be judged: not while a write's worth of it waits here.
    pub fn has_room(&self, tenant: &Tenant) -> bool {
        let waits = |slice: &&Slice| slice.tenant == *tenant && slice.unrecorded() >= WRITE;
        !self.0.iter().any(|slice| waits(&slice))
    }

    /// Whether a slice of the tenant waits.
    pub fn contains(&self, tenant: &Tenant) -> bool {
        self.0.iter().any(|slice| slice.tenant == *tenant)
    }

    /// The tenants of a piece.
    pub fn tenants_of(&self, piece: &SlicePiece) -> Vec<Tenant> {
        self.0.iter().take(piece.parts.len()).map(|slice| slice.tenant.clone()).collect()
    }

    /// Takes out the slice of a tenant, while nothing of it is being written.
    pub fn take(&mut self, tenant: &Tenant) -> Option<Slice> {
        let place = self.0.iter().position(|slice| slice.tenant == *tenant)?;
        self.0.remove(place)
    }

    /// Adds a slice: to the one of its tenant, where there is one, else behind all.
    pub fn push(&mut self, slice: Slice) {
        match self.0.iter_mut().find(|before| before.tenant == slice.tenant) {
            Some(before) => before.append(slice),
            None => self.0.push_back(slice),
        }
    }

    /// The next piece to write, of so many matches at most.
    pub fn next(&self, most: usize) -> Option<SlicePiece> {
        let first = self.0.front()?;
        let together = match first.alone {
            true => 1,
            false => self.0.iter().take_while(|slice| !slice.alone).count(),
        };
        let (mut room, mut bytes) = (most.clamp(1, WRITE), WRITE_BYTES);
        let share = (room / together).max(LEAST.min(room));
        let mut piece = SlicePiece { parts: Vec::new(), shards: Vec::new(), matches: Vec::new() };
        let mut versions: BTreeMap<i32, i64> = BTreeMap::new();
        for slice in self.0.iter().take(together) {
            if room == 0 || (bytes == 0 && !piece.parts.is_empty()) {
                break;
            }
            let part = slice.next(share.min(room), &mut bytes);
            room -= part.len();
            piece.matches.extend_from_slice(&slice.matches[part.clone()]);
            piece.parts.push(part);
            let version = versions.entry(event_shard(slice.tenant.as_str())).or_insert(slice.version);
            *version = slice.version.min(*version);
        }
        piece.shards = versions.into_iter().collect();
        Some(piece)
    }

    /// The piece is recorded. Answers the events that are recorded whole; the other slices wait behind all others.
    pub fn recorded(&mut self, piece: &SlicePiece) -> Vec<ReceivedEvent> {
        let mut whole = Vec::new();
        for (part, mut slice) in piece.parts.iter().zip(self.0.drain(..piece.parts.len()).collect::<Vec<_>>()) {
            slice.recorded = part.end;
            slice.most = (slice.most * 2).min(WRITE);
            match slice.is_recorded() {
                true => whole.extend(slice.events),
                false => self.0.push_back(slice),
            }
        }
        whole
    }

    /// The index was older than the tasks. Answers the slices, whose events are to be judged anew.
    pub fn stale(&mut self, piece: &SlicePiece) -> Vec<Slice> {
        self.0.drain(..piece.parts.len()).collect()
    }

    /// The piece can't be recorded. Those that were written together wait apart, and one that was alone waits to be
    /// written in half of the piece; behind all others.
    pub fn failed(&mut self, piece: &SlicePiece) -> FailedWrite {
        let mut slices: Vec<Slice> = self.0.drain(..piece.parts.len()).collect();
        let mut failed = FailedWrite::Again;
        if let [slice] = &mut slices[..] {
            match piece.matches.as_slice() {
                [only] => {
                    let arrival = Arc::clone(&only.arrival);
                    slice.matches.drain(..slice.recorded);
                    slice.recorded = 0;
                    slice.matches.retain(|matched| !Arc::ptr_eq(&matched.arrival, &arrival));
                    let place = slice.events.iter().position(|taken| Arc::ptr_eq(&taken.arrival, &arrival));
                    failed = place.map_or(FailedWrite::Again, |place| FailedWrite::Event(slice.events.remove(place)));
                }
                _ => slice.most = (piece.matches.len() / 2).max(1),
            }
        }
        for mut slice in slices {
            slice.alone = true;
            if !slice.events.is_empty() {
                self.0.push_back(slice);
            }
        }
        failed
    }

    /// The entries that a piece is of.
    pub fn ids_of(&self, piece: &SlicePiece) -> Vec<String> {
        let slices = self.0.iter().take(piece.parts.len());
        slices.flat_map(|slice| slice.events.iter().map(|taken| taken.id.clone())).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::domain::event::Event;
    use crate::domain::task::TaskStatus;
    use crate::domain::trigger::event::{Arrival, EventVerdict, MatchPath};

    /// A slice with so many events, each of which is as long and fires as many tasks.
    pub fn slice(tenant: &str, events: usize, tasks: usize, bytes: usize) -> Slice {
        let taken: Vec<ReceivedEvent> = (0..events)
            .map(|id| {
                let event = json!({ "specversion": "1.0", "id": id.to_string(), "source": "s", "type": "t",
                                    "tenantid": tenant, "data": "x".repeat(bytes) });
                let arrival = Arc::new(Arrival::new(Event::try_from(event).unwrap()));
                ReceivedEvent { id: format!("{tenant}{id}"), deliveries: 1, arrival }
            })
            .collect();
        let matched = |taken: &ReceivedEvent, task: usize| Match {
            task_id: Uuid::from_u128(task as u128),
            epoch: 1,
            status: TaskStatus::Active,
            buffer_while_paused: false,
            max_runs: None,
            arrival: Arc::clone(&taken.arrival),
            verdict: EventVerdict::Fires(MatchPath::default()),
        };
        let matches = taken.iter().flat_map(|taken| (0..tasks).map(move |task| matched(taken, task))).collect();
        Slice::new(Tenant::new(tenant).unwrap(), taken, matches, 3, false)
    }

    fn ids(taken: Vec<ReceivedEvent>) -> Vec<String> {
        taken.into_iter().map(|taken| taken.id).collect()
    }

    #[test]
    fn write_is_bounded_and_a_quiet_tenant_is_in_the_first() {
        let mut ready = SliceQueue::default();
        ready.push(slice("loud", 3, 1000, 1));
        ready.push(slice("quiet", 1, 1, 1));
        let first = ready.next(WRITE).unwrap();
        assert_eq!(first.matches.len(), WRITE / 2 + 1);
        assert_eq!(ids(ready.recorded(&first)), ["quiet0"]);
        let mut writes = 1;
        while let Some(piece) = ready.next(WRITE) {
            assert!(piece.matches.len() <= WRITE);
            ready.recorded(&piece);
            writes += 1;
        }
        assert_eq!(writes, 7, "2,750 that are left, 500 at once");
    }

    #[test]
    fn short_write_has_a_part_of_each_tenant_too() {
        let mut ready = SliceQueue::default();
        ready.push(slice("loud", 3, 1000, 1));
        ready.push(slice("quiet", 1, 1, 1));
        let first = ready.next(60).unwrap();
        assert_eq!((first.matches.len(), ids(ready.recorded(&first))), (51, vec!["quiet0".to_owned()]));
        assert_eq!(ready.next(0).unwrap().matches.len(), 1, "one at least");
    }

    #[test]
    fn write_is_bounded_in_bytes() {
        let mut ready = SliceQueue::default();
        ready.push(slice("loud", 1, 1000, 256 * 1024 - 300));
        let piece = ready.next(WRITE).unwrap();
        assert!((15..=17).contains(&piece.matches.len()), "{}", piece.matches.len());
    }

    #[test]
    fn failing_slice_is_halved_down_to_the_event_and_holds_up_no_other() {
        let mut ready = SliceQueue::default();
        ready.push(slice("loud", 4, 1, 1));
        ready.push(slice("quiet", 1, 1, 1));
        let (mut given_up, mut recorded, mut writes) = (Vec::new(), Vec::new(), 0);
        while let Some(piece) = ready.next(WRITE) {
            writes += 1;
            assert!(writes < 20, "it comes to an end");
            let tenants: Vec<&str> =
                piece.matches.iter().map(|matched| matched.arrival.event.tenant.as_str()).collect();
            let poisoned = |matched: &Match| {
                (matched.arrival.event.tenant.as_str(), matched.arrival.event.id.as_str()) == ("loud", "1")
            };
            if !piece.matches.iter().any(poisoned) {
                recorded.extend(ids(ready.recorded(&piece)));
            } else if let FailedWrite::Event(taken) = ready.failed(&piece) {
                given_up.push(taken.id);
            }
            assert!(writes == 1 || tenants.windows(2).all(|pair| pair[0] == pair[1]), "apart after the first");
        }
        recorded.sort();
        assert_eq!(
            (given_up, recorded),
            (vec!["loud1".to_owned()], vec!["loud0".into(), "loud2".into(), "loud3".into(), "quiet0".into()])
        );
    }

    #[test]
    fn slices_of_one_tenant_keep_their_order_and_go_by_the_older_index() {
        let mut ready = SliceQueue::default();
        ready.push(slice("a", 1, 2, 1));
        ready.push(Slice { version: 2, ..slice("a", 1, 1, 1) });
        let piece = ready.next(WRITE).unwrap();
        assert_eq!((piece.matches.len(), piece.shards), (3, vec![(event_shard("a"), 2)]));
    }
}
