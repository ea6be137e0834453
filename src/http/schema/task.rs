//! The shapes of tasks, and of what is asked of them.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::fields::{changes, joined};
use crate::domain::task::Spec;
use crate::domain::trigger::Trigger;

/// A condition to be tried.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionTest {
    /// Of the type `condition`.
    #[schema(value_type = Trigger)]
    pub trigger: Value,
    /// Value of the poll before.
    #[serde(default)]
    pub previous: Value,
    /// Named with an admin token; with a tenant's, it is that tenant.
    pub tenant_id: Option<String>,
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
    /// The name that people read.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
}

/// A task to be made.
#[derive(Serialize)]
pub struct NewTaskSchema;

impl PartialSchema for NewTaskSchema {
    fn schema() -> RefOr<Schema> {
        joined(NewTaskOwn::schema(), Spec::request_schema())
    }
}

impl ToSchema for NewTaskSchema {
    fn name() -> Cow<'static, str> {
        "NewTask".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewTaskOwn::schemas(schemas);
        Spec::schemas(schemas);
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
    /// The name that people read.
    #[schema(required = false, min_length = 1, max_length = 200)]
    pub name: String,
    /// As it is: a task stays with its tenant.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
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
        joined(TaskPatchOwn::schema(), changes(Spec::request_schema()))
    }
}

impl ToSchema for TaskPatch {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        TaskPatchOwn::schemas(schemas);
        Spec::schemas(schemas);
    }
}

/// Why a task is paused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// The reason, as the task shows it. Absent: none.
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

/// Why a task or a tenant is disabled.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Disable {
    /// The reason, as the task or the tenant shows it. Absent: none.
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

/// Handling of events that a task with `buffer_while_paused` has buffered.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// `run` (when absent): each goes the way it would have gone; `drop`: each is recorded as skipped.
    #[schema(example = "run")]
    pub buffered_events: Option<String>,
}

/// Input of a run by hand.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunNow {
    /// Any JSON.
    pub input: Option<Value>,
}

/// Which past instants are run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillRange {
    /// Inclusive.
    pub from: DateTime<Utc>,
    /// Exclusive, and not in the future.
    pub to: DateTime<Utc>,
}

/// A schedule to be tried.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// The trigger, as a task has it.
    #[schema(value_type = Trigger)]
    pub trigger: Value,
    /// Instants that are shown at most.
    #[serde(default = "preview_count")]
    #[schema(default = preview_count, minimum = 1, maximum = 1000)]
    pub count: u32,
    /// The instant after which they are. Absent: now.
    pub from: Option<DateTime<Utc>>,
}

fn preview_count() -> u32 {
    5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::json::typed::field_names;
    use crate::domain::task::DECIDED;

    #[test]
    fn fields_that_are_read_of_a_task_are_those_that_are_described() {
        let mut read = DECIDED.to_vec();
        read.sort_unstable();
        assert_eq!(field_names::<NewTaskSchema>(), read);
        read.push("version");
        read.sort_unstable();
        assert_eq!(field_names::<TaskPatch>(), read);
    }
}
