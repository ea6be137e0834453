//! The shapes of tasks, and of what is asked of them.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::fields::{parts, with_changes, with_fields};
use crate::base::field::Form;
use crate::domain::task::{Action, LastRun, Spec, TaskStatus, Urgency};
use crate::domain::trigger::condition::{ConditionView, FireOn, HttpPoll, RedisPoll, SqlPoll, ToolPoll};
use crate::domain::trigger::{CatchUp, DstFold, DstGap, EventTrigger, OnResume, Overlap};

/// When a task fires.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = Trigger)]
pub enum TriggerSchema {
    Schedule(ScheduleSchema),
    Event(EventTrigger),
    Condition(ConditionSchema),
}

/// Exactly one of `cron`, `interval`, `at` and `rrule`, and the rules around it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai"}))]
#[schema(as = Schedule)]
pub struct ScheduleSchema {
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
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[schema(required = false)]
    pub overlap_counts_waiting: bool,
}

/// Something is polled, and fires by what is seen: exactly one of `http`, `tool`, `sql` and `redis`.
///
/// A condition that is true at its first poll fires, and then not before it was false once. A poll that fails is
/// neither true nor false: it is repeated less and less often, shown in the task, and told to the owner once. Another
/// poll, expression, `watch`, `reset` or `fire` begins anew: what was known is forgotten.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"type": "condition", "poll": {"http": {"url": "https://api.example.org/price"}},
    "interval": "30m", "expression": "value.price < 500", "cooldown": "6h"}))]
pub struct ConditionSchema {
    pub poll: Poll,
    /// How often it is polled, at least `1s`; spread by the task's id, so that many tasks do not poll at once.
    #[schema(example = "30m")]
    pub interval: String,
    /// Condition for a fire, in CEL over `value`, `previous` (the value of the good poll before; at the first one the
    /// same as `value`), `now` and `task` (`id`, `name`, `metadata`). A missing value makes it false, an error makes
    /// the poll fail. `on_change` can do without.
    #[schema(required = false, example = "value.price < 500")]
    pub expression: Option<String>,
    #[schema(required = false)]
    pub fire: FireOn,
    /// With `on_change`: the CEL expression whose value is compared from poll to poll; the whole value when absent. The
    /// first poll is what the second is compared with.
    #[schema(required = false, example = "value.status")]
    pub watch: Option<String>,
    /// With `on_true`: it fires again only after a poll of which this is true and the expression is not.
    #[schema(required = false, example = "value.price > 550")]
    pub reset: Option<String>,
    /// How long the expression must have been true, at every poll. Time in which nothing was seen (failing polls, a
    /// pause) neither counts nor begins it anew. Not with `on_change`.
    #[schema(required = false, example = "10m")]
    pub hold_for: Option<String>,
    /// For so long after a fire further ones are recorded as skipped, with the reason `cooldown`; they are not made up for.
    #[schema(required = false, example = "6h")]
    pub cooldown: Option<String>,
    /// Of one poll, at most `30s`; `10s` when absent.
    #[schema(required = false, example = "10s")]
    pub timeout: Option<String>,
    /// Failing polls in a row after which the owner is told, once.
    #[schema(required = false, default = 3, minimum = 1, maximum = 1000)]
    pub failure_notice_after: u32,
    /// No poll before it.
    #[schema(required = false)]
    pub start_at: Option<DateTime<Utc>>,
    /// No poll after it; the task is completed then.
    #[schema(required = false)]
    pub end_at: Option<DateTime<Utc>>,
    /// `queue_one` when absent.
    #[schema(required = false)]
    pub overlap: Overlap,
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[schema(required = false)]
    pub overlap_counts_waiting: bool,
}

/// The source to poll: one of these.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Poll {
    #[schema(required = false)]
    pub http: Option<HttpPoll>,
    #[schema(required = false)]
    pub tool: Option<ToolPoll>,
    #[schema(required = false)]
    pub sql: Option<SqlPoll>,
    #[schema(required = false)]
    pub redis: Option<RedisPoll>,
}

/// A condition to be tried.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionTest {
    /// Of the type `condition`.
    pub trigger: TriggerSchema,
    /// Value of the poll before.
    #[schema(required = false)]
    pub previous: Value,
    /// Named with an admin token; with a tenant's, it is that tenant.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
}

/// Where the result is told: a channel, or several, the later ones when the earlier fail.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Output)]
pub struct OutputSchema {
    /// Absent: the recipient's own order.
    #[schema(required = false)]
    pub channel: Option<Channels>,
    /// Against the recipient's quiet hours and budget. Absent: `normal`.
    #[schema(required = false)]
    pub urgency: Option<Urgency>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "nothing is read into it: it is a shape for the document of the API")]
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
pub struct NewTaskOwn {
    /// Named with an admin token; with a tenant's, it is that tenant.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    /// A name of your own that stays: unique for the tenant, and never changed. A task that is imported again under it
    /// is there already. `export:` and the id of a task without a key stand for that task.
    #[schema(required = false, min_length = 1, max_length = 200, example = "reports/daily")]
    pub key: Option<String>,
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    pub trigger: TriggerSchema,
    #[schema(required = false, default = "orchestrator")]
    pub executor: String,
    #[schema(required = false)]
    pub action: Action,
    /// Absent: the recipient's own order. Null: the result is told to nobody.
    #[schema(required = false)]
    pub output: Option<OutputSchema>,
}

/// A task to be made.
#[derive(Serialize)]
pub struct NewTaskSchema;

impl PartialSchema for NewTaskSchema {
    fn schema() -> RefOr<Schema> {
        with_fields(NewTaskOwn::schema(), &Spec::written())
    }
}

impl ToSchema for NewTaskSchema {
    fn name() -> Cow<'static, str> {
        "NewTask".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewTaskOwn::schemas(schemas);
        parts(&Spec::written(), schemas);
    }
}

/// Tasks to be made, one to a line: each line is a `NewTask`.
#[derive(Serialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct TaskLines(String);

/// Changes to a task: the fields that are there.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"trigger": {"type": "schedule", "cron": "30 7 * * *"}, "version": 3}))]
pub struct TaskPatchOwn {
    #[schema(required = false, min_length = 1, max_length = 200)]
    pub name: String,
    #[schema(required = false)]
    pub trigger: TriggerSchema,
    #[schema(required = false)]
    pub executor: Option<String>,
    #[schema(required = false)]
    pub action: Option<Action>,
    #[schema(required = false)]
    pub output: Option<OutputSchema>,
    /// As it is: it can't be changed.
    #[schema(required = false)]
    pub key: Option<String>,
    /// The version that was read; with another by now, nothing is changed.
    #[schema(required = false)]
    pub version: Option<i64>,
}

/// Changes to a task.
#[derive(Serialize)]
pub struct TaskPatch;

impl PartialSchema for TaskPatch {
    fn schema() -> RefOr<Schema> {
        with_changes(TaskPatchOwn::schema(), &Spec::written())
    }
}

impl ToSchema for TaskPatch {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        TaskPatchOwn::schemas(schemas);
        parts(&Spec::written(), schemas);
    }
}

/// A task.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskOwn {
    pub id: Uuid,
    pub tenant_id: String,
    /// The stable key that it was made with, if it was.
    #[schema(required)]
    pub key: Option<String>,
    pub name: String,
    pub trigger: TriggerSchema,
    pub executor: String,
    pub action: Action,
    /// Absent: the recipient's own order. Null: the result is told to nobody.
    #[schema(required = false)]
    pub output: Option<OutputSchema>,
}

/// State of a task: all that its owner does not decide.
#[derive(Serialize, ToSchema)]
pub struct TaskState {
    pub status: TaskStatus,
    /// Why it is paused, disabled or completed.
    #[schema(required)]
    pub status_reason: Option<String>,
    /// Null for a condition, which nobody can foresee; `condition` says when it is polled.
    #[schema(required)]
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Where the condition stands; absent for other triggers.
    #[schema(required = false)]
    pub condition: Option<ConditionView>,
    #[schema(required)]
    pub last_run: Option<LastRun>,
    /// Runs that were recorded to run, one included that was then skipped for overlap.
    pub run_count: i64,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    /// Bumped by every change.
    pub version: i64,
}

/// A task.
#[derive(Serialize)]
pub struct TaskSchema;

impl PartialSchema for TaskSchema {
    fn schema() -> RefOr<Schema> {
        let mut fields = Spec::shown();
        fields.push(Form::of::<TaskState>());
        with_fields(TaskOwn::schema(), &fields)
    }
}

impl ToSchema for TaskSchema {
    fn name() -> Cow<'static, str> {
        "Task".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        TaskOwn::schemas(schemas);
        parts(&Spec::shown(), schemas);
        TaskState::schemas(schemas);
    }
}

/// Why a task is paused.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    #[schema(required = false, max_length = 500)]
    pub reason: Option<String>,
}

/// Handling of events that a task with `buffer_while_paused` has buffered.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// `run` (when absent): each goes the way it would have gone; `drop`: each is recorded as skipped.
    #[schema(required = false, example = "run")]
    pub buffered_events: String,
}

/// Input of a run by hand.
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
    pub trigger: TriggerSchema,
    #[schema(required = false, default = 5, minimum = 1, maximum = 1000)]
    pub count: u32,
    /// Now, where it is left out.
    #[schema(required = false)]
    pub from: Option<DateTime<Utc>>,
}
