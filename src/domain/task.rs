//! A task: a stored intent. What a person wrote (`Draft`), and what has become of it (`Task`).

#[macro_use]
mod spec;

pub mod change;
mod change_error;
mod credentials;
mod dependent;
mod draft;
mod exported;
mod faulty_part;
mod fields;
mod output;
mod reader;
mod validator;
mod view;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::base::invalid::{FieldError, null_is_absent};
use crate::base::words::words;
use crate::domain::credential::Reference;
use crate::domain::trigger::{NextFire, Trigger};

pub use credentials::{MOST_NAMED, credentials_of, kept_tool, named_by};
pub use dependent::DependentTask;
pub use exported::{exported_id, exported_key};
pub use fields::{DECIDED, Spec};
pub use output::{Notify, Output, Route, Urgency};
pub use validator::{ActionCheck, ActionSeal, PollCheck, TaskValidator};
pub use view::{LastRun, TaskView};

/// The executor of a task that names none.
pub const DEFAULT_EXECUTOR: &str = "orchestrator";
/// Running time of a run where none is given, in seconds.
pub const DEFAULT_TIMEOUT: u64 = 600;
/// Longest stable key of a task, in characters.
pub const KEY_LENGTH: usize = 200;
/// Longest name of a task, in characters.
pub const NAME_LENGTH: usize = 200;
/// Longest instruction, in characters.
pub const INSTRUCTION_LENGTH: usize = 65_536;
/// Longest running time of a run, in seconds.
pub const TIMEOUT_RANGE: std::ops::RangeInclusive<u64> = 1..=86_400;

/// The epoch of a task that was never edited, paused or resumed.
pub const FIRST_EPOCH: i64 = 1;

words! {
    /// Whether a task fires.
    #[derive(utoipa::ToSchema)]
    pub enum TaskStatus {
        /// It fires.
        Active = "active",
        /// By a person, or after failures; resumable.
        Paused = "paused",
        /// Because it can't go on: its trigger can't be read any more. The operator may resume it; an edit of its
        /// trigger makes it active again. Or because the operator has disabled it, who alone enables it.
        Disabled = "disabled",
        /// Fired once, or its `max_runs` or `end_at` reached.
        Completed = "completed",
    }
}

/// The work of the executor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Instruction to the agent, in plain words.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub instruction: String,
    /// Settings of the executor: `OrchestratorConfig`, `PipelineConfig`, `WebhookConfig`, or those of one of your own.
    /// `/v1/executors` has the schema of each.
    #[serde(default, deserialize_with = "null_is_absent")]
    pub config: Map<String, Value>,
}

/// Prefix of sealed secrets in `action.config`.
const SEALED: &str = "sealed_";

impl Action {
    /// Whether a run knows what the runs before it have said.
    pub fn continues(&self) -> bool {
        self.config.get("conversation").is_some_and(|conversation| conversation == "continue")
    }

    /// As it is shown: of a sealed secret only that there is one.
    pub fn public(&self) -> Action {
        let shown = |(key, value): (&String, &Value)| match key.strip_prefix(SEALED) {
            Some(name) => (format!("{name}_set"), Value::Bool(true)),
            None => (key.clone(), value.clone()),
        };
        Action { instruction: self.instruction.clone(), config: self.config.iter().map(shown).collect() }
    }
}

/// How often a failing run is tried, and how long is waited between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Attempts in all, the first included: 1 to 20.
    #[schema(minimum = 1, maximum = 20)]
    pub max_attempts: u32,
    /// The first wait in seconds; doubled each time up to an hour, with full jitter.
    #[schema(maximum = 3600)]
    pub backoff_seconds: u64,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { max_attempts: 3, backoff_seconds: 10 }
    }
}

/// A task as it was asked for, checked. The only way to a new task: `Draft::parse`, then `Store::create_task` or
/// `Store::create_tasks`.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The tenant that will own the task.
    pub tenant: Tenant,
    /// As [`Task::key`].
    pub key: Option<String>,
    /// Name for people.
    pub name: String,
    /// Everything that the owner decides besides the name.
    pub spec: Spec,
}

/// A stored task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Id of the task, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The name that its owner's files know it by: unique for its tenant, and kept as long as the task.
    pub key: Option<String>,
    /// Name for people.
    pub name: String,
    /// Everything that the owner decides besides the name.
    pub spec: Spec,
    /// Whether it fires.
    pub status: TaskStatus,
    /// Why it is paused, disabled or completed.
    pub status_reason: Option<String>,
    /// Of a disabled task, the part for which it is.
    pub faulty_part: Option<change::FaultyPart>,
    /// Of a task that the operator has disabled, the operator's name on the record; nobody else puts it back.
    pub disabled_by: Option<String>,
    /// Of a task that is paused for want of a credential, that credential: it goes on when it is saved.
    pub awaited_credential: Option<Reference>,
    /// Bumped by each change of trigger, policies or status: what was claimed before is void.
    pub epoch: i64,
    /// Bumped by every change.
    pub version: i64,
    /// Where intervals are counted from: `start_at`, else the creation; kept by edits that do not touch it.
    pub anchor_at: DateTime<Utc>,
    /// Nothing before this instant is ever caught up: creation, last edit of the trigger, last resume.
    pub active_since: DateTime<Utc>,
    /// When the next fire is recorded for, or a condition is polled next; none while the last fire is recorded and
    /// about to run.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Runs that were recorded to run, automatic or asked for, one included that was then skipped for overlap. Instants
    /// that were recorded as skipped when they fell due are not counted.
    pub run_count: i64,
    /// Automatic fires that were recorded to run, one included that was then skipped for overlap: they count against
    /// `max_runs`.
    pub fire_count: i64,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant of its last change by a person or the service.
    pub updated_at: DateTime<Utc>,
}

impl Task {
    /// Whether it is a conversation, which is no task to people: it is in no list of tasks and can't be changed or run
    /// as one.
    pub fn is_chat(&self) -> bool {
        matches!(self.spec.trigger, Trigger::Chat(_))
    }

    /// The definition of the task: without its counts and its next instant, which change with each fire.
    pub fn into_definition(self) -> Task {
        Task { next_fire_at: None, run_count: 0, fire_count: 0, ..self }
    }

    /// A new task, active from `now` on, and the first instant that it waits for.
    pub fn new(id: Uuid, draft: Draft, now: DateTime<Utc>) -> Result<(Task, Option<NextFire>), FieldError> {
        let anchor_at = draft.spec.trigger.anchor(now)?;
        let next = draft.spec.trigger.first(id, anchor_at, now)?;
        let task = Task {
            id,
            tenant_id: draft.tenant.as_str().to_owned(),
            key: draft.key,
            name: draft.name,
            spec: draft.spec,
            status: TaskStatus::Active,
            status_reason: None,
            faulty_part: None,
            disabled_by: None,
            awaited_credential: None,
            epoch: FIRST_EPOCH,
            version: 1,
            anchor_at,
            active_since: now,
            next_fire_at: next.map(|n| n.run_at),
            run_count: 0,
            fire_count: 0,
            created_at: now,
            updated_at: now,
        };
        Ok((task, next))
    }
}
