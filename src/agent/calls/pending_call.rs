//! Calls that wait for people.

use uuid::Uuid;

use crate::agent::calls::{Attempt, ToolRunner};
use crate::agent::checkpoint::run_error;
use crate::domain::approval::{Approval, OpenQuestion};
use crate::domain::run::RunError;
use crate::ports::tool::{ToolError, ToolFailure};

/// A call that waits for a person.
pub enum PendingCall {
    /// The question is to be put, in the place of an earlier one.
    Ask(Box<Approval>, Option<Uuid>),
    /// It was put.
    Put(OpenQuestion),
    /// Calls of the agent that is called.
    Delegated(Vec<PendingCall>),
}

impl PendingCall {
    /// Each question by itself.
    pub fn each(self) -> Vec<PendingCall> {
        match self {
            PendingCall::Delegated(calls) => calls.into_iter().flat_map(PendingCall::each).collect(),
            one => vec![one],
        }
    }
}

impl ToolRunner<'_> {
    /// Asks a person about a call, in the place of an earlier question, unless as many runs of the tenant wait for
    /// people as may. Where a person has supplied what the call lacked (`is_supplied`), the run has waited for it
    /// already.
    pub(super) async fn ask(
        &self,
        question: Box<Approval>,
        replaces: Option<Uuid>,
        is_supplied: bool,
    ) -> Result<Attempt, RunError> {
        let is_first = replaces.is_none() && !is_supplied;
        if is_first && !self.consent.store.may_suspend().await.map_err(run_error)? {
            return Ok(Attempt::failed(too_many_error()));
        }
        Ok(Attempt::Open(PendingCall::Ask(question, replaces)))
    }
}

fn too_many_error() -> ToolError {
    let message = "it has to wait for a person, and as many runs wait already as the quota `suspended_agents` lets; \
                   it was not executed. Go on without it, or say that it has to wait until others are answered";
    ToolError::for_model(ToolFailure::PermissionDenied, "too_many_suspended", message)
}
