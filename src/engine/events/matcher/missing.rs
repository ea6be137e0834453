//! Fields that expressions of event tasks looked for in vain: each owner is told once for each expression, a few at a
//! time.
//!
//! A miss that was told is remembered with the task's compiled trigger, so that only the first miss costs anything, and
//! by the key of the message, so that no restart and no other instance tells it again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::expr::MissingField;
use crate::base::id::Scope;
use crate::domain::notification::notices::ArrivalNotice;
use crate::domain::notification::{NewDelivery, Recipient, SubjectRef, notices};
use crate::engine::events::matcher::index::IndexedTask;
use crate::store::{Store, StoreError};

/// Owners that are told between two looks at the bus while no event is under way; else it is one a round.
const AT_ONCE: usize = 5;
/// Misses that wait to be told. One beyond these is told after the next miss of its task.
const WAITING: usize = 10_000;

/// The first miss of a task.
pub struct Miss {
    pub task: Arc<IndexedTask>,
    pub field: MissingField,
}

/// Misses that are to be told.
#[derive(Default)]
pub struct Misses(VecDeque<Miss>);

impl Misses {
    /// Whether nothing is to be told.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes in what was found. A miss that finds no room is told when it is found again.
    pub fn add(&mut self, found: Vec<Miss>) {
        for miss in found {
            match self.0.len() < WAITING {
                true => self.0.push_back(miss),
                false => miss.task.told.store(false, Ordering::Relaxed),
            }
        }
    }

    /// Tells some; answers whether there are more.
    pub async fn notify_batch(&mut self, store: &Store) -> bool {
        for _ in 0..AT_ONCE {
            self.notify_next(store).await;
        }
        !self.is_empty()
    }

    /// Tells one; answers whether there are more. One that can't be told is told after the next miss of its task.
    pub async fn notify_next(&mut self, store: &Store) -> bool {
        if let Some(miss) = self.0.pop_front()
            && let Err(error) = notify_owner(store, &miss).await
        {
            miss.task.told.store(false, Ordering::Relaxed);
            tracing::warn!(task_id = %miss.task.task_id, %error, "the owner of a task is not told yet of a missing field");
        }
        !self.is_empty()
    }
}

async fn notify_owner(store: &Store, miss: &Miss) -> Result<(), StoreError> {
    let Some(task) = store.find_task(&Scope::Every, miss.task.task_id).await? else { return Ok(()) };
    let recipient = store.recipient_to_tell(&task.tenant_id).await?;
    tracing::info!(task_id = %task.id, field = miss.field.field, "an event has no such field as a task looks for");
    let about = SubjectRef::missing_field(task.id, &miss.field.expression);
    let language = Recipient::language_of(recipient.as_ref());
    let words = notices::missing_field(language, &task.name, ArrivalNotice::Event, &miss.field);
    match NewDelivery::notice(&task, recipient.as_ref(), about, words) {
        Some(notice) => store.post_delivery(&notice).await,
        None => Ok(()),
    }
}
