//! Questions of MCP servers: a call that its server has answered with a question waits for a person, and goes on with
//! their answer.
//!
//! The question is put for the same call, beside the one about whether it may run. Only a person answers it; without an
//! answer nothing is sent.

use uuid::Uuid;

use crate::agent::calls::observation::unknown_outcome_error;
use crate::agent::checkpoint::run_error;
use crate::agent::consent::{Consent, QuestionStanding, definition_hash};
use crate::domain::approval::{Approval, ApprovedCallStart, CallContinuation, OnExpiry, OpenQuestion, Proposal};
use crate::domain::run::{RunError, ToolCall};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{NeededInput, ToolError, ToolFailure};

/// How a call stands in whose middle its server may have asked.
pub enum CallResumption {
    /// Nobody was asked by a server.
    None,
    /// The person has not answered.
    Open(OpenQuestion),
    /// The call is not sent again, and the model is told this.
    Refused(ToolError),
    /// The call goes on with the answer.
    Answered(Box<CallContinuation>),
}

impl Consent<'_> {
    /// Where a call stands whose server has asked this. The answer is for the tool that the person was shown.
    pub fn resumption(&self, tool: &RegisteredTool, question: Option<&Approval>) -> CallResumption {
        let Some(asked) = question else { return CallResumption::None };
        match self.standing(asked) {
            QuestionStanding::Open(question) => return CallResumption::Open(question),
            QuestionStanding::Refused(observed) => return CallResumption::Refused(observed),
            QuestionStanding::Allowed => {}
        }
        let is_same = asked.proposal.definition == definition_hash(tool.definition());
        match (asked.proposal.server.clone(), asked.server_answer()) {
            (Some(question), Some(answer)) if is_same => {
                CallResumption::Answered(Box::new(CallContinuation { question, answer }))
            }
            _ if asked.execution_started_at.is_some() => CallResumption::Refused(unknown_outcome_error()),
            _ => CallResumption::Refused(changed_error(&tool.definition().name)),
        }
    }

    /// Whether a call with this answer is made now: `Some(true)` if an earlier execution may have made it; `None`: not
    /// yet.
    pub async fn begin_continuation(&self, question: &Approval) -> Result<Option<bool>, RunError> {
        let digest = question.decided_digest.as_deref().unwrap_or_default();
        Ok(match self.store.begin(question.id, digest).await.map_err(run_error)? {
            ApprovedCallStart::Now => Some(false),
            ApprovedCallStart::Before => Some(true),
            ApprovedCallStart::Refused => None,
        })
    }

    /// The question that a server has about a call; it has this id.
    pub fn server_question(
        &self,
        (turn, id): (i64, Uuid),
        call: &ToolCall,
        tool: &RegisteredTool,
        NeededInput { form, question }: NeededInput,
    ) -> Approval {
        let definition = tool.definition();
        let proposal = Proposal {
            version: server_version(&definition.version),
            server: Some(question),
            on_expiry: OnExpiry::Cancel,
            ..self.input_proposal(definition, form)
        };
        self.input_question((turn, id), call, proposal)
    }
}

/// The version in the proposal of a server's question. A release that knows no such questions takes it for that of
/// another form, and does not call the tool with the answer in the place of its arguments.
fn server_version(version: &str) -> String {
    format!("mcp:{version}")
}

fn changed_error(tool: &str) -> ToolError {
    let message = format!(
        "the tool `{tool}` has changed since its server asked a person in the middle of this call; the answer was not \
         sent, and the call was not made again"
    );
    ToolError::for_model(ToolFailure::ExecutionError, "mcp_tool_changed", message)
}
