//! A task that depends on a credential, as far as the owner of the credential is told.

use serde::Serialize;
use uuid::Uuid;

use crate::domain::task::{Task, TaskStatus};

/// A task that names a credential, or goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct DependentTask {
    /// Id of the task.
    pub id: Uuid,
    /// Name of the task.
    pub name: String,
    /// Whether the task fires.
    pub status: TaskStatus,
    /// Of one that waits for this credential: `credential:` and its reference.
    #[schema(required)]
    pub status_reason: Option<String>,
}

impl DependentTask {
    /// The part of a task that a credential shows.
    pub fn of(task: &Task) -> DependentTask {
        let Task { id, name, status, status_reason, .. } = task.clone();
        DependentTask { id, name, status, status_reason }
    }
}
