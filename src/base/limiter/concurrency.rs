//! How many go on at once, of each key and of all. A permit counts as long as it is held.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Counts the permits that are held. Cheap to clone; all clones share the permits.
#[derive(Debug)]
pub struct ConcurrencyLimiter<K: Eq + Hash>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    all: Arc<Semaphore>,
    /// By key. A key without permits has no entry.
    in_use: Mutex<HashMap<K, usize>>,
    released: Notify,
}

/// How many permits one key may hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A number of its own.
    Fixed(usize),
    /// So many times, divided by so much, as are free of all. A key that always wants more stops long before nothing is
    /// left, and the next one finds room, and so on; how many keys come need not be known beforehand.
    OfFree {
        /// Factor.
        times: usize,
        /// Divisor.
        per: usize,
    },
}

impl Limit {
    fn is_reached(self, in_use: usize, free: usize) -> bool {
        match self {
            Limit::Fixed(most) => in_use >= most,
            Limit::OfFree { times, per } => in_use.saturating_mul(per) >= free.saturating_mul(times),
        }
    }
}

/// Why there is no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached<K> {
    /// All permits are held.
    All,
    /// This key holds as many as it may.
    Key(K),
}

/// Counts for its keys until it is dropped.
#[derive(Debug)]
pub struct Permit<K: Eq + Hash> {
    shared: Arc<Shared<K>>,
    keys: Vec<K>,
    /// `None`: it counts for its keys alone.
    one_of_all: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Clone for ConcurrencyLimiter<K> {
    fn clone(&self) -> ConcurrencyLimiter<K> {
        ConcurrencyLimiter(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash> ConcurrencyLimiter<K> {
    /// A limiter of so many permits in all.
    pub fn new(all: usize) -> ConcurrencyLimiter<K> {
        let all = Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS)));
        ConcurrencyLimiter(Arc::new(Shared { all, in_use: Mutex::default(), released: Notify::new() }))
    }

    /// Number of permits of all that are free.
    pub fn available(&self) -> usize {
        self.0.all.available_permits()
    }

    /// Number of permits that a key holds.
    pub fn in_use<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.0.lock().get(key).copied().unwrap_or(0)
    }

    /// Whether no key holds a permit.
    pub fn is_idle(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// One of all permits, which counts for each of the keys, too. The limit that is told of is the first one that is
    /// reached, in the order in which the keys are given.
    pub fn acquire(&self, keys: impl IntoIterator<Item = (K, Limit)>) -> Result<Permit<K>, LimitReached<K>>
    where
        K: Clone,
    {
        let mut in_use = self.0.lock();
        let free = self.0.all.available_permits();
        let one_of_all = Arc::clone(&self.0.all).try_acquire_owned().map_err(|_| LimitReached::All)?;
        self.count(&mut in_use, keys, free, Some(one_of_all))
    }

    /// A permit that counts for its keys, and is none of all.
    pub fn acquire_of_keys(&self, keys: impl IntoIterator<Item = (K, Limit)>) -> Result<Permit<K>, LimitReached<K>>
    where
        K: Clone,
    {
        let mut in_use = self.0.lock();
        self.count(&mut in_use, keys, self.0.all.available_permits(), None)
    }

    fn count(
        &self,
        in_use: &mut HashMap<K, usize>,
        keys: impl IntoIterator<Item = (K, Limit)>,
        free: usize,
        one_of_all: Option<OwnedSemaphorePermit>,
    ) -> Result<Permit<K>, LimitReached<K>>
    where
        K: Clone,
    {
        let mut counted = Vec::new();
        for (key, limit) in keys {
            if limit.is_reached(in_use.get(&key).copied().unwrap_or(0), free) {
                return Err(LimitReached::Key(key));
            }
            counted.push(key);
        }
        for key in &counted {
            *in_use.entry(key.clone()).or_default() += 1;
        }
        Ok(Permit { shared: Arc::clone(&self.0), keys: counted, one_of_all })
    }

    /// Until a permit is released; at once where one was since this was waited for last.
    pub async fn released(&self) {
        self.0.released.notified().await;
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.in_use.lock().expect("limiter lock")
    }
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut in_use = self.shared.lock();
        for key in &self.keys {
            match in_use.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(in_use.remove(key)),
            }
        }
        drop(self.one_of_all.take());
        drop(in_use);
        self.shared.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_counts_for_each_key_and_for_all_until_it_is_dropped() {
        let limiter = ConcurrencyLimiter::new(3);
        let two = |key: &'static str| (key, Limit::Fixed(2));
        let first = limiter.acquire([two("a"), two("b")]).unwrap();
        let second = limiter.acquire([two("a"), two("c")]).unwrap();
        assert_eq!(limiter.acquire([two("b"), two("a")]).unwrap_err(), LimitReached::Key("a"));
        assert_eq!((limiter.in_use("a"), limiter.in_use("b"), limiter.available()), (2, 1, 1));
        drop(first);
        assert_eq!(
            (limiter.in_use("a"), limiter.in_use("b"), limiter.available()),
            (1, 0, 2),
            "a refusal counts for nothing"
        );
        drop(second);
        assert!(limiter.is_idle() && limiter.available() == 3);
    }

    #[test]
    fn permit_of_keys_is_none_of_all() {
        let limiter = ConcurrencyLimiter::new(1);
        let one = |key: &'static str| (key, Limit::Fixed(1));
        let _whole = limiter.acquire([]).unwrap();
        assert_eq!(limiter.acquire([one("a")]).unwrap_err(), LimitReached::All);
        let _request = limiter.acquire_of_keys([one("a")]).unwrap();
        assert_eq!(limiter.acquire_of_keys([one("a")]).unwrap_err(), LimitReached::Key("a"));
    }

    #[tokio::test]
    async fn limiter_tells_of_a_permit_that_was_released() {
        let limiter = ConcurrencyLimiter::new(1);
        drop(limiter.acquire([("a", Limit::Fixed(1))]).unwrap());
        limiter.released().await;
    }
}
