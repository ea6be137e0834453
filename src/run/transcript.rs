//! The transcript of a run: messages in the order in which they came to be, append only.
//!
//! It is the checkpoint, too: a run that is resumed reads its transcript and goes on behind the last entry. An
//! assistant message with tool calls is appended *before* the tools run (the intent), their results after; a call
//! without a result after a crash has an unknown outcome.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::run::Usage;
use crate::run::outcome::RunFault;

/// The version of the stored form; older ones are read or migrated.
pub const FORMAT: i16 = 1;

/// One message between the orchestrator, the model and the tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    System {
        text: String,
    },
    User {
        text: String,
        /// Where it came from: `{source, trigger_type, task_id, run_id, fire_key}` for a fire, empty for a person.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    },
    Assistant {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// Kept beside the message, for its model alone: no answer of the API and no stream carries it.
        #[serde(skip)]
        echo: Option<Arc<Echo>>,
    },
    Tool {
        call_id: String,
        name: String,
        content: String,
        #[serde(default)]
        is_error: bool,
        /// Why nobody was asked about the call, each rule that had a part in it; empty where somebody was.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<String>,
    },
    /// A pipeline begins: all that its steps read and that may be different later.
    Pipeline {
        /// SHA-256 of the steps, in hexadecimal: other steps can't go on with this ledger.
        digest: String,
        /// What earlier runs of the task have stored.
        state: Value,
        ledger: u8,
    },
    /// A step is about to have its effect.
    Step {
        name: String,
        /// Which item of a `for_each`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        ledger: u8,
    },
    /// What came of a step.
    StepResult {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
        outcome: StepOutcome,
        ledger: u8,
    },
}

/// The version of the entries of pipelines.
pub const LEDGER: u8 = 1;

/// What came of one execution of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum StepOutcome {
    /// It is never executed again.
    Done { value: Value },
    /// The same: it failed for good.
    Failed { error: RunFault },
    /// It had no effect, and is executed again.
    Again { error: RunFault },
}

impl Message {
    pub fn system(text: impl Into<String>) -> Message {
        Message::System { text: text.into() }
    }

    /// Whether it is part of a conversation, not of the ledger of a pipeline.
    pub fn is_said(&self) -> bool {
        !matches!(self, Message::Pipeline { .. } | Message::Step { .. } | Message::StepResult { .. })
    }

    /// What a person said, or the service in a person's place.
    pub fn user(text: impl Into<String>) -> Message {
        Message::User { text: text.into(), metadata: Map::new() }
    }
}

/// An assistant message as its provider wrote it. Models that think refuse to go on with their calls unless they get
/// their thinking back, signatures included, exactly as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// The protocol that `raw` is written in.
    pub wire: String,
    /// The provider's name of the model, as it was asked for.
    pub model: String,
    /// JSON, kept as text: a parsed document would not keep the order of its fields.
    pub raw: String,
}

/// A call that the model asked for. The id is the model's, never made by us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// One stored row of the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 0 within the run.
    pub seq: i64,
    /// The turn that it belongs to, counting from 1; 0 is what came before the first.
    pub turn: i64,
    pub at: DateTime<Utc>,
    #[serde(flatten)]
    pub message: Message,
    /// Tokens and cost of the call that made an assistant message.
    #[serde(skip)]
    pub usage: Usage,
    /// How long a tool or the model took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
}
