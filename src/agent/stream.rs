//! Tells the watchers of a run what the loop does. Whether anybody listens makes no difference to the loop.
//!
//! `session`, `state_change`, `error` and `execution_end` are not told here: they belong to whoever commits them.

use std::sync::{Arc, Mutex};

use crate::agent::StreamSink;
use crate::domain::approval::Approval;
use crate::domain::run::ToolRecord;
use crate::domain::run::stream::StreamEvent;
use crate::domain::run::transcript::{ModelCall, ToolCall, TranscriptMessage};
use crate::ports::tool::{ProgressNote, ToolProgress};

/// The sink of a run's stream events. Cheap to clone.
#[derive(Clone)]
pub struct StreamEmitter(StreamSink);

impl StreamEmitter {
    /// Tells the watchers behind this sink.
    pub fn new(sink: StreamSink) -> StreamEmitter {
        StreamEmitter(sink)
    }

    /// A model is asked; pieces of this turn that were told before are void.
    pub fn message_start(&self, turn: i64) {
        (self.0)(StreamEvent::MessageStart { turn });
    }

    /// A piece of the text that the model writes.
    pub fn message_chunk(&self, turn: i64, text: &str) {
        (self.0)(StreamEvent::MessageChunk { turn, text: text.to_owned() });
    }

    /// The text of this turn is whole, with the call of the model that wrote it.
    pub fn message_end(&self, turn: i64, text: &str, model_call: &ModelCall) {
        (self.0)(StreamEvent::MessageEnd { turn, text: text.to_owned(), model_call: Some(model_call.clone()) });
    }

    /// A tool is about to be called.
    pub fn tool_call(&self, turn: i64, call: &ToolCall) {
        (self.0)(StreamEvent::of_call(turn, call));
    }

    /// Where this call tells the watchers how far it is.
    pub fn progress_of(&self, turn: i64, call: &ToolCall) -> ToolProgress {
        let (sink, tool, id) = (Arc::clone(&self.0), call.name.clone(), call.id.clone());
        ToolProgress::to(move |note| {
            let ProgressNote { progress, total, message } = note;
            let (tool, id) = (tool.clone(), id.clone());
            sink(StreamEvent::ToolProgress { turn, tool, id, progress, total, message, agent: None });
        })
    }

    /// Something about a tool that a person should know; it stops no call.
    pub fn tool_warning(&self, tool: &str, message: impl Into<String>) {
        (self.0)(StreamEvent::ToolWarning { turn: None, tool: tool.to_owned(), message: message.into() });
    }

    /// A person is about to be asked. Watchers are told once it is recorded, and so of calls that are only held.
    pub fn approval_required(&self, approval: &Approval) {
        let event = StreamEvent::of_approval(approval);
        if let StreamEvent::ApprovalRequired { .. } | StreamEvent::InputRequired { .. } = event {
            (self.0)(event);
        }
    }

    /// A call has its result, or an answer its verdict; of other messages nothing is told.
    pub fn stored_message(&self, turn: i64, message: &TranscriptMessage) {
        StreamEvent::of_message(turn, message, None).into_iter().for_each(&*self.0);
    }
}

/// Warnings of one call, while it is made. The watchers of the run are told each at once, and the record of the call
/// keeps them.
pub struct CallWarnings<'a> {
    emitter: &'a StreamEmitter,
    tool: &'a str,
    kept: Mutex<Vec<String>>,
}

impl<'a> CallWarnings<'a> {
    /// No warnings yet, of a call of this tool.
    pub fn of(emitter: &'a StreamEmitter, tool: &'a str) -> CallWarnings<'a> {
        CallWarnings { emitter, tool, kept: Mutex::default() }
    }

    /// Tells the watchers of a warning, and keeps it for the record.
    pub fn warn(&self, message: impl Into<String>) {
        let message = message.into();
        self.emitter.tool_warning(self.tool, message.as_str());
        self.keep(message);
    }

    /// Keeps that the call was held for a while, where it was: watchers were told when that was recorded.
    pub fn keep_hold(&self, approval: Option<&Approval>) {
        if let Some(StreamEvent::ToolWarning { message, .. }) = approval.map(StreamEvent::of_approval) {
            self.keep(message);
        }
    }

    /// The record of the call, with its warnings.
    pub fn recorded(self, mut record: ToolRecord) -> ToolRecord {
        let kept = self.kept.into_inner().expect("warnings lock");
        kept.iter().for_each(|message| record.warn(message));
        record
    }

    fn keep(&self, message: String) {
        self.kept.lock().expect("warnings lock").push(message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn progress_is_told_of_its_call_and_by_the_name_of_an_agent_that_was_called() {
        let heard: Arc<Mutex<Vec<StreamEvent>>> = Arc::default();
        let listener = Arc::clone(&heard);
        let emitter = StreamEmitter::new(Arc::new(move |event| listener.lock().unwrap().push(event)));
        let note = ProgressNote { progress: 1.0, total: Some(3.0), message: Some("on".into()) };
        emitter.progress_of(2, &ToolCall::new("call_7", "climb", json!({}))).tell(note);
        let told = heard.lock().unwrap().remove(0);
        let mut expected = json!({
            "type": "tool_progress", "turn": 2, "tool": "climb", "id": "call_7", "progress": 1.0, "total": 3.0,
            "message": "on",
        });
        assert_eq!((told.name(), json!(told)), ("tool_progress", expected.clone()));
        expected["agent"] = json!("sherpa");
        assert_eq!(json!(told.of_agent("sherpa").unwrap()), expected);
    }
}
