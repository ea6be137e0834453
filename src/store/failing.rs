//! Tasks that keep failing, or lack a credential: paused, and their owner told, in one transaction.

use uuid::Uuid;

use crate::credential::{NEEDS_CONSENT, asked_for};
use crate::id::Scope;
use crate::notification::dedupe;
use crate::notification::wording::Trouble;
use crate::notification::{NewDelivery, wording};
use crate::store::{Store, StoreError, Topic};
use crate::task::change::TaskChange;
use crate::task::{Task, TaskStatus};

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

    /// Pauses an active task that can't go on without a credential; `code` and `sentence` are those of the fault. Its owner is told in
    /// the same transaction, once for each time that it comes to this. A task that is over, or paused for something else,
    /// stays as it is; its owner is told once for each of its versions. Answers whether it was paused.
    pub async fn pause_for_credential(&self, id: Uuid, code: &str, sentence: &str) -> Result<bool, StoreError> {
        let task = match self.get_task(&Scope::Every, id).await {
            Ok(task) => task,
            Err(StoreError::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        let Some(reference) = asked_for(sentence) else { return Ok(false) };
        let reason = format!("credential:{reference}");
        if task.status == TaskStatus::Paused && task.status_reason.as_ref() == Some(&reason) {
            return Ok(false);
        }
        let trouble = if code == NEEDS_CONSENT { Trouble::NeedsConsent } else { Trouble::Missing };
        if task.status == TaskStatus::Active {
            let words = wording::credential_trouble(&reference, trouble, Some(&task.name));
            match self.pause(&task, reason, "credential", words).await {
                Ok(()) => return Ok(true),
                // it has just come to its end
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let words = wording::credential_trouble_of_idle(&reference, trouble, &task.name);
        if let Some(notice) = self.notice(&task, "credential", words).await? {
            self.post_delivery(&notice).await?;
        }
        Ok(false)
    }

    async fn pause(&self, task: &Task, reason: String, kind: &str, words: (String, String)) -> Result<(), StoreError> {
        let notice = self.notice(task, kind, words).await?;
        let change = TaskChange::Pause { reason: Some(reason) };
        let now = self.clock.now();
        while self.try_change(&Scope::Every, task.id, &change, notice.as_ref(), now).await?.is_none() {
            self.fire_task(task.id, now).await?;
        }
        self.hint(Topic::Due);
        self.hint(Topic::Outbox);
        Ok(())
    }

    /// What the owner is told; `None` where nobody can be.
    async fn notice(
        &self,
        task: &Task,
        kind: &str,
        words: (String, String),
    ) -> Result<Option<NewDelivery>, StoreError> {
        let recipient = match self.get_recipient(&Scope::Every, &task.tenant_id).await {
            Ok(stored) => Some(stored.recipient),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let key = dedupe::notice(kind, task.id, task.version);
        Ok(NewDelivery::notice(task, recipient.as_ref(), key, words))
    }
}
