//! Events in a run, as they are told live to watchers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::run::transcript::ModelCall;

/// One event of a run's stream; the SSE event name is the tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// The stream begins.
    Session {
        /// The run.
        run_id: String,
    },
    /// The model begins an answer.
    MessageStart {
        /// The model's turn.
        turn: i64,
    },
    /// A piece of the model's text.
    MessageChunk {
        /// The model's turn.
        turn: i64,
        /// The piece.
        text: String,
    },
    /// The model's text of a turn, whole.
    MessageEnd {
        /// The model's turn.
        turn: i64,
        /// The whole text.
        text: String,
        /// Which model answered, with its tokens; absent in transcripts of an earlier format.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model_call: Option<ModelCall>,
    },
    /// The model calls a tool.
    ToolCallStart {
        /// Name of the tool.
        tool: String,
        /// Arguments of the call.
        args: Value,
        /// The model's id of the call.
        id: String,
    },
    /// A tool has answered.
    ToolResult {
        /// Name of the tool.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// The result, as the model reads it.
        result: String,
        /// The call failed.
        error: bool,
    },
    /// The run changes its state.
    StateChange {
        /// The new state.
        state: String,
        /// The reason, where there is one.
        reason: Option<String>,
    },
    /// A call waits for a person.
    ApprovalRequired {
        /// Name of the tool.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// The effect of the call, in a sentence.
        summary: String,
    },
    /// A call can't be executed as it is.
    ToolWarning {
        /// Name of the tool.
        tool: String,
        /// The reason, in a sentence.
        message: String,
    },
    /// The run fails.
    Error {
        /// Code for programs.
        code: String,
        /// A sentence for people.
        message: String,
    },
    /// The run's execution is over.
    ExecutionEnd {
        /// Id of the conversation, for chats.
        conversation_id: Option<String>,
        /// Usage of the execution.
        usage: Value,
    },
}

impl StreamEvent {
    /// The SSE event name.
    pub fn name(&self) -> &'static str {
        match self {
            StreamEvent::Session { .. } => "session",
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::MessageChunk { .. } => "message_chunk",
            StreamEvent::MessageEnd { .. } => "message_end",
            StreamEvent::ToolCallStart { .. } => "tool_call_start",
            StreamEvent::ToolResult { .. } => "tool_result",
            StreamEvent::StateChange { .. } => "state_change",
            StreamEvent::ApprovalRequired { .. } => "approval_required",
            StreamEvent::ToolWarning { .. } => "tool_warning",
            StreamEvent::Error { .. } => "error",
            StreamEvent::ExecutionEnd { .. } => "execution_end",
        }
    }
}
