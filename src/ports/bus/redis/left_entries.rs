//! The ids of entries that a consumer has left, by tenant, in order. Lost with the process: the entries come to others
//! then.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::base::id::Tenant;
use crate::ports::bus::BusEntry;
use crate::ports::bus::redis::streams::{StreamId, read_entry_name};

/// Ids that are kept, of 40 bytes each; twice as many at most, where many tenants have few.
const MOST: usize = 200_000;
/// Ids of one tenant that are kept however many others have.
const FEW: usize = 1_000;

/// Ids of entries that were left, by tenant.
#[derive(Default)]
pub(super) struct LeftEntries {
    queues: HashMap<Tenant, VecDeque<LeftEntry>>,
    /// The tenants in `queues`, in the order of their turns.
    turns: VecDeque<Tenant>,
    len: usize,
    /// When ids began to be renewed for the last time.
    renewed: Option<Instant>,
    /// The tenants whose ids are still to be renewed, and how many of the first one's are.
    pass: VecDeque<Tenant>,
    pass_done: usize,
}

/// An entry that was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftEntry {
    pub partition: u32,
    pub id: StreamId,
    /// How often it was handed out, the next time included: leaving it does not count.
    pub deliveries: u32,
}

/// Entries that were read, by what becomes of them.
#[derive(Default)]
pub(super) struct SortedEntries {
    pub wanted: Vec<BusEntry>,
    /// Those that are left.
    pub left: Vec<LeftEntry>,
    /// Whether the ids of some of them are not kept.
    pub gave_up: bool,
}

impl LeftEntries {
    /// Leaves those of tenants that are `full`, or of which earlier ones are left.
    pub fn sort(&mut self, entries: Vec<BusEntry>, full: &[Tenant]) -> SortedEntries {
        self.sort_within(entries, full, MOST, FEW)
    }

    fn sort_within(&mut self, entries: Vec<BusEntry>, full: &[Tenant], most: usize, few: usize) -> SortedEntries {
        let mut sorted = SortedEntries::default();
        for entry in entries {
            let tenant = entry.event.as_ref().ok().map(|event| &event.tenant);
            let is_left = |tenant: &&Tenant| full.contains(tenant) || self.queues.contains_key(tenant);
            let (Some(tenant), Ok((partition, id))) = (tenant.filter(is_left), read_entry_name(&entry.id)) else {
                sorted.wanted.push(entry);
                continue;
            };
            let left = LeftEntry { partition, id, deliveries: entry.deliveries };
            sorted.left.push(left);
            match self.len < most || self.count(tenant) < few && self.len < 2 * most {
                true => self.push(tenant.clone(), left),
                false => sorted.gave_up = true,
            }
        }
        sorted
    }

    fn count(&self, tenant: &Tenant) -> usize {
        self.queues.get(tenant).map_or(0, VecDeque::len)
    }

    fn push(&mut self, tenant: Tenant, left: LeftEntry) {
        if !self.queues.contains_key(&tenant) {
            self.turns.push_back(tenant.clone());
        }
        self.queues.entry(tenant).or_default().push_back(left);
        self.renewed.get_or_insert_with(Instant::now);
        self.len += 1;
    }

    /// Up to so many, the oldest first, of the next tenant that is not `full`, with that tenant.
    pub fn take(&mut self, full: &[Tenant], limit: usize) -> Option<(Tenant, Vec<LeftEntry>)> {
        let next = self.turns.iter().position(|tenant| !full.contains(tenant));
        let tenant = next.and_then(|at| self.turns.remove(at))?;
        let queue = self.queues.get_mut(&tenant)?;
        let taken: Vec<LeftEntry> = queue.drain(..limit.min(queue.len())).collect();
        self.len -= taken.len();
        if self.pass.front() == Some(&tenant) {
            self.pass_done = self.pass_done.saturating_sub(taken.len());
        }
        match queue.is_empty() {
            true => drop(self.queues.remove(&tenant)),
            false => self.turns.push_back(tenant.clone()),
        }
        if self.len == 0 {
            self.renewed = None;
        }
        Some((tenant, taken))
    }

    /// Puts those back that were taken and not read.
    pub fn put_back(&mut self, tenant: Tenant, taken: Vec<LeftEntry>) {
        for left in taken.into_iter().rev() {
            self.push(tenant.clone(), left);
            self.queues.entry(tenant.clone()).or_default().rotate_right(1);
        }
    }

    /// Up to so many ids of one partition that are to be renewed, which begins anew `every` so often; `None`: all are.
    pub fn take_due(&mut self, every: Duration, limit: usize) -> Option<(u32, Vec<StreamId>)> {
        if self.pass.is_empty() && self.renewed.is_some_and(|at| at.elapsed() >= every) {
            self.renewed = Some(Instant::now());
            (self.pass, self.pass_done) = (self.in_order(), 0);
        }
        let mut due: Option<(u32, Vec<StreamId>)> = None;
        while let Some(tenant) = self.pass.front() {
            let (at, mut ids) = due.take().map_or((None, Vec::new()), |(at, ids)| (Some(at), ids));
            let next = |done: usize| self.queues.get(tenant).and_then(|queue| queue.get(done));
            let partition = at.or(next(self.pass_done).map(|left| left.partition));
            while let Some(left) = next(self.pass_done).filter(|left| Some(left.partition) == partition)
                && ids.len() < limit
            {
                ids.push(left.id);
                self.pass_done += 1;
            }
            let is_over = next(self.pass_done).is_none();
            due = partition.filter(|_| !ids.is_empty()).map(|partition| (partition, ids));
            if !is_over {
                break;
            }
            self.pass.pop_front();
            self.pass_done = 0;
        }
        due
    }

    /// The tenants, those of one partition beside each other, and always in the same order.
    fn in_order(&self) -> VecDeque<Tenant> {
        let mut tenants: Vec<&Tenant> = self.queues.keys().collect();
        let partition = |tenant: &Tenant| self.queues[tenant].front().map(|left| left.partition);
        tenants.sort_by_cached_key(|tenant| (partition(tenant), tenant.as_str().to_owned()));
        tenants.into_iter().cloned().collect()
    }

    /// Whether some are still to be renewed.
    pub fn is_renewing(&self) -> bool {
        !self.pass.is_empty()
    }

    /// Whether some are still to be renewed, and it is so long since the first of them were.
    pub fn is_late(&self, after: Duration) -> bool {
        self.is_renewing() && self.renewed.is_some_and(|at| at.elapsed() >= after)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::event::Event;
    use crate::domain::event::written::WrittenEvent;
    use crate::ports::bus::redis::streams::entry_name;

    fn entry(tenant: &str, number: u64) -> BusEntry {
        entry_in(3, tenant, number)
    }

    fn entry_in(partition: u32, tenant: &str, number: u64) -> BusEntry {
        let event =
            json!({ "specversion": "1.0", "id": number.to_string(), "source": "s", "type": "t", "tenantid": tenant });
        let event = Event::try_from(event).expect("an event");
        let id = entry_name(partition, &StreamId(number, 0).to_string());
        BusEntry { id, event: Ok(WrittenEvent::of(&event)), deliveries: 1 }
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a tenant")
    }

    fn numbers(taken: Option<(Tenant, Vec<LeftEntry>)>) -> Vec<u64> {
        taken.into_iter().flat_map(|(_, left)| left).map(|left| left.id.0).collect()
    }

    #[test]
    fn entries_of_a_tenant_are_left_in_order_as_long_as_earlier_ones_are() {
        let mut left = LeftEntries::default();
        let full = [tenant("loud")];
        let sorted = left.sort(vec![entry("loud", 1), entry("quiet", 2), entry("loud", 3)], &full);
        assert_eq!((sorted.wanted, sorted.left.len(), sorted.gave_up), (vec![entry("quiet", 2)], 2, false));
        assert_eq!(left.take(&full, 10), None, "it is full");
        let sorted = left.sort(vec![entry("loud", 4)], &[]);
        assert_eq!(sorted.wanted, [], "it is full no more, and earlier ones are left");
        let (of, taken) = left.take(&[], 2).unwrap();
        left.put_back(of, taken);
        assert_eq!(numbers(left.take(&[], 2)), [1, 3], "what was not read comes first again");
        assert_eq!(numbers(left.take(&[], 2)), [4]);
        assert_eq!(left.sort(vec![entry("loud", 5)], &[]).wanted, [entry("loud", 5)], "nothing is left of it");
    }

    #[test]
    fn tenants_of_which_some_are_left_take_turns() {
        let mut left = LeftEntries::default();
        let full = [tenant("a"), tenant("b")];
        left.sort(vec![entry("a", 1), entry("a", 2), entry("b", 3)], &full);
        let turns: Vec<_> = (0..4).map(|_| numbers(left.take(&[], 1))).collect();
        assert_eq!(turns, [vec![1], vec![3], vec![2], vec![]]);
    }

    #[test]
    fn entries_beyond_the_bound_are_given_up() {
        let mut left = LeftEntries::default();
        let full = [tenant("loud")];
        let sorted = left.sort_within((1..5).map(|number| entry("loud", number)).collect(), &full, 3, 0);
        assert!(sorted.gave_up && sorted.left.len() == 4);
        assert_eq!(numbers(left.take(&[], 1)), [1]);
        assert!(!left.sort_within(vec![entry("loud", 5)], &full, 3, 0).gave_up);
        assert_eq!(numbers(left.take(&[], 9)), [2, 3, 5]);
    }

    #[test]
    fn few_entries_of_a_tenant_are_kept_however_many_others_have() {
        let mut left = LeftEntries::default();
        let full = [tenant("loud"), tenant("other")];
        let entries = (1..4).map(|number| entry("loud", number)).chain((4..6).map(|number| entry("other", number)));
        assert!(left.sort_within(entries.collect(), &full, 3, 1).gave_up);
        let more = (6..12).map(|number| entry(&format!("t{number}"), number)).collect();
        let full: Vec<Tenant> = (6..12).map(|number| tenant(&format!("t{number}"))).chain(full).collect();
        left.sort_within(more, &full, 3, 1);
        assert_eq!(left.len, 6, "and so many tenants may be that all together have twice as many");
        assert_eq!(numbers(left.take(&[tenant("loud")], 9)), [4]);
    }

    #[test]
    fn ids_are_renewed_piece_by_piece_and_each_once_in_a_pass() {
        let mut left = LeftEntries::default();
        let full = [tenant("a"), tenant("b")];
        let entries = |numbers: std::ops::Range<u64>, of: &str| numbers.map(|number| entry(of, number)).collect();
        left.sort(entries(1..6, "a"), &full);
        left.sort(entries(6..8, "b"), &full);
        let long = Duration::from_secs(3600);
        assert_eq!(left.take_due(long, 2), None, "it is not time");
        let piece = |left: &mut LeftEntries, every| {
            let due = left.take_due(every, 2);
            due.map(|(_, ids)| ids.into_iter().map(|id| id.0).collect::<Vec<u64>>())
        };
        assert_eq!(piece(&mut left, Duration::ZERO), Some(vec![1, 2]));
        // the first are read meanwhile, and another is left
        assert_eq!(numbers(left.take(&[tenant("b")], 3)), [1, 2, 3]);
        left.sort(entries(8..9, "a"), &full);
        assert!(left.is_renewing() && left.is_late(Duration::ZERO) && !left.is_late(long));
        let rest: Vec<_> = std::iter::from_fn(|| piece(&mut left, long)).collect();
        assert_eq!(rest, [vec![4, 5], vec![8, 6], vec![7]], "those of one partition go together");
        assert!(!left.is_renewing());
        // a tenant that is read to its end meanwhile is not looked for, and another partition has a piece of its own
        left.sort(vec![entry_in(2, "c", 9)], &[tenant("c")]);
        assert_eq!(piece(&mut left, Duration::ZERO), Some(vec![9]));
        left.take(&[tenant("b"), tenant("c")], 9);
        assert_eq!(piece(&mut left, long), Some(vec![6, 7]));
        assert_eq!((piece(&mut left, long), left.is_renewing()), (None, false));
    }
}
