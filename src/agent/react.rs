//! The loop: ask the model, carry out the calls it asks for, tell it what came of them, until it answers.
//!
//! Each finished turn survives a crash, and its model call is never made again; the answer's turn is finished with the
//! run, in one commit. Of an unfinished turn the intent survives, unless all its calls only read and are done within a
//! second: see `round.rs`. Tools that may be repeated are, with the same key; the others are reported as unknown.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::answer::{self, too_long};
use crate::agent::budget;
use crate::agent::calls::ToolRunner;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::checkpoint::{Checkpoint, NewEntry, may_still_store};
use crate::agent::context::ContextWindow;
use crate::agent::context::active_skills::{SkillScope, SkillStack};
use crate::agent::context::refocus;
use crate::agent::context::summary::SummaryWriter;
use crate::agent::context::view::ModelView;
use crate::agent::loops::LoopDetector;
use crate::agent::prompt::memory::person_words;
use crate::agent::round::CallRound;
use crate::agent::stream::StreamEmitter;
use crate::agent::verify::{AnswerVerification, Verdict, asked_again};
use crate::agent::{RunSlot, StopSignal, Suspension, wait_without_slot};
use crate::base::clock::Clock;
use crate::base::id::new_id;
use crate::domain::approval::Approval;
use crate::domain::run::outcome::REASON_BUDGET;
use crate::domain::run::transcript::{ModelCall, ProviderMessage, ToolCall, TranscriptMessage};
use crate::domain::run::{ReactLoopResult, RunError, RunFault, RunFinish, ToolWarning, Usage};
use crate::ports::llm::fallback::{CallProgress, Chain, ModelCompletion};
use crate::ports::llm::{LlmError, ModelAnswer, ModelRequest, OfferedTools, ToolChoice};

/// The instruction to the model when it has used up its turns. It stands in the request alone, as the system message
/// does.
pub const CLOSING: &str = "You have executed enough steps. Please provide a final answer based on the information \
                           gathered so far.";

/// One message on its way through the loop.
pub struct ReactLoop<'a> {
    pub chain: Chain,
    pub caller: ToolRunner<'a>,
    pub offered: OfferedTools,
    /// The skills that may be used.
    pub skills: SkillScope,
    /// Those that are active.
    pub stack: SkillStack,
    pub checkpoint: Checkpoint,
    pub view: ModelView,
    pub summaries: SummaryWriter,
    /// The model is reminded of its task after so many rounds of calls; 0: never.
    pub refocus_every: u32,
    /// The turn before its first.
    pub first_turn: i64,
    /// Turns with tools.
    pub max_turns: i64,
    pub max_recoveries: u32,
    pub loops: LoopDetector,
    pub stop: &'a StopSignal,
    pub slot: &'a dyn RunSlot,
    /// `None`: nobody but another agent is told the answer.
    pub verification: Option<AnswerVerification<'a>>,
    pub clock: &'a Clock,
    pub emitter: &'a StreamEmitter,
}

impl ReactLoop<'_> {
    /// Goes on where the checkpoint stands, and ends with an answer, or where people have to be heard.
    pub async fn run(&mut self) -> Result<LoopEnd, RunError> {
        let end = self.turns().await;
        match &end {
            Err(RunError::Fail { fault })
                if fault.end_reason() == Some(REASON_BUDGET) && !self.checkpoint.has_begun() =>
            {
                return Ok(LoopEnd::Refused(fault.clone()));
            }
            // where the store is away or the lease lost, nothing can be stored
            Err(error) if !may_still_store(error) => {}
            Ok(LoopEnd::Answered(_)) => self.record_answer().await?,
            // what was said is on the record of a run that fails, or goes on elsewhere, too
            _ => {
                self.end_summary();
                self.checkpoint.flush().await?;
            }
        }
        end
    }

    async fn turns(&mut self) -> Result<LoopEnd, RunError> {
        let begun = self.clock.elapsed();
        let (mut calls, mut resumed) = (self.checkpoint.open_calls(), true);
        loop {
            if !calls.is_empty() {
                // a skill that one of them activates takes effect after all calls of the turn, also after a resume
                self.apply_skills(self.checkpoint.entries_before_calls())?;
                let open = self.run_calls(&calls, resumed).await?;
                if !open.is_empty() {
                    self.end_summary();
                    return Ok(LoopEnd::Suspended(self.suspension(open)));
                }
            }
            if self.verify().await?
                && let Some((response, finish)) = self.checkpoint.answer()
            {
                let (response, took) = (response.to_owned(), self.clock.elapsed().saturating_sub(begun));
                self.end_summary();
                return Ok(LoopEnd::Answered(self.result(response, finish, took)));
            }
            self.stop.check()?;
            self.loops.check()?;
            self.apply_skills(self.checkpoint.entries().len())?;
            (calls, resumed) = (self.model_turn().await?, false);
        }
    }

    /// Whether there is an answer that may go out. The model is told why one may not; the second such one ends the run.
    async fn verify(&mut self) -> Result<bool, RunError> {
        let Some((response, _)) = self.checkpoint.answer() else { return Ok(false) };
        let Some(verification) = &self.verification else { return Ok(true) };
        if self.checkpoint.verdict().is_none() {
            let Verdict { warnings, flags } =
                verification.judge(response, self.checkpoint.input_texts(), self.checkpoint.evidence()).await;
            if warnings.is_empty() && flags.is_empty() {
                return Ok(true);
            }
            let verdict = TranscriptMessage::verdict(warnings, flags);
            self.emitter.stored_message(self.checkpoint.turn(), &verdict);
            self.checkpoint.add(self.checkpoint.turn(), vec![NewEntry::plain(verdict)]);
        }
        let Some(TranscriptMessage::Verdict { flags, .. }) = self.checkpoint.verdict() else { return Ok(true) };
        if flags.is_empty() {
            return Ok(true);
        }
        if self.checkpoint.was_asked_again() {
            return Err(RunError::fail("answer_flagged", flags.join("; ")));
        }
        let notice = asked_again(flags);
        self.checkpoint.add_due(self.checkpoint.turn(), vec![NewEntry::plain(notice.clone())]);
        self.view.extend([notice]);
        Ok(false)
    }

    /// Usage of the agent, and of those that it has called.
    fn usage(&self) -> Usage {
        let mut usage = self.checkpoint.usage();
        usage += self.caller.incoming.store.delegated_usage();
        usage
    }

    /// The suspension for these calls: the open ones as one batch, with those that were asked before.
    fn suspension(&self, calls: Vec<PendingCall>) -> Suspension {
        let batch = new_id(self.clock.now());
        let (mut asks, mut open) = (Vec::new(), Vec::new());
        for call in calls.into_iter().flat_map(PendingCall::each) {
            match call {
                PendingCall::Ask(approval, replaces) => {
                    asks.push((Approval { batch_id: batch, ..*approval }, replaces))
                }
                PendingCall::Put(question) => open.push(question),
                PendingCall::Delegated(_) => unreachable!("each call by itself"),
            }
        }
        Suspension { asks, open, usage: self.usage() }
    }

    /// Applies the tools and the model of the skills that are active after the first `entries` entries.
    fn apply_skills(&mut self, entries: usize) -> Result<(), RunError> {
        let stack = self.skills.stack(&self.checkpoint.entries()[..entries]);
        if stack != self.stack {
            let agent = self.caller.agent;
            let names: Vec<&str> = self.caller.offered.iter().copied().filter(|name| stack.allows(name)).collect();
            self.offered = agent.offers.select(&agent.tools, &names);
            self.chain = agent.chain(self.caller.incoming, stack.model.as_deref())?;
            let (counter, limit) = (self.chain.counter(), self.chain.context_token_limit());
            self.view.window = ContextWindow::new(&agent.settings, &agent.context, counter, limit);
            self.caller.window = self.view.window;
            self.stack = stack;
        }
        Ok(())
    }

    /// One turn of the model, stored; answers the calls that it asks for.
    async fn model_turn(&mut self) -> Result<Vec<ToolCall>, RunError> {
        let turn = self.caller.incoming.store.take_turn(self.checkpoint.turn());
        let forced = self.checkpoint.turns_behind(self.first_turn) >= self.max_turns;
        let begun = self.clock.elapsed();
        let completed = self.complete(turn, forced).await;
        let AcceptedAnswer { answer, model, usage } = self.accept(turn, forced, completed)?;
        let duration_ms = self.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        let calls = answer.tool_calls.clone();
        let usage = Usage { turns: 1, tool_calls: calls.len() as i64, ..usage };
        tracing::debug!(turn, %model, duration_ms, calls = calls.len(), "turn answered");
        let text = answer.text.clone().unwrap_or_default();
        let provider_message = self.storable_provider_message(answer.provider_message).await;
        let finish = forced.then_some(RunFinish::MaxTurns);
        let message =
            TranscriptMessage::Assistant { text: answer.text, tool_calls: answer.tool_calls, provider_message, finish };
        let model_call = ModelCall { model, tokens: answer.tokens };
        let added = NewEntry {
            usage,
            duration_ms: Some(duration_ms),
            model_call: Some(model_call.clone()),
            ..NewEntry::plain(message.clone())
        };
        self.checkpoint.add(turn, vec![added]);
        // an answer, and the intent of calls that have effects, are on the record before anything follows
        if calls.is_empty() {
            self.record_answer().await?;
        } else if !self.caller.only_read(&calls) && !failpoint!("agent_intent_late") {
            self.checkpoint.flush().await?;
        }
        self.view.extend([message]);
        self.emitter.message_end(turn, &text, &model_call);
        Ok(calls)
    }

    /// Has an answer on the record before anything follows. Behind the answer of a run nothing does but its end.
    async fn record_answer(&mut self) -> Result<(), RunError> {
        match self.caller.incoming.store.is_of_run() {
            true => self.checkpoint.defer_or_flush().await,
            false => self.checkpoint.flush().await,
        }
    }

    /// The answer with which the loop goes on, and all that it has cost. Where there is none, the answers that could
    /// not be used are on the record.
    fn accept(
        &mut self,
        turn: i64,
        forced: bool,
        completed: Result<ModelCompletion, RunError>,
    ) -> Result<AcceptedAnswer, RunError> {
        let mut usage = self.chain.take_unusable();
        let (error, model_call) = match completed {
            Err(error) => (error, None),
            Ok(ModelCompletion { answer, model, cost_micros }) => {
                let tokens = answer.tokens;
                usage += budget::usage_of(tokens, cost_micros);
                match answer::accept(answer, forced, self.checkpoint.last_said().is_some()) {
                    Ok(answer) => return Ok(AcceptedAnswer { answer, model, usage }),
                    Err(error) => (error, Some(ModelCall { model, tokens })),
                }
            }
        };
        match budget::unusable_answer(usage, model_call, &error) {
            Some(unusable) => self.checkpoint.add(turn, vec![unusable]),
            None => self.checkpoint.store().note_unmade(turn),
        }
        Err(error)
    }

    /// The provider's message, if it may be stored: with a secret in it, it may not, and without it, it would not be
    /// what the provider wrote.
    async fn storable_provider_message(
        &self,
        provider_message: Option<Arc<ProviderMessage>>,
    ) -> Option<Arc<ProviderMessage>> {
        let provider_message = provider_message?;
        match self.caller.used_secrets.finds(&provider_message.raw).await {
            true => None,
            false => Some(provider_message),
        }
    }

    /// Asks the chain, with a shorter conversation each time that it was too long.
    async fn complete(&mut self, turn: i64, forced: bool) -> Result<ModelCompletion, RunError> {
        let stop = self.stop;
        stop.run_until_stopped(self.prepare_view()).await?;
        let (mut step, mut recoveries, mut is_reserved) = (Some(0), 0, false);
        loop {
            let ephemeral = self.ephemeral_message(forced);
            let has_ephemeral = ephemeral.is_some();
            let request = ModelRequest {
                messages: self.view.lend(ephemeral),
                tools: self.offered.clone(),
                tool_choice: if forced { ToolChoice::None } else { ToolChoice::Auto },
                max_tokens: None,
                temperature: None,
            };
            if !std::mem::replace(&mut is_reserved, true) {
                let reserved = budget::reserve_turn(&mut self.checkpoint, self.slot, &self.chain, turn, &request);
                self.stop.run_until_stopped(reserved).await??;
            }
            // behind the last turn nothing is asked that could show it
            if recoveries == 0 && !forced {
                let turn_cost = || self.chain.worst_case(&request).most;
                self.summaries.begin(request.messages.len(), &self.checkpoint, turn_cost);
            }
            let tell = |progress: CallProgress| match progress {
                CallProgress::Asked => self.emitter.message_start(turn),
                CallProgress::Text(text) => self.emitter.message_chunk(turn, text),
            };
            // made before the calls, and so dropped after them
            let store = self.checkpoint.store();
            let guard = budget::CutOffGuard { chain: &self.chain, report: |usage| store.note_cut(turn, usage) };
            let answer = wait_without_slot(self.slot, self.chain.complete(&request, &tell));
            let answer = self.stop.run_until_stopped(answer).await;
            guard.disarm();
            let answer = answer?;
            self.view.take_back(request.messages, has_ephemeral);
            match answer {
                Ok(completed) => return Ok(completed),
                Err(LlmError::Overflow { message }) => {
                    tracing::info!(turn, recoveries, error = %message, "conversation too long for the model");
                    let next = step.filter(|_| recoveries < self.max_recoveries);
                    let Some(from) = next else { return Err(too_long(self.view.is_one_message())) };
                    // what nothing shortens is asked once more as it is: it may have been the answer that did not fit
                    step = self.view.recover(&mut self.checkpoint, from);
                    recoveries += 1;
                    // an answer that did not fit was paid for, and the next one is paid for by itself
                    let unusable = budget::unusable_answer(self.chain.take_unusable(), None, &too_long(false));
                    is_reserved = unusable.is_none();
                    self.checkpoint.add_due(turn, unusable.into_iter().collect());
                }
                Err(error) => return Err(answer::no_answer(error)),
            }
        }
    }

    /// Prepares the conversation that the model is shown: with a summary that is done by now, and no more than fits.
    async fn prepare_view(&mut self) {
        self.take_summary();
        self.view.fit(&mut self.checkpoint, &self.chain, &self.offered, self.caller.compute).await;
    }

    /// Shows a summary that is done by now, and counts what one has cost.
    fn take_summary(&mut self) {
        if let Some(summary) = self.summaries.take() {
            self.view.summarise(&mut self.checkpoint, summary);
        }
    }

    /// Counts a summary that is under way at the end: nobody waits for it.
    fn end_summary(&mut self) {
        self.take_summary();
        if let Some(broken_off) = self.summaries.break_off() {
            self.checkpoint.add(self.checkpoint.turn(), vec![broken_off]);
        }
    }

    /// The message that stands in the next request alone.
    fn ephemeral_message(&self, forced: bool) -> Option<TranscriptMessage> {
        match forced {
            true => Some(TranscriptMessage::ephemeral(CLOSING)),
            false => refocus::reminder(self.checkpoint.entries(), self.refocus_every),
        }
    }

    /// Carries out calls of the last turn; answers those that wait for people.
    async fn run_calls(&mut self, calls: &[ToolCall], resumed: bool) -> Result<Vec<PendingCall>, RunError> {
        let read = &self.checkpoint.entries()[..self.checkpoint.entries_before_calls()];
        self.caller.words = person_words(self.caller.incoming, read);
        let is_context_full = self.caller.goes_by_context(calls) && self.view.shows_briefly(&self.offered);
        let round = CallRound {
            is_context_full,
            checkpoint: &mut self.checkpoint,
            loops: &mut self.loops,
            caller: &self.caller,
            window: self.view.window,
            skills: &self.stack,
            stop: self.stop,
            clock: self.clock,
            emitter: self.emitter,
        };
        let carried = round.carry_out(calls, resumed).await?;
        self.view.extend(carried.results);
        Ok(carried.open)
    }

    fn result(&self, response: String, finish: RunFinish, took: Duration) -> ReactLoopResult {
        let (usage, tool_calls) = (self.usage(), self.checkpoint.records());
        let findings = self.checkpoint.entries().iter().flat_map(|entry| ToolWarning::of(&entry.message));
        ReactLoopResult {
            response,
            finish: Some(finish),
            turns: usage.turns,
            duration_ms: took.as_millis() as i64,
            token_usage: usage.into(),
            tool_warnings: ToolWarning::of_calls(&tool_calls).chain(findings).collect(),
            tool_calls,
            usage,
        }
    }
}

/// How the loop ended.
pub enum LoopEnd {
    Answered(ReactLoopResult),
    Suspended(Suspension),
    /// No budget is left for the first call: nothing has happened.
    Refused(RunFault),
}

/// An answer with which the loop goes on, and the usage of the call that it took.
struct AcceptedAnswer {
    answer: ModelAnswer,
    model: String,
    usage: Usage,
}
