//! A cache of a bounded number of entries and bytes: what was used least lately goes first. Not shared by itself.

use std::hash::Hash;

use lru::LruCache;

/// The most that a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimit {
    /// Entries.
    pub entries: usize,
    /// Bytes of all entries, as they were given with them.
    pub bytes: usize,
}

/// Entries that were used last.
pub struct BoundedCache<K: Hash + Eq, V> {
    entries: LruCache<K, (V, usize)>,
    bytes: usize,
    limit: CacheLimit,
}

impl<K: Hash + Eq, V> BoundedCache<K, V> {
    /// An empty cache.
    pub fn new(limit: CacheLimit) -> BoundedCache<K, V> {
        BoundedCache { entries: LruCache::unbounded(), bytes: 0, limit }
    }

    /// The entry, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// The entry, which is not used by this.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.entries.peek(key).map(|(value, _)| value)
    }

    /// Keeps a value of so many bytes in the place of the one that it had; one that is larger than all that may be kept
    /// goes at once, and takes the others along.
    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        self.bytes += bytes;
        let replaced = self.entries.put(key, (value, bytes));
        self.bytes -= replaced.map_or(0, |(_, bytes)| bytes);
        while self.len() > self.limit.entries || self.bytes > self.limit.bytes {
            self.pop_oldest();
        }
    }

    /// Forgets the entry.
    pub fn remove(&mut self, key: &K) {
        self.bytes -= self.entries.pop(key).map_or(0, |(_, bytes)| bytes);
    }

    /// Forgets the entry that was used least lately.
    pub fn pop_oldest(&mut self) {
        self.bytes -= self.entries.pop_lru().map_or(0, |(_, (_, bytes))| bytes);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(cache: &BoundedCache<u32, u32>) -> Vec<u32> {
        (0..20).filter(|key| cache.peek(key).is_some()).collect()
    }

    #[test]
    fn least_used_entries_go_at_the_limit_of_entries_and_of_bytes() {
        for limit in [CacheLimit { entries: 3, bytes: usize::MAX }, CacheLimit { entries: 99, bytes: 35 }] {
            let mut cache = BoundedCache::new(limit);
            for key in 0..10 {
                cache.put(key, key, 10);
                assert_eq!(cache.get(&0), Some(&0), "it is used, so it stays");
            }
            assert_eq!((keys(&cache), cache.len(), cache.bytes()), (vec![0, 8, 9], 3, 30));
            cache.put(9, 1, 5);
            cache.remove(&8);
            cache.remove(&8);
            assert_eq!((cache.peek(&9), cache.len(), cache.bytes()), (Some(&1), 2, 15));
            cache.pop_oldest();
            cache.pop_oldest();
            cache.pop_oldest();
            assert_eq!((cache.is_empty(), cache.bytes()), (true, 0));
        }
        let mut cache = BoundedCache::new(CacheLimit { entries: 3, bytes: 35 });
        cache.put(1, 1, 36);
        assert!(cache.is_empty(), "one that is larger than all that may be kept");
    }
}
