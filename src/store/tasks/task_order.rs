//! One order of the operator about a task, as it enters the record.

use chrono::{DateTime, Utc};
use serde_json::json;

use crate::domain::task::Task;
use crate::store::StoreError;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::tx::Tx;

/// An order, and the operator who gave it.
pub(in crate::store) struct TaskOrder<'a> {
    pub action: &'static str,
    pub by: &'a str,
}

impl TaskOrder<'_> {
    /// Records the order in the transaction that obeys it.
    pub(in crate::store) async fn record(
        &self,
        tx: &mut Tx<'_>,
        task: &Task,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let act = AuditAction {
            tenant: &task.tenant_id,
            actor: self.by,
            via: "api",
            action: self.action,
            subject_type: "task",
            subject_id: task.id,
            body: json!({ "reason": task.status_reason }),
        };
        write_audit(tx, act, now).await
    }
}
