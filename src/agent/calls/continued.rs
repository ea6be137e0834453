//! A call that goes on with a person's answer to the question of its MCP server.
//!
//! That is no repetition: the request before it has ended, with the question. The consent to the call holds for all of
//! them, and each begins once.

use std::ops::ControlFlow;
use std::sync::Arc;

use uuid::Uuid;

use crate::agent::calls::notice::{answered_notice, declined_notice, done_notice};
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::{Attempt, ToolRunner};
use crate::agent::checkpoint::run_error;
use crate::agent::consent::server_question::CallResumption;
use crate::domain::approval::server_question::ROUNDS;
use crate::domain::approval::{Approval, CallContinuation, ServerAnswer};
use crate::domain::run::{ResultNotice, RunError};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolError, ToolFailure};

/// A call with the answer that its server waits for.
pub(super) struct Continued<'a> {
    /// The question, which is answered.
    pub(super) asked: &'a Approval,
    pub(super) continuation: Arc<CallContinuation>,
}

impl Continued<'_> {
    /// Id of the question.
    pub(super) fn id(&self) -> Uuid {
        self.asked.id
    }

    /// The call may not begin yet.
    pub(super) fn waits(&self) -> Attempt {
        Attempt::Open(PendingCall::Put(self.asked.open_question()))
    }

    /// The answer, in words for the model.
    pub(super) fn notice(&self) -> ResultNotice {
        let CallContinuation { question, answer } = &*self.continuation;
        match answer {
            ServerAnswer::Accept(given) if question.has_form() => answered_notice(given),
            ServerAnswer::Accept(_) => done_notice(),
            ServerAnswer::Decline => declined_notice(),
        }
    }
}

impl ToolRunner<'_> {
    /// The call with the answer to this question of its server; `None`: no server has asked. Breaks where the call is
    /// not made now; whoever approved it is told how it ended.
    pub(super) fn continued<'a>(
        &self,
        tool: &RegisteredTool,
        approval: Option<&Approval>,
        question: Option<&'a Approval>,
    ) -> ControlFlow<Attempt, Option<Continued<'a>>> {
        match (self.consent.resumption(tool, question), question) {
            (CallResumption::Open(open), _) => ControlFlow::Break(Attempt::Open(PendingCall::Put(open))),
            (CallResumption::Refused(error), _) => {
                let begun = approval.filter(|approval| approval.execution_started_at.is_some());
                let approved = begun.map(|approval| approval.id).into_iter().collect();
                ControlFlow::Break(Attempt::undone(error, approved, Vec::new()))
            }
            (CallResumption::Answered(continuation), Some(asked)) => {
                ControlFlow::Continue(Some(Continued { asked, continuation: Arc::from(continuation) }))
            }
            (CallResumption::Answered(_) | CallResumption::None, _) => ControlFlow::Continue(None),
        }
    }

    /// Asks a person what the server of a call wants to know, in the place of its question before. The first one is
    /// asked unless as many runs of the tenant wait for people as may. The call has come so far by these questions.
    pub(super) async fn ask_for_server(
        &self,
        question: Approval,
        before: Option<Continued<'_>>,
        (questions, reasons): (Vec<Uuid>, Vec<String>),
    ) -> Result<Attempt, RunError> {
        let round = question.proposal.server.as_ref().map_or(1, |server| server.continuation.round);
        if round > ROUNDS {
            return Ok(Attempt::undone(too_many_rounds_error(), questions, reasons));
        }
        if before.is_none() && !self.consent.store.may_suspend().await.map_err(run_error)? {
            return Ok(Attempt::undone(too_many_waiting_error(), questions, reasons));
        }
        let replaces = before.map(|before| before.id());
        Ok(Attempt::Open(PendingCall::Ask(Box::new(question), replaces)))
    }
}

fn too_many_rounds_error() -> ToolError {
    let message =
        format!("the server has asked a person {ROUNDS} times during this call, and is not answered any more");
    ToolError::for_model(ToolFailure::ExecutionError, "mcp_needs_input", message)
}

fn too_many_waiting_error() -> ToolError {
    let message = "the server asks a person in the middle of this call, and as many runs wait already as the quota \
                   `suspended_agents` lets; nobody was asked, and the call was not carried out. Go on without it, or \
                   say that it has to wait until others are answered";
    ToolError::for_model(ToolFailure::PermissionDenied, "too_many_suspended", message)
}
