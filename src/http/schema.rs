//! The shapes of requests and answers as the reference shows them, where the code's own types can't say them.
//!
//! Nothing is ever read into or written from these: the domain reads requests value by value, with every fault at its
//! place. The tests of the API hold each answer against the shape that is promised for it.

mod approval;
mod credential;
mod event;
mod pipeline;
mod recipient;
mod run;
mod task;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::approval::matrix::{Category, Consequence};
use crate::tool::ToolStatus;

pub use approval::{NewDecision, NewGrant};
pub use credential::{NewCredential, RotateKey};
pub use event::{CloudEvent, DeadLetterChoice, NewEvent};
pub use pipeline::{Completion, DryRunRequest};
pub use recipient::{NewRecipient, Recipient};
pub use run::{Entry, Run, RunSummary};
pub use task::{
    BackfillRange, ConditionTest, ExpressionPart, NewTask, Pause, PreviewRequest, Resume, RunNow, Task, TaskPatch,
};

/// What is to be tried.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestMessage {
    /// Absent: the recipient's channels in their order.
    #[schema(required = false, example = "email")]
    pub channel: Option<String>,
}

/// An address to be proved.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    #[schema(example = "sms")]
    pub channel: String,
    /// As it was received. Absent: one is sent.
    #[schema(required = false, example = "123456")]
    pub code: Option<String>,
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
    /// What a person is told that a call will do; `{name}` stands for the argument of that name.
    #[schema(required = false)]
    pub summary: Option<String>,
    /// For how long a call is held before it runs and may still be stopped, in seconds; also where nobody has to agree.
    #[schema(required = false)]
    pub undo_seconds: Option<u64>,
    /// Of a declared tool: its request as it is configured; `credential` is a name.
    #[schema(required = false)]
    pub request: Option<Value>,
}
