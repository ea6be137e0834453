//! Failures of calls, in the words in which the model is told of them.

use crate::ports::tool::absence::{ToolAbsence, tool_changed};
use crate::ports::tool::registry::unknown_tool;
use crate::ports::tool::{ToolError, ToolFailure, ToolRegistry};

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

/// A call of a tool that the run may not call, or that is not there. An MCP server may list its tool no more, not yet,
/// or with a definition that waits to be accepted: where the call has `begun` before, it may have had its effect.
pub fn absent_tool_error(tool: &str, tools: &ToolRegistry, offered: &[&str], begun: bool) -> ToolError {
    match tools.absence(tool) {
        None => unknown_tool(tool, offered.iter().copied()),
        Some(_) if begun => unknown_outcome_error(),
        Some(ToolAbsence::NotAccepted) => tool_changed(tool),
        Some(unlisted @ ToolAbsence::Unlisted) => ToolError::Unsent {
            code: unlisted.code().to_owned(),
            message: format!("{}; the call was not sent", unlisted.message(tool)),
        },
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::tool::registry::fixture::listed_tool;

    #[test]
    fn call_of_a_tool_that_its_server_does_not_list_may_have_had_its_effect_where_it_has_begun() {
        let waiting = [listed_tool("github.close")];
        let tools = ToolRegistry::new(Vec::new()).unwrap().with_servers(["github"]).with_waiting(waiting);
        let told = |tool: &str, begun: bool| {
            let error = absent_tool_error(tool, &tools, &["look"], begun);
            (error.code().to_owned(), error.is_unsent())
        };
        assert_eq!(told("github.search", false), ("mcp_unavailable".to_owned(), true));
        assert_eq!(told("github.search", true), ("outcome_unknown".to_owned(), false));
        assert_eq!(told("github.close", false), ("mcp_tool_changed".to_owned(), false));
        assert_eq!(told("github.close", true), ("outcome_unknown".to_owned(), false));
        for begun in [false, true] {
            assert_eq!(told("search", begun), told("gitlab.search", begun));
            assert!(!told("search", begun).1);
        }
    }
}
