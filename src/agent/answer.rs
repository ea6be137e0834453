//! How a message ends: whether the loop goes on with an answer of the model, and the error of a run that got none.
//! Decided purely.

use uuid::Uuid;

use crate::domain::approval::{Approval, OpenQuestion};
use crate::domain::run::{ReactLoopResult, RunError, RunFault, Usage};
use crate::ports::llm::{LlmError, ModelAnswer, StopReason};
use crate::ports::tool::absence::ToolAbsence;

/// How a message ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentResponse {
    /// The model has answered.
    Answered(ReactLoopResult),
    /// People have to be heard before it can go on.
    Suspended(Suspension),
    /// Nothing was done, and why.
    Refused {
        /// The reason, for the model and for people.
        reason: String,
    },
}

/// The reason for which a loop is suspended, and until when.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    /// Questions that are to be put, one batch, each with the one that it replaces.
    pub asks: Vec<(Approval, Option<Uuid>)>,
    /// Questions that were put before and are open.
    pub open: Vec<OpenQuestion>,
    /// Usage of this execution.
    pub usage: Usage,
}

/// The error that people read when shortening did not help.
const TOO_LONG: &str = "Conversation too long, please start a new conversation";
/// The error that people read where a run has nothing but its message, or the instruction of its task.
const TOO_LONG_ALONE: &str = "The message or instruction does not fit the model's context window beside the agent's \
                              own prompt and tools, please shorten it";

/// The answer as the loop goes on with it; an error where it is none. `at_limit`: the model was asked to answer because
/// it had used up its turns. With nothing to say then, the run ends with what it said before, if that is anything.
pub fn accept(mut answer: ModelAnswer, at_limit: bool, has_spoken: bool) -> Result<ModelAnswer, RunError> {
    answer.text = answer.text.filter(|text| !text.trim().is_empty());
    if at_limit && !answer.tool_calls.is_empty() {
        answer.tool_calls.clear(); // some servers let the model call all the same
        answer.provider_message = None;
    }
    if answer.stop == StopReason::Refused {
        return Err(RunError::fail("llm_refused", "the provider of the model withheld the answer"));
    }
    let says_nothing = answer.text.is_none() && answer.tool_calls.is_empty();
    match says_nothing && !(at_limit && has_spoken) {
        true if answer.stop == StopReason::Length => {
            let message = "the model used up the length of its answer before it said anything";
            Err(RunError::fail("llm_truncated", message))
        }
        true if at_limit => Err(RunError::fail("no_answer", "the model used up its turns and has not said anything")),
        _ => Ok(answer),
    }
}

/// The end of a run whose conversation nothing makes short enough; `is_alone`: it is one message.
pub fn too_long(is_alone: bool) -> RunError {
    RunError::fail("context_overflow", if is_alone { TOO_LONG_ALONE } else { TOO_LONG })
}

/// The run error for a tool of an MCP server that is not there. The server may be away, or the operator has yet to
/// accept the tool: the run goes on later, and uses no attempt.
pub fn tool_absent(tool: &str, absence: ToolAbsence) -> RunError {
    RunError::Infrastructure { fault: RunFault::new(absence.code(), absence.message(tool)) }
}

/// The run error for a failed chain of models.
pub fn no_answer(error: LlmError) -> RunError {
    let fault = RunFault::new(error.fault_code(), format!("the model did not answer: {error}"));
    match error.is_transient() {
        true => RunError::Retry { fault, after: error.retry_after() },
        false => RunError::Fail { fault },
    }
}
