//! A task with its due row, as it is stored.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::domain::credential::Reference;
use crate::domain::task::change::FaultyPart;
use crate::domain::task::{Spec, Task, TaskStatus};
use crate::store::StoreError;

/// A task with its due row; what it is told to do is read, or as it is stored.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct TaskRow<S = Json<Spec>> {
    pub(in crate::store) id: Uuid,
    pub(in crate::store) tenant_id: String,
    key: Option<String>,
    pub(in crate::store) name: String,
    pub(in crate::store) spec: S,
    status: String,
    status_reason: Option<String>,
    /// Not read where a task is read to be fired: it is not disabled then.
    #[sqlx(default)]
    faulty_part: Option<String>,
    #[sqlx(default)]
    disabled_by: Option<String>,
    /// Neither is this: it is not paused.
    #[sqlx(default)]
    awaited_service: Option<String>,
    #[sqlx(default)]
    awaited_account: Option<String>,
    pub(in crate::store) epoch: i64,
    pub(in crate::store) version: i64,
    pub(in crate::store) anchor_at: DateTime<Utc>,
    pub(in crate::store) active_since: DateTime<Utc>,
    pub(in crate::store) next_at: Option<DateTime<Utc>>,
    pub(in crate::store) nominal_at: Option<DateTime<Utc>>,
    pub(in crate::store) run_count: i64,
    pub(in crate::store) fire_count: i64,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl TaskRow {
    /// Whether an instant has come that is not recorded yet.
    pub(in crate::store) fn is_due(&self, now: DateTime<Utc>) -> bool {
        self.spec.0.trigger.fires_by_the_clock() && self.next_at.is_some_and(|next| next <= now)
    }

    /// Whether it is paused until this credential is saved.
    pub(in crate::store) fn awaits(&self, credential: &Reference) -> bool {
        self.status == TaskStatus::Paused.as_str() && self.awaited_credential().as_ref() == Some(credential)
    }

    pub(in crate::store) fn task(self) -> Result<Task, StoreError> {
        self.task_with(|spec| spec.0)
    }
}

impl<S> TaskRow<S> {
    fn awaited_credential(&self) -> Option<Reference> {
        let (service, account) = self.awaited_service.clone().zip(self.awaited_account.clone())?;
        Some(Reference { service, account })
    }

    /// The task with the spec that is read of the row.
    pub(in crate::store) fn task_with(self, read: impl FnOnce(S) -> Spec) -> Result<Task, StoreError> {
        let status = TaskStatus::parse(&self.status)
            .ok_or_else(|| StoreError::Corrupt(format!("task {} has the status {}", self.id, self.status)))?;
        let awaited_credential = self.awaited_credential();
        Ok(Task {
            id: self.id,
            tenant_id: self.tenant_id,
            key: self.key,
            name: self.name,
            spec: read(self.spec),
            status,
            status_reason: self.status_reason,
            faulty_part: self.faulty_part.as_deref().and_then(FaultyPart::parse),
            disabled_by: self.disabled_by,
            awaited_credential,
            epoch: self.epoch,
            version: self.version,
            anchor_at: self.anchor_at,
            active_since: self.active_since,
            // without a nominal instant the row waits for the task's last run alone, which is recorded
            next_fire_at: self.nominal_at.and(self.next_at),
            run_count: self.run_count,
            fire_count: self.fire_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

impl<S> TaskRow<S> {
    /// The row with the spec that was read of it.
    pub(in crate::store) fn with<T>(&self, spec: T) -> TaskRow<T> {
        TaskRow {
            id: self.id,
            tenant_id: self.tenant_id.clone(),
            key: self.key.clone(),
            name: self.name.clone(),
            spec,
            status: self.status.clone(),
            status_reason: self.status_reason.clone(),
            faulty_part: self.faulty_part.clone(),
            disabled_by: self.disabled_by.clone(),
            awaited_service: self.awaited_service.clone(),
            awaited_account: self.awaited_account.clone(),
            epoch: self.epoch,
            version: self.version,
            anchor_at: self.anchor_at,
            active_since: self.active_since,
            next_at: self.next_at,
            nominal_at: self.nominal_at,
            run_count: self.run_count,
            fire_count: self.fire_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}
