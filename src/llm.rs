//! Models: what is asked of them, what they answer, and how a call fails.
//!
//! Owns the port and the registry of providers. Never stores anything and never decides what a conversation is:
//! a call is a function of its request. Nothing here survives a crash.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::run::transcript::{Message, ToolCall};

/// A tool as a model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
}

/// Whether the model may call tools in this answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    /// The tools are named, because the conversation mentions them, and may not be called.
    None,
}

/// One question to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    pub messages: Vec<Message>,
    pub tools: Vec<ToolSchema>,
    pub tool_choice: ToolChoice,
    /// Longest answer in tokens; `None`: the model's own setting.
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
}

/// Tokens of one call as the provider counted them; zero where it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    pub input: i64,
    pub output: i64,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Done,
    ToolCalls,
    /// The answer was cut at the longest length.
    Length,
    /// The provider withheld the answer.
    Refused,
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    pub text: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    pub stop: StopReason,
    pub tokens: Tokens,
}

/// How a call failed, by what can be done about it. Messages carry no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// Wait and ask again.
    #[error("rate limited: {message}")]
    RateLimited { retry_after: Option<Duration>, message: String },
    /// The conversation does not fit; a shorter one may.
    #[error("the conversation is too long for the model: {message}")]
    Overflow { message: String },
    #[error("no answer in time: {message}")]
    Timeout { message: String },
    /// This key will not do; another may.
    #[error("the key was refused: {message}")]
    Auth { message: String },
    /// The provider or the way to it is broken; later may do.
    #[error("unavailable: {message}")]
    Transient { message: String },
    /// The same request will never do.
    #[error("refused: {message}")]
    Rejected { message: String },
}

/// Hears the text of an answer piece by piece.
pub type OnDelta<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// One model behind one key.
pub trait Model: Send + Sync {
    /// Asks once; no retries. With `on_delta` the text is told as it comes where the provider can, in one piece
    /// where it can't; the answer is whole in either case.
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>>;
}
