//! The part of a run's transcript that is one agent's conversation, with numbers of its own from 0: that of the run's
//! own agent, of a step of a pipeline, or of a configured agent that another one has called. Agents that speak at the
//! same time share the numbers of their run.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::agent::checkpoint::agent_store::{AgentStore, AppendError, SummaryCost};
use crate::agent::checkpoint::shared_transcript::SharedTranscript;
use crate::domain::approval::{Approval, ApprovalOverride, ApprovedCallStart, CallOutcome, GrantAsk};
use crate::domain::budget::CallBound;
use crate::domain::run::{Delegation, RunError, TranscriptEntry, TranscriptMessage, Usage};

/// One agent's conversation.
pub struct TranscriptSlice {
    run: Arc<SharedTranscript>,
    owner: SliceOwner,
    /// The numbers in the run of the agent's entries, in order.
    numbers: Mutex<Vec<i64>>,
    /// The agent's own usage, as far as it is stored.
    own: Mutex<Usage>,
    /// Usage of the agents that it has called.
    delegated: Arc<Mutex<Usage>>,
    /// Usage counters of its callers: entries that are stored here add to each of them.
    callers: Vec<Arc<Mutex<Usage>>>,
}

/// The owner of a slice.
enum SliceOwner {
    /// The run's own agent's.
    Run,
    /// That of an agent in a step of a pipeline: what is said between the step's first intent and its result.
    Step(String),
    /// That of an agent that was called.
    Call(Delegation),
}

impl TranscriptSlice {
    /// The conversation of the run's own agent.
    pub fn of_run(store: Arc<dyn AgentStore>) -> TranscriptSlice {
        TranscriptSlice::new(SharedTranscript::new(store), SliceOwner::Run, Vec::new())
    }

    /// The conversation of the agent in a step of a pipeline.
    pub fn of_step(store: Arc<dyn AgentStore>, step: &str) -> TranscriptSlice {
        TranscriptSlice::new(SharedTranscript::new(store), SliceOwner::Step(step.to_owned()), Vec::new())
    }

    fn new(run: Arc<SharedTranscript>, owner: SliceOwner, callers: Vec<Arc<Mutex<Usage>>>) -> TranscriptSlice {
        TranscriptSlice {
            run,
            owner,
            numbers: Mutex::default(),
            own: Mutex::default(),
            delegated: Arc::default(),
            callers,
        }
    }

    /// Whether it is the conversation of the run's own agent, with whose answer the run ends.
    pub fn is_of_run(&self) -> bool {
        matches!(self.owner, SliceOwner::Run)
    }

    /// The agent's entries, with the numbers that they have in the run.
    async fn own_entries(&self) -> Result<Vec<TranscriptEntry>, AppendError> {
        if let SliceOwner::Call(call) = &self.owner {
            return Ok(self.run.take_entries(call));
        }
        let all = self.run.take_delegated(self.run.store.load().await?);
        let is_own = |entry: &TranscriptEntry| !entry.message.is_of_ledger();
        let from = match &self.owner {
            SliceOwner::Step(step) => all.iter().position(|entry| begins_step(entry, step)).unwrap_or(all.len()),
            SliceOwner::Run | SliceOwner::Call(_) => 0,
        };
        Ok(all.into_iter().skip(from).filter(is_own).collect())
    }

    /// The entries as they are stored: with their numbers in the run, and under the call by which the agent speaks.
    fn stored_form(&self, entries: Vec<TranscriptEntry>) -> Vec<TranscriptEntry> {
        let mut numbers = self.numbers.lock().expect("numbers lock");
        let last = entries.last().map_or(-1, |entry| entry.seq);
        while (numbers.len() as i64) <= last {
            numbers.push(self.run.take_number());
        }
        let in_run = |own: i64| usize::try_from(own).ok().and_then(|own| numbers.get(own)).copied().unwrap_or(own);
        let delegation = match &self.owner {
            SliceOwner::Call(call) => Some(Box::new(call.clone())),
            SliceOwner::Run | SliceOwner::Step(_) => None,
        };
        let stored = |entry| TranscriptEntry { delegation: delegation.clone(), ..renumbered(entry, in_run) };
        entries.into_iter().map(stored).collect()
    }

    /// The number of a turn that begins now, behind this one: no other turn of the run has it.
    pub fn take_turn(&self, after: i64) -> i64 {
        self.run.take_turn(after)
    }

    /// The conversation of an agent that this one calls; `None`: the run has called as many as it may.
    pub fn delegated(&self, call: Delegation) -> Option<TranscriptSlice> {
        let callers = self.callers.iter().chain([&self.delegated]).cloned().collect();
        let is_counted = self.run.count_call(&call);
        is_counted.then(|| TranscriptSlice::new(Arc::clone(&self.run), SliceOwner::Call(call), callers))
    }

    /// Usage of the agents that were called, and of those that these have called.
    pub fn delegated_usage(&self) -> Usage {
        *self.delegated.lock().expect("usage lock")
    }

    /// Usage of the agent itself as far as it is stored, and of those that it has called.
    pub fn whole_usage(&self) -> Usage {
        let mut usage = self.delegated_usage();
        usage += *self.own.lock().expect("usage lock");
        usage
    }

    /// Counts entries that are stored now.
    fn count(&self, usage: Usage) {
        *self.own.lock().expect("usage lock") += usage;
        for caller in &self.callers {
            *caller.lock().expect("usage lock") += usage;
        }
    }
}

fn begins_step(entry: &TranscriptEntry, step: &str) -> bool {
    matches!(&entry.message, TranscriptMessage::Step { name, .. } if name == step)
}

fn renumbered(entry: TranscriptEntry, number: impl Fn(i64) -> i64) -> TranscriptEntry {
    TranscriptEntry { seq: number(entry.seq), message: entry.message.renumbered(number), ..entry }
}

fn usage_of(entries: &[TranscriptEntry]) -> Usage {
    let mut usage = Usage::default();
    entries.iter().for_each(|entry| usage += entry.usage);
    usage
}

impl AgentStore for TranscriptSlice {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        Box::pin(async {
            let own = self.own_entries().await?;
            let mut turns: HashSet<i64> = own.iter().map(|entry| entry.turn).collect();
            if let SliceOwner::Call(call) = &self.owner {
                // its message stands at the turn of its caller
                turns.retain(|turn| *turn > call.turn);
            }
            *self.delegated.lock().expect("usage lock") = self.run.usage_below(turns);
            *self.own.lock().expect("usage lock") = usage_of(&own);
            let numbers: Vec<i64> = own.iter().map(|entry| entry.seq).collect();
            *self.numbers.lock().expect("numbers lock") = numbers.clone();
            let of_own = |number: i64| numbers.partition_point(|known| *known < number) as i64;
            let own = own.into_iter().map(|entry| TranscriptEntry { delegation: None, ..renumbered(entry, of_own) });
            Ok(own.collect())
        })
    }

    fn earlier(&self) -> BoxFuture<'_, Result<Vec<TranscriptMessage>, AppendError>> {
        self.run.store.earlier()
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move {
            let usage = usage_of(&entries);
            let _one_at_a_time = self.run.appending.lock().await;
            self.run.store.append(self.stored_form(entries)).await?;
            self.count(usage);
            Ok(())
        })
    }

    fn append_and_reserve(
        &self,
        entries: Vec<TranscriptEntry>,
        turn: i64,
        bound: CallBound,
    ) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(async move {
            let usage = usage_of(&entries);
            let _one_at_a_time = self.run.appending.lock().await;
            let is_reserved = self.run.store.append_and_reserve(self.stored_form(entries), turn, bound).await?;
            self.count(usage);
            Ok(is_reserved)
        })
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.run.store.defer(self.stored_form(entries));
    }

    fn allow_extraction(&self) {
        self.run.store.allow_extraction();
    }

    fn is_budgeted(&self) -> bool {
        self.run.store.is_budgeted()
    }

    fn reserve(&self, turn: i64, bound: CallBound) -> BoxFuture<'_, Result<(), RunError>> {
        self.run.store.reserve(turn, bound)
    }

    fn note_unmade(&self, turn: i64) {
        self.run.store.note_unmade(turn);
    }

    fn note_cut(&self, turn: i64, usage: Usage) {
        self.run.store.note_cut(turn, usage);
    }

    fn reserve_summary(&self, cost: SummaryCost) -> BoxFuture<'_, bool> {
        self.run.store.reserve_summary(cost)
    }

    fn give_summary_back(&self, micros: i64) -> BoxFuture<'_, ()> {
        self.run.store.give_summary_back(micros)
    }

    fn approvals(&self, turn: i64) -> BoxFuture<'_, Result<Vec<Approval>, AppendError>> {
        self.run.store.approvals(turn)
    }

    fn may_suspend(&self) -> BoxFuture<'_, Result<bool, AppendError>> {
        self.run.store.may_suspend()
    }

    fn begin<'a>(&'a self, approval: Uuid, digest: &'a str) -> BoxFuture<'a, Result<ApprovedCallStart, AppendError>> {
        self.run.store.begin(approval, digest)
    }

    fn overrides<'a>(
        &'a self,
        agent: Option<&'a str>,
        tools: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<ApprovalOverride>, AppendError>> {
        self.run.store.overrides(agent, tools)
    }

    fn use_grant<'a>(&'a self, call: GrantAsk<'a>) -> BoxFuture<'a, Result<Option<Uuid>, AppendError>> {
        self.run.store.use_grant(call)
    }

    fn note_outcome(&self, approval: Uuid, outcome: CallOutcome) -> BoxFuture<'_, ()> {
        self.run.store.note_outcome(approval, outcome)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::domain::run::transcript::{Compaction, CompactionKind, LEDGER};

    fn entry(seq: i64, message: TranscriptMessage) -> TranscriptEntry {
        TranscriptEntry::new(seq, 0, DateTime::UNIX_EPOCH, message)
    }

    fn compaction(from: i64, to: i64, pinned: &[i64]) -> TranscriptMessage {
        TranscriptMessage::Compaction(Compaction { from, to, pinned: pinned.to_vec(), by: CompactionKind::Dropped })
    }

    #[derive(Default)]
    struct Entries(Mutex<Vec<TranscriptEntry>>);

    impl AgentStore for Entries {
        fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
            Box::pin(async { Ok(self.0.lock().unwrap().clone()) })
        }

        fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
            self.0.lock().unwrap().extend(entries);
            Box::pin(std::future::ready(Ok(())))
        }

        fn defer(&self, _: Vec<TranscriptEntry>) {}
    }

    fn said(text: &str) -> TranscriptMessage {
        TranscriptMessage::user(text)
    }

    fn call(turn: i64, call_id: &str) -> Delegation {
        Delegation { chain: vec!["book".into()], turn, call_id: call_id.into() }
    }

    #[tokio::test]
    async fn compaction_names_entries_of_the_run_there_and_the_agent_s_own_to_the_agent() {
        let intent = || TranscriptMessage::Step { name: "ask".into(), index: None, ledger: LEDGER };
        let other = TranscriptMessage::Step { name: "other".into(), index: None, ledger: LEDGER };
        let messages = [other, intent(), said("a"), said("b"), intent(), said("c")];
        let entries = (0..).zip(messages).map(|(seq, message)| entry(seq, message)).collect();
        let store = Arc::new(Entries(Mutex::new(entries)));
        let transcript = TranscriptSlice::of_step(store.clone(), "ask");
        let seqs = |entries: &[TranscriptEntry]| entries.iter().map(|entry| entry.seq).collect::<Vec<_>>();
        assert_eq!(seqs(&transcript.load().await.unwrap()), [0, 1, 2]);

        transcript.append(vec![entry(3, said("d")), entry(4, compaction(1, 3, &[2]))]).await.unwrap();
        let stored = store.0.lock().unwrap()[6..].to_vec();
        assert_eq!(stored, [entry(6, said("d")), entry(7, compaction(3, 6, &[5]))]);
        let again = TranscriptSlice::of_step(store, "ask").load().await.unwrap();
        assert_eq!(again[3..], [entry(3, said("d")), entry(4, compaction(1, 3, &[2]))]);
    }

    #[tokio::test]
    async fn agents_that_speak_at_once_have_their_own_entries_and_turns_and_all_are_counted() {
        let store = Arc::new(Entries::default());
        let paid = |seq, turn, input_tokens| {
            let usage = Usage { input_tokens, ..Usage::default() };
            TranscriptEntry { turn, usage, ..entry(seq, said("x")) }
        };
        let run = TranscriptSlice::of_run(store.clone());
        assert!(run.load().await.unwrap().is_empty());
        let first = run.take_turn(0);
        run.append(vec![paid(0, first, 1)]).await.unwrap();
        let (one, two) = (run.delegated(call(1, "a")).unwrap(), run.delegated(call(1, "b")).unwrap());
        assert!(one.load().await.unwrap().is_empty() && two.load().await.unwrap().is_empty());
        let turns = [one.take_turn(1), two.take_turn(1), one.take_turn(2)];
        assert_eq!((first, turns), (1, [2, 3, 4]));
        one.append(vec![paid(0, 1, 0), paid(1, 2, 10)]).await.unwrap();
        two.append(vec![paid(0, 1, 0), paid(1, 3, 100)]).await.unwrap();
        let deep = one.delegated(call(2, "a")).unwrap();
        assert!(deep.load().await.unwrap().is_empty());
        deep.append(vec![paid(0, 5, 1_000)]).await.unwrap();
        one.append(vec![paid(2, 4, 10)]).await.unwrap();
        let below = |slice: &TranscriptSlice| slice.delegated_usage().input_tokens;
        assert_eq!((below(&run), below(&one), below(&two)), (1_120, 1_000, 0));
        let whole = |slice: &TranscriptSlice| slice.whole_usage().input_tokens;
        assert_eq!((whole(&run), whole(&one), whole(&two)), (1_121, 1_020, 100));

        let seqs: Vec<i64> = store.0.lock().unwrap().iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [0, 1, 2, 3, 4, 5, 6]);
        let again = TranscriptSlice::of_run(store);
        assert_eq!(again.load().await.unwrap(), [paid(0, 1, 1)], "its own alone");
        assert_eq!((below(&again), again.take_turn(1)), (1_120, 6));
        let one = again.delegated(call(1, "a")).unwrap();
        assert_eq!(one.load().await.unwrap(), [paid(0, 1, 0), paid(1, 2, 10), paid(2, 4, 10)]);
        assert_eq!((below(&one), whole(&one)), (1_000, 1_020));
    }

    /// A store that takes its time for the first entries that it is given.
    #[derive(Default)]
    struct SlowAtFirst(Entries);

    impl AgentStore for SlowAtFirst {
        fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
            self.0.load()
        }

        fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
            Box::pin(async {
                if entries.first().is_some_and(|first| first.seq == 0) {
                    for _ in 0..3 {
                        tokio::task::yield_now().await;
                    }
                }
                self.0.append(entries).await
            })
        }

        fn defer(&self, _: Vec<TranscriptEntry>) {}
    }

    #[tokio::test]
    async fn entries_of_agents_that_speak_at_once_are_stored_in_the_order_of_their_numbers() {
        let store = Arc::new(SlowAtFirst::default());
        let run = TranscriptSlice::of_run(store.clone());
        assert!(run.load().await.unwrap().is_empty());
        let (one, two) = (run.delegated(call(1, "a")).unwrap(), run.delegated(call(1, "b")).unwrap());
        let appended = tokio::join!(one.append(vec![entry(0, said("a"))]), two.append(vec![entry(0, said("b"))]));
        assert_eq!(appended, (Ok(()), Ok(())));
        let seqs: Vec<i64> = store.0.0.lock().unwrap().iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [0, 1]);
    }
}
