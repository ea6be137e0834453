//! Values that were made of texts, kept for the next time that a tenant comes with the same text: of the tenants that
//! came last, and of each of them those of the texts that came last.

use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};

use crate::base::collections::tenant_cache::TenantCache;
use crate::base::id::Tenant;

/// Bytes of values that a cache keeps at most, of all tenants.
pub const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of values that a cache keeps at most, of one tenant.
pub const KEPT_BYTES_OF_ONE: usize = 4 * 1024 * 1024;
/// Bytes of a value beside itself: the hash of its text, and its place.
const BESIDE: usize = 128;

/// Values by tenant and text, which is known by its hash. Cheap to clone; all clones share them.
pub struct TextCache<V>(Arc<Mutex<TenantCache<Vec<u8>, V>>>);

impl<V> Clone for TextCache<V> {
    fn clone(&self) -> TextCache<V> {
        TextCache(Arc::clone(&self.0))
    }
}

impl<V> Default for TextCache<V> {
    fn default() -> TextCache<V> {
        TextCache::bounded(KEPT_BYTES, KEPT_BYTES_OF_ONE)
    }
}

impl<V> TextCache<V> {
    /// Keeps values of so many bytes at most, of all tenants and of one.
    fn bounded(most: usize, most_of_one: usize) -> TextCache<V> {
        TextCache(Arc::new(Mutex::new(TenantCache::new(most, most_of_one))))
    }
}

impl<V: Clone> TextCache<V> {
    /// The value of a tenant's text, if it is kept.
    pub fn get(&self, tenant: &Tenant, text: &str) -> Option<V> {
        let hash = hash_of(text);
        self.0.lock().expect("texts lock").get(tenant.as_str(), &hash).cloned()
    }

    /// Whether the value of a tenant's text is kept.
    pub fn has(&self, tenant: &Tenant, text: &str) -> bool {
        self.get(tenant, text).is_some()
    }

    /// Keeps the value of a tenant's text, of so many bytes, in the place of the one that it had. One that is longer
    /// than all that may be kept of the tenant is not kept.
    pub fn put(&self, tenant: &Tenant, text: &str, value: V, bytes: usize) {
        let (owner, hash) = (Arc::<str>::from(tenant.as_str()), hash_of(text));
        self.0.lock().expect("texts lock").put(&owner, hash, value, bytes + BESIDE);
    }

    /// Forgets all values of a tenant.
    pub fn forget(&self, tenant: &Tenant) {
        let forgotten = self.0.lock().expect("texts lock").forget(tenant.as_str());
        // they may be many, and are freed behind the lock
        drop(forgotten);
    }
}

fn hash_of(text: &str) -> Vec<u8> {
    digest(&SHA256, text.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: usize = 100 - BESIDE % 100;

    /// The texts among the first nine of a tenant whose value is kept.
    fn kept(cache: &TextCache<usize>, tenant: &Tenant) -> Vec<usize> {
        (0..9).filter(|text| cache.get(tenant, &text.to_string()) == Some(*text)).collect()
    }

    fn put(cache: &TextCache<usize>, tenant: &Tenant, texts: std::ops::Range<usize>) {
        texts.for_each(|text| cache.put(tenant, &text.to_string(), text, EACH));
    }

    #[test]
    fn texts_of_the_tenant_that_came_longest_ago_are_forgotten_first_and_of_one_its_own() {
        let whole = EACH + BESIDE;
        let cache = TextCache::bounded(6 * whole, 3 * whole);
        let [a, b, c] = ["a", "b", "c"].map(|name| Tenant::new(name).unwrap());
        put(&cache, &a, 0..2);
        put(&cache, &b, 0..3);
        assert_eq!((kept(&cache, &b).len(), kept(&cache, &a).len()), (3, 2), "each has its own");
        put(&cache, &c, 0..2);
        let held = (kept(&cache, &a), kept(&cache, &b), kept(&cache, &c));
        assert_eq!(held, (vec![0, 1], vec![1, 2], vec![0, 1]), "the oldest of the tenant that came longest ago goes");
        put(&cache, &a, 0..1);
        put(&cache, &a, 2..4);
        let held = (kept(&cache, &a), kept(&cache, &b), kept(&cache, &c));
        assert_eq!(held, (vec![0, 2, 3], vec![2], vec![0, 1]), "of one there are no more");
        cache.put(&a, "0", 7, EACH);
        assert_eq!((cache.get(&a, "0"), kept(&cache, &a)), (Some(7), vec![2, 3]), "in the place of the one before");
        cache.put(&a, "long", 0, 3 * whole - BESIDE + 1);
        assert_eq!((cache.get(&a, "long"), kept(&cache, &a)), (None, vec![2, 3]), "it takes no other along");
        cache.forget(&a);
        cache.forget(&a);
        put(&cache, &b, 0..3);
        let held = (kept(&cache, &a), kept(&cache, &b), kept(&cache, &c));
        assert_eq!(held, (vec![], vec![0, 1, 2], vec![0, 1]), "there is room where one is forgotten");
        const { assert!(KEPT_BYTES >= 4 * KEPT_BYTES_OF_ONE, "one leaves room for others") };
    }
}
