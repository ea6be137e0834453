//! Definitions of tasks that lately fired or started, by id and version.
//!
//! Each change of a task gives it another version, and the statement that fires a task or starts its run says which one
//! it has. So a kept task is never older than that statement; one that is not kept is read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use uuid::Uuid;

use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};
use crate::base::json::length::bytes_of;
use crate::domain::task::Task;

/// The most that is kept.
const LIMIT: CacheLimit = CacheLimit { entries: 16_384, bytes: 32 << 20 };
/// Bytes that a specification takes in memory for each that it has as JSON, roughly.
const BYTES_IN_MEMORY: usize = 4;

/// Definitions that are known here, those that were used last.
#[derive(Clone)]
pub(in crate::store) struct TaskCache {
    known: Arc<Mutex<BoundedCache<Uuid, Arc<Task>>>>,
    /// The tenants of tasks that were looked up without their definitions.
    tenants: Arc<Mutex<BoundedCache<Uuid, String>>>,
    /// Whether all tasks that fired last were known.
    covers_due: Arc<AtomicBool>,
}

/// A definition, and how much it counts for.
pub(in crate::store) struct CachedTask {
    task: Arc<Task>,
    bytes: usize,
}

impl CachedTask {
    /// The definition of a task whose specification has so many bytes as JSON.
    pub(in crate::store) fn new(task: Task, json_bytes: usize) -> CachedTask {
        let bytes = size_of::<Task>() + BYTES_IN_MEMORY * json_bytes;
        CachedTask { task: Arc::new(task.into_definition()), bytes }
    }

    /// As [`CachedTask::new`], for a task whose specification was read as a value.
    pub(in crate::store) fn measured(task: Task) -> CachedTask {
        let bytes = bytes_of(&task.spec);
        CachedTask::new(task, bytes)
    }

    pub(in crate::store) fn task(&self) -> &Arc<Task> {
        &self.task
    }
}

impl Default for TaskCache {
    fn default() -> TaskCache {
        TaskCache::bounded(LIMIT)
    }
}

impl TaskCache {
    fn bounded(limit: CacheLimit) -> TaskCache {
        let (known, tenants) = (BoundedCache::new(limit), BoundedCache::new(limit));
        let (known, tenants) = (Arc::new(Mutex::new(known)), Arc::new(Mutex::new(tenants)));
        TaskCache { known, tenants, covers_due: Arc::default() }
    }

    /// Those of these tasks that are known in these versions.
    pub(in crate::store) fn known(&self, tasks: impl Iterator<Item = (Uuid, i64)>) -> HashMap<Uuid, Arc<Task>> {
        let mut known = self.known.lock().expect("task cache lock");
        let found = tasks.filter_map(|(id, version)| {
            let task = known.get(&id).filter(|task| task.version == version)?;
            Some((id, Arc::clone(task)))
        });
        found.collect()
    }

    /// The tenant of a task that is known in any version, or was looked up: a task never changes its tenant.
    pub(in crate::store) fn tenant_of(&self, id: Uuid) -> Option<String> {
        let known = self.known.lock().expect("task cache lock").peek(&id).map(|task| task.tenant_id.clone());
        known.or_else(|| self.tenants.lock().expect("task cache lock").get(&id).cloned())
    }

    /// Keeps the tenant of a task.
    pub(in crate::store) fn keep_tenant(&self, id: Uuid, tenant: String) {
        let bytes = size_of::<(Uuid, String)>() + tenant.len();
        self.tenants.lock().expect("task cache lock").put(id, tenant, bytes);
    }

    /// Whether all tasks that fired last were known: then what due tasks say need not be read along.
    pub(in crate::store) fn covers_due(&self) -> bool {
        self.covers_due.load(Ordering::Relaxed)
    }

    pub(in crate::store) fn set_covers_due(&self, covers: bool) {
        self.covers_due.store(covers, Ordering::Relaxed);
    }

    /// Keeps definitions, unless a later version is known.
    pub(in crate::store) fn keep(&self, tasks: Vec<CachedTask>) {
        if tasks.is_empty() {
            return;
        }
        let mut known = self.known.lock().expect("task cache lock");
        for CachedTask { task, bytes } in tasks {
            if known.peek(&task.id).is_none_or(|kept| kept.version <= task.version) {
                known.put(task.id, task, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::id::{Tenant, new_id};
    use crate::domain::task::{Draft, Spec};
    use crate::store::db::scratch::START;

    fn task(version: i64) -> Task {
        let spec: Spec = serde_json::from_value(json!({
            "trigger": { "type": "schedule", "interval": "1h" }, "executor": "orchestrator",
            "action": { "instruction": "say hello" }, "max_runs": null, "timeout_seconds": 600, "retry": {},
            "pause_after_failures": null, "metadata": {},
        }))
        .expect("a spec");
        let draft = Draft { tenant: Tenant::new("a").expect("a tenant"), key: None, name: "Mail".into(), spec };
        let (task, _) = Task::new(new_id(START), draft, START).expect("a valid schedule");
        Task { version, ..task }
    }

    fn knows(cache: &TaskCache, task: &Task) -> bool {
        cache.known([(task.id, task.version)].into_iter()).contains_key(&task.id)
    }

    #[test]
    fn task_is_known_in_the_version_that_was_kept_and_in_no_other() {
        let cache = TaskCache::default();
        let old = task(1);
        cache.keep(vec![CachedTask::measured(old.clone())]);
        assert_eq!(*cache.known([(old.id, 1)].into_iter())[&old.id], old.clone().into_definition());
        let new = Task { version: 2, name: "Post".into(), ..old.clone() };
        assert!(!knows(&cache, &new), "it was edited");
        assert_eq!((cache.tenant_of(old.id).as_deref(), cache.tenant_of(Uuid::nil())), (Some("a"), None));
        cache.keep_tenant(Uuid::nil(), "b".into());
        assert_eq!(cache.tenant_of(Uuid::nil()).as_deref(), Some("b"), "its definition is not known");
        cache.keep(vec![CachedTask::measured(new.clone())]);
        assert!(knows(&cache, &new) && !knows(&cache, &old));
        cache.keep(vec![CachedTask::measured(old.clone())]);
        assert!(knows(&cache, &new) && !knows(&cache, &old), "a late reader keeps no earlier version");
    }

    #[test]
    fn definition_counts_for_its_bytes_in_memory() {
        let task = task(1);
        let bytes = CachedTask::measured(task.clone()).bytes;
        assert!(bytes > 4 * 200, "{bytes} bytes");
        for (limit, is_kept) in [(bytes, true), (bytes - 1, false)] {
            let cache = TaskCache::bounded(CacheLimit { entries: 100, bytes: limit });
            cache.keep(vec![CachedTask::measured(task.clone())]);
            assert_eq!(knows(&cache, &task), is_kept, "{limit} bytes");
        }
    }
}
