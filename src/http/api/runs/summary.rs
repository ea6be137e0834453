//! A run as lists have it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::run::{MissedInstants, RunFault, RunFinish, RunState, Usage};
use crate::store;

/// A run in short, as lists have it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunSummary {
    pub id: Uuid,
    /// `null` for a chat run.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    pub tenant_id: String,
    /// Unique within the task.
    #[schema(example = "s:2026-12-24T15:00:00.000Z")]
    pub fire_key: String,
    pub trigger_type: String,
    /// The nominal instant of the fire.
    pub scheduled_for: DateTime<Utc>,
    pub state: RunState,
    /// Why it was skipped, cancelled or expired.
    #[schema(required)]
    pub reason: Option<String>,
    /// The run that was in the way, where `reason` is `overlap`.
    #[schema(required)]
    pub blocked_by: Option<Uuid>,
    pub attempt: i32,
    /// The fires that it stands for, besides its own.
    #[schema(required)]
    pub missed: Option<MissedInstants>,
    #[schema(required)]
    pub retry_of: Option<Uuid>,
    /// The `id` of each event that it stands for.
    pub event_ids: Vec<String>,
    pub created_at: DateTime<Utc>,
    #[schema(required)]
    pub started_at: Option<DateTime<Utc>>,
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
    #[schema(required)]
    pub error: Option<RunFault>,
    pub usage: Usage,
}

impl RunSummary {
    pub fn of(summary: store::RunOverview) -> RunSummary {
        let store::RunOverview { run, input_bytes, output_bytes } = summary;
        RunSummary {
            id: run.id,
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
