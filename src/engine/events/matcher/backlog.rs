//! Events that were read and are not judged yet, a queue for each tenant. Lost in a crash, they come again from the
//! bus. They wait as texts, and both their number and their bytes are bounded: of each tenant, and of all.

use std::collections::{HashMap, VecDeque};

use crate::base::id::Tenant;
use crate::engine::events::matcher::received::{EventLoad, ReceivedEvent};

/// Entries of one tenant that are here or judged; the bus is asked for those of others while there are as many.
const PER_TENANT: usize = 500;
/// Entries of all tenants. While there are as many, only tenants are read that have none.
const IN_ALL: usize = 2_000;
/// Entries of all tenants, beyond which nothing is read.
const AT_MOST: usize = 4_000;
/// Entries that are read at once beyond [`IN_ALL`].
const FEW: usize = 10;
/// Bytes of one tenant's events that are here, judged, or to be recorded; it is full while there are as many.
const TENANT_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of all tenants' events. While there are as many, only tenants are read that have none.
const BYTES_IN_ALL: usize = 48 * 1024 * 1024;
/// Bytes of all tenants' events, beyond which nothing is read.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of the long events that are judged at once: read, one may take twenty times as much memory.
const JUDGED_BYTES: usize = 2 * 1024 * 1024;

/// Waiting events, by tenant.
#[derive(Default)]
pub struct WaitingEvents {
    queues: HashMap<Tenant, TenantQueue>,
    /// The tenants in `queues`, in the order of their turns.
    turns: VecDeque<Tenant>,
    len: usize,
}

#[derive(Default)]
struct TenantQueue {
    events: VecDeque<ReceivedEvent>,
    /// The version of the index by which they were judged in vain.
    stale: Option<i64>,
}

/// A request to the bus.
#[derive(Debug, PartialEq)]
pub struct ReadRequest {
    /// The tenants that have enough here.
    pub full: Vec<Tenant>,
    pub limit: usize,
}

/// Events of one tenant that are to be judged.
pub struct TenantEvents {
    pub tenant: Tenant,
    pub events: Vec<ReceivedEvent>,
    /// The index is to be newer than this version.
    pub stale: Option<i64>,
}

impl WaitingEvents {
    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next request to the bus, while those in `judged` are under way, and so many bytes of tenants wait to be
    /// recorded; `None`: nothing may be read.
    pub fn next_read(
        &self,
        judged: &HashMap<Tenant, EventLoad>,
        unrecorded: impl IntoIterator<Item = (Tenant, usize)>,
        batch: usize,
    ) -> Option<ReadRequest> {
        let mut held = judged.clone();
        for (tenant, queue) in &self.queues {
            held.entry(tenant.clone()).or_default().add(EventLoad::of(&queue.events));
        }
        for (tenant, bytes) in unrecorded {
            held.entry(tenant).or_default().bytes += bytes;
        }
        let (count, bytes) =
            held.values().fold((0, 0), |(count, bytes), load| (count + load.count, bytes + load.bytes));
        if count >= AT_MOST || bytes >= MOST_BYTES {
            return None;
        }
        let (limit, most, most_bytes) = match count >= IN_ALL || bytes >= BYTES_IN_ALL {
            true => (FEW, 1, 1),
            false => (batch, PER_TENANT, TENANT_BYTES),
        };
        let is_full = |load: &EventLoad| load.count >= most || load.bytes >= most_bytes;
        let full = held.into_iter().filter(|(_, load)| is_full(load)).map(|(tenant, _)| tenant).collect();
        Some(ReadRequest { full, limit })
    }

    /// Puts one behind those of its tenant.
    pub fn push(&mut self, taken: ReceivedEvent) {
        let tenant = taken.arrival.event.tenant.clone();
        self.queue_of(&tenant).events.push_back(taken);
        self.len += 1;
    }

    /// Puts some back before those of their tenant. `stale`: they were judged by that version of the index, which was
    /// too old.
    pub fn put_back(&mut self, tenant: &Tenant, events: Vec<ReceivedEvent>, stale: Option<i64>) {
        if events.is_empty() {
            return;
        }
        self.len += events.len();
        let queue = self.queue_of(tenant);
        queue.stale = queue.stale.max(stale);
        events.into_iter().rev().for_each(|taken| queue.events.push_front(taken));
    }

    /// Takes up to `limit` events of the next tenant that `may` have a turn, while those in `judged` are under way. A
    /// tenant whose long events would be too many bytes beside theirs waits, and short events of others go before it.
    pub fn next(
        &mut self,
        limit: usize,
        judged: &HashMap<Tenant, EventLoad>,
        may: impl Fn(&Tenant) -> bool,
    ) -> Option<TenantEvents> {
        let read: usize = judged.values().map(|load| load.longest).sum();
        let mut long_waits = false;
        let mut fits = |queue: &TenantQueue| {
            let longest = EventLoad::of(queue.events.iter().take(limit)).longest;
            let fits = longest == 0 || !long_waits && (read == 0 || read + longest <= JUDGED_BYTES);
            long_waits |= !fits;
            fits
        };
        let queues = &self.queues;
        let at = self.turns.iter().position(|tenant| may(tenant) && queues.get(tenant).is_some_and(&mut fits))?;
        let tenant = self.turns.remove(at)?;
        let queue = self.queues.get_mut(&tenant)?;
        let events: Vec<ReceivedEvent> = queue.events.drain(..limit.min(queue.events.len())).collect();
        let stale = queue.stale.take();
        self.len -= events.len();
        match queue.events.is_empty() {
            true => drop(self.queues.remove(&tenant)),
            false => self.turns.push_back(tenant.clone()),
        }
        Some(TenantEvents { tenant, events, stale })
    }

    fn queue_of(&mut self, tenant: &Tenant) -> &mut TenantQueue {
        if !self.queues.contains_key(tenant) {
            self.turns.push_back(tenant.clone());
        }
        self.queues.entry(tenant.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::event::written::WrittenEvent;
    use crate::domain::event::{EVENT_BYTES, Event};
    use crate::domain::trigger::event::Arrival;
    use crate::ports::bus::check_entry;

    fn taken(tenant: &str, id: usize) -> ReceivedEvent {
        let event =
            json!({ "specversion": "1.0", "id": id.to_string(), "source": "s", "type": "t", "tenantid": tenant });
        received(tenant, id, WrittenEvent::of(&Event::try_from(event).unwrap()))
    }

    /// An event of exactly so many bytes that begins with small values, as the bus hands it over.
    fn dense(tenant: &str, id: usize, bytes: usize) -> ReceivedEvent {
        let beginning =
            format!(r#"{{"specversion":"1.0","id":"{id}","source":"s","type":"t","tenantid":"{tenant}","data":[0"#);
        let text = format!("{beginning}{}]}}", ",0".repeat(1_000));
        let text = format!("{text}{}", " ".repeat(bytes - text.len()));
        received(tenant, id, check_entry(text.as_bytes()).unwrap())
    }

    fn received(tenant: &str, id: usize, event: WrittenEvent) -> ReceivedEvent {
        ReceivedEvent { id: format!("{tenant}{id}"), deliveries: 1, arrival: Arc::new(Arrival::of_text(event)) }
    }

    fn names(share: &TenantEvents) -> Vec<&str> {
        share.events.iter().map(|taken| taken.id.as_str()).collect()
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    /// The next read while nothing is judged or to be recorded.
    fn wanted(backlog: &WaitingEvents) -> Option<ReadRequest> {
        backlog.next_read(&HashMap::new(), [], 500)
    }

    /// The next tenant's events while nothing is judged.
    fn next(backlog: &mut WaitingEvents, limit: usize) -> Option<TenantEvents> {
        backlog.next(limit, &HashMap::new(), |_| true)
    }

    #[test]
    fn tenants_take_turns_and_the_events_of_one_keep_their_order() {
        let mut backlog = WaitingEvents::default();
        (0..5).for_each(|id| backlog.push(taken("a", id)));
        backlog.push(taken("b", 0));
        let first = next(&mut backlog, 2).unwrap();
        assert_eq!(names(&first), ["a0", "a1"]);
        backlog.put_back(&first.tenant, first.events, Some(7));
        assert_eq!(names(&next(&mut backlog, 2).unwrap()), ["b0"]);
        let again = next(&mut backlog, 3).unwrap();
        assert_eq!((names(&again), again.stale), (vec!["a0", "a1", "a2"], Some(7)));
        assert!(backlog.next(3, &HashMap::new(), |tenant| tenant.as_str() != "a").is_none());
        assert_eq!(next(&mut backlog, 3).unwrap().stale, None);
        assert!(backlog.is_empty());
    }

    #[test]
    fn tenant_with_many_waiting_is_full_and_another_is_not() {
        let mut backlog = WaitingEvents::default();
        (0..PER_TENANT).for_each(|id| backlog.push(taken("a", id)));
        backlog.push(taken("b", 0));
        let wanted = |backlog: &WaitingEvents, count: usize| {
            let judged = HashMap::from([(tenant("a"), EventLoad { count, ..EventLoad::default() })]);
            backlog.next_read(&judged, [], 500).unwrap()
        };
        assert_eq!(wanted(&backlog, 0), ReadRequest { full: vec![tenant("a")], limit: 500 });
        next(&mut backlog, 1).unwrap();
        assert_eq!(wanted(&backlog, 1).full, [tenant("a")], "one of them is judged now");
        assert!(wanted(&backlog, 0).full.is_empty());
    }

    #[test]
    fn tenants_that_have_none_are_read_however_many_others_have_here() {
        let mut backlog = WaitingEvents::default();
        let busy: Vec<String> = (0..4).map(|tenant| format!("busy{tenant}")).collect();
        for tenant in &busy {
            (0..IN_ALL / 4).for_each(|id| backlog.push(taken(tenant, id)));
        }
        let few = wanted(&backlog).unwrap();
        assert_eq!((few.full.len(), few.limit), (busy.len(), FEW));
        backlog.push(taken("quiet", 0));
        assert_eq!(wanted(&backlog).unwrap().full.len(), busy.len() + 1, "it has its part");
        (0..AT_MOST).for_each(|id| backlog.push(taken("more", id)));
        assert_eq!(wanted(&backlog), None);
    }

    #[test]
    fn whole_batches_are_read_below_the_bound_and_nothing_beyond_twice_as_many() {
        let mut backlog = WaitingEvents::default();
        let limit = |backlog: &WaitingEvents| wanted(backlog).map(|wanted| wanted.limit);
        (0..IN_ALL - 1).for_each(|id| backlog.push(taken(&format!("t{}", id % 5), id)));
        assert_eq!(limit(&backlog), Some(500));
        backlog.push(taken("t", IN_ALL));
        assert_eq!(limit(&backlog), Some(FEW));
        (IN_ALL..AT_MOST - 1).for_each(|id| backlog.push(taken(&format!("t{}", id % 5), id)));
        assert_eq!(limit(&backlog), Some(FEW));
        backlog.push(taken("t", AT_MOST));
        assert_eq!(limit(&backlog), None);
    }

    #[test]
    fn tenant_whose_events_have_many_bytes_is_full_at_the_bound_and_not_one_byte_below_it() {
        let mut backlog = WaitingEvents::default();
        let last = TENANT_BYTES / EVENT_BYTES - 1;
        (0..last).for_each(|id| backlog.push(dense("dense", id, EVENT_BYTES)));
        backlog.push(dense("dense", last, EVENT_BYTES - 1));
        backlog.push(taken("quiet", 0));
        assert!(backlog.queues[&tenant("dense")].events.iter().all(|taken| !taken.arrival.is_read()), "they are texts");
        assert_eq!(EventLoad::of(&backlog.queues[&tenant("dense")].events).bytes, TENANT_BYTES - 1);
        assert_eq!(wanted(&backlog), Some(ReadRequest { full: Vec::new(), limit: 500 }));
        let judged = |bytes: usize| HashMap::from([(tenant("dense"), EventLoad { bytes, ..EventLoad::default() })]);
        let full = Some(ReadRequest { full: vec![tenant("dense")], limit: 500 });
        assert_eq!(backlog.next_read(&judged(1), [], 500), full, "what is judged counts");
        assert_eq!(backlog.next_read(&HashMap::new(), [(tenant("dense"), 1)], 500), full, "and what is to be recorded");
    }

    #[test]
    fn tenants_that_have_none_are_read_beside_many_bytes_and_nothing_beyond_the_most() {
        let mut backlog = WaitingEvents::default();
        let dense_tenants = BYTES_IN_ALL / TENANT_BYTES;
        let all = BYTES_IN_ALL / EVENT_BYTES;
        let name = |id: usize| format!("dense{}", id % dense_tenants);
        (0..all - 1).for_each(|id| backlog.push(dense(&name(id), id, EVENT_BYTES)));
        backlog.push(dense(&name(all - 1), all - 1, EVENT_BYTES - 1));
        assert_eq!(wanted(&backlog).unwrap().limit, 500);
        backlog.push(taken("some", 0));
        let few = wanted(&backlog).unwrap();
        assert_eq!((few.limit, few.full.len()), (FEW, dense_tenants + 1));
        assert!(!few.full.contains(&tenant("quiet")), "its event is read");
        let beyond = |bytes: usize| backlog.next_read(&HashMap::new(), [(tenant("slow"), bytes)], 500);
        let held = EventLoad::of(backlog.queues.values().flat_map(|queue| &queue.events)).bytes;
        assert!(beyond(MOST_BYTES - held - 1).is_some());
        assert_eq!(beyond(MOST_BYTES - held), None);
    }

    #[test]
    fn long_events_are_judged_up_to_their_bytes_and_short_ones_beside_them() {
        let mut backlog = WaitingEvents::default();
        let at_once = JUDGED_BYTES / EVENT_BYTES;
        (0..=at_once).for_each(|id| backlog.push(dense(&format!("dense{id}"), id, EVENT_BYTES)));
        backlog.push(taken("quiet", 0));
        let mut judged = HashMap::new();
        for _ in 0..at_once {
            let share = backlog.next(500, &judged, |_| true).unwrap();
            judged.insert(share.tenant.clone(), EventLoad::of(&share.events));
        }
        assert_eq!(judged.values().map(|load| load.longest).sum::<usize>(), JUDGED_BYTES);
        assert_eq!(names(&backlog.next(500, &judged, |_| true).unwrap()), ["quiet0"]);
        assert!(backlog.next(500, &judged, |_| true).is_none(), "one more is too many");
        judged.remove(&tenant("dense0"));
        assert_eq!(names(&backlog.next(500, &judged, |_| true).unwrap()), [format!("dense{at_once}{at_once}")]);
    }

    #[test]
    fn long_event_that_waits_is_judged_before_shorter_ones_that_would_fit() {
        let mut backlog = WaitingEvents::default();
        backlog.push(dense("dense", 0, EVENT_BYTES));
        backlog.push(dense("shorter", 0, EVENT_BYTES / 4));
        backlog.push(taken("quiet", 0));
        let read = |longest: usize| HashMap::from([(tenant("busy"), EventLoad { longest, ..EventLoad::default() })]);
        let busy = read(JUDGED_BYTES - EVENT_BYTES / 2);
        assert_eq!(names(&backlog.next(500, &busy, |_| true).unwrap()), ["quiet0"]);
        assert!(backlog.next(500, &busy, |_| true).is_none(), "the shorter one does not overtake it");
        assert_eq!(names(&backlog.next(500, &read(JUDGED_BYTES - EVENT_BYTES), |_| true).unwrap()), ["dense0"]);
        assert_eq!(names(&backlog.next(500, &busy, |_| true).unwrap()), ["shorter0"]);
    }
}
