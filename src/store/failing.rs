//! Tasks that keep failing, or lack a credential: paused, and their owner told, in one transaction.

use uuid::Uuid;

use crate::credential::{CredentialStatus, NEEDS_CONSENT, Reference, asked_for};
use crate::id::Scope;
use crate::notification::ended::ended;
use crate::notification::trouble::{Trouble, credential_trouble, credential_trouble_of_idle};
use crate::notification::{NewDelivery, Recipient, dedupe, wording};
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
        let recipient = self.owner(&task).await?;
        let key = dedupe::notice("paused", task.id, task.version);
        let notice = NewDelivery::notice(&task, recipient.as_ref(), key, wording::paused(&task.name, limit));
        self.pause(&task, reason, notice).await?;
        Ok(true)
    }

    /// Pauses an active task that can't go on without a credential; `code` and `sentence` are those of the fault. Its
    /// owner is told in the same transaction: of a missing one once for each time that it comes to this, of one that its
    /// other side has ended once for all that come to it. A task that is over, or paused for something else, stays as it
    /// is; its owner is told once for each of its versions. Answers whether it was paused.
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
        let recipient = self.owner(&task).await?;
        let of_all = match trouble {
            Trouble::NeedsConsent => self.of_ended(&task, &reference, recipient.as_ref()).await?,
            Trouble::Missing => None,
        };
        let notice = |words| match &of_all {
            Some(of_all) => of_all.clone(),
            None => {
                let key = dedupe::notice("credential", task.id, task.version);
                NewDelivery::notice(&task, recipient.as_ref(), key, words)
            }
        };
        if task.status == TaskStatus::Active {
            let words = credential_trouble(&reference, trouble, Some(&task.name));
            match self.pause(&task, reason, notice(words)).await {
                Ok(()) => return Ok(true),
                // it has just come to its end
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let words = credential_trouble_of_idle(&reference, trouble, &task.name);
        if let Some(notice) = notice(words) {
            self.post_delivery(&notice).await?;
        }
        Ok(false)
    }

    /// The one notice of a credential that its other side has ended, where it stands so: its owner may have connected the
    /// account again since the run came to it. The inner `None`: nobody can be told.
    async fn of_ended(
        &self,
        task: &Task,
        reference: &Reference,
        recipient: Option<&Recipient>,
    ) -> Result<Option<Option<NewDelivery>>, StoreError> {
        let Reference { service, account } = reference;
        let stored = match self.get_credential(&Scope::Every, &task.tenant_id, service, account).await {
            Ok(stored) => stored,
            Err(StoreError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let credential = &stored.credential;
        let is_ended = credential.status == CredentialStatus::NeedsConsent;
        let why = credential.status_reason.as_deref();
        Ok(is_ended.then(|| ended(credential, stored.generation, recipient, why)))
    }

    async fn pause(&self, task: &Task, reason: String, notice: Option<NewDelivery>) -> Result<(), StoreError> {
        let change = TaskChange::Pause { reason: Some(reason) };
        let now = self.clock.now();
        while self.try_change(&Scope::Every, task.id, &change, notice.as_ref(), now).await?.is_none() {
            self.fire_task(task.id, now).await?;
        }
        self.hint(Topic::Due);
        self.hint(Topic::Outbox);
        Ok(())
    }

    /// Whoever is told of the task; `None` where nobody can be.
    async fn owner(&self, task: &Task) -> Result<Option<Recipient>, StoreError> {
        match self.get_recipient(&Scope::Every, &task.tenant_id).await {
            Ok(stored) => Ok(Some(stored.recipient)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
