//! What happens in a run, as it is told live to whoever watches.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One event of a run's stream; the SSE event name is the tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    Session { run_id: String },
    MessageStart { turn: i64 },
    MessageChunk { turn: i64, text: String },
    MessageEnd { turn: i64, text: String },
    ToolCallStart { tool: String, args: Value, id: String },
    ToolResult { tool: String, id: String, result: String, error: bool },
    StateChange { state: String, reason: Option<String> },
    ApprovalRequired { tool: String, id: String, summary: String },
    ToolWarning { tool: String, message: String },
    Error { code: String, message: String },
    ExecutionEnd { conversation_id: Option<String>, usage: Value },
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
