//! Tasks that keep failing, or lack a credential: paused, and their owner told, in one transaction.

use uuid::Uuid;

use crate::credential::Reference;
use crate::id::Scope;
use crate::notification::delivery::dedupe;
use crate::notification::{NewDelivery, wording};
use crate::store::{Store, StoreError, Topic};
use crate::task::change::TaskChange;
use crate::task::{Task, TaskStatus, credentials_of};

impl Store {
    /// Pauses a task whose last `limit` runs since its last change all failed, and puts the notice to its owner into
    /// the outbox in the same transaction. Cancelled and skipped runs do not count. Answers whether it did.
    pub async fn pause_if_failing(&self, id: Uuid, limit: u32) -> Result<bool, StoreError> {
        let task = self.get_task(&Scope::Every, id).await?;
        let last: Vec<String> = on_read!(self.db, |conn| {
            sqlx::query_scalar(
                "select state from runs
                  where task_id = $1 and state in ('succeeded', 'failed') and finished_at >= $2
                  order by id desc limit $3",
            )
            .bind(id)
            .bind(task.updated_at)
            .bind(i64::from(limit))
            .fetch_all(conn)
            .await?
        });
        let failing = last.len() == limit as usize && last.iter().all(|state| state == "failed");
        if task.status != TaskStatus::Active || !failing {
            return Ok(false);
        }
        let reason = format!("{limit} failed runs in a row");
        self.pause(&task, reason, "paused", wording::paused(&task.name, limit)).await?;
        Ok(true)
    }

    /// Pauses an active task that can't go on without a credential; `sentence` says which, and why. Its owner is told in
    /// the same transaction, once for each time that it comes to this. Answers whether it did.
    pub async fn pause_for_credential(&self, id: Uuid, sentence: &str) -> Result<bool, StoreError> {
        let task = match self.get_task(&Scope::Every, id).await {
            Ok(task) if task.status == TaskStatus::Active => task,
            Ok(_) | Err(StoreError::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut named: Vec<String> = credentials_of(&task.spec).iter().map(Reference::to_string).collect();
        named.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let reason = match named.iter().find(|name| sentence.contains(name.as_str())) {
            Some(name) => format!("credential:{name}"),
            None => "credential".to_owned(),
        };
        self.pause(&task, reason, "credential", wording::credential_paused(&task.name, sentence)).await?;
        Ok(true)
    }

    async fn pause(&self, task: &Task, reason: String, kind: &str, words: (String, String)) -> Result<(), StoreError> {
        let recipient = match self.get_recipient(&Scope::Every, &task.tenant_id).await {
            Ok(stored) => Some(stored.recipient),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let key = dedupe::notice(kind, task.id, task.version);
        let notice = NewDelivery::notice(task, recipient.as_ref(), key, words);
        let change = TaskChange::Pause { reason: Some(reason) };
        let now = self.clock.now();
        while self.try_change(&Scope::Every, task.id, &change, notice.as_ref(), now).await?.is_none() {
            self.fire_task(task.id, now).await?;
        }
        self.hint(Topic::Due);
        self.hint(Topic::Outbox);
        Ok(())
    }
}
