//! Entries that a consumer leaves for later, because it has enough of their tenant: the stream is read on behind them.
//!
//! They stay pending in Redis under this consumer, which keeps their ids and asks for them once it has room for their
//! tenant. What is kept is renewed, so that no other consumer takes it for stalled; it comes to the others when this
//! one dies. Entries beyond the bound are given up instead: they are due again a moment later for any consumer.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, cmd, pipe};

use crate::base::id::Tenant;
use crate::ports::bus::BusEntry;
use crate::ports::bus::redis::reading::{LEFT_FOR, StreamReader};
use crate::ports::bus::redis::servers::RedisConnection;
use crate::ports::bus::redis::streams::{Raw, StreamId, entry_name, event_of, read_entry_name};

/// Ids that are kept at most, of 40 bytes each.
const MOST: usize = 200_000;
/// Ids that are renewed by one command.
const RENEWED: usize = 1_000;

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
    partition: u32,
    id: StreamId,
    /// How often it was handed out, which leaving it does not add to.
    deliveries: u32,
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
    fn to_renew(&mut self, after: Duration) -> HashMap<u32, Vec<StreamId>> {
        let mut due: HashMap<u32, Vec<StreamId>> = HashMap::new();
        if self.renewed.is_some_and(|at| at.elapsed() >= after) {
            self.renewed = Some(Instant::now());
            self.queues.values().flatten().for_each(|left| due.entry(left.partition).or_default().push(left.id));
        }
        due
    }
}

impl StreamReader {
    /// Keeps other consumers from taking what was left here for stalled.
    pub(super) async fn renew_left(
        &self,
        connection: &mut RedisConnection,
        left: &mut LeftEntries,
    ) -> Result<(), RedisError> {
        for (partition, ids) in left.to_renew(self.stalled_after / 4) {
            for ids in ids.chunks(RENEWED) {
                let () = self.claim_command(partition, ids).arg("JUSTID").query_async(connection).await?;
            }
        }
        Ok(())
    }

    /// Reads entries that were left, in order; those that are gone, or handled elsewhere, are not among them.
    pub(super) async fn read_left(
        &self,
        connection: &mut RedisConnection,
        left: &[LeftEntry],
    ) -> Result<Vec<BusEntry>, RedisError> {
        let mut entries = Vec::with_capacity(left.len());
        let is_alike = |a: &LeftEntry, b: &LeftEntry| (a.partition, a.deliveries) == (b.partition, b.deliveries);
        for alike in left.chunk_by(is_alike) {
            let LeftEntry { partition, deliveries, .. } = alike[0];
            let ids: Vec<StreamId> = alike.iter().map(|left| left.id).collect();
            let mut claim = self.claim_command(partition, &ids);
            let raws: Vec<Option<Raw>> = claim.arg("RETRYCOUNT").arg(deliveries).query_async(connection).await?;
            entries.extend(raws.into_iter().flatten().map(|(id, fields)| BusEntry {
                id: entry_name(partition, &id),
                event: event_of(&fields),
                deliveries,
            }));
        }
        Ok(entries)
    }

    /// Claims pending entries, however long they were idle.
    fn claim_command(&self, partition: u32, ids: &[StreamId]) -> Cmd {
        let ids: Vec<String> = ids.iter().map(StreamId::to_string).collect();
        let mut claim = cmd("XCLAIM");
        claim.arg(self.names.stream(partition)).arg(&self.group).arg(&self.consumer).arg(0).arg(ids);
        claim
    }

    /// Gives entries up that were just read: each is due again a moment later, uncounted, for any consumer. Answers whether
    /// there were any.
    pub(super) async fn release_entries(
        &self,
        connection: &mut RedisConnection,
        entries: Vec<BusEntry>,
    ) -> Result<bool, RedisError> {
        if entries.is_empty() {
            return Ok(false);
        }
        let idle = self.stalled_after.saturating_sub(LEFT_FOR).as_millis() as u64;
        let mut left = pipe();
        for entry in &entries {
            let Ok((partition, id)) = read_entry_name(&entry.id) else { continue };
            left.cmd("XCLAIM")
                .arg(self.names.stream(partition))
                .arg(&self.group)
                .arg(&self.consumer)
                .arg(0)
                .arg(id.to_string())
                .arg("IDLE")
                .arg(idle)
                .arg("RETRYCOUNT")
                .arg(entry.deliveries.saturating_sub(1))
                .arg("JUSTID")
                .ignore();
        }
        let () = left.query_async(connection).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::event::Event;

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
