//! Calls of tools that the run may not call, or that are not there. After a restart of the service an MCP server may
//! have listed none of its tools yet.

use crate::agent::answer::tool_unlisted;
use crate::agent::calls::observation::absent_tool_error;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::{Attempt, ToolRunner};
use crate::agent::consent::QuestionStanding;
use crate::domain::approval::Approval;
use crate::domain::run::ToolCall;

impl ToolRunner<'_> {
    /// The attempt at such a call; `last_asked`: the last question about it. A question stays open, and an approval
    /// that was not used stands, until the server is back: the run is tried again later.
    pub(super) fn absent(&self, call: &ToolCall, last_asked: Option<&Approval>, resumed: bool) -> Attempt {
        let begun = last_asked.map_or(resumed, |question| question.execution_started_at.is_some());
        let question = last_asked.filter(|_| self.tools.is_unlisted(&call.name) && !begun);
        match question.map(|question| self.consent.standing(question)) {
            Some(QuestionStanding::Open(question)) => Attempt::Open(PendingCall::Put(question)),
            Some(QuestionStanding::Refused(observed)) => Attempt::failed(observed),
            Some(QuestionStanding::Allowed) => Attempt::Ended(tool_unlisted(&call.name)),
            None => Attempt::failed(absent_tool_error(&call.name, self.tools, self.offered, begun)),
        }
    }
}
