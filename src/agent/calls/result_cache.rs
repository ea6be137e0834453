//! Results of tools that only read, kept for an hour where the operator says so (`cache = true`).
//!
//! A result is known by its tenant, the tool and its version, the credential that the call uses as it is now, and the
//! arguments. Failures are not kept, nor is a result that holds a secret. Lost with the process; each instance has its
//! own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::calls::shown::FetchedOutput;
use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};
use crate::base::compute::steps_to_parse;
use crate::base::json::length::is_longer_than;
use crate::domain::approval::proposal::canonical_hash;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, ToolContext, ToolError, ToolOutput};

/// How long a result is kept.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The most of all tenants.
const LIMIT: CacheLimit = CacheLimit { entries: 10_000, bytes: 64 << 20 };
/// Longest arguments of a call whose result is kept, in bytes as JSON: the call is known by their hash, which is made
/// at once.
const ARGUMENTS: usize = 65_536;
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
    /// Of all tenants.
    entries: usize,
    bytes: usize,
    limit: CacheLimit,
}

struct CachedResult {
    text: Arc<str>,
    /// On the clock of the engine.
    until: Duration,
}

impl CacheableCall {
    /// The call of this tool, where its result may be kept.
    async fn of(tool: &RegisteredTool, context: &ToolContext, arguments: &Value) -> Option<CacheableCall> {
        // an answer that a person has given is for one call alone
        if !tool.policy.cache || context.continuation.is_some() {
            return None;
        }
        // where this can't be told, the call itself says why
        let credential = tool.tool.credential_state(context, arguments).await?;
        CacheableCall::new(context.tenant.as_str(), tool.definition(), &credential, arguments)
    }

    /// A call with these arguments; `credential`: the state of the credential that it uses, empty where there is none.
    /// `None`: the arguments are too long.
    fn new(tenant: &str, tool: &Definition, credential: &str, arguments: &Value) -> Option<CacheableCall> {
        if is_longer_than(arguments, ARGUMENTS) {
            return None;
        }
        let hash = canonical_hash(&json!([tool.name, tool.version, credential, arguments]));
        Some(CacheableCall { tenant: tenant.to_owned(), hash })
    }
}

impl ResultCache {
    fn bounded(limit: CacheLimit) -> ResultCache {
        ResultCache(Arc::new(Mutex::new(CachedResults { tenants: HashMap::new(), entries: 0, bytes: 0, limit })))
    }

    /// The result of the same call where it is kept; else `call` is carried out, and its result kept if it may be.
    pub async fn cached_or_call(
        &self,
        tool: &RegisteredTool,
        context: &ToolContext,
        arguments: &Value,
        call: impl Future<Output = Result<ToolOutput, ToolError>>,
    ) -> Result<FetchedOutput, ToolError> {
        let cacheable = CacheableCall::of(tool, context, arguments).await;
        let (compute, tenant) = (&context.compute, context.tenant.as_str());
        let kept = cacheable.as_ref().and_then(|call| self.get(call, context.clock.elapsed()));
        let kept = match kept {
            Some(text) => {
                let steps = steps_to_parse(text.len());
                compute.run_if_costly(tenant, steps, move || FetchedOutput::read(&text)).await?
            }
            None => None,
        };
        if let Some(fetched) = kept {
            tracing::debug!(tool = tool.definition().name, "the result of the same call is known");
            return Ok(fetched);
        }
        let fetched = FetchedOutput { output: call.await?, at: context.clock.now(), level: None };
        // what a tool has found with a credential that its definition does not name holds no longer than that
        if let Some(cacheable) = cacheable.filter(|_| !context.credentials.is_used()) {
            // all of it is kept, and not its text alone
            let steps = fetched.output.steps();
            let write = move || (fetched.written(), fetched);
            let (written, fetched) = compute.run_if_costly(tenant, steps, write).await?;
            if !context.used_secrets.finds(&written).await {
                self.keep(cacheable, &written, context.clock.elapsed());
            }
            return Ok(fetched);
        }
        Ok(fetched)
    }

    /// The result of the same call, unless it is too old.
    fn get(&self, call: &CacheableCall, now: Duration) -> Option<Arc<str>> {
        let mut results = self.0.lock().expect("results lock");
        let CachedResult { text, until } = results.tenants.get_mut(&call.tenant)?.get(&call.hash)?;
        if now < *until {
            return Some(Arc::clone(text));
        }
        results.change(&call.tenant, |own| own.remove(&call.hash));
        None
    }

    /// Keeps the result of a call.
    fn keep(&self, call: CacheableCall, text: &str, now: Duration) {
        let kept = CachedResult { text: text.into(), until: now + LIFETIME };
        let size = size_of::<CachedResult>() + call.hash.len() + text.len();
        let mut results = self.0.lock().expect("results lock");
        results.change(&call.tenant, |own| own.put(call.hash, kept, size));
        while let Some(largest) = results.largest_beyond_the_limit() {
            results.change(&largest, BoundedCache::pop_oldest);
        }
    }
}

impl Default for ResultCache {
    fn default() -> ResultCache {
        ResultCache::bounded(LIMIT)
    }
}

impl CachedResults {
    /// Changes what is kept of a tenant.
    fn change(&mut self, tenant: &str, change: impl FnOnce(&mut BoundedCache<String, CachedResult>)) {
        let CacheLimit { entries, bytes } = self.limit;
        let share = CacheLimit { entries: entries / TENANT_SHARE, bytes: bytes / TENANT_SHARE };
        let own = self.tenants.entry(tenant.to_owned()).or_insert_with(|| BoundedCache::new(share));
        let before = (own.len(), own.bytes());
        change(own);
        self.entries = self.entries - before.0 + own.len();
        self.bytes = self.bytes - before.1 + own.bytes();
        if own.is_empty() {
            self.tenants.remove(tenant);
        }
    }

    /// The tenant that has most, where there is too much.
    fn largest_beyond_the_limit(&self) -> Option<String> {
        let is_beyond = self.entries > self.limit.entries || self.bytes > self.limit.bytes;
        let largest = self.tenants.iter().filter(|_| is_beyond).max_by_key(|(_, own)| own.bytes());
        largest.map(|(tenant, _)| tenant.clone())
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
        CacheableCall::new(tenant, &tool("1"), "", &arguments).unwrap()
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
            CacheableCall::new("ann", &tool("2"), "", &json!({ "a": 1, "b": [2.0] })).unwrap(),
            CacheableCall::new("ann", &tool("1"), "key 1", &json!({ "a": 1, "b": [2.0] })).unwrap(),
            CacheableCall::new(
                "ann",
                &Definition { name: "see".into(), ..tool("1") },
                "",
                &json!({ "a": 1, "b": [2.0] }),
            )
            .unwrap(),
        ];
        for other in others {
            assert_eq!(cache.get(&other, NOW), None, "{other:?}");
        }
        assert!(cache.get(&first, NOW + LIFETIME - Duration::from_millis(1)).is_some());
        assert_eq!(cache.get(&first, NOW + LIFETIME), None);
        assert_eq!(cache.get(&first, NOW), None, "it is gone");
    }

    #[test]
    fn call_with_arguments_at_the_bound_is_kept_and_one_byte_beyond_it_is_not() {
        let frame = json!({ "text": "" }).to_string().len();
        let kept = |bytes: usize| {
            CacheableCall::new("ann", &tool("1"), "", &json!({ "text": "x".repeat(bytes - frame) })).is_some()
        };
        assert_eq!([kept(ARGUMENTS), kept(ARGUMENTS + 1)], [true, false]);
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
        let results = tight.0.lock().unwrap();
        assert_eq!((results.tenants.len(), results.entries, results.bytes), (0, 0, 0));
    }
}
