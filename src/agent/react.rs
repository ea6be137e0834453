//! The loop: ask the model, carry out the calls it asks for, tell it what came of them, until it answers.
//!
//! Each finished turn survives a crash, and of an unfinished one the intent, unless all its calls only read and are
//! done within [`INTENT_DELAY`]: see `checkpoint.rs`. A finished turn's model call is never made again. Tools that may
//! be repeated are, with the same key; the others are reported as unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};

use crate::agent::calls::{CallResult, CompletedCall, PendingCall, ToolRunner};
use crate::agent::checkpoint::{Added, Checkpoint};
use crate::agent::consent::EarlierQuestions;
use crate::agent::context::ContextWindow;
use crate::agent::result::ReactLoopResult;
use crate::agent::stream::StreamEmitter;
use crate::agent::{LoopStopReason, RunSlot, StopSignal, Suspension, wait_without_slot};
use crate::base::clock::Clock;
use crate::base::id::new_id;
use crate::domain::approval::Approval;
use crate::domain::run::Usage;
use crate::domain::run::outcome::{RunError, RunFault};
use crate::domain::run::transcript::{ModelCall, ProviderMessage, ToolCall, TranscriptMessage};
use crate::ports::llm::fallback::{CallProgress, Chain, Completed};
use crate::ports::llm::{LlmError, ModelRequest, OfferedTools, StopReason as ModelStop, ToolChoice};

/// Calls that only read run for so long before their intent is stored: an answer that was paid for is not to hang on a
/// slow tool.
const INTENT_DELAY: Duration = Duration::from_secs(1);

/// The error that people read when shortening did not help.
const TOO_LONG: &str = "Conversation too long, please start a new conversation";

/// The instruction to the model when it has used up its turns. It stands in the request alone, as the system message
/// does.
pub const CLOSING: &str = "You have executed enough steps. Please provide a final answer based on the information \
                           gathered so far.";

/// One message on its way through the loop.
pub struct ReactLoop<'a> {
    pub chain: Chain,
    pub window: ContextWindow,
    pub caller: ToolRunner<'a>,
    pub offered: OfferedTools,
    pub checkpoint: Checkpoint,
    /// The conversation as the model is shown it.
    pub view: Vec<TranscriptMessage>,
    /// Turns with tools.
    pub max_turns: i64,
    pub max_recoveries: u32,
    pub stop: &'a StopSignal,
    pub slot: &'a dyn RunSlot,
    pub clock: &'a Clock,
    pub teller: &'a StreamEmitter,
}

impl ReactLoop<'_> {
    /// Goes on where the checkpoint stands, and ends with an answer, or where people have to be heard.
    pub async fn run(mut self) -> Result<LoopEnd, RunError> {
        let end = self.turns().await;
        match &end {
            // where the store is away or the lease lost, nothing can be stored
            Err(RunError::LeaseLost | RunError::Infrastructure { .. }) => {}
            // what was said is on the record of a run that fails, or goes on elsewhere, too
            _ => self.checkpoint.flush().await?,
        }
        end
    }

    async fn turns(&mut self) -> Result<LoopEnd, RunError> {
        let begun = self.clock.elapsed();
        let mut fresh = Vec::new();
        let (mut calls, mut resumed) = (self.checkpoint.open_calls(), true);
        loop {
            if !calls.is_empty() {
                let carried = self.run_calls(&calls, resumed).await?;
                fresh.extend(carried.measured);
                if !carried.open.is_empty() {
                    return Ok(LoopEnd::Suspended(self.suspension(carried.open)));
                }
            }
            if let Some(answer) = self.checkpoint.answer() {
                let response = answer.to_owned();
                let took = self.clock.elapsed().saturating_sub(begun);
                return Ok(LoopEnd::Answered(self.result(response, fresh, took)));
            }
            self.stop.check()?;
            (calls, resumed) = (self.model_turn().await?, false);
        }
    }

    /// The suspension for these calls: the open ones as one batch, with those that were asked before.
    fn suspension(&self, calls: Vec<PendingCall>) -> Suspension {
        let batch = new_id(self.clock.now());
        let (mut asks, mut open) = (Vec::new(), Vec::new());
        for call in calls {
            match call {
                PendingCall::Ask(approval, replaces) => {
                    asks.push((Approval { batch_id: batch, ..*approval }, replaces))
                }
                PendingCall::Put(id) => open.push(id),
            }
        }
        Suspension { asks, open, usage: self.checkpoint.usage() }
    }

    /// One turn of the model, stored; answers the calls that it asks for.
    async fn model_turn(&mut self) -> Result<Vec<ToolCall>, RunError> {
        let turn = self.checkpoint.turn() + 1;
        let forced = turn > self.max_turns;
        let begun = self.clock.elapsed();
        let Completed { mut answer, model, cost_micros } = self.complete(turn, forced).await?;
        if forced && !answer.tool_calls.is_empty() {
            answer.tool_calls.clear(); // some servers let the model call all the same
            answer.provider_message = None;
        }
        if answer.stop == ModelStop::Refused {
            return Err(RunError::fail("llm_refused", "the provider of the model withheld the answer"));
        }
        if answer.stop == ModelStop::Length && answer.text.is_none() && answer.tool_calls.is_empty() {
            let message = "the model used up the length of its answer before it said anything";
            return Err(RunError::fail("llm_truncated", message));
        }
        if forced && answer.text.is_none() {
            return Err(RunError::fail(
                "no_answer",
                format!("the model gave no answer after {} turns", self.max_turns),
            ));
        }
        let duration_ms = self.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        let calls = answer.tool_calls.clone();
        let usage = Usage {
            turns: 1,
            tool_calls: calls.len() as i64,
            input_tokens: answer.tokens.input,
            output_tokens: answer.tokens.output,
            cost_micros,
        };
        tracing::debug!(turn, %model, duration_ms, calls = calls.len(), "turn answered");
        let text = answer.text.clone().unwrap_or_default();
        let provider_message = self.storable_provider_message(answer.provider_message).await;
        let message =
            TranscriptMessage::Assistant { text: answer.text, tool_calls: answer.tool_calls, provider_message };
        let model_call = ModelCall { model, tokens: answer.tokens };
        let added = Added {
            message: message.clone(),
            usage,
            duration_ms: Some(duration_ms),
            model_call: Some(model_call.clone()),
        };
        self.checkpoint.add(turn, vec![added]);
        // an answer, and the intent of calls that have effects, are on the record before anything follows
        if calls.is_empty() || !self.caller.only_read(&calls) && !failpoint!("agent_intent_late") {
            self.checkpoint.flush().await?;
        }
        self.view.push(message);
        self.teller.message_end(turn, &text, &model_call);
        Ok(calls)
    }

    /// The provider's message, if it may be stored: with a secret in it, it may not, and without it, it would not be
    /// what the provider wrote.
    async fn storable_provider_message(
        &self,
        provider_message: Option<Arc<ProviderMessage>>,
    ) -> Option<Arc<ProviderMessage>> {
        let provider_message = provider_message?;
        match self.caller.known.finds(&provider_message.raw).await {
            true => None,
            false => Some(provider_message),
        }
    }

    /// Asks the chain, with a shorter conversation each time that it was too long.
    async fn complete(&mut self, turn: i64, forced: bool) -> Result<Completed, RunError> {
        self.window.guard(&mut self.view, &self.offered);
        let (mut step, mut recoveries) = (Some(0), 0);
        loop {
            // lent for the call: a run that waits for its model keeps it once
            let spoken = self.view.len();
            let mut messages = std::mem::take(&mut self.view);
            messages.extend(forced.then(|| TranscriptMessage::user(CLOSING)));
            let request = ModelRequest {
                messages,
                tools: self.offered.clone(),
                tool_choice: if forced { ToolChoice::None } else { ToolChoice::Auto },
                max_tokens: None,
                temperature: None,
            };
            let tell = |progress: CallProgress| match progress {
                CallProgress::Asked => self.teller.message_start(turn),
                CallProgress::Text(text) => self.teller.message_chunk(turn, text),
            };
            let answer = wait_without_slot(self.slot, self.chain.complete(&request, &tell));
            let answer = self.stop.run_until_stopped(answer).await?;
            self.view = request.messages;
            self.view.truncate(spoken);
            match answer {
                Ok(completed) => return Ok(completed),
                Err(LlmError::Overflow { message }) => {
                    tracing::info!(turn, recoveries, error = %message, "conversation too long for the model");
                    let next = step.filter(|_| recoveries < self.max_recoveries);
                    let Some(from) = next else { return Err(RunError::fail("context_overflow", TOO_LONG)) };
                    // what nothing shortens is asked once more as it is: it may have been the answer that did not fit
                    step = self.window.recover(&mut self.view, from);
                    recoveries += 1;
                }
                Err(error) => return Err(run_error(error)),
            }
        }
    }

    /// Carries out calls and stores their results; answers how long each result was before it was cut, and which calls
    /// wait for people.
    async fn run_calls(&mut self, calls: &[ToolCall], resumed: bool) -> Result<Carried, RunError> {
        let turn = self.checkpoint.turn();
        // of a turn that was just made nothing can have been asked
        let asked = if resumed { self.caller.consent.asked(turn).await? } else { EarlierQuestions::default() };
        let mut running = self.caller.start(turn, calls, &asked, resumed);
        let mut done: Vec<(usize, TranscriptMessage)> = Vec::new();
        let (mut measured, mut open) = (Vec::new(), Vec::new());
        let mut waiting: Vec<(usize, Added)> = Vec::new();
        let mut early = VecDeque::new();
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
                    open.push(call);
                    continue;
                }
            };
            let (index, urgent) = (completed.index, completed.unrepeatable);
            measured.push(Measured { turn, call_id: completed.call.id.clone(), chars: completed.text.chars().count() });
            let added = self.result_entry(completed);
            done.push((index, added.message.clone()));
            waiting.push((index, added));
            // what can't be repeated is stored at once, not when its siblings are done
            if urgent {
                let stored = self.checkpoint.append(turn, in_order(&mut waiting));
                while_running(stored, &mut running, &mut early).await?;
            }
        }
        drop(running);
        if !waiting.is_empty() {
            self.checkpoint.append(turn, in_order(&mut waiting)).await?;
        }
        done.sort_by_key(|(index, _)| *index);
        self.view.extend(done.into_iter().map(|(_, message)| message));
        Ok(Carried { measured, open })
    }

    /// A result as it enters transcript and conversation.
    fn result_entry(&self, done: CompletedCall) -> Added {
        let content = self.window.cut_result(&done.text);
        self.teller.tool_result(&done.call, &content, done.is_error);
        let CompletedCall { call, is_error, duration_ms, reasons, .. } = done;
        let message = TranscriptMessage::Tool { call_id: call.id, name: call.name, content, is_error, reasons };
        Added { message, usage: Usage::default(), duration_ms: Some(duration_ms), model_call: None }
    }

    fn result(&self, response: String, fresh: Vec<Measured>, took: Duration) -> ReactLoopResult {
        let usage = self.checkpoint.usage();
        let tool_calls = self.checkpoint.records(|turn, call_id| {
            fresh.iter().find(|measured| measured.turn == turn && measured.call_id == call_id).map(|m| m.chars)
        });
        ReactLoopResult {
            response,
            turns: usage.turns,
            duration_ms: took.as_millis() as i64,
            token_usage: usage.into(),
            tool_calls,
            usage,
        }
    }
}

/// How the loop ended.
pub enum LoopEnd {
    Answered(ReactLoopResult),
    Suspended(Suspension),
}

/// Outcome of the calls of a turn.
struct Carried {
    measured: Vec<Measured>,
    open: Vec<PendingCall>,
}

/// How long a result was before it was cut.
struct Measured {
    turn: i64,
    call_id: String,
    chars: usize,
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

fn in_order(waiting: &mut Vec<(usize, Added)>) -> Vec<Added> {
    waiting.sort_by_key(|(index, _)| *index);
    waiting.drain(..).map(|(_, added)| added).collect()
}

/// Waits for running calls, unless the run is cancelled. A wish to hand the run back is heard when they are done:
/// they have begun, and what they do should be known to whoever goes on.
async fn or_cancelled<T>(stop: &StopSignal, work: impl Future<Output = T>) -> Result<T, RunError> {
    let cancelled = async {
        stop.requested().await;
        if stop.reason() == Some(&LoopStopReason::HandBack) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = cancelled => Err(stop.check().expect_err("only a wish ends this wait")),
        done = work => Ok(done),
    }
}

/// The run error for a failed chain of models.
fn run_error(error: LlmError) -> RunError {
    let code = match &error {
        LlmError::RateLimited { .. } => "llm_rate_limited",
        LlmError::Timeout { .. } => "llm_timeout",
        LlmError::Transient { .. } => "llm_unavailable",
        LlmError::Auth { .. } => "llm_auth",
        LlmError::Rejected { .. } => "llm_rejected",
        LlmError::Overflow { .. } => "context_overflow",
    };
    let fault = RunFault::new(code, format!("the model did not answer: {error}"));
    match error.is_transient() {
        true => RunError::Retry { fault, after: error.retry_after() },
        false => RunError::Fail { fault },
    }
}
