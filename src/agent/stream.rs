//! Tells the watchers of a run what the loop does. Whether anybody listens makes no difference to the loop.
//!
//! `session`, `state_change`, `error` and `execution_end` are not told here: they belong to whoever commits them.

use serde_json::Value;

use crate::agent::StreamSink;
use crate::domain::run::stream::StreamEvent;
use crate::domain::run::transcript::{ModelCall, ToolCall};

/// Cheap to clone.
#[derive(Clone)]
pub struct StreamEmitter(StreamSink);

impl StreamEmitter {
    pub fn new(sink: StreamSink) -> StreamEmitter {
        StreamEmitter(sink)
    }

    /// A model is asked; pieces of this turn that were told before are void.
    pub fn message_start(&self, turn: i64) {
        (self.0)(StreamEvent::MessageStart { turn });
    }

    pub fn message_chunk(&self, turn: i64, text: &str) {
        (self.0)(StreamEvent::MessageChunk { turn, text: text.to_owned() });
    }

    pub fn message_end(&self, turn: i64, text: &str, model_call: &ModelCall) {
        (self.0)(StreamEvent::MessageEnd { turn, text: text.to_owned(), model_call: Some(model_call.clone()) });
    }

    pub fn tool_call(&self, call: &ToolCall) {
        let args: Value = call.arguments.clone();
        (self.0)(StreamEvent::ToolCallStart { tool: call.name.clone(), args, id: call.id.clone() });
    }

    pub fn tool_warning(&self, tool: &str, message: impl Into<String>) {
        (self.0)(StreamEvent::ToolWarning { tool: tool.to_owned(), message: message.into() });
    }

    /// A person is asked about a call.
    pub fn approval_required(&self, call: &ToolCall, summary: &str) {
        let (tool, id) = (call.name.clone(), call.id.clone());
        (self.0)(StreamEvent::ApprovalRequired { tool, id, summary: summary.to_owned() });
    }

    pub fn tool_result(&self, call: &ToolCall, result: &str, error: bool) {
        let (tool, id) = (call.name.clone(), call.id.clone());
        (self.0)(StreamEvent::ToolResult { tool, id, result: result.to_owned(), error });
    }
}
