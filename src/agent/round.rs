//! The calls of one turn: carried out at once, each result stored when it has to be.
//!
//! Calls that only read run for [`INTENT_DELAY`] before their intent is stored. The result of one that can't be
//! repeated is stored as soon as it is there, others before the model is asked again. After a crash the calls without a
//! stored result are carried out again, or called unknown: see `calls.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{Stream, StreamExt};

use crate::agent::calls::call_turn::CallTurn;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::{CallResult, CompletedCall, ToolRunner};
use crate::agent::checkpoint::{Checkpoint, NewEntry};
use crate::agent::consent::EarlierQuestions;
use crate::agent::consent::turn_overrides::TurnOverrides;
use crate::agent::context::ContextWindow;
use crate::agent::context::active_skills::{SkillStack, changes_stack};
use crate::agent::loops::LoopDetector;
use crate::agent::stream::StreamEmitter;
use crate::agent::{LoopStopReason, StopSignal};
use crate::base::clock::Clock;
use crate::domain::run::RunError;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};

/// Calls that only read run for so long before their intent is stored: an answer that was paid for is not to hang on a
/// slow tool.
const INTENT_DELAY: Duration = Duration::from_secs(1);

/// The parts of the loop that calls need.
pub struct CallRound<'a, 'c> {
    pub checkpoint: &'a mut Checkpoint,
    pub loops: &'a mut LoopDetector,
    pub caller: &'a ToolRunner<'c>,
    pub window: ContextWindow,
    /// The skills that are active.
    pub skills: &'a SkillStack,
    /// So much is in the context that results are brief.
    pub is_context_full: bool,
    pub stop: &'a StopSignal,
    pub clock: &'a Clock,
    pub emitter: &'a StreamEmitter,
}

/// Outcome of the calls of a turn.
#[derive(Default)]
pub struct CarriedCalls {
    /// Calls that wait for people.
    pub open: Vec<PendingCall>,
    /// The results as they are stored, in the order of the calls.
    pub results: Vec<TranscriptMessage>,
}

impl CallRound<'_, '_> {
    /// Carries out calls of the last turn. Their results are stored, or due before the model is asked again.
    pub async fn carry_out(mut self, calls: &[ToolCall], resumed: bool) -> Result<CarriedCalls, RunError> {
        let turn = self.checkpoint.turn();
        let caller = self.caller;
        // of a turn that was just made nothing can have been asked
        let asked = if resumed { caller.consent.earlier_questions(turn).await? } else { EarlierQuestions::default() };
        let has_one_skill = calls.iter().filter(|call| changes_stack(call)).count() <= 1;
        let (is_context_full, skills, slot) = (self.is_context_full, self.skills, &caller.incoming.slot);
        let overrides = &TurnOverrides::of(calls);
        let call_turn = CallTurn { number: turn, resumed, is_context_full, slot, has_one_skill, skills, overrides };
        let mut running = caller.start(call_turn, calls, &asked);
        let mut carried = CarriedCalls::default();
        let (mut waiting, mut done) = (Vec::new(), Vec::new());
        let (mut early, mut ended) = (VecDeque::new(), None);
        let mut overdue = std::pin::pin!(self.clock.sleep(INTENT_DELAY));
        loop {
            let next = match early.pop_front() {
                Some(completed) => Some(completed),
                None => tokio::select! {
                    biased;
                    next = or_cancelled(self.stop, running.next()) => next?,
                    () = &mut overdue, if !self.checkpoint.is_stored() && !failpoint!("agent_intent_late") => {
                        while_running(self.checkpoint.flush(), &mut running, &mut early).await?;
                        continue;
                    }
                },
            };
            let Some(next) = next else { break };
            let completed = match next? {
                CallResult::Done(done) => *done,
                CallResult::Open(call) => {
                    carried.open.push(call);
                    continue;
                }
                CallResult::Ended(error) => {
                    ended.get_or_insert(error);
                    continue;
                }
            };
            let (index, urgent) = (completed.index, completed.unrepeatable);
            let mut result = result_entry(self.window.cut_result(&completed.text), completed);
            self.tell_of_repetition(turn, &waiting, &mut result);
            self.emitter.stored_message(turn, &result.message);
            waiting.push((index, result));
            // what can't be repeated is stored at once, not when its siblings are done
            if urgent {
                let stored = self.store(turn, &mut waiting, &mut done);
                while_running(stored, &mut running, &mut early).await?;
            }
        }
        drop(running);
        let last = take_waiting(&mut waiting, &mut done);
        self.checkpoint.add_due(turn, last);
        if let Some(error) = ended {
            return Err(error);
        }
        done.sort_by_key(|(index, _)| *index);
        carried.results = done.into_iter().map(|(_, message)| message).collect();
        Ok(carried)
    }

    /// Where this result completes a turn by which the model goes round in circles, a notice to the model goes before
    /// it.
    fn tell_of_repetition(&mut self, turn: i64, waiting: &[(usize, NewEntry)], result: &mut NewEntry) {
        let here = || waiting.iter().map(|(_, added)| &added.message).chain([&result.message]);
        let result_of = |call: &ToolCall| {
            let is_its = |message: &&TranscriptMessage| matches!(message, TranscriptMessage::Tool { call_id, .. } if *call_id == call.id);
            self.checkpoint.result(turn, &call.id).or_else(|| here().find(is_its))
        };
        let calls = self.checkpoint.last_calls().iter();
        let Some(finished) = calls.map(|call| Some((call, result_of(call)?))).collect::<Option<Vec<_>>>() else {
            return;
        };
        let Some(notice) = self.loops.observe(turn, &finished) else { return };
        self.loops.note_told();
        if let TranscriptMessage::Tool { name, notices, .. } = &mut result.message {
            let warning = "the model repeats itself, and was told so";
            self.emitter.tool_warning(name, warning);
            notices.insert(0, notice);
            result.tool_record.iter_mut().for_each(|record| record.warn(warning));
        }
    }

    /// Stores results that have waited; they are `done` then.
    async fn store(
        &mut self,
        turn: i64,
        waiting: &mut Vec<(usize, NewEntry)>,
        done: &mut Vec<(usize, TranscriptMessage)>,
    ) -> Result<(), RunError> {
        let added = take_waiting(waiting, done);
        match added.is_empty() {
            true => Ok(()),
            false => self.checkpoint.append(turn, added).await,
        }
    }
}

/// Takes results that have waited, in the order of their calls; they are `done` then.
fn take_waiting(waiting: &mut Vec<(usize, NewEntry)>, done: &mut Vec<(usize, TranscriptMessage)>) -> Vec<NewEntry> {
    waiting.sort_by_key(|(index, _)| *index);
    done.extend(waiting.iter().map(|(index, added)| (*index, added.message.clone())));
    waiting.drain(..).map(|(_, added)| added).collect()
}

/// A result as it enters transcript and conversation.
fn result_entry(content: String, done: CompletedCall) -> NewEntry {
    let CompletedCall { call, notices, is_error, reasons, fetched_at, record, .. } = done;
    let fetched_at = Some(fetched_at);
    let message =
        TranscriptMessage::Tool { call_id: call.id, name: call.name, notices, content, is_error, reasons, fetched_at };
    NewEntry { duration_ms: Some(record.duration_ms), tool_record: Some(record), ..NewEntry::plain(message) }
}

/// Does something while calls go on. One that stood still meanwhile might hold what this waits for: the one connection
/// that writes to SQLite.
async fn while_running<T, S: Stream + Unpin>(
    work: impl Future<Output = T>,
    running: &mut S,
    completed: &mut VecDeque<S::Item>,
) -> T {
    let mut work = std::pin::pin!(work);
    let mut more = true;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            next = running.next(), if more => match next {
                Some(next) => completed.push_back(next),
                None => more = false,
            },
        }
    }
}

/// Waits for running calls, unless the run is cancelled. A request for the run back is heard when they are done:
/// they have begun, and what they do should be known to whoever goes on.
async fn or_cancelled<T>(stop: &StopSignal, work: impl Future<Output = T>) -> Result<T, RunError> {
    let cancelled = async {
        stop.requested().await;
        if !matches!(stop.reason(), Some(LoopStopReason::Cancel(_))) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = cancelled => Err(stop.check().expect_err("only a request ends this wait")),
        done = work => Ok(done),
    }
}
