//! The most that the first calls of runs could come to, by task. A run of a task that ran before begins to reserve as
//! much before it has its own first call.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};

use lru::LruCache;
use uuid::Uuid;

use crate::domain::budget::Spend;
use crate::store::Store;

/// Tasks whose first calls are remembered, at most. A run of one that is forgotten reserves once it has its first call.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The first calls of the tasks that ran last on this instance.
pub(in crate::store) struct FirstCalls(Mutex<LruCache<Uuid, Spend>>);

impl Default for FirstCalls {
    fn default() -> FirstCalls {
        FirstCalls(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl FirstCalls {
    fn lock(&self) -> MutexGuard<'_, LruCache<Uuid, Spend>> {
        self.0.lock().expect("first calls lock")
    }
}

impl Store {
    /// The most that the first call of the last run of this task could come to; `None`: it is not known here.
    pub fn first_call_of(&self, task_id: Uuid) -> Option<Spend> {
        self.budgets.0.first_calls.lock().get(&task_id).copied()
    }

    /// Notes the most that the first call of a run of this task may come to.
    pub fn note_first_call(&self, task_id: Uuid, most: Spend) {
        self.budgets.0.first_calls.lock().put(task_id, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::scratch::Scratch;

    #[tokio::test]
    async fn first_calls_of_the_tasks_that_ran_longest_ago_are_forgotten() {
        let (scratch, task) = (Scratch::open().await, |number: usize| Uuid::from_u128(number as u128));
        let (store, most) = (&scratch.store, |tokens: usize| Spend { tokens: tokens as i64, cost_micros: 1 });
        for number in 0..=REMEMBERED.get() {
            store.note_first_call(task(number), most(number));
        }
        assert_eq!((store.first_call_of(task(0)), store.first_call_of(task(1))), (None, Some(most(1))));
        store.note_first_call(task(1), most(7));
        assert_eq!(store.first_call_of(task(1)), Some(most(7)), "the last one counts");
    }
}
