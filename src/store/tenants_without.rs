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

/// Tenants that had none a moment ago. Cheap to clone; all clones share them.
#[derive(Clone)]
pub(super) struct TenantsWithout(Arc<Mutex<RememberedTenants>>);

struct RememberedTenants {
    /// When each was looked up.
    looked_up: LruCache<String, DateTime<Utc>>,
    /// How often this instance has given a tenant its first.
    forgotten: u64,
}

/// A look into the database that has begun: what this instance has written since counts for more.
#[derive(Clone, Copy)]
pub(super) struct LookForTenants {
    at: DateTime<Utc>,
    forgotten: u64,
}

impl Default for TenantsWithout {
    fn default() -> TenantsWithout {
        let remembered = RememberedTenants { looked_up: LruCache::new(REMEMBERED), forgotten: 0 };
        TenantsWithout(Arc::new(Mutex::new(remembered)))
    }
}

impl TenantsWithout {
    pub(super) fn knows(&self, tenant: &str, now: DateTime<Utc>) -> bool {
        self.lock().looked_up.get(tenant).is_some_and(|at| (now - *at).abs() < MEMORY)
    }

    /// Before a look into the database.
    pub(super) fn look(&self, now: DateTime<Utc>) -> LookForTenants {
        LookForTenants { at: now, forgotten: self.lock().forgotten }
    }

    /// Remembers that this look has found none, unless one was written here meanwhile.
    pub(super) fn remember(&self, tenant: &str, look: LookForTenants) {
        let mut remembered = self.lock();
        if remembered.forgotten == look.forgotten {
            remembered.looked_up.put(tenant.to_owned(), look.at);
        }
    }

    /// The tenant has one by now.
    pub(super) fn forget(&self, tenant: &str) {
        let mut remembered = self.lock();
        remembered.looked_up.pop(tenant);
        remembered.forgotten += 1;
    }

    fn lock(&self) -> MutexGuard<'_, RememberedTenants> {
        self.0.lock().expect("tenants lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_that_is_given_one_during_a_look_is_not_remembered_as_one_without() {
        let (without, now) = (TenantsWithout::default(), DateTime::UNIX_EPOCH);
        without.remember("a", without.look(now));
        assert!(without.knows("a", now) && !without.knows("b", now));
        let look = without.look(now);
        without.forget("a");
        without.remember("a", look);
        assert!(!without.knows("a", now), "the look may have been before it");
        without.remember("a", without.look(now));
        assert!(without.knows("a", now + MEMORY - TimeDelta::milliseconds(1)) && !without.knows("a", now + MEMORY));
    }
}
