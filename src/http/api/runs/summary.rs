//! A run as lists have it.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::run::{MissedInstants, RunFault, RunFinish, RunState, Usage};
use crate::store;

/// A run in short, as lists have it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunSummary {
    /// The id of the run.
    pub id: Uuid,
    /// The task that it is a run of; `null` for a chat run.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    /// The name that its task has now, of a chat run the title of its conversation; `null` where it was deleted.
    #[schema(required)]
    pub task_name: Option<String>,
    /// The tenant for whom it is.
    pub tenant_id: String,
    /// The fire that it stands for, unique within the task.
    #[schema(example = "s:2026-12-24T15:00:00.000Z")]
    pub fire_key: String,
    /// Kind of the task's trigger: `schedule`, `event`, `condition`.
    pub trigger_type: String,
    /// The nominal instant of the fire.
    pub scheduled_for: DateTime<Utc>,
    /// The state that it is in now.
    pub state: RunState,
    /// Why it was skipped, cancelled or expired.
    #[schema(required)]
    pub reason: Option<String>,
    /// The run that was in the way, where `reason` is `overlap`.
    #[schema(required)]
    pub blocked_by: Option<Uuid>,
    /// How often it was started, handed-back starts not counted.
    pub attempt: i32,
    /// The fires that it stands for, besides its own.
    #[schema(required)]
    pub missed: Option<MissedInstants>,
    /// The run of which it is a retry.
    #[schema(required)]
    pub retry_of: Option<Uuid>,
    /// The `id` of each event that it stands for.
    pub event_ids: Vec<String>,
    /// The instant at which it was recorded.
    pub created_at: DateTime<Utc>,
    /// The instant at which it was started; `null` before that.
    #[schema(required)]
    pub started_at: Option<DateTime<Utc>>,
    /// The instant at which it ended; `null` before that.
    #[schema(required)]
    pub finished_at: Option<DateTime<Utc>>,
    /// How long its input is, in bytes of JSON.
    #[schema(required)]
    pub input_bytes: Option<i64>,
    /// The first 1,000 characters of the answer.
    #[schema(required)]
    pub output: Option<String>,
    /// How long the whole answer is, in bytes of UTF-8.
    #[schema(required)]
    pub output_bytes: Option<i64>,
    /// How its agent came to the answer; `null` where no agent answered, or an earlier release recorded it.
    #[schema(required)]
    pub finish: Option<RunFinish>,
    /// The error, where it did not succeed.
    #[schema(required)]
    pub error: Option<RunFault>,
    /// Usage of all attempts together.
    pub usage: Usage,
}

impl RunSummary {
    /// Shows a run of a list, with the name of its task among these.
    pub fn of(summary: store::RunOverview, names: &HashMap<Uuid, store::TaskName>) -> RunSummary {
        let store::RunOverview { run, input_bytes, output_bytes } = summary;
        RunSummary {
            id: run.id,
            task_name: run.task_id.and_then(|task| names.get(&task)).map(|task| task.name.clone()),
            task_id: run.task_id,
            tenant_id: run.tenant_id,
            fire_key: run.fire_key,
            trigger_type: run.trigger_type,
            scheduled_for: run.scheduled_for,
            state: run.state,
            reason: run.reason,
            blocked_by: run.blocked_by,
            attempt: run.attempt,
            missed: run.missed,
            retry_of: run.retry_of,
            event_ids: run.event_ids,
            input_bytes,
            created_at: run.created_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            output: run.output,
            output_bytes,
            finish: run.finish,
            error: run.error,
            usage: run.usage,
        }
    }
}
