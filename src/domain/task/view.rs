//! A task as it is shown: what its owner decided, and what has become of it. One form for API, CLI and tools.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::domain::run::{Run, RunState};
use crate::domain::task::{Spec, Task, TaskStatus};
use crate::domain::trigger::condition::{ConditionState, ConditionView};

/// The newest run of a task, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LastRun {
    /// Id of the run.
    pub id: Uuid,
    /// State of the run.
    pub state: RunState,
    /// The nominal instant of its fire.
    pub scheduled_for: DateTime<Utc>,
    /// The instant of its end; absent while it goes on.
    pub finished_at: Option<DateTime<Utc>>,
}

impl LastRun {
    /// The part of a run that a task shows.
    pub fn of(run: &Run) -> LastRun {
        LastRun { id: run.id, state: run.state, scheduled_for: run.scheduled_for, finished_at: run.finished_at }
    }
}

/// A task as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskView {
    /// Id of the task.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// Key of the owner, unique within the tenant.
    pub key: Option<String>,
    /// Name for people.
    pub name: String,
    /// Everything that the owner decides besides the name.
    #[serde(flatten)]
    pub spec: Spec,
    /// Whether it fires.
    pub status: TaskStatus,
    /// Reason of a status other than `active`.
    pub status_reason: Option<String>,
    /// Null for a condition: nobody knows; `condition` says when it is polled next.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Where its condition stands; absent for other triggers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionView>,
    /// The run with the latest instant.
    pub last_run: Option<LastRun>,
    /// Automatic fires that were recorded to run.
    pub run_count: i64,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant of its last change.
    pub updated_at: DateTime<Utc>,
    /// Version of the task, which grows with each change.
    pub version: i64,
}

impl Task {
    /// When it fires next, where that is known.
    pub fn fires_at(&self) -> Option<DateTime<Utc>> {
        self.next_fire_at.filter(|_| self.spec.trigger.fires_by_the_clock())
    }

    /// The task as it is shown, a condition as one that was not polled yet. Epoch, anchor and counters of the engine
    /// are not.
    pub fn view(&self, last_run: Option<LastRun>) -> TaskView {
        self.view_with(last_run, &ConditionState::default(), self.updated_at)
    }

    /// The task as it is shown at `now`, with where its condition stands, if it has one.
    pub fn view_with(&self, last_run: Option<LastRun>, state: &ConditionState, now: DateTime<Utc>) -> TaskView {
        TaskView {
            id: self.id,
            tenant_id: self.tenant_id.clone(),
            key: self.key.clone(),
            name: self.name.clone(),
            spec: Spec { action: self.spec.action.public(), ..self.spec.clone() },
            status: self.status,
            status_reason: self.status_reason.clone(),
            next_fire_at: self.fires_at(),
            condition: self.spec.trigger.condition().map(|_| state.view(self.next_fire_at, now)),
            last_run,
            run_count: self.run_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
            version: self.version,
        }
    }
}
