//! A task as it is shown: what its owner decided, and what has become of it. One form for API, CLI and tools.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::run::{Run, RunState};
use crate::task::{Spec, Task, TaskStatus};

/// The newest run of a task, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LastRun {
    pub id: Uuid,
    pub state: RunState,
    /// The nominal instant of its fire.
    pub scheduled_for: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
}

impl LastRun {
    pub fn of(run: &Run) -> LastRun {
        LastRun { id: run.id, state: run.state, scheduled_for: run.scheduled_for, finished_at: run.finished_at }
    }
}

/// A task as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskView {
    pub id: Uuid,
    pub tenant_id: String,
    pub name: String,
    #[serde(flatten)]
    pub spec: Spec,
    pub status: TaskStatus,
    pub status_reason: Option<String>,
    pub next_fire_at: Option<DateTime<Utc>>,
    pub last_run: Option<LastRun>,
    pub run_count: i64,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub version: i64,
}

impl Task {
    /// The task as it is shown. Epoch, anchor and counters of the engine are not.
    pub fn view(&self, last_run: Option<LastRun>) -> TaskView {
        TaskView {
            id: self.id,
            tenant_id: self.tenant_id.clone(),
            name: self.name.clone(),
            spec: Spec { action: self.spec.action.public(), ..self.spec.clone() },
            status: self.status,
            status_reason: self.status_reason.clone(),
            next_fire_at: self.next_fire_at,
            last_run,
            run_count: self.run_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
            version: self.version,
        }
    }
}
