//! Events that were read and are not judged yet, a line for each tenant. Lost in a crash, they come again from the bus.

use std::collections::{HashMap, VecDeque};

use crate::base::id::Tenant;
use crate::engine::events::matcher::received::ReceivedEvent;

/// Entries of one tenant that are here or judged; the bus is asked for those of others while there are as many.
const PER_TENANT: usize = 500;
/// Entries of all tenants. While there are as many, only tenants are read that have none.
const IN_ALL: usize = 2_000;
/// Entries of all tenants, beyond which nothing is read.
const AT_MOST: usize = 4_000;
/// Entries that are read at once beyond [`IN_ALL`].
const FEW: usize = 10;

/// Waiting events, by tenant.
#[derive(Default)]
pub struct WaitingEvents {
    lines: HashMap<Tenant, TenantQueue>,
    /// The tenants in `lines`, in the order of their turns.
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
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next request to the bus, while those in `judged` are under way; `None`: nothing may be read.
    pub fn next_read(&self, judged: &HashMap<Tenant, usize>, batch: usize) -> Option<ReadRequest> {
        let mut held = judged.clone();
        for (tenant, line) in &self.lines {
            *held.entry(tenant.clone()).or_default() += line.events.len();
        }
        let all: usize = held.values().sum();
        let (limit, most) = match all {
            ..IN_ALL => (batch, PER_TENANT),
            IN_ALL..AT_MOST => (FEW, 1),
            AT_MOST.. => return None,
        };
        let full = held.into_iter().filter(|(_, count)| *count >= most).map(|(tenant, _)| tenant).collect();
        Some(ReadRequest { full, limit })
    }

    /// Puts one behind those of its tenant.
    pub fn push(&mut self, taken: ReceivedEvent) {
        let tenant = taken.arrival.event.tenant.clone();
        self.queue_of(&tenant).events.push_back(taken);
        self.len += 1;
    }

    /// Puts some back before those of their tenant. `stale`: they were judged by that version of the index, which was too
    /// old.
    pub fn put_back(&mut self, tenant: &Tenant, events: Vec<ReceivedEvent>, stale: Option<i64>) {
        if events.is_empty() {
            return;
        }
        self.len += events.len();
        let line = self.queue_of(tenant);
        line.stale = line.stale.max(stale);
        events.into_iter().rev().for_each(|taken| line.events.push_front(taken));
    }

    /// Takes up to `limit` events of the next tenant that `may` have a turn.
    pub fn next(&mut self, limit: usize, may: impl Fn(&Tenant) -> bool) -> Option<TenantEvents> {
        let at = self.turns.iter().position(may)?;
        let tenant = self.turns.remove(at)?;
        let line = self.lines.get_mut(&tenant)?;
        let events: Vec<ReceivedEvent> = line.events.drain(..limit.min(line.events.len())).collect();
        let stale = line.stale.take();
        self.len -= events.len();
        match line.events.is_empty() {
            true => drop(self.lines.remove(&tenant)),
            false => self.turns.push_back(tenant.clone()),
        }
        Some(TenantEvents { tenant, events, stale })
    }

    fn queue_of(&mut self, tenant: &Tenant) -> &mut TenantQueue {
        if !self.lines.contains_key(tenant) {
            self.turns.push_back(tenant.clone());
        }
        self.lines.entry(tenant.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::event::Event;
    use crate::domain::trigger::event::Arrival;

    fn taken(tenant: &str, id: usize) -> ReceivedEvent {
        let event =
            json!({ "specversion": "1.0", "id": id.to_string(), "source": "s", "type": "t", "tenantid": tenant });
        let arrival = Arc::new(Arrival::new(Event::try_from(event).unwrap()));
        ReceivedEvent { id: format!("{tenant}{id}"), deliveries: 1, arrival }
    }

    fn names(share: &TenantEvents) -> Vec<&str> {
        share.events.iter().map(|taken| taken.id.as_str()).collect()
    }

    #[test]
    fn tenants_take_turns_and_the_events_of_one_keep_their_order() {
        let mut backlog = WaitingEvents::default();
        (0..5).for_each(|id| backlog.push(taken("a", id)));
        backlog.push(taken("b", 0));
        let first = backlog.next(2, |_| true).unwrap();
        assert_eq!(names(&first), ["a0", "a1"]);
        backlog.put_back(&first.tenant, first.events, Some(7));
        assert_eq!(names(&backlog.next(2, |_| true).unwrap()), ["b0"]);
        let again = backlog.next(3, |_| true).unwrap();
        assert_eq!((names(&again), again.stale), (vec!["a0", "a1", "a2"], Some(7)));
        assert!(backlog.next(3, |tenant| tenant.as_str() != "a").is_none());
        assert_eq!(backlog.next(3, |_| true).unwrap().stale, None);
        assert!(backlog.is_empty());
    }

    #[test]
    fn tenant_with_many_waiting_is_full_and_another_is_not() {
        let mut backlog = WaitingEvents::default();
        (0..PER_TENANT).for_each(|id| backlog.push(taken("a", id)));
        backlog.push(taken("b", 0));
        let wanted = |backlog: &WaitingEvents, judged| backlog.next_read(&HashMap::from(judged), 500).unwrap();
        let a = Tenant::new("a").unwrap();
        assert_eq!(wanted(&backlog, [(a.clone(), 0)]), ReadRequest { full: vec![a.clone()], limit: 500 });
        backlog.next(1, |_| true).unwrap();
        assert_eq!(wanted(&backlog, [(a.clone(), 1)]).full, std::slice::from_ref(&a), "one of them is judged now");
        assert!(wanted(&backlog, [(a, 0)]).full.is_empty());
    }

    #[test]
    fn tenants_that_have_none_are_read_however_many_others_have_here() {
        let mut backlog = WaitingEvents::default();
        let busy: Vec<String> = (0..4).map(|tenant| format!("busy{tenant}")).collect();
        for tenant in &busy {
            (0..IN_ALL / 4).for_each(|id| backlog.push(taken(tenant, id)));
        }
        let wanted = backlog.next_read(&HashMap::new(), 500).unwrap();
        assert_eq!((wanted.full.len(), wanted.limit), (busy.len(), FEW));
        backlog.push(taken("quiet", 0));
        assert_eq!(backlog.next_read(&HashMap::new(), 500).unwrap().full.len(), busy.len() + 1, "it has its part");
        (0..AT_MOST).for_each(|id| backlog.push(taken("more", id)));
        assert_eq!(backlog.next_read(&HashMap::new(), 500), None);
    }

    #[test]
    fn whole_batches_are_read_below_the_bound_and_nothing_beyond_twice_as_many() {
        let mut backlog = WaitingEvents::default();
        let limit = |backlog: &WaitingEvents| backlog.next_read(&HashMap::new(), 500).map(|wanted| wanted.limit);
        (0..IN_ALL - 1).for_each(|id| backlog.push(taken(&format!("t{}", id % 5), id)));
        assert_eq!(limit(&backlog), Some(500));
        backlog.push(taken("t", IN_ALL));
        assert_eq!(limit(&backlog), Some(FEW));
        (IN_ALL..AT_MOST - 1).for_each(|id| backlog.push(taken(&format!("t{}", id % 5), id)));
        assert_eq!(limit(&backlog), Some(FEW));
        backlog.push(taken("t", AT_MOST));
        assert_eq!(limit(&backlog), None);
    }
}
