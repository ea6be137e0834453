//! A message to the agent.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

/// A message of a person.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant_id": "user_123", "message": "What is on for today?"}))]
pub struct ChatMessage {
    /// The tenant whose agent it is; an admin token names it for a new conversation.
    pub tenant_id: Option<String>,
    /// The message, in plain words.
    #[schema(min_length = 1, max_length = 32_768)]
    pub message: String,
    /// The conversation that it belongs to. Absent: a new one.
    pub conversation_id: Option<Uuid>,
}
