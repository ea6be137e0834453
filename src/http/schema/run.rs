//! The shapes of runs and their transcripts.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::approvals::ApprovalOfRun;
use crate::run::outcome::RunFault;
use crate::run::transcript::StepOutcome;
use crate::run::{Missed, RunState};

/// One fire and what became of it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
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
    pub missed: Option<Missed>,
    #[schema(required)]
    pub retry_of: Option<Uuid>,
    /// The `id` of each event that it stands for.
    pub event_ids: Vec<String>,
    /// What made the task fire: the event, or what a poll saw. Absent where a schedule fired.
    pub cause: Option<Value>,
    #[schema(required)]
    pub input: Option<Value>,
    pub created_at: DateTime<Utc>,
    #[schema(required)]
    pub started_at: Option<DateTime<Utc>>,
    #[schema(required)]
    pub finished_at: Option<DateTime<Utc>>,
    /// The answer.
    #[schema(required)]
    pub output: Option<String>,
    #[schema(required)]
    pub error: Option<RunFault>,
    pub usage: Usage,
    /// What it asked people, oldest first.
    pub approvals: Vec<ApprovalOfRun>,
}

/// A run in short, as lists have it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
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
    pub missed: Option<Missed>,
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
    #[schema(required)]
    pub error: Option<RunFault>,
    #[schema(value_type = Usage)]
    pub usage: crate::run::Usage,
}

impl RunSummary {
    pub fn of(summary: crate::store::RunSummary) -> RunSummary {
        let crate::store::RunSummary { run, input_bytes, output_bytes } = summary;
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
            error: run.error,
            usage: run.usage,
        }
    }
}

/// What a run used.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub turns: i64,
    pub tool_calls: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_usd: f64,
}

/// One message of a transcript; which fields there are depends on the role.
#[derive(Serialize, ToSchema)]
pub struct Entry {
    /// Counts from 0 within the run.
    pub seq: i64,
    /// Counts from 1; 0 is what came before the first.
    pub turn: i64,
    pub at: DateTime<Utc>,
    pub role: Role,
    /// What was said: by system, user or assistant.
    #[schema(required = false)]
    pub text: Option<String>,
    /// Where a user's message came from, when no person wrote it.
    #[schema(required = false)]
    pub metadata: Option<Map<String, Value>>,
    /// What the assistant asked for.
    #[schema(required = false)]
    pub tool_calls: Option<Vec<Call>>,
    /// Which call a tool answers.
    #[schema(required = false)]
    pub call_id: Option<String>,
    #[schema(required = false)]
    pub name: Option<String>,
    #[schema(required = false)]
    pub content: Option<String>,
    #[schema(required = false)]
    pub is_error: Option<bool>,
    /// Of a pipeline that begins: SHA-256 of its steps.
    #[schema(required = false)]
    pub digest: Option<String>,
    /// Of a pipeline that begins: what earlier runs of the task have stored.
    #[schema(required = false)]
    pub state: Option<Value>,
    /// Which item of a `for_each` a step was executed for.
    #[schema(required = false)]
    pub index: Option<u32>,
    /// What came of a step.
    #[schema(required = false)]
    pub outcome: Option<StepOutcome>,
    /// The version of the entries of pipelines.
    #[schema(required = false)]
    pub ledger: Option<u8>,
    #[schema(required = false)]
    pub duration_ms: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
    /// A pipeline begins.
    Pipeline,
    /// A step is about to have its effect.
    Step,
    StepResult,
}

/// A call that the model asked for.
#[derive(Serialize, ToSchema)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}
