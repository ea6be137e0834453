//! Events that a client was told already, live or from the transcript, so that nothing is told twice.

use std::collections::HashSet;

use crate::domain::run::{StreamEvent, TranscriptEntry, TranscriptMessage};

/// The memory of one stream. It grows with the turns of its run, and goes with its client.
#[derive(Debug, Default)]
pub struct StreamMemory {
    /// The turn that tool events belong to, which do not say it themselves.
    turn: i64,
    begun: HashSet<i64>,
    ended: HashSet<i64>,
    /// By turn, because some models count their calls anew in each.
    calls: HashSet<(i64, String)>,
    results: HashSet<(i64, String)>,
    /// The error that was told last: how an attempt ended, and perhaps the run.
    error: Option<StreamEvent>,
}

impl StreamMemory {
    /// Whether a live event is news. A message may begin again, when a call of the model is tried again.
    pub fn accept_live(&mut self, event: &StreamEvent) -> bool {
        if let StreamEvent::MessageStart { turn } | StreamEvent::MessageEnd { turn, .. } = event {
            self.turn = self.turn.max(*turn);
        }
        if matches!(event, StreamEvent::MessageStart { .. }) {
            self.error = None; // another attempt: how it fails is news
        }
        self.is_news(self.turn, event)
    }

    /// The events of a committed entry that are news.
    pub fn accept_committed(&mut self, entry: &TranscriptEntry) -> Vec<StreamEvent> {
        self.turn = self.turn.max(entry.turn);
        let begun = self.begun.contains(&entry.turn);
        let mut news = events(entry);
        news.retain(|event| !(begun && matches!(event, StreamEvent::MessageStart { .. })));
        news.retain(|event| self.is_news(entry.turn, event));
        news
    }

    fn is_news(&mut self, turn: i64, event: &StreamEvent) -> bool {
        match event {
            StreamEvent::MessageStart { turn } => {
                self.begun.insert(*turn);
                !self.ended.contains(turn)
            }
            StreamEvent::MessageChunk { turn, .. } => !self.ended.contains(turn),
            StreamEvent::MessageEnd { turn, .. } => self.ended.insert(*turn),
            StreamEvent::ToolCallStart { id, .. } => self.calls.insert((turn, id.clone())),
            StreamEvent::ToolResult { id, .. } => self.results.insert((turn, id.clone())),
            StreamEvent::Error { .. } => self.error.replace(event.clone()).as_ref() != Some(event),
            _ => true,
        }
    }
}

/// The live events for an entry of the transcript.
fn events(entry: &TranscriptEntry) -> Vec<StreamEvent> {
    match &entry.message {
        TranscriptMessage::System { .. } | TranscriptMessage::User { .. } => Vec::new(),
        TranscriptMessage::Pipeline { .. } | TranscriptMessage::Step { .. } | TranscriptMessage::StepResult { .. } => {
            Vec::new()
        }
        TranscriptMessage::Assistant { text, tool_calls, .. } => {
            let end = StreamEvent::MessageEnd {
                turn: entry.turn,
                text: text.clone().unwrap_or_default(),
                model_call: entry.model_call.clone(),
            };
            let calls = tool_calls.iter().map(|call| StreamEvent::ToolCallStart {
                tool: call.name.clone(),
                args: call.arguments.clone(),
                id: call.id.clone(),
            });
            [StreamEvent::MessageStart { turn: entry.turn }, end].into_iter().chain(calls).collect()
        }
        TranscriptMessage::Tool { call_id, name, content, is_error, .. } => vec![StreamEvent::ToolResult {
            tool: name.clone(),
            id: call_id.clone(),
            result: content.clone(),
            error: *is_error,
        }],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::{ToolCall, Usage};

    fn start(turn: i64) -> StreamEvent {
        StreamEvent::MessageStart { turn }
    }

    fn end(turn: i64) -> StreamEvent {
        StreamEvent::MessageEnd { turn, text: "hello".into(), model_call: None }
    }

    fn chunk(turn: i64) -> StreamEvent {
        StreamEvent::MessageChunk { turn, text: "he".into() }
    }

    fn call() -> StreamEvent {
        StreamEvent::ToolCallStart { tool: "t".into(), args: json!({}), id: "call_0".into() }
    }

    fn entry(turn: i64) -> TranscriptEntry {
        let call = ToolCall::new("call_0", "t", json!({}));
        let message =
            TranscriptMessage::Assistant { text: Some("hello".into()), tool_calls: vec![call], provider_message: None };
        let at = chrono::DateTime::UNIX_EPOCH;
        TranscriptEntry { seq: turn, turn, at, message, usage: Usage::default(), duration_ms: None, model_call: None }
    }

    #[test]
    fn event_heard_live_is_not_read_again_nor_a_read_one_heard() {
        let mut memory = StreamMemory::default();
        assert!(
            memory.accept_live(&start(1))
                && memory.accept_live(&chunk(1))
                && memory.accept_live(&end(1))
                && memory.accept_live(&call())
        );
        assert_eq!(memory.accept_committed(&entry(1)), []);
        assert_eq!(memory.accept_committed(&entry(2)), [start(2), end(2), call()]);
        assert!(![start(2), chunk(2), end(2), call()].iter().any(|late| memory.accept_live(late)));
    }

    #[test]
    fn call_id_that_comes_again_in_another_turn_is_another_call() {
        let mut memory = StreamMemory::default();
        assert!(memory.accept_live(&end(1)) && memory.accept_live(&call()) && !memory.accept_live(&call()));
        assert!(memory.accept_live(&end(2)) && memory.accept_live(&call()));
        assert_eq!(memory.accept_committed(&entry(1)), []);
        assert_eq!(memory.accept_committed(&entry(3)), [start(3), end(3), call()]);
    }

    #[test]
    fn error_is_told_once_live_and_at_the_end_and_again_where_a_later_attempt_has_it() {
        let error = |message: &str| StreamEvent::Error { code: "llm_timeout".into(), message: message.into() };
        let mut memory = StreamMemory::default();
        assert!(memory.accept_live(&start(1)) && memory.accept_live(&error("late")));
        assert!(!memory.accept_live(&error("late")), "the record's error is the one that was heard");
        assert!(memory.accept_live(&error("too late")), "another one is news");
        assert!(
            memory.accept_live(&start(1)) && memory.accept_live(&error("too late")),
            "the next attempt failed, too"
        );
        assert_eq!(memory.accept_committed(&entry(1)), [end(1), call()]);
        assert!(!memory.accept_live(&error("too late")), "what is read of the transcript forgets nothing");
    }

    #[test]
    fn message_may_begin_again_live_but_is_read_as_begun_once() {
        let mut memory = StreamMemory::default();
        assert!(memory.accept_live(&start(1)) && memory.accept_live(&chunk(1)) && memory.accept_live(&start(1)));
        assert_eq!(memory.accept_committed(&entry(1)), [end(1), call()]);
    }
}
