//! The transcript as the loop's checkpoint: read once, then appended to.
//!
//! An assistant message with its calls is appended before the calls run (the intent), their results after. So a
//! transcript always ends in one of four ways, and each says how to go on: a question (ask), calls without results
//! (settle them), results (ask), or an answer without calls (done: nothing is asked again).

use std::sync::Arc;

use crate::agent::result::{ToolRecord, args_summary};
use crate::agent::{AgentStore, AppendError};
use crate::clock::Clock;
use crate::run::Usage;
use crate::run::outcome::RunError;
use crate::run::transcript::{Entry, Message, ToolCall};

/// What is stored of a run, and the way to store more.
pub struct Checkpoint {
    store: Arc<dyn AgentStore>,
    clock: Clock,
    entries: Vec<Entry>,
}

/// One message on its way into the transcript.
pub struct Added {
    pub message: Message,
    pub usage: Usage,
    pub duration_ms: Option<i64>,
}

impl Added {
    /// A message that cost nothing.
    pub fn plain(message: Message) -> Added {
        Added { message, usage: Usage::default(), duration_ms: None }
    }
}

impl Checkpoint {
    pub async fn load(store: Arc<dyn AgentStore>, clock: Clock) -> Result<Checkpoint, RunError> {
        let entries = store.load().await.map_err(run_error)?;
        Ok(Checkpoint { store, clock, entries })
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last turn that was answered; 0 before the first.
    pub fn turn(&self) -> i64 {
        self.entries.last().map_or(0, |entry| entry.turn)
    }

    /// Over all entries, those before a restart included.
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        self.entries.iter().for_each(|entry| sum += entry.usage);
        sum
    }

    /// Appends, durably, all or nothing.
    pub async fn append(&mut self, turn: i64, added: Vec<Added>) -> Result<(), RunError> {
        let first = self.entries.last().map_or(0, |entry| entry.seq + 1);
        let at = self.clock.now();
        let entry = |(seq, Added { message, usage, duration_ms }): (i64, Added)| Entry {
            seq,
            turn,
            at,
            message,
            usage,
            duration_ms,
        };
        let entries: Vec<Entry> = (first..).zip(added).map(entry).collect();
        self.store.append(entries.clone()).await.map_err(run_error)?;
        self.entries.extend(entries);
        Ok(())
    }

    /// The conversation. Results stand behind their call in the order of the calls, however they came in.
    pub fn messages(&self) -> Vec<Message> {
        let mut messages: Vec<Message> = Vec::with_capacity(self.entries.len());
        for entry in self.entries.iter().filter(|entry| !matches!(entry.message, Message::Tool { .. })) {
            messages.push(entry.message.clone());
            let results = calls_of(&entry.message).iter().filter_map(|call| self.result(entry.turn, &call.id));
            messages.extend(results.map(|result| result.message.clone()));
        }
        messages
    }

    /// The calls of the last turn that have no result: intended, perhaps begun, perhaps done.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        let last = self.entries.iter().rfind(|entry| matches!(entry.message, Message::Assistant { .. }));
        let Some(last) = last else { return vec![] };
        let open = |call: &&ToolCall| self.result(last.turn, &call.id).is_none();
        calls_of(&last.message).iter().filter(open).cloned().collect()
    }

    /// The answer, if the conversation has come to one.
    pub fn answer(&self) -> Option<&str> {
        match &self.entries.last()?.message {
            Message::Assistant { text, tool_calls } if tool_calls.is_empty() => Some(text.as_deref().unwrap_or("")),
            _ => None,
        }
    }

    /// All calls that have come to a result, in the order of the conversation. `length`: how long a result was before
    /// it was cut, where that is still known.
    pub fn records(&self, length: impl Fn(i64, &str) -> Option<usize>) -> Vec<ToolRecord> {
        let mut records = Vec::new();
        for entry in &self.entries {
            for call in calls_of(&entry.message) {
                if let Some(result) = self.result(entry.turn, &call.id) {
                    records.push(record(call, result, length(entry.turn, &call.id)));
                }
            }
        }
        records
    }

    fn result(&self, turn: i64, id: &str) -> Option<&Entry> {
        let fits = |message: &Message| matches!(message, Message::Tool { call_id, .. } if call_id == id);
        self.entries.iter().find(|entry| entry.turn == turn && fits(&entry.message))
    }
}

fn calls_of(message: &Message) -> &[ToolCall] {
    match message {
        Message::Assistant { tool_calls, .. } => tool_calls,
        _ => &[],
    }
}

fn record(call: &ToolCall, result: &Entry, length: Option<usize>) -> ToolRecord {
    let (success, stored) = match &result.message {
        Message::Tool { content, is_error, .. } => (!is_error, content.chars().count()),
        _ => (false, 0),
    };
    ToolRecord {
        name: call.name.clone(),
        args_summary: args_summary(&call.arguments),
        duration_ms: result.duration_ms.unwrap_or_default(),
        success,
        result_status: None,
        result_chars: length.unwrap_or(stored),
        token_attribution: None,
    }
}

/// What a store that fails means for the run.
fn run_error(error: AppendError) -> RunError {
    match error {
        AppendError::LeaseLost => RunError::LeaseLost,
        AppendError::Unavailable => RunError::retry(STORE_UNAVAILABLE, "the store is unavailable"),
    }
}

/// The fault's code when the store was away: a matter of the infrastructure, not of the run.
pub const STORE_UNAVAILABLE: &str = "store_unavailable";
