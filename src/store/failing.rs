//! Tasks that keep failing: paused, and their owner told, in one transaction.

use uuid::Uuid;

use crate::id::Scope;
use crate::notification::delivery::dedupe;
use crate::notification::{NewDelivery, wording};
use crate::store::{Store, StoreError, Topic};
use crate::task::TaskStatus;
use crate::task::change::TaskChange;

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
        let recipient = match self.get_recipient(&Scope::Every, &task.tenant_id).await {
            Ok(stored) => Some(stored.recipient),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let key = dedupe::notice("paused", task.id, task.version);
        let notice = NewDelivery::notice(&task, recipient.as_ref(), key, wording::paused(&task.name, limit));
        let change = TaskChange::Pause { reason: Some(format!("{limit} failed runs in a row")) };
        let now = self.clock.now();
        while self.try_change(&Scope::Every, id, &change, notice.as_ref(), now).await?.is_none() {
            self.fire_task(id, now).await?;
        }
        self.hint(Topic::Due);
        self.hint(Topic::Outbox);
        Ok(true)
    }
}
