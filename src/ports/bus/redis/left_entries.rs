//! The ids of entries that a consumer has left, by tenant, in order. Lost with the process: the entries come to others then.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::base::id::Tenant;
use crate::ports::bus::BusEntry;
use crate::ports::bus::redis::streams::{StreamId, read_entry_name};

/// Ids that are kept at most, of 40 bytes each.
const MOST: usize = 200_000;

/// Ids of entries that were left, by tenant.
#[derive(Default)]
pub(super) struct LeftEntries {
    queues: HashMap<Tenant, VecDeque<LeftEntry>>,
    /// The tenants in `queues`, in the order of their turns.
    turns: VecDeque<Tenant>,
    len: usize,
    renewed: Option<Instant>,
}

/// An entry that was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftEntry {
    pub partition: u32,
    pub id: StreamId,
    /// How often it was handed out, which leaving it does not add to.
    pub deliveries: u32,
}

/// Entries that were read, by what becomes of them.
#[derive(Default)]
pub(super) struct SortedEntries {
    pub wanted: Vec<BusEntry>,
    /// Those that are left, and whose ids are not kept.
    pub given_up: Vec<BusEntry>,
}

impl LeftEntries {
    /// Leaves those of tenants that are `full`, or of which earlier ones are left.
    pub fn sort(&mut self, entries: Vec<BusEntry>, full: &[Tenant]) -> SortedEntries {
        self.sort_within(entries, full, MOST)
    }

    fn sort_within(&mut self, entries: Vec<BusEntry>, full: &[Tenant], most: usize) -> SortedEntries {
        let mut sorted = SortedEntries::default();
        for entry in entries {
            let tenant = entry.event.as_ref().ok().map(|event| &event.tenant);
            let is_left = |tenant: &&Tenant| full.contains(tenant) || self.queues.contains_key(tenant);
            match (tenant.filter(is_left).cloned(), read_entry_name(&entry.id)) {
                (Some(tenant), Ok((partition, id))) if self.len < most => {
                    self.push(tenant, LeftEntry { partition, id, deliveries: entry.deliveries });
                }
                (Some(_), _) => sorted.given_up.push(entry),
                (None, _) => sorted.wanted.push(entry),
            }
        }
        sorted
    }

    fn push(&mut self, tenant: Tenant, left: LeftEntry) {
        if !self.queues.contains_key(&tenant) {
            self.turns.push_back(tenant.clone());
        }
        self.queues.entry(tenant).or_default().push_back(left);
        self.renewed.get_or_insert_with(Instant::now);
        self.len += 1;
    }

    /// Up to so many, the oldest first, of the next tenant that is not `full`.
    pub fn take(&mut self, full: &[Tenant], limit: usize) -> Vec<LeftEntry> {
        let next = self.turns.iter().position(|tenant| !full.contains(tenant));
        let Some(tenant) = next.and_then(|at| self.turns.remove(at)) else { return Vec::new() };
        let Some(queue) = self.queues.get_mut(&tenant) else { return Vec::new() };
        let taken: Vec<LeftEntry> = queue.drain(..limit.min(queue.len())).collect();
        self.len -= taken.len();
        match queue.is_empty() {
            true => drop(self.queues.remove(&tenant)),
            false => self.turns.push_back(tenant),
        }
        if self.len == 0 {
            self.renewed = None;
        }
        taken
    }

    /// All ids by partition, where some were not renewed for so long.
    pub fn take_due(&mut self, after: Duration) -> HashMap<u32, Vec<StreamId>> {
        let mut due: HashMap<u32, Vec<StreamId>> = HashMap::new();
        if self.renewed.is_some_and(|at| at.elapsed() >= after) {
            self.renewed = Some(Instant::now());
            self.queues.values().flatten().for_each(|left| due.entry(left.partition).or_default().push(left.id));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::event::Event;
    use crate::ports::bus::redis::streams::entry_name;

    fn entry(tenant: &str, number: u64) -> BusEntry {
        let event =
            json!({ "specversion": "1.0", "id": number.to_string(), "source": "s", "type": "t", "tenantid": tenant });
        let event = Event::try_from(event).expect("an event");
        BusEntry { id: entry_name(3, &StreamId(number, 0).to_string()), event: Ok(event), deliveries: 1 }
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a tenant")
    }

    fn numbers(left: &[LeftEntry]) -> Vec<u64> {
        left.iter().map(|left| left.id.0).collect()
    }

    #[test]
    fn entries_of_a_tenant_are_left_in_order_as_long_as_earlier_ones_are() {
        let mut left = LeftEntries::default();
        let full = [tenant("loud")];
        let sorted = left.sort(vec![entry("loud", 1), entry("quiet", 2), entry("loud", 3)], &full);
        assert_eq!((sorted.wanted, sorted.given_up), (vec![entry("quiet", 2)], vec![]));
        assert_eq!(left.take(&full, 10), [], "it is full");
        let sorted = left.sort(vec![entry("loud", 4)], &[]);
        assert_eq!(sorted.wanted, [], "it is full no more, and earlier ones are left");
        assert_eq!(numbers(&left.take(&[], 2)), [1, 3]);
        assert_eq!(numbers(&left.take(&[], 2)), [4]);
        assert_eq!(left.sort(vec![entry("loud", 5)], &[]).wanted, [entry("loud", 5)], "nothing is left of it");
    }

    #[test]
    fn tenants_of_which_some_are_left_take_turns() {
        let mut left = LeftEntries::default();
        let full = [tenant("a"), tenant("b")];
        left.sort(vec![entry("a", 1), entry("a", 2), entry("b", 3)], &full);
        let turns: Vec<_> = (0..4).map(|_| numbers(&left.take(&[], 1))).collect();
        assert_eq!(turns, [vec![1], vec![3], vec![2], vec![]]);
    }

    #[test]
    fn entries_beyond_the_bound_are_given_up() {
        let mut left = LeftEntries::default();
        let full = [tenant("loud")];
        let sorted = left.sort_within((1..5).map(|number| entry("loud", number)).collect(), &full, 3);
        assert_eq!(sorted.given_up, [entry("loud", 4)]);
        left.take(&[], 1);
        assert_eq!(left.sort_within(vec![entry("loud", 5)], &full, 3).given_up, []);
    }
}
