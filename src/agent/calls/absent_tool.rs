//! Calls of tools that the run may not call, or that are not there. After a restart of the service an MCP server may
//! have listed none of its tools yet, and one whose definition has changed is not there until it is accepted.

use crate::agent::answer::tool_absent;
use crate::agent::calls::observation::absent_tool_error;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::{Attempt, ToolRunner};
use crate::agent::consent::QuestionStanding;
use crate::domain::approval::Approval;
use crate::domain::run::ToolCall;
use crate::ports::tool::absence::{ToolAbsence, tool_changed};

impl ToolRunner<'_> {
    /// The attempt at such a call; `last_asked`: the last question about it. A question stays open, and an approval
    /// that was not used stands, until the server is back: the run is tried again later. Where the definition has
    /// changed, nobody has approved a call by it.
    pub(super) fn absent(&self, call: &ToolCall, last_asked: Option<&Approval>, resumed: bool) -> Attempt {
        let begun = last_asked.map_or(resumed, |question| question.execution_started_at.is_some());
        let absence = self.tools.absence(&call.name).filter(|_| !begun);
        let standing = last_asked.zip(absence).map(|(question, absence)| (self.consent.standing(question), absence));
        match standing {
            Some((QuestionStanding::Open(question), _)) => Attempt::Open(PendingCall::Put(question)),
            Some((QuestionStanding::Refused(observed), _)) => Attempt::failed(observed),
            Some((QuestionStanding::Allowed, unlisted @ ToolAbsence::Unlisted)) => {
                Attempt::Ended(tool_absent(&call.name, unlisted))
            }
            Some((QuestionStanding::Allowed, ToolAbsence::NotAccepted)) => Attempt::failed(tool_changed(&call.name)),
            None => Attempt::failed(absent_tool_error(&call.name, self.tools, self.offered, begun)),
        }
    }
}
