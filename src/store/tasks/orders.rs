//! Orders of the operator about one task: it is disabled, and enabled again, on the record.
//!
//! A task that is as the order wants it stays untouched, so an order may be repeated.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::task::change::TaskChange;
use crate::domain::task::{Task, TaskStatus};
use crate::store::tasks::changes::ChangeRequest;
use crate::store::tasks::task_order::TaskOrder;
use crate::store::{Store, StoreError, Topic};

impl Store {
    /// Disables a task for the operator: nothing of it fires until [`Store::enable_task`].
    pub async fn disable_task_for(&self, id: Uuid, reason: Option<String>, by: &str) -> Result<Task, StoreError> {
        let task = self.get_task(&Scope::Every, id).await?;
        if task.disabled_by.is_some() {
            return Ok(task);
        }
        let change = TaskChange::Disable { reason, by: by.to_owned() };
        self.obey(id, &change, TaskOrder { action: "task.disabled", by }).await
    }

    /// Enables a task that is disabled, whoever did it; it goes on from now, and catches nothing up.
    pub async fn enable_task(&self, id: Uuid, by: &str) -> Result<Task, StoreError> {
        let task = self.get_task(&Scope::Every, id).await?;
        if task.status != TaskStatus::Disabled {
            return Ok(task);
        }
        self.obey(id, &TaskChange::Enable, TaskOrder { action: "task.enabled", by }).await
    }

    async fn obey(&self, id: Uuid, change: &TaskChange, order: TaskOrder<'_>) -> Result<Task, StoreError> {
        let request = ChangeRequest { change, notice: None, unless_resolved: None, order: Some(&order) };
        let task = self.change_planned(&Scope::Every, id, request).await?.ok_or(StoreError::NotFound)?;
        self.notify(Topic::Queue);
        self.notify(Topic::Windows);
        Ok(task)
    }
}
