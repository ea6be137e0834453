//! A cache of bounded bytes that tenants share: each has a part of it at most, and what was used least lately goes
//! first. Not shared by itself.

use std::hash::Hash;
use std::sync::Arc;

use lru::LruCache;

use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};

/// Values of tenants that were used last.
pub struct TenantCache<K: Hash + Eq, V> {
    by_tenant: LruCache<Arc<str>, BoundedCache<K, V>>,
    /// Of all tenants.
    bytes: usize,
    most: usize,
    most_of_one: usize,
}

impl<K: Hash + Eq, V> TenantCache<K, V> {
    /// An empty cache of so many bytes at most, of all tenants and of one.
    pub fn new(most: usize, most_of_one: usize) -> TenantCache<K, V> {
        TenantCache { by_tenant: LruCache::unbounded(), bytes: 0, most, most_of_one }
    }

    /// The value of a tenant, which counts as used now.
    pub fn get(&mut self, tenant: &str, key: &K) -> Option<&V> {
        self.by_tenant.get_mut(tenant)?.get(key)
    }

    /// Keeps a value of so many bytes in the place of the one that it had. One that is larger than a tenant's part is
    /// not kept.
    pub fn put(&mut self, tenant: &Arc<str>, key: K, value: V, bytes: usize) {
        let limit = CacheLimit { entries: usize::MAX, bytes: self.most_of_one };
        if bytes > limit.bytes {
            return;
        }
        let own = self.by_tenant.get_or_insert_mut(Arc::clone(tenant), || BoundedCache::new(limit));
        let before = own.bytes();
        own.put(key, value, bytes);
        self.bytes = self.bytes + own.bytes() - before;
        while self.bytes > self.most && !self.by_tenant.is_empty() {
            self.pop_oldest();
        }
    }

    /// Forgets all values of a tenant, and returns them: they may be many, and are freed behind the caller's lock.
    pub fn forget(&mut self, tenant: &str) -> Option<BoundedCache<K, V>> {
        let own = self.by_tenant.pop(tenant)?;
        self.bytes -= own.bytes();
        Some(own)
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the oldest value of the tenant that came longest ago.
    fn pop_oldest(&mut self) {
        let Some((tenant, _)) = self.by_tenant.peek_lru() else { return };
        let tenant = Arc::clone(tenant);
        let Some(own) = self.by_tenant.peek_mut(&tenant) else { return };
        let before = own.bytes();
        own.pop_oldest();
        self.bytes = self.bytes + own.bytes() - before;
        if own.is_empty() {
            self.by_tenant.pop(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys among the first twenty of a tenant that are kept.
    fn kept(cache: &TenantCache<u32, u32>, tenant: &Arc<str>) -> Vec<u32> {
        let own = cache.by_tenant.peek(tenant);
        (0..20).filter(|key| own.is_some_and(|own| own.peek(key) == Some(key))).collect()
    }

    #[test]
    fn tenant_fills_its_part_and_the_oldest_of_the_tenant_that_came_longest_ago_goes_first() {
        let mut cache = TenantCache::new(60, 30);
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
        (0..2).for_each(|key| cache.put(&a, key, key, 10));
        (0..20).for_each(|key| cache.put(&b, key, key, 10));
        assert_eq!((kept(&cache, &a), kept(&cache, &b), cache.bytes()), (vec![0, 1], vec![17, 18, 19], 50));
        assert_eq!(cache.get(&a, &0), Some(&0), "it came now, and this was used");
        (0..2).for_each(|key| cache.put(&c, key, key, 10));
        assert_eq!((kept(&cache, &a), kept(&cache, &b), kept(&cache, &c)), (vec![0, 1], vec![18, 19], vec![0, 1]));
        (2..5).for_each(|key| cache.put(&c, key, key, 10));
        assert_eq!((kept(&cache, &a), kept(&cache, &b), kept(&cache, &c)), (vec![0, 1], vec![19], vec![2, 3, 4]));
    }

    #[test]
    fn value_beyond_a_tenant_s_part_is_not_kept_and_tenants_without_any_are_forgotten() {
        let mut cache = TenantCache::new(40, 30);
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        cache.put(&a, 1, 1, 20);
        cache.put(&b, 1, 1, 31);
        assert_eq!((kept(&cache, &a), cache.by_tenant.len(), cache.bytes()), (vec![1], 1, 20));
        cache.put(&b, 1, 1, 30);
        assert_eq!((kept(&cache, &b), cache.by_tenant.len(), cache.bytes()), (vec![1], 1, 30));
        cache.put(&b, 1, 1, 5);
        assert_eq!(cache.bytes(), 5, "in its place");
    }

    #[test]
    fn values_of_a_tenant_are_forgotten_together_and_leave_room_to_others() {
        let mut cache = TenantCache::new(40, 30);
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        (0..2).for_each(|key| cache.put(&a, key, key, 10));
        (0..2).for_each(|key| cache.put(&b, key, key, 10));
        assert_eq!(cache.forget("a").as_ref().map_or(0, BoundedCache::len), 2);
        assert!(cache.forget("a").is_none(), "it has none any more");
        assert_eq!((kept(&cache, &a), kept(&cache, &b), cache.bytes()), (vec![], vec![0, 1], 20));
        (2..4).for_each(|key| cache.put(&a, key, key, 10));
        assert_eq!((kept(&cache, &a), kept(&cache, &b)), (vec![2, 3], vec![0, 1]));
    }
}
