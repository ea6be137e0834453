//! How often, and how many at once, one host is polled by this instance. In memory: a restart begins anew.
//!
//! A host has one measure, and the tenants that poll it share it: of its polls in a second and of its places each may use
//! one part of as many as there are tenants, and a quarter of the places is always left to a tenant that comes next. So
//! a tenant with a thousand conditions at a host that others watch, too, waits for itself and not they for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tenants at places that are remembered before those of no interest are forgotten.
const REMEMBERED: usize = 10_000;
/// How long who finds a place full waits at least.
const FULL: Duration = Duration::from_millis(500);
/// How far ahead who is sent away is told to come again, at most: many who are refused must not push others away for long.
const FARTHEST: Duration = Duration::from_secs(10);

pub struct Gate {
    at_once: usize,
    /// Between two polls, on average.
    apart: Duration,
    places: Mutex<Hosts>,
}

#[derive(Default)]
struct Hosts {
    hosts: HashMap<String, Host>,
    /// Tenants of all hosts.
    remembered: usize,
}

/// The tenants that poll a host.
#[derive(Default)]
struct Host {
    tenants: HashMap<String, Part>,
    under_way: usize,
}

/// A tenant at a host, by the generic cell rate algorithm (ITU-T I.371).
#[derive(Default)]
struct Part {
    /// When the next poll would come, were they all apart.
    arrival: Duration,
    /// Until when others were told to wait: each is sent away for longer than the one before, so that they do not all
    /// come back at once.
    told: Duration,
    under_way: usize,
}

impl Part {
    /// Sends one away until `earliest`, or until after those who were sent away before.
    fn send_away(&mut self, earliest: Duration, apart: Duration, now: Duration) -> Duration {
        self.told = earliest.max((self.told + apart).min(now + FARTHEST));
        self.told - now
    }

    /// Whether it polls the host, or waits to, or has just done so.
    fn is_there(&self, now: Duration) -> bool {
        self.under_way > 0 || self.arrival.max(self.told) > now
    }
}

/// Leave to poll, given back when dropped.
pub struct Pass {
    gate: Arc<Gate>,
    host: String,
    tenant: String,
}

impl Gate {
    pub fn new(at_once: usize, per_second: f64) -> Gate {
        let apart = Duration::from_secs_f64(1.0 / per_second.clamp(1e-4, 1e6));
        Gate { at_once, apart, places: Mutex::default() }
    }

    /// A pass to the host for a tenant at `now` (a [`crate::clock::Clock::elapsed`]), or how long to wait before one may
    /// be had.
    pub fn enter(gate: &Arc<Gate>, host: String, tenant: &str, rated: bool, now: Duration) -> Result<Pass, Duration> {
        Gate::enter_few(gate, host, tenant, (rated, gate.at_once), now)
    }

    /// [`Gate::enter`] where only `most` can be at once, such as by a database's connections: one of them is always left.
    pub fn enter_few(
        gate: &Arc<Gate>,
        host: String,
        tenant: &str,
        (rated, most): (bool, usize),
        now: Duration,
    ) -> Result<Pass, Duration> {
        let at_once = gate.at_once.min(most);
        let mut places = gate.places.lock().expect("gate lock");
        let Hosts { hosts, remembered } = &mut *places;
        if *remembered >= REMEMBERED {
            hosts.values_mut().for_each(|host| host.tenants.retain(|_, part| part.is_there(now)));
            hosts.retain(|_, host| !host.tenants.is_empty());
            *remembered = hosts.values().map(|host| host.tenants.len()).sum();
        }
        let there = hosts.entry(host.clone()).or_default();
        let others = there.tenants.iter().filter(|(name, part)| *name != tenant && part.is_there(now)).count() as u32;
        let (share, apart) = (gate.share(at_once, others), gate.apart * (others + 1));
        *remembered += usize::from(!there.tenants.contains_key(tenant));
        let part = there.tenants.entry(tenant.to_owned()).or_default();
        if there.under_way >= at_once || part.under_way >= share {
            return Err(part.send_away(now + FULL, apart, now));
        }
        if rated {
            let ahead = Duration::from_secs(1).saturating_sub(apart);
            let arrival = part.arrival.max(now);
            let early = arrival.saturating_sub(now + ahead);
            if !early.is_zero() {
                return Err(part.send_away(now + early, apart, now));
            }
            part.arrival = arrival + apart;
        }
        part.under_way += 1;
        there.under_way += 1;
        drop(places);
        Ok(Pass { gate: Arc::clone(gate), host, tenant: tenant.to_owned() })
    }

    /// Of so many places of a host, those that one tenant may have beside so many others.
    fn share(&self, at_once: usize, others: u32) -> usize {
        let is_few = at_once < self.at_once && at_once > 1;
        let for_those_there = at_once - (at_once / 4).max(usize::from(is_few));
        (for_those_there / (others as usize + 1)).max(1)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut places = self.gate.places.lock().expect("gate lock");
        if let Some(host) = places.hosts.get_mut(&self.host) {
            host.under_way = host.under_way.saturating_sub(1);
            if let Some(part) = host.tenants.get_mut(&self.tenant) {
                part.under_way = part.under_way.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(gate: &Arc<Gate>, place: &str, millis: u64) -> Result<Pass, Duration> {
        of("ann", gate, place, millis)
    }

    fn of(tenant: &str, gate: &Arc<Gate>, place: &str, millis: u64) -> Result<Pass, Duration> {
        Gate::enter(gate, place.into(), tenant, true, Duration::from_secs(1000) + Duration::from_millis(millis))
    }

    #[test]
    fn a_tenant_with_many_polls_of_a_host_leaves_places_there_to_the_next_ones() {
        let gate = Arc::new(Gate::new(8, 1000.0));
        let hog = |tenant: &str| (0..100).map_while(|_| of(tenant, &gate, "slow", 0).ok()).collect::<Vec<Pass>>();
        let held = ["a", "b", "c"].map(hog);
        assert_eq!(held.each_ref().map(Vec::len), [6, 2, 0]);
        drop(held);
        assert_eq!(hog("d").len(), 1, "beside three that were just there");
    }

    #[test]
    fn a_tenant_that_is_sent_away_sends_no_other_away_and_the_rate_is_shared() {
        let gate = Arc::new(Gate::new(100, 10.0));
        for _ in 0..1000 {
            drop(of("many", &gate, "a", 0));
        }
        assert!(of("one", &gate, "a", 0).is_ok());
        let mut polls = [0, 0];
        for millis in 1..=10_000 {
            for (count, tenant) in polls.iter_mut().zip(["many", "one"]) {
                *count += u32::from(of(tenant, &gate, "a", millis).is_ok());
            }
        }
        assert!(polls.iter().all(|count| (50..=60).contains(count)), "{polls:?}");
    }

    #[test]
    fn a_host_is_polled_so_often_in_a_second_and_no_other_waits_for_it() {
        let gate = Arc::new(Gate::new(100, 5.0));
        for _ in 0..5 {
            assert!(enter(&gate, "a", 0).is_ok());
        }
        assert_eq!(enter(&gate, "a", 0).err(), Some(Duration::from_millis(200)));
        assert_eq!(enter(&gate, "a", 0).err(), Some(Duration::from_millis(400)), "and the next one after it");
        assert!(enter(&gate, "b", 0).is_ok());
        assert!(enter(&gate, "a", 200).is_ok());
        assert!(enter(&gate, "a", 200).is_err());
        assert!((0..5).all(|_| enter(&gate, "a", 5000).is_ok()), "what was not used in a second is there again");
    }

    #[test]
    fn many_who_are_sent_away_push_nobody_further_than_the_cap() {
        let gate = Arc::new(Gate::new(100, 5.0));
        for _ in 0..1000 {
            drop(enter(&gate, "a", 0));
        }
        assert!(enter(&gate, "a", 0).err().is_some_and(|wait| wait <= FARTHEST));
    }

    #[test]
    fn a_rate_below_one_a_second_is_kept_too() {
        let gate = Arc::new(Gate::new(100, 0.5));
        assert!(enter(&gate, "a", 0).is_ok());
        assert_eq!(enter(&gate, "a", 0).err(), Some(Duration::from_secs(2)));
        assert!(enter(&gate, "a", 2000).is_ok());
    }

    #[test]
    fn only_so_many_are_at_one_place_at_once() {
        let gate = Arc::new(Gate::new(2, 1000.0));
        let first = enter(&gate, "slow", 0);
        let _second = enter(&gate, "slow", 100);
        assert_eq!(enter(&gate, "slow", 200).err(), Some(FULL));
        assert_eq!(enter(&gate, "slow", 200).err(), Some(FULL + Duration::from_millis(1)));
        assert!(enter(&gate, "quick", 200).is_ok());
        drop(first);
        assert!(enter(&gate, "slow", 300).is_ok());
    }

    #[test]
    fn places_of_no_interest_are_forgotten() {
        let gate = Arc::new(Gate::new(2, 1000.0));
        let held = enter(&gate, "held", 0);
        for number in 0..REMEMBERED as u64 {
            assert!(enter(&gate, &number.to_string(), number * 10).is_ok());
        }
        assert!(gate.places.lock().unwrap().hosts.len() < 10, "only what is in use");
        drop(held);
    }
}
