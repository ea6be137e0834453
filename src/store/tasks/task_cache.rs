//! Definitions of tasks that lately fired or started, by id and version.
//!
//! Each change of a task gives it another version, and the statement that fires a task or starts its run says which one
//! it has. So what is kept is never older than that statement; what is not kept is read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use uuid::Uuid;

use crate::base::json::length::bytes_of;
use crate::domain::task::Task;

/// The most that is kept.
const LIMIT: CacheLimit = CacheLimit { tasks: 16_384, bytes: 32 << 20 };
/// Bytes that a specification takes in memory for each that it has as JSON, roughly.
const BYTES_IN_MEMORY: usize = 4;

#[derive(Clone, Copy)]
struct CacheLimit {
    tasks: usize,
    bytes: usize,
}

/// Definitions that are known here, those that were used last.
#[derive(Clone)]
pub(in crate::store) struct TaskCache {
    known: Arc<Mutex<KnownTasks>>,
    /// Whether all tasks that fired last were known.
    covers_due: Arc<AtomicBool>,
}

struct KnownTasks {
    by_id: LruCache<Uuid, CachedTask>,
    bytes: usize,
    limit: CacheLimit,
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
        let known = KnownTasks { by_id: LruCache::unbounded(), bytes: 0, limit };
        TaskCache { known: Arc::new(Mutex::new(known)), covers_due: Arc::default() }
    }

    /// Those of these tasks that are known in these versions.
    pub(in crate::store) fn known(&self, tasks: impl Iterator<Item = (Uuid, i64)>) -> HashMap<Uuid, Arc<Task>> {
        let mut known = self.known.lock().expect("task cache lock");
        let found = tasks.filter_map(|(id, version)| {
            let cached = known.by_id.get(&id).filter(|cached| cached.task.version == version)?;
            Some((id, Arc::clone(&cached.task)))
        });
        found.collect()
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
        for task in tasks {
            known.keep(task);
        }
    }
}

impl KnownTasks {
    fn keep(&mut self, cached: CachedTask) {
        let id = cached.task.id;
        if self.by_id.peek(&id).is_some_and(|known| known.task.version > cached.task.version) {
            return;
        }
        self.bytes += cached.bytes;
        let replaced = self.by_id.put(id, cached);
        self.bytes -= replaced.map_or(0, |replaced| replaced.bytes);
        while self.by_id.len() > self.limit.tasks || self.bytes > self.limit.bytes {
            let Some((_, oldest)) = self.by_id.pop_lru() else { break };
            self.bytes -= oldest.bytes;
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
        cache.keep(vec![CachedTask::measured(new.clone())]);
        assert!(knows(&cache, &new) && !knows(&cache, &old));
        cache.keep(vec![CachedTask::measured(old.clone())]);
        assert!(knows(&cache, &new) && !knows(&cache, &old), "a late reader keeps no earlier version");
    }

    #[test]
    fn cache_holds_no_more_tasks_and_bytes_than_its_limit() {
        let tasks: Vec<Task> = (0..10).map(|_| task(1)).collect();
        let each = CachedTask::measured(tasks[0].clone()).bytes;
        assert!(each > 4 * 200, "{each} bytes");
        let by_number = TaskCache::bounded(CacheLimit { tasks: 3, bytes: usize::MAX });
        let by_bytes = TaskCache::bounded(CacheLimit { tasks: 100, bytes: 3 * each + each / 2 });
        for cache in [by_number, by_bytes] {
            for task in &tasks {
                cache.keep(vec![CachedTask::measured(task.clone())]);
                assert!(knows(&cache, &tasks[0]), "it is used, so it stays");
            }
            assert_eq!(tasks.iter().filter(|task| knows(&cache, task)).count(), 3);
            let known = cache.known.lock().expect("task cache lock");
            assert_eq!((known.by_id.len(), known.bytes), (3, 3 * each));
        }
        let none = TaskCache::bounded(CacheLimit { tasks: 100, bytes: each - 1 });
        none.keep(vec![CachedTask::measured(tasks[0].clone())]);
        assert!(!knows(&none, &tasks[0]), "one that is larger than all that may be kept");
        assert_eq!(none.known.lock().expect("task cache lock").bytes, 0);
    }
}
