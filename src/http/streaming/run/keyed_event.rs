//! Events of a run's messages with their keys. A key takes longer than to write the event, so those of long events are
//! computed on computing threads, in the turn of the client's name.

use crate::base::compute::{Compute, ComputePanic, steps_to_parse, steps_to_write};
use crate::domain::run::{StreamEvent, TranscriptEntry, TranscriptMessage};
use crate::http::streaming::run::position::EventKey;

/// A live event, with its key where that is known.
pub struct KeyedEvent {
    pub event: StreamEvent,
    pub key: Option<EventKey>,
}

/// The events of an entry of the transcript, each with its key.
pub struct EntryEvents(pub Vec<(StreamEvent, EventKey)>);

impl From<StreamEvent> for KeyedEvent {
    fn from(event: StreamEvent) -> KeyedEvent {
        KeyedEvent { event, key: None }
    }
}

impl KeyedEvent {
    /// An event with its key, if it is one of those that have one.
    pub async fn compute(event: StreamEvent, compute: &Compute, name: &str) -> Result<KeyedEvent, ComputePanic> {
        let (steps, turn) = (steps_of(&event), turn_of(&event));
        let key = move || {
            let key = turn.map(|turn| EventKey::of(turn, &event));
            KeyedEvent { event, key }
        };
        compute.run_if_costly(name, steps, key).await
    }
}

impl EntryEvents {
    /// The events of one entry.
    pub fn of(entry: &TranscriptEntry) -> EntryEvents {
        let keyed = |event: StreamEvent| {
            let key = EventKey::of(entry.turn, &event);
            (event, key)
        };
        EntryEvents(StreamEvent::of_entry(entry).into_iter().map(keyed).collect())
    }

    /// Each of these entries with its events.
    pub async fn compute(
        entries: Vec<TranscriptEntry>,
        compute: &Compute,
        name: &str,
    ) -> Result<Vec<(TranscriptEntry, EntryEvents)>, ComputePanic> {
        let steps = entries.iter().map(|entry| steps_of_message(&entry.message)).sum();
        let keyed = |entry: TranscriptEntry| {
            let events = EntryEvents::of(&entry);
            (entry, events)
        };
        compute.run_if_costly(name, steps, move || entries.into_iter().map(keyed).collect()).await
    }
}

/// The turn of an event that has a key.
fn turn_of(event: &StreamEvent) -> Option<i64> {
    match event {
        StreamEvent::MessageEnd { turn, .. }
        | StreamEvent::ToolCallStart { turn, .. }
        | StreamEvent::ToolResult { turn, .. } => Some(*turn),
        StreamEvent::ToolWarning { turn, .. } => *turn,
        _ => None,
    }
}

/// The steps that it takes at most to write an event.
pub fn steps_of(event: &StreamEvent) -> u64 {
    match event {
        StreamEvent::MessageChunk { text, .. } | StreamEvent::MessageEnd { text, .. } => steps_to_parse(text.len()),
        StreamEvent::ToolResult { result, .. } => steps_to_parse(result.len()),
        StreamEvent::ToolCallStart { args, .. } => steps_to_write(args),
        StreamEvent::InputRequired { fields, .. } => steps_to_write(fields),
        // words of the service, and what has a bound of its own
        _ => 0,
    }
}

/// As [`steps_of`], of all events of a message.
fn steps_of_message(message: &TranscriptMessage) -> u64 {
    match message {
        TranscriptMessage::Assistant { text, tool_calls, .. } => {
            let calls: u64 = tool_calls.iter().map(|call| steps_to_write(&call.args)).sum();
            steps_to_parse(text.as_ref().map_or(0, String::len)) + calls
        }
        TranscriptMessage::Tool { content, .. } => steps_to_parse(content.len()),
        _ => 0,
    }
}
