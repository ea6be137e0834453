//! A message to the agent, and the answer to its question.

use serde::Deserialize;
use serde_json::{Map, Value};
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

/// The answer to a question of a run for what it lacks: either `fields` or `message`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"fields": {"party": 4}}))]
pub struct RunInput {
    /// The question. Absent: the one that is open.
    pub input_id: Option<Uuid>,
    /// The values by the names of the fields; `null` takes one away that is there.
    pub fields: Option<Map<String, Value>>,
    /// The value of the one field that is awaited, or a line `name: value` for each.
    #[schema(min_length = 1, max_length = 32_768)]
    pub message: Option<String>,
}

/// A message in the form of Open Responses. Other parameters of that form are refused with their names.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"model": "reveille", "input": "What is on for today?"}))]
pub struct NewResponse {
    /// The tenant whose agent it is; an admin token names it for a new conversation. Vendors' clients have it as an extra field of the body.
    pub tenant_id: Option<String>,
    /// The message: a text, or a list of messages of the role `user`, of parts of the type `input_text`.
    #[schema(value_type = String)]
    pub input: Value,
    /// The id of the conversation that it belongs to, or an object with it as `id`. Absent: a new one.
    #[schema(value_type = Option<String>)]
    pub conversation: Option<Value>,
    /// A response of the conversation that it belongs to, in place of `conversation`.
    pub previous_response_id: Option<String>,
    /// `reveille`, or nothing: which models answer is the operator's.
    pub model: Option<String>,
    /// Whether the events of the response come as they happen.
    pub stream: Option<bool>,
    /// Whether the response comes at once, before there is an answer.
    pub background: Option<bool>,
    /// `true`, or nothing: every message is stored.
    pub store: Option<bool>,
}
