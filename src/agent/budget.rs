//! Budgets in the loop: what a call may come to is reserved before it is made, and what an answer has cost is on the
//! record also where it can't be used. Decides nothing: the store of the run knows the limits.

use crate::agent::checkpoint::{Checkpoint, NewEntry};
use crate::agent::{AgentStore, RunSlot, wait_without_slot};
use crate::base::compute::Compute;
use crate::domain::budget::Spend;
use crate::domain::run::transcript::{ModelCall, ModelTokens};
use crate::domain::run::{RunError, TranscriptMessage, Usage};
use crate::ports::llm::ModelRequest;
use crate::ports::llm::fallback::Chain;

/// Reserves what a call may come to, whichever model of the chain answers. Where no budget holds, nothing is worked out
/// and nobody is asked.
async fn reserve(
    store: &dyn AgentStore,
    slot: &dyn RunSlot,
    chain: &Chain,
    turn: i64,
    request: &ModelRequest,
) -> Result<(), RunError> {
    match store.is_budgeted() {
        true => wait_without_slot(slot, store.reserve(turn, chain.worst_case(request))).await,
        false => Ok(()),
    }
}

/// As `reserve`, for a call that is no turn of the loop.
pub async fn reserve_alone(
    store: &dyn AgentStore,
    slot: &dyn RunSlot,
    chain: &Chain,
    turn: i64,
    (request, compute): (&ModelRequest, &Compute),
) -> Result<(), RunError> {
    if !store.is_budgeted() {
        return Ok(());
    }
    let bound = chain.measured_worst_case(request, compute).await;
    wait_without_slot(slot, store.reserve(turn, bound)).await
}

/// As `reserve`, for a turn of the loop: the entries that are due in the checkpoint are stored before, by the same
/// statement if as much is left.
pub async fn reserve_turn(
    checkpoint: &mut Checkpoint,
    slot: &dyn RunSlot,
    chain: &Chain,
    turn: i64,
    request: &ModelRequest,
) -> Result<(), RunError> {
    let is_reserved = match checkpoint.has_due() && checkpoint.store().is_budgeted() {
        true => checkpoint.flush_and_reserve(turn, chain.worst_case(request)).await?,
        false => checkpoint.flush_due().await.map(|()| false)?,
    };
    match is_reserved {
        true => Ok(()),
        false => reserve(checkpoint.store(), slot, chain, turn, request).await,
    }
}

/// Guard of calls of a chain that are under way. Dropped with a caller who is cut off, it reports what the calls have
/// cost.
pub struct CutOffGuard<'a, F: Fn(Usage)> {
    /// The chain that is asked.
    pub chain: &'a Chain,
    /// Takes the cost.
    pub report: F,
}

impl<F: Fn(Usage)> CutOffGuard<'_, F> {
    /// The caller goes on, and takes the cost from the chain itself.
    pub fn disarm(self) {
        std::mem::forget(self);
    }
}

impl<F: Fn(Usage)> Drop for CutOffGuard<'_, F> {
    fn drop(&mut self) {
        (self.report)(self.chain.take_unusable());
    }
}

/// Usage of one answer of a model.
pub fn usage_of(tokens: ModelTokens, cost_micros: i64) -> Usage {
    Usage { turns: 1, tool_calls: 0, input_tokens: tokens.input, output_tokens: tokens.output, cost_micros }
}

/// The entry of an answer that could not be used; `None` where nothing was paid.
pub fn unusable_answer(usage: Usage, model_call: Option<ModelCall>, error: &RunError) -> Option<NewEntry> {
    if usage == Usage::default() {
        return None;
    }
    let code = match error {
        RunError::Retry { fault, .. } | RunError::Fail { fault } | RunError::Infrastructure { fault } => &fault.code,
        RunError::HandBack | RunError::Cancelled { .. } | RunError::LeaseLost => "stopped",
    };
    let message = TranscriptMessage::Unusable { code: code.to_owned() };
    Some(NewEntry { usage, model_call, ..NewEntry::plain(message) })
}

/// The usage of a call that may come to so much at worst, `output` tokens of it written, and of which nobody knows what
/// it came to: the worst.
pub fn worst_usage(most: Spend, output: u32) -> Usage {
    let output = i64::from(output).min(most.tokens);
    let (input_tokens, output_tokens) = (most.tokens - output, output);
    Usage { turns: 0, tool_calls: 0, input_tokens, output_tokens, cost_micros: most.cost_micros }
}
