//! Failures of calls, in the words in which the model is told of them.

use crate::ports::tool::{ToolError, ToolFailure};

/// Calls of one turn that are carried out; the others are refused.
pub const CALLS_PER_TURN: usize = 50;

/// A call that an answer broke off in.
pub fn truncated_call_error() -> ToolError {
    let message = "the answer reached its longest length in the middle of this call, which was not executed; call again, \
                   with less before it or shorter arguments";
    ToolError::for_model(ToolFailure::InvalidParameters, "truncated_call", message)
}

/// Refuses a call beyond [`CALLS_PER_TURN`]; `index`: its place in the turn, from 0.
pub fn check_turn_limit(index: usize) -> Result<(), ToolError> {
    if index < CALLS_PER_TURN {
        return Ok(());
    }
    let message = format!(
        "a turn makes at most {CALLS_PER_TURN} calls, and this one was not executed; call again in the next turn"
    );
    Err(ToolError::for_model(ToolFailure::InvalidParameters, "too_many_calls", message))
}

/// A call that may have had its effect before a restart.
pub fn unknown_outcome_error() -> ToolError {
    let message = "the service was restarted during this call; whether it had its effect is unknown, and it was not \
                   repeated";
    ToolError::for_model(ToolFailure::ExecutionError, "outcome_unknown", message)
}

/// A failure as the model is told of it.
pub fn observation(kind: ToolFailure, code: &str, message: &str, call_id: &str) -> String {
    let line = call_line(call_id);
    format!("Operation failed.\ntype: {}\ncode: {code}\nmessage: {message}{line}", kind.as_str())
}

/// The end of an observation, which names its call.
pub fn call_line(call_id: &str) -> String {
    format!("\ncall: {call_id}")
}
