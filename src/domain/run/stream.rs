//! Events in a run, as they are told live to watchers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::domain::approval::Approval;
use crate::domain::run::result::ToolWarning;
use crate::domain::run::transcript::{ModelCall, ToolCall, TranscriptEntry, TranscriptMessage};
use crate::domain::run::{RunFinish, RunState, Usage};

/// One event of a run's stream. The name of the server-sent event is its `type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// The stream begins.
    Session {
        /// The run.
        run_id: String,
        /// The conversation that the run is a message of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conversation_id: Option<Uuid>,
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
        /// The model's turn.
        turn: i64,
        /// Name of the tool.
        tool: String,
        /// Arguments of the call.
        args: Value,
        /// The model's id of the call.
        id: String,
        /// The configured agent that calls, where it is not the run's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// A tool has answered.
    ToolResult {
        /// The model's turn.
        turn: i64,
        /// Name of the tool.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// The result, as the model reads it.
        result: String,
        /// The call failed.
        error: bool,
        /// The configured agent that has called, where it is not the run's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// A tool tells how far its call is. It is told while it happens, and not again after a break.
    ToolProgress {
        /// The model's turn.
        turn: i64,
        /// Name of the tool.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// How much is done, in a unit of the tool's.
        progress: f64,
        /// How much there is to do, in this unit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
        /// The tool's words about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The configured agent that has called, where it is not the run's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// The run changes its state.
    StateChange {
        /// The new state.
        #[schema(value_type = RunState)]
        state: String,
        /// The reason, where there is one.
        #[schema(required)]
        reason: Option<String>,
    },
    /// A call waits for a person.
    ApprovalRequired {
        /// The approval, by which it is decided.
        approval_id: Uuid,
        /// The model's turn.
        turn: i64,
        /// Name of the tool.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// The effect of the call, in a sentence.
        summary: String,
    },
    /// A call lacks what only a person can supply.
    InputRequired {
        /// The question, by which it is answered.
        input_id: Uuid,
        /// The model's turn.
        turn: i64,
        /// Name of the tool, or of the agent.
        tool: String,
        /// The model's id of the call.
        id: String,
        /// The question, in a sentence.
        question: String,
        /// JSON Schema of the fields.
        fields: Value,
        /// The MCP server that asks in the middle of the call; absent where none does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
    },
    /// A call can't be executed as it is, or a verifier has found something about an answer.
    ToolWarning {
        /// The model's turn, of a finding of a verifier: it is in the transcript, and told again after a break.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<i64>,
        /// Name of the tool, or of the verifier.
        tool: String,
        /// The reason, in a sentence.
        message: String,
    },
    /// The run fails, or a message to it was refused.
    Error {
        /// Code for programs.
        code: String,
        /// A sentence for people.
        message: String,
    },
    /// The run's execution is over.
    ExecutionEnd {
        /// Id of the conversation, for chats.
        #[schema(required)]
        conversation_id: Option<String>,
        /// Usage of the run.
        #[schema(value_type = Usage)]
        usage: Value,
        /// How the run's agent came to its answer; absent where no agent answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<RunFinish>,
    },
}

impl StreamEvent {
    /// The events of a message of the transcript, in order.
    pub fn of_message(turn: i64, message: &TranscriptMessage, model_call: Option<&ModelCall>) -> Vec<StreamEvent> {
        match message {
            // said in an earlier run
            TranscriptMessage::Assistant { .. } if turn == 0 => Vec::new(),
            TranscriptMessage::Assistant { text, tool_calls, .. } => {
                let (text, model_call) = (text.clone().unwrap_or_default(), model_call.cloned());
                let end = StreamEvent::MessageEnd { turn, text, model_call };
                let calls = tool_calls.iter().map(|call| StreamEvent::of_call(turn, call));
                [StreamEvent::MessageStart { turn }, end].into_iter().chain(calls).collect()
            }
            TranscriptMessage::Tool { call_id, name, content, is_error, .. } => {
                let (tool, id, result) = (name.clone(), call_id.clone(), content.clone());
                vec![StreamEvent::ToolResult { turn, tool, id, result, error: *is_error, agent: None }]
            }
            TranscriptMessage::Verdict { .. } => {
                let told = |ToolWarning { tool, message }| StreamEvent::ToolWarning { turn: Some(turn), tool, message };
                ToolWarning::of(message).into_iter().map(told).collect()
            }
            TranscriptMessage::System { .. }
            | TranscriptMessage::User { .. }
            | TranscriptMessage::Unusable { .. }
            | TranscriptMessage::Compaction(_)
            | TranscriptMessage::Pipeline { .. }
            | TranscriptMessage::Step { .. }
            | TranscriptMessage::StepResult { .. } => Vec::new(),
        }
    }

    /// The beginning of a call.
    pub fn of_call(turn: i64, call: &ToolCall) -> StreamEvent {
        let (tool, args, id) = (call.name.clone(), call.args.clone(), call.id.clone());
        StreamEvent::ToolCallStart { turn, tool, args, id, agent: None }
    }

    /// The event as it is told of an agent that was called: its calls by its name, and nothing of its words.
    pub fn of_agent(mut self, name: &str) -> Option<StreamEvent> {
        match &mut self {
            StreamEvent::MessageStart { .. } | StreamEvent::MessageChunk { .. } | StreamEvent::MessageEnd { .. } => {
                return None;
            }
            StreamEvent::ToolCallStart { agent, .. }
            | StreamEvent::ToolResult { agent, .. }
            | StreamEvent::ToolProgress { agent, .. } => {
                // that of an agent further in has its name
                agent.get_or_insert_with(|| name.to_owned());
            }
            _ => {}
        }
        Some(self)
    }

    /// The events of an entry of the transcript, in order.
    pub fn of_entry(entry: &TranscriptEntry) -> Vec<StreamEvent> {
        let events = StreamEvent::of_message(entry.turn, &entry.message, entry.model_call.as_ref());
        match &entry.delegation {
            None => events,
            Some(delegation) => events.into_iter().filter_map(|event| event.of_agent(delegation.agent())).collect(),
        }
    }

    /// The question about a call; of one that nobody is asked about, that it is held for a while.
    pub fn of_approval(approval: &Approval) -> StreamEvent {
        let Approval { id: approval_id, turn, call_id, proposal, .. } = approval;
        let (approval_id, turn, tool, id) = (*approval_id, *turn, proposal.tool.clone(), call_id.clone());
        if proposal.is_input() {
            let (question, fields) = (proposal.summary.clone(), proposal.parameters.clone());
            let server = proposal.server.as_ref().map(|asked| asked.server.clone());
            return StreamEvent::InputRequired { input_id: approval_id, turn, tool, id, question, fields, server };
        }
        match proposal.undo_window().filter(|_| proposal.is_auto_approved()) {
            None => StreamEvent::ApprovalRequired { approval_id, turn, tool, id, summary: proposal.summary.clone() },
            Some(window) => {
                let message = format!("held for {} s, and may be stopped until then", window.num_seconds());
                StreamEvent::ToolWarning { turn: None, tool, message }
            }
        }
    }

    /// The SSE event name.
    pub fn name(&self) -> &'static str {
        match self {
            StreamEvent::Session { .. } => "session",
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::MessageChunk { .. } => "message_chunk",
            StreamEvent::MessageEnd { .. } => "message_end",
            StreamEvent::ToolCallStart { .. } => "tool_call_start",
            StreamEvent::ToolResult { .. } => "tool_result",
            StreamEvent::ToolProgress { .. } => "tool_progress",
            StreamEvent::StateChange { .. } => "state_change",
            StreamEvent::ApprovalRequired { .. } => "approval_required",
            StreamEvent::InputRequired { .. } => "input_required",
            StreamEvent::ToolWarning { .. } => "tool_warning",
            StreamEvent::Error { .. } => "error",
            StreamEvent::ExecutionEnd { .. } => "execution_end",
        }
    }
}
