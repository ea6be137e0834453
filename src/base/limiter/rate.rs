//! How often something may happen, by key, with a bound on the keys that are remembered.
//!
//! Times are those of [`crate::base::clock::Clock::elapsed`]. Two rules are known: at most so many in a [`Window`], and
//! a [`Cadence`] of so much time between two, whose length may change with each time.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Memory of each key, by a rule. Keys whose state limits nothing any more are forgotten as soon as there are
/// too many.
#[derive(Debug)]
pub struct RateLimiter<K, S> {
    states: HashMap<K, S>,
    /// Entries of all states together.
    entries: usize,
    most: usize,
}

/// State of one key.
pub trait RateState {
    /// How many entries the state has, of those that are bounded together.
    fn entries(&self) -> usize;

    /// Forgets the entries that limit nothing any more at `now`.
    fn forget_idle(&mut self, now: Duration);
}

impl<K: Eq + Hash, S: RateState> RateLimiter<K, S> {
    /// Remembers nothing yet; from `most` entries on it looks for those that limit nothing any more.
    pub fn new(most: usize) -> RateLimiter<K, S> {
        RateLimiter { states: HashMap::new(), entries: 0, most }
    }

    /// The state of a key that is remembered.
    pub fn get(&self, key: &K) -> Option<&S> {
        self.states.get(key)
    }

    /// Changes the state of a key at `now`, which is `new` where none is remembered.
    pub fn update<R>(&mut self, key: K, now: Duration, new: impl FnOnce() -> S, change: impl FnOnce(&mut S) -> R) -> R {
        if self.entries >= self.most {
            self.forget_idle(now);
        }
        let state = self.states.entry(key).or_insert_with(new);
        let before = state.entries();
        let changed = change(state);
        self.entries = self.entries + state.entries() - before;
        changed
    }

    /// Forgets every key if there are as many entries as there may be, though all of them still limit something: for
    /// keys that strangers choose.
    pub fn forget_all_if_full(&mut self, now: Duration) {
        if self.entries >= self.most {
            self.forget_idle(now);
        }
        if self.entries >= self.most {
            self.states.clear();
            self.entries = 0;
        }
    }

    fn forget_idle(&mut self, now: Duration) {
        self.states.values_mut().for_each(|state| state.forget_idle(now));
        self.states.retain(|_, state| state.entries() > 0);
        self.entries = self.states.values().map(RateState::entries).sum();
    }
}

/// How often something has happened since the first time, for so long; then a new window begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    begin: Duration,
    count: u32,
    length: Duration,
}

impl Window {
    /// A window of this length, in which nothing has happened yet.
    pub fn new(length: Duration) -> Window {
        Window { length, ..Window::default() }
    }

    /// It has happened once more.
    pub fn count(&mut self, now: Duration) {
        if self.count == 0 || self.is_over(now) {
            (self.begin, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
    }

    /// How long the window goes on, where it has happened `limit` times in it.
    pub fn wait(&self, limit: u32, now: Duration) -> Option<Duration> {
        let left = (self.begin + self.length).checked_sub(now).filter(|left| !left.is_zero())?;
        (self.count >= limit).then_some(left)
    }

    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.begin) >= self.length
    }
}

impl RateState for Window {
    fn entries(&self) -> usize {
        usize::from(self.count > 0)
    }

    fn forget_idle(&mut self, now: Duration) {
        if self.is_over(now) {
            self.count = 0;
        }
    }
}

/// So much time between two, on average, by the generic cell rate algorithm (ITU-T I.371).
#[derive(Debug, Clone, Copy, Default)]
pub struct Cadence {
    /// When the next one would come, were they all apart.
    arrival: Duration,
    /// Until when others were told to wait: each is sent away for longer than the one before, so that they do not all
    /// come back at once.
    told: Duration,
}

impl Cadence {
    /// Counts one, which keeps the next one `apart`; at most as many come at once as fit into `burst`. `Err`: when one
    /// may come.
    pub fn try_acquire(&mut self, apart: Duration, burst: Duration, now: Duration) -> Result<(), Duration> {
        let ahead = burst.saturating_sub(apart);
        let arrival = self.arrival.max(now);
        let early = arrival.saturating_sub(now + ahead);
        if !early.is_zero() {
            return Err(now + early);
        }
        self.arrival = arrival + apart;
        Ok(())
    }

    /// Sends one away until `earliest`, or until after those who were sent away before, but not for longer than
    /// `farthest` because of them. Returns how long it has to wait.
    pub fn defer(&mut self, earliest: Duration, apart: Duration, farthest: Duration, now: Duration) -> Duration {
        self.told = earliest.max((self.told + apart).min(now + farthest));
        self.told - now
    }

    /// Whether none is expected, and none was there just now.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.arrival.max(self.told) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn window_begins_with_the_first_and_a_new_one_when_it_is_over() {
        let mut window = Window::new(MINUTE);
        window.count(5 * SECOND);
        assert_eq!((window.wait(1, 6 * SECOND), window.wait(2, 6 * SECOND)), (Some(59 * SECOND), None));
        assert_eq!(window.wait(1, 65 * SECOND), None);
        window.count(65 * SECOND);
        assert_eq!(window.wait(1, 66 * SECOND), Some(59 * SECOND));
    }

    #[test]
    fn cadence_lets_a_burst_through_and_then_one_after_the_other() {
        let (mut cadence, apart) = (Cadence::default(), SECOND / 4);
        let taken =
            |cadence: &mut Cadence| (0..9).take_while(|_| cadence.try_acquire(apart, SECOND, MINUTE).is_ok()).count();
        assert_eq!(taken(&mut cadence), 4);
        assert_eq!(cadence.try_acquire(apart, SECOND, MINUTE), Err(MINUTE + apart));
        assert_eq!(cadence.try_acquire(apart, SECOND, MINUTE + apart), Ok(()));
        assert!(!cadence.is_idle(MINUTE + apart));
    }

    #[test]
    fn limiter_forgets_idle_keys_first_and_all_where_strangers_choose_them() {
        let mut limiter = RateLimiter::new(2);
        let count = |limiter: &mut RateLimiter<u32, Window>, key, now| {
            limiter.update(key, now, || Window::new(MINUTE), |window| window.count(now));
        };
        count(&mut limiter, 1, SECOND);
        count(&mut limiter, 2, 2 * SECOND);
        count(&mut limiter, 3, MINUTE + SECOND);
        assert_eq!([1, 2, 3].map(|key| limiter.get(&key).is_some()), [false, true, true]);
        limiter.forget_all_if_full(MINUTE + SECOND);
        assert_eq!([2, 3].map(|key| limiter.get(&key).is_some()), [false, false]);
    }
}
