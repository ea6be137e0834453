//! Tasks that keep failing, or lack a credential: paused, and their owner told, in one transaction.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::credential::{CredentialIssue, CredentialIssueKind, CredentialStatus, Reference};
use crate::domain::notification::credential_ended::ended;
use crate::domain::notification::credential_notice::{idle_issue_notice, issue_notice};
use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, notices};
use crate::domain::task::change::TaskChange;
use crate::domain::task::{Task, TaskStatus};
use crate::store::credentials::credential_status::is_resolved;
use crate::store::tasks::changes::ChangeRequest;
use crate::store::{Store, StoreError, Topic};

/// Result of pausing a task that lacks a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseResult {
    /// It is paused now, and its owner told.
    Paused,
    /// It was paused for it before, or does not fire anyway; its owner is told all the same, once.
    Notified,
    /// The credential is there by now, or the task is gone: nothing was done.
    Resolved,
}

impl Store {
    /// Pauses a task whose last `limit` runs since its last change all failed, and puts the notice to its owner into
    /// the outbox in the same transaction. Cancelled and skipped runs do not count. Answers whether it did.
    pub async fn pause_if_failing(&self, id: Uuid, limit: u32) -> Result<bool, StoreError> {
        let task = self.get_task(&Scope::Every, id).await?;
        let last: Vec<String> = self
            .db
            .read()
            .await?
            .query(
                "select state from runs
                  where task_id = $1 and state in ('succeeded', 'failed') and finished_at >= $2
                  order by id desc limit $3",
            )
            .bind(id)
            .bind(task.updated_at)
            .bind(i64::from(limit))
            .scalars()
            .await?;
        let failing = last.len() == limit as usize && last.iter().all(|state| state == "failed");
        if task.status != TaskStatus::Active || !failing {
            return Ok(false);
        }
        let reason = format!("{limit} failed runs in a row");
        let recipient = self.owner(&task).await?;
        let about = SubjectRef::notice(NoticeKind::Paused, task.id, task.version);
        let words = notices::paused(Recipient::language_of(recipient.as_ref()), &task.name, limit);
        let notice = NewDelivery::notice(&task, recipient.as_ref(), about, words);
        self.pause(&task, reason, notice).await?;
        Ok(true)
    }

    /// Pauses an active task that can't go on without a credential. Its owner is told in the same transaction: of one
    /// that is missing or refused once for each time that it comes to this, of one that its other side has ended once
    /// for all that come to it. A task that is over, or paused for something else, stays as it is; its owner is told
    /// once for each of its versions.
    ///
    /// Credentials that were saved since are looked at while nobody saves one: so either the task is not paused, or it
    /// goes on with what is saved.
    pub async fn pause_for_credential(&self, id: Uuid, issue: &CredentialIssue) -> Result<PauseResult, StoreError> {
        let Some(task) = self.find_task(&Scope::Every, id).await? else { return Ok(PauseResult::Resolved) };
        if task.status == TaskStatus::Paused && task.awaited_credential.as_ref() == Some(&issue.credential) {
            return Ok(PauseResult::Notified);
        }
        let recipient = self.owner(&task).await?;
        let language = Recipient::language_of(recipient.as_ref());
        let of_all = match issue.kind {
            CredentialIssueKind::NeedsConsent => self.of_ended(&task, &issue.credential, recipient.as_ref()).await?,
            CredentialIssueKind::Missing | CredentialIssueKind::Refused => None,
        };
        let notice = |words| match &of_all {
            Some(of_all) => of_all.clone(),
            None => {
                let about = SubjectRef::credential_missing(&issue.credential, issue.kind, task.id, task.version);
                NewDelivery::notice(&task, recipient.as_ref(), about, words)
            }
        };
        if task.status == TaskStatus::Active {
            let words = issue_notice(language, &issue.credential, issue.kind, Some(&task.name));
            match self.pause_for_issue(&task, issue, notice(words)).await {
                // it has just come to its end
                Err(StoreError::Conflict(_)) => {}
                done => return done,
            }
        }
        if self.is_resolved(&task.tenant_id, issue).await? {
            return Ok(PauseResult::Resolved);
        }
        let words = idle_issue_notice(language, &issue.credential, issue.kind, &task.name);
        if let Some(notice) = notice(words) {
            self.post_delivery(&notice).await?;
        }
        Ok(PauseResult::Notified)
    }

    async fn pause_for_issue(
        &self,
        task: &Task,
        issue: &CredentialIssue,
        notice: Option<NewDelivery>,
    ) -> Result<PauseResult, StoreError> {
        let change = TaskChange::AwaitCredential(issue.credential.clone());
        let unless_resolved = Some((task.tenant_id.as_str(), issue));
        let request = ChangeRequest { change: &change, notice: notice.as_ref(), unless_resolved, order: None };
        Ok(match self.change_planned(&Scope::Every, task.id, request).await? {
            Some(_) => {
                self.notify(Topic::Outbox);
                PauseResult::Paused
            }
            None => PauseResult::Resolved,
        })
    }

    async fn is_resolved(&self, tenant: &str, issue: &CredentialIssue) -> Result<bool, StoreError> {
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let found = is_resolved(tx, tenant, issue).await?;
        read.end().await?;
        Ok(found)
    }

    /// The one notice of a credential that its other side has ended, where it stands so: its owner may have connected
    /// the account again since the run came to it. The inner `None`: nobody can be told.
    async fn of_ended(
        &self,
        task: &Task,
        reference: &Reference,
        recipient: Option<&Recipient>,
    ) -> Result<Option<Option<NewDelivery>>, StoreError> {
        let Reference { service, account } = reference;
        let stored = self.find_credential(&Scope::Every, &task.tenant_id, service, account).await?;
        let Some(stored) = stored else { return Ok(None) };
        let credential = &stored.credential;
        let is_ended = credential.status == CredentialStatus::NeedsConsent;
        let why = credential.status_reason.as_deref();
        Ok(is_ended.then(|| ended(credential, stored.generation, recipient, why)))
    }

    async fn pause(&self, task: &Task, reason: String, notice: Option<NewDelivery>) -> Result<(), StoreError> {
        let change = TaskChange::Pause { reason: Some(reason) };
        let request = ChangeRequest { change: &change, notice: notice.as_ref(), unless_resolved: None, order: None };
        self.change_planned(&Scope::Every, task.id, request).await?;
        self.notify(Topic::Outbox);
        Ok(())
    }

    /// The recipient who is told of the task; `None` where nobody can be.
    async fn owner(&self, task: &Task) -> Result<Option<Recipient>, StoreError> {
        self.recipient_to_tell(&task.tenant_id).await
    }
}
