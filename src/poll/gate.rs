//! How often, and how many at once, one host is polled by this instance. In memory: a restart begins anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Places that are remembered before those of no interest are forgotten.
const REMEMBERED: usize = 10_000;
/// How long who finds a place full waits at least.
const FULL: Duration = Duration::from_millis(500);
/// How far ahead who is sent away is told to come again, at most: many who are refused must not push others away for long.
const FARTHEST: Duration = Duration::from_secs(10);

pub struct Gate {
    at_once: usize,
    /// Between two polls, on average.
    apart: Duration,
    /// How far ahead of that average a place may run: a second's worth.
    ahead: Duration,
    places: Mutex<HashMap<String, Place>>,
}

/// A host, by the generic cell rate algorithm (ITU-T I.371).
#[derive(Default)]
struct Place {
    /// When the next poll would come, were they all apart.
    arrival: Duration,
    /// Until when others were told to wait: each is sent away for longer than the one before, so that they do not all
    /// come back at once.
    told: Duration,
    under_way: usize,
}

impl Place {
    /// Sends one away until `earliest`, or until after those who were sent away before.
    fn send_away(&mut self, earliest: Duration, apart: Duration, now: Duration) -> Duration {
        self.told = earliest.max((self.told + apart).min(now + FARTHEST));
        self.told - now
    }
}

/// Leave to poll, given back when dropped.
pub struct Pass {
    gate: Arc<Gate>,
    place: String,
}

impl Gate {
    pub fn new(at_once: usize, per_second: f64) -> Gate {
        let apart = Duration::from_secs_f64(1.0 / per_second.clamp(1e-4, 1e6));
        Gate { at_once, apart, ahead: Duration::from_secs(1).saturating_sub(apart), places: Mutex::default() }
    }

    /// A pass to the place at `now` (a [`crate::clock::Clock::elapsed`]), or how long to wait before one may be had.
    pub fn enter(gate: &Arc<Gate>, place: String, rated: bool, now: Duration) -> Result<Pass, Duration> {
        let mut places = gate.places.lock().expect("gate lock");
        if places.len() >= REMEMBERED {
            places.retain(|_, place| place.under_way > 0 || place.arrival.max(place.told) > now);
        }
        let there = places.entry(place.clone()).or_default();
        if there.under_way >= gate.at_once {
            return Err(there.send_away(now + FULL, gate.apart, now));
        }
        if rated {
            let arrival = there.arrival.max(now);
            let early = arrival.saturating_sub(now + gate.ahead);
            if !early.is_zero() {
                return Err(there.send_away(now + early, gate.apart, now));
            }
            there.arrival = arrival + gate.apart;
        }
        there.under_way += 1;
        drop(places);
        Ok(Pass { gate: Arc::clone(gate), place })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut places = self.gate.places.lock().expect("gate lock");
        if let Some(there) = places.get_mut(&self.place) {
            there.under_way = there.under_way.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(gate: &Arc<Gate>, place: &str, millis: u64) -> Result<Pass, Duration> {
        Gate::enter(gate, place.into(), true, Duration::from_secs(1000) + Duration::from_millis(millis))
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
        assert!(gate.places.lock().unwrap().len() < 10, "only what is in use");
        drop(held);
    }
}
