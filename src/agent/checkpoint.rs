//! The transcript as the loop's checkpoint: read once, then appended to.
//!
//! An assistant message with its calls is appended before the calls run (the intent), their results after. So a
//! transcript always ends in one of four ways, and each says how to go on: a question (ask), calls without results
//! (settle them), results (ask), or an answer without calls (done: nothing is asked again). Entries before which
//! nothing has happened that must not happen twice may wait for the next append: a question for its first answer, the
//! intent of calls that only read for their results, the answer of a run for its end.

pub mod agent_store;
mod shared_transcript;
pub mod transcript_slice;

use std::sync::Arc;
use std::time::Duration;

use crate::agent::checkpoint::agent_store::{AgentStore, AppendError};
use crate::agent::context::shown::{ShownMessage, compacted};
use crate::agent::verify::{ToolEvidence, is_asked_again};
use crate::base::clock::{Clock, pause};
use crate::base::json::length::bytes_of;
use crate::domain::budget::CallBound;
use crate::domain::run::outcome::{RunError, RunFault};
use crate::domain::run::transcript::{ModelCall, ToolCall, TranscriptEntry, TranscriptMessage};
use crate::domain::run::{RunFinish, ToolAttribution, ToolRecord, Usage};

/// The fault's code when the store was away: a matter of the infrastructure, not of the run.
pub const STORE_UNAVAILABLE: &str = "store_unavailable";
/// The fault's code when the transcript can't be read or written, now or later.
pub const STORE_CORRUPT: &str = "store_corrupt";
/// The fault's code when a newer release wrote the transcript.
pub const UNKNOWN_FORMAT: &str = "unknown_transcript_format";
/// How long a store that is away is waited for, in milliseconds: together well within a lease.
const STORE_WAITS: [u64; 6] = [100, 200, 400, 800, 1600, 3200];
/// Most bytes of entries that wait for the end: many ends are written in one transaction, each with what waited for it.
pub const DEFERRED_BYTES: usize = 16 * 1024;

/// The stored transcript of a run, and the way to append to it.
pub struct Checkpoint {
    store: Arc<dyn AgentStore>,
    clock: Clock,
    entries: Vec<TranscriptEntry>,
    /// How many of the entries are stored; the others wait for the next append.
    stored: usize,
    /// How many of the entries the store has: they are stored, or were deferred to the next append or the end.
    accepted: usize,
    /// Whether those that wait are stored before the model is asked again.
    is_due: bool,
}

/// A message that becomes an entry of the transcript.
pub struct NewEntry {
    /// The message as it was stored.
    pub message: TranscriptMessage,
    /// Usage that the message adds.
    pub usage: Usage,
    /// Time that it took, in milliseconds.
    pub duration_ms: Option<i64>,
    /// The call of a model that made it.
    pub model_call: Option<ModelCall>,
    /// The call of a tool whose result it is.
    pub tool_record: Option<ToolRecord>,
}

impl NewEntry {
    /// A message that cost nothing.
    pub fn plain(message: TranscriptMessage) -> NewEntry {
        NewEntry { message, usage: Usage::default(), duration_ms: None, model_call: None, tool_record: None }
    }
}

impl Checkpoint {
    /// Loads the transcript. Fails where the store is away or an entry can't be read.
    pub async fn load(store: Arc<dyn AgentStore>, clock: Clock) -> Result<Checkpoint, RunError> {
        let entries = store.load().await.map_err(run_error)?;
        let stored = entries.len();
        Ok(Checkpoint { store, clock, entries, stored, accepted: stored, is_due: false })
    }

    /// Whether nothing was said yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[TranscriptEntry] {
        &self.entries
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

    /// Turns that were begun behind this one.
    pub fn turns_behind(&self, first: i64) -> i64 {
        let (mut count, mut last) = (0, first);
        for entry in self.entries.iter().filter(|entry| entry.turn > first) {
            count += i64::from(entry.turn > last);
            last = last.max(entry.turn);
        }
        count
    }

    /// Adds entries that may be lost with the process: they are stored with the next append.
    pub fn add(&mut self, turn: i64, added: Vec<NewEntry>) {
        let first = self.entries.last().map_or(0, |entry| entry.seq + 1);
        let at = self.clock.now();
        let entry = |(seq, added): (i64, NewEntry)| {
            let NewEntry { message, usage, duration_ms, model_call, tool_record } = added;
            TranscriptEntry {
                usage,
                duration_ms,
                model_call,
                tool_record,
                ..TranscriptEntry::new(seq, turn, at, message)
            }
        };
        self.entries.extend((first..).zip(added).map(entry));
    }

    /// Adds entries that are stored, with those before them, before the model is asked again.
    pub fn add_due(&mut self, turn: i64, added: Vec<NewEntry>) {
        self.is_due |= !added.is_empty();
        self.add(turn, added);
    }

    /// Adds entries that the next append stores, or else the record of how the execution ended.
    pub fn defer(&mut self, turn: i64, added: Vec<NewEntry>) {
        self.add(turn, added);
        self.defer_added();
    }

    /// Defers what was added to the next append, or else to the record of how the execution ended. Much is stored at
    /// once.
    pub async fn defer_or_flush(&mut self) -> Result<(), RunError> {
        let waiting = self.entries[self.stored..].iter().map(|entry| bytes_of(&entry.message));
        match waiting.sum::<usize>() > DEFERRED_BYTES {
            true => self.flush().await,
            false => {
                self.defer_added();
                Ok(())
            }
        }
    }

    /// Gives the store the entries that it does not have yet, to be stored with the next append or the end.
    fn defer_added(&mut self) {
        self.store.defer(self.entries[self.accepted..].to_vec());
        self.accepted = self.entries.len();
    }

    /// Appends, durably, all or nothing, with what was added before. Where it fails, these entries are not in it.
    pub async fn append(&mut self, turn: i64, added: Vec<NewEntry>) -> Result<(), RunError> {
        let before = self.entries.len();
        self.add(turn, added);
        let stored = self.flush().await;
        if stored.is_err() {
            self.entries.truncate(before);
        }
        stored
    }

    /// The store of the entries.
    pub fn store(&self) -> &dyn AgentStore {
        &*self.store
    }

    /// Whether something was stored: until then nothing has happened.
    pub fn has_begun(&self) -> bool {
        self.stored > 0
    }

    /// Whether every entry is stored.
    pub fn is_stored(&self) -> bool {
        self.stored == self.entries.len()
    }

    /// Stores what was added, durably, all or nothing. A store that is away is waited for a while: an answer that was
    /// paid for is not thrown away for a hiccup, and appending the same entries twice is appending them once.
    pub async fn flush(&mut self) -> Result<(), RunError> {
        self.write(None).await.map(|_| ())
    }

    /// Stores what is to be on the record before the model is asked again.
    pub async fn flush_due(&mut self) -> Result<(), RunError> {
        if self.is_due { self.flush().await } else { Ok(()) }
    }

    /// Whether something is to be on the record before the model is asked again.
    pub fn has_due(&self) -> bool {
        self.is_due
    }

    /// As [`Checkpoint::flush`]; whether the call of the next turn was reserved on the same way.
    pub async fn flush_and_reserve(&mut self, turn: i64, bound: CallBound) -> Result<bool, RunError> {
        self.write(Some((turn, bound))).await
    }

    async fn write(&mut self, next: Option<(i64, CallBound)>) -> Result<bool, RunError> {
        if self.is_stored() {
            return Ok(false);
        }
        let added = &self.entries[self.stored..];
        let mut waits = STORE_WAITS.iter();
        let is_reserved = loop {
            let written = match &next {
                Some((turn, bound)) => self.store.append_and_reserve(added.to_vec(), *turn, bound.clone()).await,
                None => self.store.append(added.to_vec()).await.map(|()| false),
            };
            match (written, waits.next()) {
                (Ok(is_reserved), _) => break is_reserved,
                (Err(AppendError::Unavailable), Some(wait)) => pause(Duration::from_millis(*wait)).await,
                (Err(error), _) => return Err(run_error(error)),
            }
        };
        (self.stored, self.accepted, self.is_due) = (self.entries.len(), self.entries.len(), false);
        Ok(is_reserved)
    }

    /// The conversation as a model is shown it, compactions applied. Results stand behind their call in the order of
    /// the calls, however they came in.
    pub fn shown(&self) -> Vec<ShownMessage> {
        let mut said: Vec<&TranscriptEntry> = Vec::with_capacity(self.entries.len());
        let is_placed_by_its_call = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Tool { .. });
        let is_said =
            |entry: &&TranscriptEntry| entry.message.is_conversation() && !is_placed_by_its_call(&entry.message);
        for entry in self.entries.iter().filter(is_said) {
            said.push(entry);
            let calls = entry.message.tool_calls().iter();
            said.extend(calls.filter_map(|call| self.result_entry(entry.turn, &call.id)));
        }
        let whole = said.into_iter().map(|entry| ShownMessage::verbatim(entry.seq, entry.message.clone())).collect();
        let compactions = self.entries.iter().filter_map(|entry| match &entry.message {
            TranscriptMessage::Compaction(compaction) => Some(compaction),
            _ => None,
        });
        compactions.fold(whole, compacted)
    }

    /// The entries that stand before the last message with calls; all of them, where there is none.
    pub fn entries_before_calls(&self) -> usize {
        let is_last = |entry: &TranscriptEntry| entry.turn > 0 && !entry.message.tool_calls().is_empty();
        self.entries.iter().rposition(is_last).unwrap_or(self.entries.len())
    }

    /// The calls of the last turn that have no result: intended, perhaps begun, perhaps done.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        let Some(last) = self.assistant_entries().next_back() else { return vec![] };
        let open = |call: &&ToolCall| self.result(last.turn, &call.id).is_none();
        last.message.tool_calls().iter().filter(open).cloned().collect()
    }

    /// The calls of the last turn.
    pub fn last_calls(&self) -> &[ToolCall] {
        self.assistant_entries().next_back().map_or(&[], |last| last.message.tool_calls())
    }

    /// The calls of each turn with their results, in order; without a turn of which a call has none.
    pub fn finished_turns(&self) -> impl Iterator<Item = (i64, Vec<(&ToolCall, &TranscriptMessage)>)> {
        self.assistant_entries().filter_map(|entry| {
            let calls = entry.message.tool_calls().iter();
            let finished = calls.map(|call| Some((call, self.result(entry.turn, &call.id)?)));
            Some((entry.turn, finished.collect::<Option<Vec<_>>>()?))
        })
    }

    /// The answer, if the conversation has come to one, and how. At the limit of turns it may be empty: then it is the
    /// last thing that the model said before.
    pub fn answer(&self) -> Option<(&str, RunFinish)> {
        let is_verdict = |message: &&TranscriptMessage| matches!(message, TranscriptMessage::Verdict { .. });
        match self.last_words().find(|message| !is_verdict(message))? {
            TranscriptMessage::Assistant { text, tool_calls, finish, .. } if tool_calls.is_empty() => {
                let finish = finish.unwrap_or(RunFinish::Answer);
                let before = || self.last_said().filter(|_| finish == RunFinish::MaxTurns);
                Some((text.as_deref().or_else(before).unwrap_or(""), finish))
            }
            _ => None,
        }
    }

    /// The findings about the answer, where it was verified.
    pub fn verdict(&self) -> Option<&TranscriptMessage> {
        self.last_words().next().filter(|last| matches!(last, TranscriptMessage::Verdict { .. }))
    }

    /// Words and findings, the last first. A summary may come to its end behind an answer.
    fn last_words(&self) -> impl Iterator<Item = &TranscriptMessage> {
        let of_summary = |message: &&TranscriptMessage| {
            matches!(message, TranscriptMessage::Compaction(_) | TranscriptMessage::Unusable { .. })
        };
        self.entries.iter().rev().map(|entry| &entry.message).filter(move |message| !of_summary(message))
    }

    /// Whether the model was asked for another answer.
    pub fn was_asked_again(&self) -> bool {
        self.entries.iter().any(|entry| is_asked_again(&entry.message))
    }

    /// The texts that the run was given, in order: its instructions and its messages, without what verifiers have said.
    pub fn input_texts(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|entry| !is_asked_again(&entry.message)).filter_map(|entry| match &entry.message {
            TranscriptMessage::System { text, .. } | TranscriptMessage::User { text, .. } => Some(text.as_str()),
            _ => None,
        })
    }

    /// The results of all calls, in order, as the model has read them.
    pub fn evidence(&self) -> impl Iterator<Item = ToolEvidence> {
        self.entries.iter().filter_map(|entry| match &entry.message {
            TranscriptMessage::Tool { name, content, is_error, .. } => {
                Some(ToolEvidence { tool: name.clone(), is_error: *is_error, content: content.clone() })
            }
            _ => None,
        })
    }

    /// The last text of the model.
    pub fn last_said(&self) -> Option<&str> {
        self.assistant_entries().rev().find_map(|entry| match &entry.message {
            TranscriptMessage::Assistant { text, .. } => text.as_deref().filter(|text| !text.trim().is_empty()),
            _ => None,
        })
    }

    /// All calls that have come to a result, in the order of the conversation.
    pub fn records(&self) -> Vec<ToolRecord> {
        let mut records = Vec::new();
        for entry in &self.entries {
            for call in entry.message.tool_calls() {
                if let Some(result) = self.result_entry(entry.turn, &call.id) {
                    records.push(result.tool_record.clone().unwrap_or_else(|| record_of(call, result)));
                }
            }
        }
        records
    }

    /// The result of a call.
    pub fn result(&self, turn: i64, id: &str) -> Option<&TranscriptMessage> {
        self.result_entry(turn, id).map(|entry| &entry.message)
    }

    /// Messages of the model in this run: what it has said in earlier ones stands before its first turn.
    fn assistant_entries(&self) -> impl DoubleEndedIterator<Item = &TranscriptEntry> {
        let is_of_a_turn = |entry: &&TranscriptEntry| entry.turn > 0;
        let entries = self.entries.iter().filter(is_of_a_turn);
        entries.filter(|entry| matches!(entry.message, TranscriptMessage::Assistant { .. }))
    }

    fn result_entry(&self, turn: i64, id: &str) -> Option<&TranscriptEntry> {
        let fits =
            |message: &TranscriptMessage| matches!(message, TranscriptMessage::Tool { call_id, .. } if call_id == id);
        self.entries.iter().find(|entry| entry.turn == turn && fits(&entry.message))
    }
}

/// The record of a call that an earlier release has carried out: its result is as long as it was stored.
fn record_of(call: &ToolCall, result: &TranscriptEntry) -> ToolRecord {
    let ended = match &result.message {
        TranscriptMessage::Tool { content, is_error, .. } => (!is_error, content.chars().count()),
        _ => (false, 0),
    };
    let attribution = ToolAttribution { turn: result.turn, ..ToolAttribution::default() };
    ToolRecord::new((&call.name, true), &call.args, result.duration_ms.unwrap_or_default(), ended, attribution)
}

/// Whether a run that ends with this error may store anything more: its lease stands, and its store is there.
pub fn may_still_store(error: &RunError) -> bool {
    match error {
        RunError::LeaseLost => false,
        RunError::Infrastructure { fault } => fault.code != STORE_UNAVAILABLE,
        _ => true,
    }
}

/// The error with which a run ends when its store fails.
pub fn run_error(error: AppendError) -> RunError {
    match error {
        AppendError::LeaseLost => RunError::LeaseLost,
        AppendError::Unavailable => {
            RunError::Infrastructure { fault: RunFault::new(STORE_UNAVAILABLE, "the store is unavailable") }
        }
        AppendError::Corrupt => RunError::fail(STORE_CORRUPT, "what is stored of the run can't be read"),
        newer @ AppendError::UnknownFormat { .. } => {
            RunError::fail(UNKNOWN_FORMAT, format!("{newer}; upgrade every instance, then retry the run"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use chrono::DateTime;
    use futures::future::BoxFuture;
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Memory {
        entries: Mutex<Vec<TranscriptEntry>>,
        failures: Mutex<Vec<AppendError>>,
    }

    impl AgentStore for Memory {
        fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
            Box::pin(async { Ok(self.entries.lock().unwrap().clone()) })
        }

        fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
            Box::pin(async {
                if let Some(error) = self.failures.lock().unwrap().pop() {
                    return Err(error);
                }
                self.entries.lock().unwrap().extend(entries);
                Ok(())
            })
        }

        fn defer(&self, _: Vec<TranscriptEntry>) {}
    }

    fn says(text: &str, calls: &[&str]) -> NewEntry {
        let call = |id: &&str| ToolCall::new(*id, "read", json!({ "id": id }));
        let message = TranscriptMessage::Assistant {
            text: Some(text.into()),
            tool_calls: calls.iter().map(call).collect(),
            provider_message: None,
            finish: None,
        };
        let usage =
            Usage { turns: 1, tool_calls: calls.len() as i64, input_tokens: 10, output_tokens: 2, cost_micros: 5 };
        NewEntry { usage, duration_ms: Some(7), ..NewEntry::plain(message) }
    }

    fn result(id: &str) -> NewEntry {
        let message = TranscriptMessage::Tool {
            call_id: id.into(),
            name: "read".into(),
            notices: vec![],
            content: format!("of {id}"),
            is_error: id == "b",
            reasons: vec![],
            fetched_at: None,
        };
        NewEntry { duration_ms: Some(3), ..NewEntry::plain(message) }
    }

    async fn empty(store: &Arc<Memory>) -> Checkpoint {
        Checkpoint::load(store.clone(), Clock::manual(DateTime::UNIX_EPOCH)).await.unwrap()
    }

    fn messages(checkpoint: &Checkpoint) -> Vec<TranscriptMessage> {
        checkpoint.shown().into_iter().map(ShownMessage::into_message).collect()
    }

    fn ids(calls: &[ToolCall]) -> Vec<&str> {
        calls.iter().map(|call| call.id.as_str()).collect()
    }

    #[tokio::test]
    async fn each_end_of_a_transcript_says_how_to_go_on() {
        let store = Arc::new(Memory::default());
        let mut checkpoint = empty(&store).await;
        checkpoint
            .append(
                0,
                vec![NewEntry::plain(TranscriptMessage::system("s")), NewEntry::plain(TranscriptMessage::user("u"))],
            )
            .await
            .unwrap();
        assert_eq!((checkpoint.turn(), checkpoint.open_calls(), checkpoint.answer()), (0, vec![], None));
        checkpoint.append(1, vec![says("looking", &["a", "b", "c"])]).await.unwrap();
        assert_eq!((ids(&checkpoint.open_calls()), checkpoint.answer()), (vec!["a", "b", "c"], None));
        checkpoint.append(1, vec![result("b")]).await.unwrap();
        assert_eq!((ids(&checkpoint.open_calls()), checkpoint.turn()), (vec!["a", "c"], 1));
        checkpoint.append(1, vec![result("a"), result("c")]).await.unwrap();
        assert_eq!((checkpoint.open_calls(), checkpoint.answer()), (vec![], None));
        // the same ids in another turn are other calls
        checkpoint.append(2, vec![says("again", &["a"])]).await.unwrap();
        assert_eq!(ids(&checkpoint.open_calls()), ["a"]);
        checkpoint.append(2, vec![result("a")]).await.unwrap();
        checkpoint.append(3, vec![says("done", &[])]).await.unwrap();
        assert_eq!((checkpoint.open_calls(), checkpoint.answer()), (vec![], Some(("done", RunFinish::Answer))));

        let again = empty(&store).await;
        let seqs: Vec<i64> = again.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, (0..9).collect::<Vec<_>>());
        assert_eq!(
            again.usage(),
            Usage { turns: 3, tool_calls: 4, input_tokens: 30, output_tokens: 6, cost_micros: 15 }
        );
    }

    #[tokio::test]
    async fn results_stand_behind_their_calls_in_the_calls_order() {
        let store = Arc::new(Memory::default());
        let mut checkpoint = empty(&store).await;
        checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("u"))]).await.unwrap();
        checkpoint.append(1, vec![says("looking", &["a", "b"])]).await.unwrap();
        checkpoint.append(1, vec![result("b")]).await.unwrap();
        let cut = ToolRecord::new(("read", true), &json!({ "id": "a" }), 5, (true, 900), ToolAttribution::default());
        checkpoint.append(1, vec![NewEntry { tool_record: Some(cut), ..result("a") }]).await.unwrap();
        let expected = vec![
            TranscriptMessage::user("u"),
            says("looking", &["a", "b"]).message,
            result("a").message,
            result("b").message,
        ];
        assert_eq!(messages(&checkpoint), expected);
        let records = checkpoint.records();
        let told: Vec<_> =
            records.iter().map(|r| (&r.args_summary["id"], r.success, r.result_chars, r.duration_ms)).collect();
        assert_eq!(told, [(&json!("a"), true, 900, 5), (&json!("b"), false, 4, 3)], "one is of an earlier release");
    }

    #[tokio::test]
    async fn hiccup_of_the_store_is_waited_for_and_a_lost_lease_is_not() {
        let store = Arc::new(Memory::default());
        store.failures.lock().unwrap().push(AppendError::Unavailable);
        let mut checkpoint = empty(&store).await;
        checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("u"))]).await.unwrap();
        assert_eq!(store.entries.lock().unwrap().len(), 1);
        *store.failures.lock().unwrap() = vec![AppendError::Unavailable, AppendError::LeaseLost];
        let lost = checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("v"))]).await;
        assert_eq!(lost, Err(RunError::LeaseLost));
        assert_eq!(store.failures.lock().unwrap().len(), 1, "not tried again");
        *store.failures.lock().unwrap() = vec![AppendError::Corrupt];
        let unreadable = checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("v"))]).await;
        assert!(matches!(unreadable, Err(RunError::Fail { fault }) if fault.code == STORE_CORRUPT));
        *store.failures.lock().unwrap() = vec![AppendError::UnknownFormat { found: 3, newest: 2 }];
        let newer = checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("v"))]).await;
        assert!(matches!(newer, Err(RunError::Fail { fault }) if fault.code == UNKNOWN_FORMAT));
        *store.failures.lock().unwrap() = vec![AppendError::Unavailable; STORE_WAITS.len() + 1];
        let away = checkpoint.append(0, vec![NewEntry::plain(TranscriptMessage::user("v"))]).await;
        assert!(matches!(away, Err(RunError::Infrastructure { fault }) if fault.code == STORE_UNAVAILABLE));
        assert_eq!(messages(&checkpoint), [TranscriptMessage::user("u")]);
    }
}
