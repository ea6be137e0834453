//! The events of a run's messages that a client was told already, live or from the transcript, so that nothing is told
//! twice and nothing is left out.

use std::collections::HashSet;

use crate::domain::run::{StreamEvent, TranscriptEntry, TranscriptMessage};
use crate::http::streaming::run::keyed_event::{EntryEvents, KeyedEvent};
use crate::http::streaming::run::position::{EventKey, MOST_AHEAD, StreamPosition};

/// The memory of one stream. It grows with the results of its run, and goes with its client; what another stream of the
/// client has to know is its position.
#[derive(Debug, Default)]
pub struct StreamMemory {
    /// The place to which everything was told.
    pub position: StreamPosition,
    /// The turn of the message that has begun live and not ended.
    open: Option<i64>,
    /// Results that were told from the transcript; they may still be heard.
    results: HashSet<EventKey>,
}

/// An event for the client.
#[derive(Debug, PartialEq)]
pub struct ClientEvent {
    /// `None`: nothing is told, but the client's place moves on.
    pub event: Option<StreamEvent>,
    /// The place behind it; absent with events that are not told again after a break.
    pub id: Option<String>,
}

impl ClientEvent {
    /// An event that does not move the client's place on.
    pub fn passing(event: StreamEvent) -> ClientEvent {
        ClientEvent { event: Some(event), id: None }
    }
}

impl StreamMemory {
    /// The memory of a client that has the stream to this place.
    pub fn behind(position: StreamPosition) -> StreamMemory {
        StreamMemory { position, ..StreamMemory::default() }
    }

    /// A live event of a message or a call, if it is news. A message may begin again, when a call of the model is tried
    /// again; its pieces are told to those who have heard it begin.
    pub fn accept_live(&mut self, heard: impl Into<KeyedEvent>) -> Option<ClientEvent> {
        let KeyedEvent { event, key } = heard.into();
        match event {
            StreamEvent::MessageStart { turn } if turn > self.position.turn => {
                self.open = Some(turn);
                Some(ClientEvent::passing(event))
            }
            StreamEvent::MessageChunk { turn, .. } if self.open == Some(turn) => Some(ClientEvent::passing(event)),
            StreamEvent::ToolWarning { turn: None, .. } | StreamEvent::ToolProgress { .. } => {
                Some(ClientEvent::passing(event))
            }
            // the transcript's entry had them
            StreamEvent::MessageEnd { turn, .. } | StreamEvent::ToolCallStart { turn, .. }
                if turn <= self.position.turn =>
            {
                None
            }
            StreamEvent::MessageEnd { turn, .. }
            | StreamEvent::ToolCallStart { turn, .. }
            | StreamEvent::ToolResult { turn, .. }
            | StreamEvent::ToolWarning { turn: Some(turn), .. } => {
                let key = key.unwrap_or_else(|| EventKey::of(turn, &event));
                let is_news = !self.position.ahead.contains(&key) && !self.results.contains(&key);
                (is_news && self.position.ahead.len() < MOST_AHEAD).then(|| self.tell_ahead(key, event))
            }
            _ => None,
        }
    }

    /// Live events are gone unheard: a message of which pieces are missing is told whole at its end.
    pub fn miss(&mut self) {
        self.open = None;
    }

    /// The events of a committed entry that are news, in order. The last one moves the client's place behind the entry.
    pub fn accept_committed(&mut self, entry: &TranscriptEntry, events: EntryEvents) -> Vec<ClientEvent> {
        let turn = entry.turn;
        let is_answer = matches!(entry.message, TranscriptMessage::Assistant { .. });
        let is_of_caller = entry.delegation.is_none();
        if is_answer && is_of_caller {
            // what was heard of earlier turns and is in no entry was lost with its process
            self.position.ahead.retain(|key| key.turn >= turn);
        }
        let (events, keys): (Vec<StreamEvent>, Vec<EventKey>) = events.0.into_iter().unzip();
        let mut told: Vec<ClientEvent> = Vec::new();
        let mut starts = None;
        for (event, key) in events.into_iter().zip(&keys) {
            match event {
                StreamEvent::MessageStart { .. } => starts = (self.open != Some(turn)).then_some(event),
                _ if self.position.ahead.contains(key) => starts = None,
                _ => {
                    told.extend(starts.take().map(ClientEvent::passing));
                    told.push(self.tell_ahead(*key, event));
                }
            }
        }
        self.position.ahead.retain(|key| !keys.contains(key));
        self.position.seq = Some(entry.seq);
        if is_answer {
            self.position.turn = self.position.turn.max(turn);
        }
        // agents that were called at the same time are told in the order in which they are heard
        if !is_answer || !is_of_caller {
            self.results.extend(keys);
        }
        let id = Some(self.position.to_string());
        match told.last_mut() {
            Some(last) => last.id = id,
            None => told.push(ClientEvent { event: None, id }),
        }
        told
    }

    /// Notes an event that is told before the whole of its entry is; beyond the most, it may be told again after a
    /// break.
    fn tell_ahead(&mut self, key: EventKey, event: StreamEvent) -> ClientEvent {
        if matches!(event, StreamEvent::MessageEnd { .. }) {
            self.open = None;
        }
        if self.position.ahead.len() >= MOST_AHEAD {
            return ClientEvent::passing(event);
        }
        self.position.ahead.push(key);
        ClientEvent { event: Some(event), id: Some(self.position.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::compute::Compute;
    use crate::domain::run::ToolCall;

    fn start(turn: i64) -> StreamEvent {
        StreamEvent::MessageStart { turn }
    }

    fn end(turn: i64) -> StreamEvent {
        StreamEvent::MessageEnd { turn, text: "hello".into(), model_call: None }
    }

    fn chunk(turn: i64) -> StreamEvent {
        StreamEvent::MessageChunk { turn, text: "he".into() }
    }

    fn call(turn: i64) -> StreamEvent {
        StreamEvent::ToolCallStart { turn, tool: "t".into(), args: json!({}), id: "call_0".into(), agent: None }
    }

    fn result(turn: i64) -> StreamEvent {
        StreamEvent::ToolResult {
            turn,
            tool: "t".into(),
            id: "call_0".into(),
            result: "r".into(),
            error: false,
            agent: None,
        }
    }

    fn entry(seq: i64, turn: i64, message: TranscriptMessage) -> TranscriptEntry {
        let at = chrono::DateTime::UNIX_EPOCH;
        TranscriptEntry::new(seq, turn, at, message)
    }

    /// An answer with one call.
    fn answer(seq: i64, turn: i64) -> TranscriptEntry {
        let tool_calls = vec![ToolCall::new("call_0", "t", json!({}))];
        let text = Some("hello".into());
        entry(seq, turn, TranscriptMessage::Assistant { text, tool_calls, provider_message: None, finish: None })
    }

    /// The result of that call.
    fn tool(seq: i64, turn: i64) -> TranscriptEntry {
        let (call_id, name, content) = ("call_0".into(), "t".into(), "r".into());
        entry(
            seq,
            turn,
            TranscriptMessage::Tool {
                call_id,
                name,
                notices: vec![],
                content,
                is_error: false,
                reasons: vec![],
                fetched_at: None,
            },
        )
    }

    fn hear(memory: &mut StreamMemory, events: impl IntoIterator<Item = StreamEvent>) -> Vec<StreamEvent> {
        events.into_iter().filter_map(|event| memory.accept_live(event)?.event).collect()
    }

    fn read(memory: &mut StreamMemory, entry: TranscriptEntry) -> Vec<StreamEvent> {
        committed(memory, &entry).into_iter().filter_map(|told| told.event).collect()
    }

    fn committed(memory: &mut StreamMemory, entry: &TranscriptEntry) -> Vec<ClientEvent> {
        memory.accept_committed(entry, EntryEvents::of(entry))
    }

    #[test]
    fn event_heard_live_is_not_read_again_nor_a_read_one_heard() {
        let mut memory = StreamMemory::default();
        let first = [start(1), chunk(1), end(1), call(1), result(1)];
        assert_eq!(hear(&mut memory, first.clone()), first);
        assert_eq!(read(&mut memory, answer(0, 1)), []);
        assert_eq!(read(&mut memory, tool(1, 1)), []);
        assert_eq!(read(&mut memory, answer(2, 2)), [start(2), end(2), call(2)]);
        assert_eq!(read(&mut memory, tool(3, 2)), [result(2)]);
        assert_eq!(hear(&mut memory, [start(2), chunk(2), end(2), call(2), result(2)]), []);
        assert_eq!(memory.position, StreamPosition { seq: Some(3), turn: 2, ..Default::default() }, "nothing is ahead");
    }

    #[test]
    fn finding_of_a_verifier_is_told_once_live_or_from_the_transcript_and_a_passing_warning_has_no_id() {
        let warnings = vec!["U-0001: not certain".to_owned()];
        let verdict = || entry(1, 1, TranscriptMessage::verdict(warnings.clone(), vec![]));
        let (tool, message) = ("U-0001".to_owned(), "not certain".to_owned());
        let finding = StreamEvent::ToolWarning { turn: Some(1), tool, message };
        let mut memory = StreamMemory::default();
        read(&mut memory, answer(0, 1));
        assert_eq!(read(&mut memory, verdict()), std::slice::from_ref(&finding));
        assert_eq!(hear(&mut memory, [finding.clone()]), []);
        let mut memory = StreamMemory::default();
        read(&mut memory, answer(0, 1));
        let heard = memory.accept_live(finding).expect("news");
        assert!(heard.id.is_some(), "it is told to who comes back");
        assert_eq!(read(&mut memory, verdict()), []);
        let passing = StreamEvent::ToolWarning { turn: None, tool: "t".into(), message: "deprecated".into() };
        assert_eq!(memory.accept_live(passing.clone()), Some(ClientEvent::passing(passing)));
    }

    #[test]
    fn progress_of_a_call_is_told_each_time_has_no_id_and_moves_no_place() {
        let mut memory = StreamMemory::default();
        read(&mut memory, answer(0, 1));
        let place = memory.position.clone();
        let told = StreamEvent::ToolProgress {
            turn: 1,
            tool: "t".into(),
            id: "call_0".into(),
            progress: 1.0,
            total: None,
            message: Some("on".into()),
            agent: None,
        };
        for _ in 0..2 {
            assert_eq!(memory.accept_live(told.clone()), Some(ClientEvent::passing(told.clone())));
        }
        assert_eq!(memory.position, place);
        assert_eq!(read(&mut memory, tool(1, 1)), [result(1)]);
    }

    #[tokio::test]
    async fn key_that_was_computed_before_is_that_of_the_event() {
        let compute = Compute::new(1);
        let long = |turn| StreamEvent::MessageEnd { turn, text: "x".repeat(1 << 20), model_call: None };
        for event in [long(1), end(1), call(1), result(1), start(1)] {
            let computed = KeyedEvent::compute(event.clone(), &compute, "ann").await.unwrap();
            let (mut one, mut other) = (StreamMemory::default(), StreamMemory::default());
            assert_eq!(one.accept_live(computed), other.accept_live(event));
            assert_eq!(one.position, other.position);
        }
        let entries = EntryEvents::compute(vec![answer(0, 1), tool(1, 1)], &compute, "ann").await.unwrap();
        let mut memory = StreamMemory::default();
        let told: Vec<usize> =
            entries.into_iter().map(|(entry, events)| memory.accept_committed(&entry, events).len()).collect();
        assert_eq!(told, [3, 1]);
    }

    #[test]
    fn call_id_that_comes_again_in_another_turn_is_another_call() {
        let mut memory = StreamMemory::default();
        assert_eq!(hear(&mut memory, [end(1), call(1), call(1)]), [end(1), call(1)]);
        assert_eq!(hear(&mut memory, [end(2), call(2)]), [end(2), call(2)]);
        assert_eq!(read(&mut memory, answer(0, 1)), []);
        assert_eq!(read(&mut memory, answer(1, 2)), []);
        assert_eq!(read(&mut memory, answer(2, 3)), [start(3), end(3), call(3)]);
    }

    #[test]
    fn message_may_begin_again_live_but_is_read_as_begun_once() {
        let mut memory = StreamMemory::default();
        assert_eq!(hear(&mut memory, [start(1), chunk(1), start(1)]), [start(1), chunk(1), start(1)]);
        assert_eq!(read(&mut memory, answer(0, 1)), [end(1), call(1)]);
    }

    #[test]
    fn pieces_of_a_message_are_told_to_those_who_heard_it_begin_and_missed_none() {
        let mut memory = StreamMemory::default();
        assert_eq!(hear(&mut memory, [chunk(1)]), []);
        assert_eq!(hear(&mut memory, [start(1), chunk(1)]), [start(1), chunk(1)]);
        memory.miss();
        assert_eq!(hear(&mut memory, [chunk(1), end(1)]), [end(1)]);
    }

    #[test]
    fn turn_that_another_instance_does_again_is_told_as_it_is_stored() {
        let mut memory = StreamMemory::default();
        let lost = StreamEvent::MessageEnd { turn: 1, text: "of a process that died".into(), model_call: None };
        assert_eq!(hear(&mut memory, [start(1), lost.clone(), call(1)]), [start(1), lost, call(1)]);
        assert_eq!(read(&mut memory, answer(0, 1)), [start(1), end(1)], "the call is the one that was heard");
        assert_eq!(read(&mut memory, answer(1, 2)).len(), 3);
        assert_eq!(memory.position.ahead, [], "the lost event is forgotten");
    }

    #[test]
    fn client_that_comes_back_anywhere_is_told_the_rest() {
        let whole = || [answer(0, 1), tool(1, 1), answer(2, 2)];
        let durable = |told: &ClientEvent| told.id.is_some() && told.event.is_some();
        let mut memory = StreamMemory::default();
        let told: Vec<ClientEvent> =
            whole().iter().flat_map(|entry| committed(&mut memory, entry)).filter(durable).collect();
        assert_eq!(told.len(), 5);
        for (cut, last) in told.iter().enumerate() {
            let position: StreamPosition = last.id.as_ref().unwrap().parse().unwrap();
            let mut memory = StreamMemory::behind(position);
            let next = memory.position.seq.map_or(0, |seq| seq as usize + 1);
            let rest: Vec<_> =
                whole()[next..].iter().flat_map(|entry| committed(&mut memory, entry)).filter(durable).collect();
            let events = |told: &[ClientEvent]| told.iter().map(|told| told.event.clone()).collect::<Vec<_>>();
            assert_eq!(events(&rest), events(&told[cut + 1..]), "behind event {cut}");
        }
    }

    #[test]
    fn events_far_ahead_of_the_transcript_wait_for_it() {
        let mut memory = StreamMemory::default();
        let many = (0..MOST_AHEAD as i64 + 3).map(|turn| end(turn + 1));
        assert_eq!(hear(&mut memory, many).len(), MOST_AHEAD);
    }
}
