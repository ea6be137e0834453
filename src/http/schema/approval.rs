//! The shapes of decisions.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::approval::{ApprovalChoice, ApprovalLevel};
use crate::http::api::approvals::decision::GRANT_DAYS;

/// An answer to a question.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "decision": "edit", "digest": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
    "modifications": {"text": "The build is green"}, "comment": "shorter"
}))]
pub struct NewDecision {
    /// The choice of the person.
    pub decision: ApprovalChoice,
    /// The `digest` of the approval that was shown.
    #[schema(min_length = 1)]
    pub digest: String,
    /// With `edit`: the arguments that are to be otherwise. Each takes the place of the proposed one, `null` takes it
    /// away, the others stay as proposed.
    pub modifications: Option<Map<String, Value>>,
    /// Words of the person; the agent is told them.
    #[schema(max_length = 2000)]
    pub comment: Option<String>,
    /// With `approve`: allow this for good. Not for tools of high consequence, nor for those that delete.
    #[schema(value_type = Option<NewGrant>)]
    pub grant: Option<Value>,
}

/// The calls to allow for good: this tool of this task, with these arguments.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGrant {
    /// How long it holds, in days from now.
    #[serde(default = "grant_days")]
    #[schema(default = grant_days, minimum = 1, maximum = 365)]
    pub days: i64,
    /// How often; `null`: as often as it likes.
    #[schema(minimum = 1, maximum = 100000)]
    pub uses: Option<i64>,
    /// The arguments that have to be as they are now; the others are free. Absent: all of them.
    #[schema(example = json!(["room"]))]
    pub args: Option<Vec<String>>,
}

fn grant_days() -> i64 {
    GRANT_DAYS
}

/// An override to be set.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant_id": "user_123", "tool": "send_note", "gate": "confirm"}))]
pub struct NewApprovalOverride {
    /// The tenant for whose runs it holds; a tenant's own token leaves it out.
    pub tenant_id: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// The degree of approval in place of the matrix's.
    pub gate: ApprovalLevel,
    /// CEL over `args`, `tool`, `tenant`: it holds only where this does. Absent: always.
    #[schema(example = "args.amount < 100")]
    pub when: Option<String>,
    /// For this task alone.
    pub task_id: Option<Uuid>,
    /// For this configured agent alone.
    pub agent: Option<String>,
    /// The instant from which it does not hold; at most 365 days from now. Absent: 30 days from now.
    pub expires_at: Option<DateTime<Utc>>,
}
