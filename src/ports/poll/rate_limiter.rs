//! How often, and how many at once, one host is polled by this instance.
//!
//! A host has one limit, and the tenants that poll it share it: of its polls in a second and of its places each may use
//! one part of as many as there are tenants, and a quarter of the places is always left to a tenant that comes next. So
//! a tenant with a thousand conditions at a host that others watch, too, waits for itself and not they for it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::base::limiter::{self, Cadence, ConcurrencyLimiter, Limit, RateState};

/// Tenants at places that are remembered before those of no interest are forgotten.
const REMEMBERED: usize = 10_000;
/// How long who finds a place full waits at least.
const FULL: Duration = Duration::from_millis(500);
/// How far ahead who is sent away is told to come again, at most: many who are refused must not push others away for
/// long.
const FARTHEST: Duration = Duration::from_secs(10);
/// The time whose polls may come all at once.
const BURST: Duration = Duration::from_secs(1);

/// The limits of all hosts that this instance polls.
pub struct HostRateLimiter {
    at_once: usize,
    /// Between two polls, on average.
    apart: Duration,
    hosts: Mutex<limiter::RateLimiter<String, HostState>>,
}

/// The tenants that poll a host.
struct HostState {
    tenants: HashMap<String, Cadence>,
    /// By tenant.
    under_way: ConcurrencyLimiter<String>,
}

impl HostState {
    fn new(at_once: usize) -> HostState {
        HostState { tenants: HashMap::new(), under_way: ConcurrencyLimiter::new(at_once) }
    }

    /// Tenants but this one that poll the host, or wait to, or have just done so.
    fn other_tenants(&self, tenant: &str, now: Duration) -> u32 {
        let is_there = |(name, cadence): (&String, &Cadence)| !cadence.is_idle(now) || self.under_way.in_use(name) > 0;
        self.tenants.iter().filter(|(name, _)| *name != tenant).filter(|at| is_there(*at)).count() as u32
    }
}

impl RateState for HostState {
    fn entries(&self) -> usize {
        self.tenants.len()
    }

    fn forget_idle(&mut self, now: Duration) {
        self.tenants.retain(|name, cadence| !cadence.is_idle(now) || self.under_way.in_use(name) > 0);
    }
}

/// Leave to poll, given back when dropped.
pub type PollPermit = limiter::Permit<String>;

impl HostRateLimiter {
    /// For each host so many polls at once, and so many in a second.
    pub fn new(at_once: usize, per_second: f64) -> HostRateLimiter {
        let apart = Duration::from_secs_f64(1.0 / per_second.clamp(1e-4, 1e6));
        HostRateLimiter { at_once, apart, hosts: Mutex::new(limiter::RateLimiter::new(REMEMBERED)) }
    }

    /// A pass to the host for a tenant at `now` (a [`crate::base::clock::Clock::elapsed`]), or how long to wait before
    /// one may be had.
    pub fn acquire(&self, host: String, tenant: &str, rated: bool, now: Duration) -> Result<PollPermit, Duration> {
        self.acquire_bounded(host, tenant, (rated, self.at_once), now)
    }

    /// [`HostRateLimiter::acquire`] where only `most` can be at once, such as by a database's connections: one of them
    /// is always left.
    pub fn acquire_bounded(
        &self,
        host: String,
        tenant: &str,
        (rated, most): (bool, usize),
        now: Duration,
    ) -> Result<PollPermit, Duration> {
        let at_once = self.at_once.min(most);
        let mut hosts = self.hosts.lock().expect("limiter lock");
        let enter = |there: &mut HostState| {
            let others = there.other_tenants(tenant, now);
            let (share, apart) = (Limit::Fixed(self.share(at_once, others)), self.apart * (others + 1));
            let cadence = there.tenants.entry(tenant.to_owned()).or_default();
            let Ok(pass) = there.under_way.acquire([(tenant.to_owned(), share)]) else {
                return Err(cadence.defer(now + FULL, apart, FARTHEST, now));
            };
            if rated && let Err(earliest) = cadence.try_acquire(apart, BURST, now) {
                return Err(cadence.defer(earliest, apart, FARTHEST, now));
            }
            Ok(pass)
        };
        hosts.update(host, now, || HostState::new(at_once), enter)
    }

    /// Of so many places of a host, those that one tenant may have beside so many others.
    fn share(&self, at_once: usize, others: u32) -> usize {
        let is_few = at_once < self.at_once && at_once > 1;
        let for_those_there = at_once - (at_once / 4).max(usize::from(is_few));
        (for_those_there / (others as usize + 1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(limiter: &HostRateLimiter, place: &str, millis: u64) -> Result<PollPermit, Duration> {
        of("ann", limiter, place, millis)
    }

    fn of(tenant: &str, limiter: &HostRateLimiter, place: &str, millis: u64) -> Result<PollPermit, Duration> {
        limiter.acquire(place.into(), tenant, true, Duration::from_secs(1000) + Duration::from_millis(millis))
    }

    #[test]
    fn tenant_with_many_polls_of_a_host_leaves_places_there_to_the_next_ones() {
        let limiter = HostRateLimiter::new(8, 1000.0);
        let hog =
            |tenant: &str| (0..100).map_while(|_| of(tenant, &limiter, "slow", 0).ok()).collect::<Vec<PollPermit>>();
        let held = ["a", "b", "c"].map(hog);
        assert_eq!(held.each_ref().map(Vec::len), [6, 2, 0]);
        drop(held);
        assert_eq!(hog("d").len(), 1, "beside three that were just there");
    }

    #[test]
    fn tenant_that_is_sent_away_sends_no_other_away_and_the_rate_is_shared() {
        let limiter = HostRateLimiter::new(100, 10.0);
        for _ in 0..1000 {
            drop(of("many", &limiter, "a", 0));
        }
        assert!(of("one", &limiter, "a", 0).is_ok());
        let mut polls = [0, 0];
        for millis in 1..=10_000 {
            for (count, tenant) in polls.iter_mut().zip(["many", "one"]) {
                *count += u32::from(of(tenant, &limiter, "a", millis).is_ok());
            }
        }
        assert!(polls.iter().all(|count| (50..=60).contains(count)), "{polls:?}");
    }

    #[test]
    fn host_is_polled_so_often_in_a_second_and_no_other_waits_for_it() {
        let limiter = HostRateLimiter::new(100, 5.0);
        for _ in 0..5 {
            assert!(enter(&limiter, "a", 0).is_ok());
        }
        assert_eq!(enter(&limiter, "a", 0).err(), Some(Duration::from_millis(200)));
        assert_eq!(enter(&limiter, "a", 0).err(), Some(Duration::from_millis(400)), "and the next one after it");
        assert!(enter(&limiter, "b", 0).is_ok());
        assert!(enter(&limiter, "a", 200).is_ok());
        assert!(enter(&limiter, "a", 200).is_err());
        assert!((0..5).all(|_| enter(&limiter, "a", 5000).is_ok()), "what was not used in a second is there again");
    }

    #[test]
    fn deferred_polls_wait_no_longer_than_the_cap() {
        let limiter = HostRateLimiter::new(100, 5.0);
        for _ in 0..1000 {
            drop(enter(&limiter, "a", 0));
        }
        assert!(enter(&limiter, "a", 0).err().is_some_and(|wait| wait <= FARTHEST));
    }

    #[test]
    fn rate_below_one_a_second_is_kept_too() {
        let limiter = HostRateLimiter::new(100, 0.5);
        assert!(enter(&limiter, "a", 0).is_ok());
        assert_eq!(enter(&limiter, "a", 0).err(), Some(Duration::from_secs(2)));
        assert!(enter(&limiter, "a", 2000).is_ok());
    }

    #[test]
    fn polls_of_one_host_are_bounded() {
        let limiter = HostRateLimiter::new(2, 1000.0);
        let first = enter(&limiter, "slow", 0);
        let _second = enter(&limiter, "slow", 100);
        assert_eq!(enter(&limiter, "slow", 200).err(), Some(FULL));
        assert_eq!(enter(&limiter, "slow", 200).err(), Some(FULL + Duration::from_millis(1)));
        assert!(enter(&limiter, "quick", 200).is_ok());
        drop(first);
        assert!(enter(&limiter, "slow", 300).is_ok());
    }

    #[test]
    fn places_of_no_interest_are_forgotten() {
        let limiter = HostRateLimiter::new(2, 1000.0);
        let held = enter(&limiter, "held", 0);
        for number in 0..REMEMBERED as u64 {
            assert!(enter(&limiter, &number.to_string(), number * 10).is_ok());
        }
        let hosts = limiter.hosts.lock().unwrap();
        let remembered = (0..REMEMBERED).filter(|number| hosts.get(&number.to_string()).is_some()).count();
        assert!(remembered < 10 && hosts.get(&"held".to_owned()).is_some(), "only what is in use");
        drop(held);
    }
}
