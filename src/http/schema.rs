//! The requests of the API. Their types are their one description: the reference shows them, and `base::json::typed`
//! reads by them.
//!
//! Of tasks, events and recipients only the shapes stand here: the domain reads them value by value, with every fault
//! at its place. Each reader takes the fields of its shape and no others; the tests of the API hold each reader and
//! each answer against the shape that is promised.

mod approval;
mod chat;
mod credential;
mod event;
mod fields;
mod memory;
mod pipeline;
mod recipient;
mod task;
mod tool;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::ToSchema;

pub use approval::{NewApprovalOverride, NewDecision, NewGrant};
pub use chat::{ChatMessage, ChosenConversation, ConversationChoice, InputAction, InputContent, NewResponse, RunInput};
pub use credential::RotateKey;
pub use event::{DeadLetterChoice, NewEvents};
pub use memory::{FactPatch, NewFactSchema};
pub use pipeline::DryRunRequest;
pub use recipient::{NewRecipient, RecipientSchema};
pub use task::{
    BackfillRange, ConditionTest, Disable, NewTaskSchema, Pause, PreviewRequest, Resume, RunNow, TaskLines, TaskPatch,
};
pub use tool::{AcceptTool, CallTool};

/// The test to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestMessage {
    /// The channel to test. Absent: the recipient's channels in their order.
    #[schema(example = "email")]
    pub channel: Option<String>,
}

/// An address to be proved.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The kind of channel that the address is of.
    #[schema(example = "sms")]
    pub channel: String,
    /// The code, as it was received. Absent: one is sent.
    #[schema(example = "123456")]
    pub code: Option<String>,
}

/// A token to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant_id": "user_123", "name": "the phone app", "scopes": ["tasks:read", "runs:read"]}))]
pub struct NewToken {
    /// Tenant of the token; an admin who names none makes an admin token.
    pub tenant_id: Option<String>,
    /// Purpose of the token.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// Permissions of the token; no more than the token it is made with.
    #[schema(min_items = 1)]
    pub scopes: Vec<String>,
    /// The instant from which it is not taken. Absent: never, unless the token it is made with ends.
    pub expires_at: Option<DateTime<Utc>>,
}
