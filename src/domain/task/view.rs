//! A task as it is shown: what its owner decided, and what has become of it. One form for API, CLI and tools.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::PartialSchema;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{RefOr, Schema};
use uuid::Uuid;

use crate::base::expr::MissingField;
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

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Task)]
pub struct TaskView {
    /// Id of the task.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The stable key that it was made with, if it was.
    #[schema(required)]
    pub key: Option<String>,
    /// Name for people.
    pub name: String,
    /// Everything that the owner decides besides the name.
    #[serde(flatten)]
    #[schema(schema_with = closed_spec)]
    pub spec: Spec,
    /// Whether it fires.
    pub status: TaskStatus,
    /// Why it is paused, disabled or completed.
    #[schema(required)]
    pub status_reason: Option<String>,
    /// Of a task that the operator has disabled, the operator's name on the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "token:admin")]
    pub disabled_by: Option<String>,
    /// Null for a condition, which nobody can foresee; `condition` says when it is polled.
    #[schema(required)]
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Where the condition stands; absent for other triggers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionView>,
    /// The run with the latest instant.
    #[schema(required)]
    pub last_run: Option<LastRun>,
    /// Runs that were recorded to run, one included that was then skipped for overlap.
    pub run_count: i64,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant of its last change.
    pub updated_at: DateTime<Utc>,
    /// Version of the task, which grows with each change.
    pub version: i64,
    /// Where its event trigger was made or changed: a field that the trigger looks for and that none of the newest kept
    /// events of its source and type has. A later one may have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingField>,
}

/// The schema of a spec as a part of an answer, which has no further fields.
fn closed_spec() -> RefOr<Schema> {
    let mut schema = Spec::schema();
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    schema
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
            disabled_by: self.disabled_by.clone(),
            next_fire_at: self.fires_at(),
            condition: self.spec.trigger.condition().map(|_| state.view(self.next_fire_at, now)),
            last_run,
            run_count: self.run_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
            version: self.version,
            missing: None,
        }
    }
}
