//! Results of tools that only read, kept for an hour where the operator says so (`cache = true`).
//!
//! A result is known by its tenant, the tool and its version, the credential that the call uses as it is now, and the
//! arguments. Failures are not kept, nor is a result that holds a secret. Lost with the process; each instance has its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};
use crate::domain::approval::proposal::canonical_hash;
use crate::ports::tool::Definition;

/// How long a result is kept.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The most of all tenants.
const LIMIT: CacheLimit = CacheLimit { entries: 10_000, bytes: 64 << 20 };
/// The part of it that one tenant may fill.
const TENANT_SHARE: usize = 4;

/// Cheap to clone; all clones share what is kept.
#[derive(Clone)]
pub struct ResultCache(Arc<Mutex<CachedResults>>);

/// A call whose result may be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheableCall {
    tenant: String,
    hash: String,
}

struct CachedResults {
    tenants: HashMap<String, BoundedCache<String, CachedResult>>,
    limit: CacheLimit,
}

struct CachedResult {
    text: Arc<str>,
    /// On the clock of the engine.
    until: Duration,
}

impl CacheableCall {
    /// A call with these arguments; `credential`: the state of the credential that it uses, empty where there is none.
    pub fn new(tenant: &str, tool: &Definition, credential: &str, arguments: &Value) -> CacheableCall {
        let hash = canonical_hash(&json!([tool.name, tool.version, credential, arguments]));
        CacheableCall { tenant: tenant.to_owned(), hash }
    }
}

impl ResultCache {
    fn bounded(limit: CacheLimit) -> ResultCache {
        ResultCache(Arc::new(Mutex::new(CachedResults { tenants: HashMap::new(), limit })))
    }

    /// The result of the same call, unless it is too old.
    pub fn get(&self, call: &CacheableCall, now: Duration) -> Option<Arc<str>> {
        let mut results = self.0.lock().expect("results lock");
        let own = results.tenants.get_mut(&call.tenant)?;
        match own.get(&call.hash)? {
            CachedResult { text, until } if now < *until => Some(Arc::clone(text)),
            _ => {
                own.remove(&call.hash);
                None
            }
        }
    }

    /// Keeps the result of a call.
    pub fn keep(&self, call: CacheableCall, text: &str, now: Duration) {
        let mut results = self.0.lock().expect("results lock");
        let CacheLimit { entries, bytes } = results.limit;
        let share = CacheLimit { entries: entries / TENANT_SHARE, bytes: bytes / TENANT_SHARE };
        let own = results.tenants.entry(call.tenant).or_insert_with(|| BoundedCache::new(share));
        let kept = CachedResult { text: text.into(), until: now + LIFETIME };
        let size = size_of::<CachedResult>() + call.hash.len() + text.len();
        own.put(call.hash, kept, size);
        results.shrink();
    }
}

impl Default for ResultCache {
    fn default() -> ResultCache {
        ResultCache::bounded(LIMIT)
    }
}

impl CachedResults {
    /// Forgets what is too much, of the tenants that have most.
    fn shrink(&mut self) {
        let total = |measure: fn(&BoundedCache<String, CachedResult>) -> usize, tenants: &HashMap<_, _>| {
            tenants.values().map(measure).sum::<usize>()
        };
        while total(BoundedCache::bytes, &self.tenants) > self.limit.bytes
            || total(BoundedCache::len, &self.tenants) > self.limit.entries
        {
            let Some(largest) = self.tenants.values_mut().max_by_key(|own| own.bytes()) else { return };
            largest.pop_oldest();
        }
        self.tenants.retain(|_, own| !own.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{Category, Consequence};

    const NOW: Duration = Duration::from_secs(5);

    fn tool(version: &str) -> Definition {
        let made = Definition::new("look", "x", json!({}), Category::Read, Consequence::Low);
        Definition { version: version.into(), ..made }
    }

    fn call(tenant: &str, arguments: Value) -> CacheableCall {
        CacheableCall::new(tenant, &tool("1"), "", &arguments)
    }

    #[test]
    fn result_is_that_of_the_same_call_for_an_hour_and_of_no_other() {
        let cache = ResultCache::default();
        let first = call("ann", json!({ "a": 1, "b": [2.0] }));
        cache.keep(first.clone(), "seen", NOW);
        assert_eq!(cache.get(&call("ann", json!({ "b": [2], "a": 1.0 })), NOW).as_deref(), Some("seen"));
        let others = [
            call("bob", json!({ "a": 1, "b": [2.0] })),
            call("ann", json!({ "a": 1, "b": [2.0], "c": null })),
            CacheableCall::new("ann", &tool("2"), "", &json!({ "a": 1, "b": [2.0] })),
            CacheableCall::new("ann", &tool("1"), "key 1", &json!({ "a": 1, "b": [2.0] })),
            CacheableCall::new(
                "ann",
                &Definition { name: "see".into(), ..tool("1") },
                "",
                &json!({ "a": 1, "b": [2.0] }),
            ),
        ];
        for other in others {
            assert_eq!(cache.get(&other, NOW), None, "{other:?}");
        }
        assert!(cache.get(&first, NOW + LIFETIME - Duration::from_millis(1)).is_some());
        assert_eq!(cache.get(&first, NOW + LIFETIME), None);
        assert_eq!(cache.get(&first, NOW), None, "it is gone");
    }

    #[test]
    fn tenant_fills_its_share_and_the_largest_give_way_to_others() {
        let cache = ResultCache::bounded(CacheLimit { entries: 8, bytes: usize::MAX });
        let keep = |tenant: &str, number: usize| cache.keep(call(tenant, json!({ "number": number })), "x", NOW);
        let kept =
            |tenant: &str| (0..20).filter(|n| cache.get(&call(tenant, json!({ "number": n })), NOW).is_some()).count();
        (0..20).for_each(|number| keep("ann", number));
        assert_eq!(kept("ann"), 2, "a quarter");
        for tenant in ["bob", "cid", "dan"] {
            (0..2).for_each(|number| keep(tenant, number));
        }
        keep("eve", 0);
        let all = ["ann", "bob", "cid", "dan", "eve"].map(kept);
        assert_eq!((all.iter().sum::<usize>(), all[4]), (8, 1), "{all:?}");
        let tight = ResultCache::bounded(CacheLimit { entries: 100, bytes: 4 * 200 });
        tight.keep(call("ann", json!({})), &"x".repeat(201), NOW);
        assert_eq!(tight.get(&call("ann", json!({})), NOW), None, "more than a tenant's share of the bytes");
        assert!(tight.0.lock().unwrap().tenants.is_empty());
    }
}
