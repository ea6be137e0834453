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

/// The ways to deal with a question for input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputAction {
    /// It is answered; where an MCP server only sends a person to a page, that was seen to.
    #[default]
    Accept,
    /// The MCP server that asks is told no, and the call goes on.
    Decline,
    /// The call is not made, or not made again; the model is told so.
    Cancel,
}

/// The answer to a question of a run for what it lacks: either `fields` or `message`, or an `action` that needs neither.
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
    /// `decline` and `cancel` go without values, and so does `accept` where an MCP server asks for none. Absent:
    /// `accept`.
    pub action: Option<InputAction>,
}

/// A message in the form of Open Responses. Clients of vendors send other parameters of that form, too: one that is
/// null, or an empty list or object, says nothing and is taken; any other is refused with its name.
#[derive(ToSchema)]
#[schema(example = json!({"model": "reveille", "input": "What is on for today?"}))]
pub struct NewResponse {
    /// The tenant whose agent it is; an admin token names it for a new conversation. Vendors' clients have it as an
    /// extra field of the body.
    pub tenant_id: Option<String>,
    /// The message.
    pub input: ResponseInput,
    /// The conversation that it belongs to. Absent: a new one.
    pub conversation: Option<ConversationChoice>,
    /// A response of the conversation that it belongs to, in place of `conversation`.
    pub previous_response_id: Option<String>,
    /// `reveille`, or nothing: which models answer is the operator's.
    pub model: Option<String>,
    /// Whether the events of the response come as they happen, as `text/event-stream`.
    pub stream: Option<bool>,
    /// Whether the response comes at once, before there is an answer.
    pub background: Option<bool>,
    /// `true`, or nothing: every message is stored.
    pub store: Option<bool>,
}

/// A text, or messages that are put together.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponseInput {
    /// The words of one message.
    Text(String),
    /// Messages of the person, in their order.
    Messages(Vec<InputMessage>),
}

/// A message of the person. Fields that do not stand here say nothing.
#[derive(Deserialize, ToSchema)]
pub struct InputMessage {
    /// `message`, or nothing.
    pub r#type: Option<String>,
    /// `user`: what was said before is in the conversation.
    pub role: String,
    /// The words of the message.
    pub content: InputContent,
}

/// A text, or parts that are put together.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InputContent {
    /// All the words.
    Text(String),
    /// Parts of the words, in their order.
    Parts(Vec<InputPart>),
}

/// A part of a message. Fields that do not stand here say nothing.
#[derive(Deserialize, ToSchema)]
pub struct InputPart {
    /// `input_text`.
    pub r#type: String,
    /// The words of the part. Absent: none.
    pub text: Option<String>,
}

/// A conversation by its id.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ConversationChoice {
    /// The id by itself, as `/v1/conversations` has it.
    Id(String),
    /// The id in an object.
    Object(ChosenConversation),
}

/// The id of a conversation in an object. Fields that do not stand here say nothing.
#[derive(Deserialize, ToSchema)]
pub struct ChosenConversation {
    /// The id, as `/v1/conversations` has it.
    pub id: String,
}
