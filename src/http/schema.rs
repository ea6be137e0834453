//! The shapes of requests and answers as the reference shows them, where the code's own types can't say them.
//!
//! Nothing is ever read into or written from these: the domain reads requests value by value, with every fault at its
//! place. The tests of the API hold each answer against the shape that is promised for it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::approval::matrix::{Category, Consequence};
use crate::run::outcome::RunFault;
use crate::run::{Missed, RunState};
use crate::task::{Action, LastRun, Retry, TaskStatus};
use crate::tool::ToolStatus;
use crate::trigger::{CatchUp, DstFold, DstGap, OnResume, Overlap};

/// When a task fires.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Trigger {
    Schedule(Schedule),
}

/// Exactly one of `cron`, `interval`, `at` and `rrule`, and the rules around it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai"}))]
pub struct Schedule {
    /// Five fields, six with seconds first, or `@daily` and its kin.
    #[schema(required = false, example = "0 8 * * *")]
    pub cron: Option<String>,
    /// ISO 8601, or `5m`; counted from the task's creation, or `start_at`.
    #[schema(required = false, example = "5m")]
    pub interval: Option<String>,
    /// One instant: RFC 3339, or local time in `timezone`.
    #[schema(required = false, example = "2026-12-24T15:00:00")]
    pub at: Option<String>,
    /// An RFC 5545 recurrence rule, daily or coarser.
    #[schema(required = false, example = "FREQ=MONTHLY;BYDAY=-1FR")]
    pub rrule: Option<String>,
    /// An IANA name; UTC when absent.
    #[schema(required = false, example = "Europe/Berlin")]
    pub timezone: Option<String>,
    /// Nothing fires before it.
    #[schema(required = false)]
    pub start_at: Option<String>,
    /// Nothing fires after it.
    #[schema(required = false)]
    pub end_at: Option<String>,
    /// Fires are spread over this length, by the task's id.
    #[schema(required = false, example = "30s")]
    pub jitter: Option<String>,
    /// Dates, or cron expressions, at which nothing fires.
    #[schema(required = false)]
    pub exclude: Vec<String>,
    #[schema(required = false)]
    pub catch_up: CatchUp,
    /// How late a fire may still start; one hour when absent.
    #[schema(required = false, example = "1h")]
    pub catch_up_window: Option<String>,
    #[schema(required = false)]
    pub overlap: Overlap,
    #[schema(required = false)]
    pub dst_gap: DstGap,
    #[schema(required = false)]
    pub dst_fold: DstFold,
    #[schema(required = false)]
    pub on_resume: OnResume,
    /// Whether a run that waits for a person counts as running for `overlap`.
    #[schema(required = false)]
    pub waiting_counts: bool,
}

/// Where the result is told: a channel, or several, the later ones when the earlier fail.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Absent: the recipient's own order.
    #[schema(required = false)]
    pub channel: Option<Channels>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Channels {
    One(String),
    Several(Vec<String>),
}

/// A task to be made.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "Morning mail", "trigger": {"type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai"},
    "action": {"instruction": "Summarize my unread emails"}, "output": {"channel": "email"}
}))]
pub struct NewTask {
    /// Named with an admin token; with a tenant's, it is that tenant.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    pub trigger: Trigger,
    #[schema(required = false, default = "orchestrator")]
    pub executor: String,
    #[schema(required = false)]
    pub action: Action,
    /// Absent: the recipient's own order. Null: the result is told to nobody.
    #[schema(required = false)]
    pub output: Option<Output>,
    /// Automatic fires at most; null is no limit.
    #[schema(required = false, minimum = 1)]
    pub max_runs: Option<u64>,
    /// Of running, not of waiting.
    #[schema(required = false, default = 600, minimum = 1, maximum = 86400)]
    pub timeout_seconds: u64,
    #[schema(required = false)]
    pub retry: Retry,
    /// Pause after this many failed runs in a row; null never.
    #[schema(required = false, minimum = 1, maximum = 1000)]
    pub pause_after_failures: Option<u32>,
    /// Yours: at most 16 KiB.
    #[schema(required = false)]
    pub metadata: Map<String, Value>,
}

/// What is to change in a task: the fields that are there.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"trigger": {"type": "schedule", "cron": "30 7 * * *"}, "version": 3}))]
pub struct TaskPatch {
    #[schema(required = false, min_length = 1, max_length = 200)]
    pub name: String,
    #[schema(required = false)]
    pub trigger: Trigger,
    #[schema(required = false)]
    pub executor: Option<String>,
    #[schema(required = false)]
    pub action: Option<Action>,
    #[schema(required = false)]
    pub output: Option<Output>,
    #[schema(required = false, minimum = 1)]
    pub max_runs: Option<u64>,
    #[schema(required = false, minimum = 1, maximum = 86400)]
    pub timeout_seconds: Option<u64>,
    #[schema(required = false)]
    pub retry: Option<Retry>,
    #[schema(required = false, minimum = 1, maximum = 1000)]
    pub pause_after_failures: Option<u32>,
    #[schema(required = false)]
    pub metadata: Option<Map<String, Value>>,
    /// The version that was read; with another by now, nothing is changed.
    #[schema(required = false)]
    pub version: Option<i64>,
}

/// A task.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub id: Uuid,
    pub tenant_id: String,
    pub name: String,
    pub trigger: Trigger,
    pub executor: String,
    pub action: Action,
    /// Absent: the recipient's own order. Null: the result is told to nobody.
    #[schema(required = false)]
    pub output: Option<Output>,
    pub max_runs: Option<u64>,
    pub timeout_seconds: u64,
    pub retry: Retry,
    pub pause_after_failures: Option<u32>,
    pub metadata: Map<String, Value>,
    pub status: TaskStatus,
    /// Why it is paused, disabled or completed.
    pub status_reason: Option<String>,
    pub next_fire_at: Option<DateTime<Utc>>,
    pub last_run: Option<LastRun>,
    /// Runs that were made, skipped ones not counted.
    pub run_count: i64,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    /// Bumped by every change.
    pub version: i64,
}

/// Why a task is paused.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    #[schema(required = false, max_length = 500)]
    pub reason: Option<String>,
}

/// What a run by hand is told.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunNow {
    /// Any JSON.
    #[schema(required = false)]
    pub input: Value,
}

/// Which past instants are run.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillRange {
    /// Inclusive.
    pub from: DateTime<Utc>,
    /// Exclusive, and not in the future.
    pub to: DateTime<Utc>,
}

/// A schedule to be tried.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    pub trigger: Trigger,
    #[schema(required = false, default = 5, minimum = 1, maximum = 1000)]
    pub count: u32,
    /// Now, where it is left out.
    #[schema(required = false)]
    pub from: Option<DateTime<Utc>>,
}

/// One fire and what became of it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub id: Uuid,
    /// `null` for a chat run.
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
    pub reason: Option<String>,
    /// The run that was in the way, where `reason` is `overlap`.
    pub blocked_by: Option<Uuid>,
    pub attempt: i32,
    /// The fires that it stands for, besides its own.
    pub missed: Option<Missed>,
    pub retry_of: Option<Uuid>,
    pub event_ids: Vec<String>,
    pub input: Option<Value>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    /// The answer.
    pub output: Option<String>,
    pub error: Option<RunFault>,
    pub usage: Usage,
    pub approvals: Vec<Value>,
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
}

/// A call that the model asked for.
#[derive(Serialize, ToSchema)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// Where a tenant is reached.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "timezone": "Europe/Berlin", "locale": "en", "addresses": {"email": "ann@example.org"}, "fallback": ["email"]
}))]
pub struct NewRecipient {
    #[schema(required = false, default = "UTC")]
    pub timezone: String,
    #[schema(required = false, default = "en")]
    pub locale: String,
    #[schema(required = false)]
    pub addresses: NewAddresses,
    /// Channels in the order in which they are tried.
    #[schema(required = false)]
    pub fallback: Vec<String>,
}

/// One address for each kind of channel.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAddresses {
    #[schema(required = false)]
    pub email: Option<String>,
    #[schema(required = false)]
    pub webhook: Option<NewWebhook>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    #[schema(format = Uri)]
    pub url: String,
    /// A signing secret, or several while they are rotated. Left out, the stored one is kept.
    #[schema(required = false, write_only)]
    pub secret: Option<Secrets>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Secrets {
    One(String),
    Several(Vec<String>),
}

/// Where a tenant is reached, without the secrets.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipient {
    pub tenant_id: String,
    pub timezone: String,
    pub locale: String,
    pub addresses: Addresses,
    pub fallback: Vec<String>,
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    #[schema(required = false)]
    pub email: Option<String>,
    #[schema(required = false)]
    pub webhook: Option<Webhook>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    pub secret_set: bool,
}

/// A token to be made.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant_id": "user_123", "name": "the phone app", "scopes": ["tasks:read", "runs:read"]}))]
pub struct NewToken {
    /// Whose token it is; an admin who names nobody makes an admin token.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    /// What it is for.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// What it may do; no more than the token it is made with.
    #[schema(min_items = 1)]
    pub scopes: Vec<String>,
    /// Never, where it is left out, unless the token it is made with ends.
    #[schema(required = false)]
    pub expires_at: Option<DateTime<Utc>>,
}

/// A function that a model may call.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    pub category: Category,
    pub consequence: Consequence,
    pub requires_confirmation: bool,
    pub version: String,
    pub status: ToolStatus,
    pub idempotent: bool,
}
