//! Tenants of which an instance remembers for a moment that they have none of something, so that nobody pays a
//! statement for what nearly nobody has. The first of a tenant may take so long to reach an instance.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};
use lru::LruCache;

/// How long it is remembered that a tenant has none.
const MEMORY: TimeDelta = TimeDelta::seconds(5);
/// Tenants that are remembered, at most.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Tenants that had none a moment ago, and when that was.
#[derive(Clone)]
pub(super) struct TenantsWithout(Arc<Mutex<LruCache<String, DateTime<Utc>>>>);

impl Default for TenantsWithout {
    fn default() -> TenantsWithout {
        TenantsWithout(Arc::new(Mutex::new(LruCache::new(REMEMBERED))))
    }
}

impl TenantsWithout {
    pub(super) fn knows(&self, tenant: &str, now: DateTime<Utc>) -> bool {
        self.lock().get(tenant).is_some_and(|at| (now - *at).abs() < MEMORY)
    }

    pub(super) fn remember(&self, tenant: &str, now: DateTime<Utc>) {
        self.lock().put(tenant.to_owned(), now);
    }

    pub(super) fn forget(&self, tenant: &str) {
        self.lock().pop(tenant);
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, DateTime<Utc>>> {
        self.0.lock().expect("tenants lock")
    }
}
