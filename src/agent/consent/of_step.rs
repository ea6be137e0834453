//! Consent to an agent of `[[agents]]` that works in a step of a pipeline. The step is a call of the agent: a person is
//! asked for fields that are missing or invalid, and then whether the agent may work, by the rules for a call
//! by another agent.

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use crate::agent::checkpoint::agent_store::AgentStore;
use crate::agent::checkpoint::run_error;
use crate::agent::configured::agent_field::{LONGEST_TEXT, TASK_INSTRUCTION};
use crate::agent::consent::input::InputVerdict;
use crate::agent::consent::turn_overrides::TurnOverrides;
use crate::agent::consent::{Consent, ConsentVerdict};
use crate::agent::stream::StreamEmitter;
use crate::agent::{Agent, AgentRequest, Suspension};
use crate::base::id::new_id;
use crate::domain::approval::{Approval, OpenQuestion};
use crate::domain::run::{RunError, ToolCall, Usage};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolError, ToolFailure};

/// Whether the agent of a step may work.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAdmission {
    /// It works.
    Admitted {
        /// Its fields, and the instruction as `task_instruction`, with all that a person has supplied or changed.
        arguments: Value,
        /// The question that a person has answered; `None`: nobody was asked.
        question: Option<Uuid>,
    },
    /// People have to be heard first.
    Suspended(Suspension),
    /// It does not work, and why.
    Refused(ToolError),
}

/// A call of a configured agent by a step.
pub struct StepCall<'a> {
    /// The agent as a tool.
    pub tool: &'a Arc<RegisteredTool>,
    /// Its fields, and the instruction as `task_instruction`.
    pub arguments: Value,
    /// Settings of the step that a question would not show: with any of them a person can't be asked.
    pub unseen: &'a [&'static str],
}

impl Agent {
    /// Decides whether a configured agent may answer the message of a step. One that has begun goes on.
    ///
    /// # Errors
    /// The run stops here, or can't go on.
    pub async fn admit_step(
        &self,
        request: &AgentRequest,
        StepCall { tool, arguments, unseen }: StepCall<'_>,
    ) -> Result<StepAdmission, RunError> {
        // the step calls the agent, and is none
        let consent = Consent { agent: None, ..Consent::of_request(self, request) };
        let turn = request.first_turn;
        let place = request.attribution.step.as_deref().unwrap_or_default();
        let call = ToolCall::new(place, tool.definition().name.as_str(), arguments);
        let earlier = consent.earlier_questions(turn).await?;
        let id = || new_id(request.clock.now());
        let input = earlier.input_of(&call.id);
        if !request.store.load().await.map_err(run_error)?.is_empty() {
            let question = earlier.of(&call.id).or(input).map(|asked| asked.id);
            return Ok(StepAdmission::Admitted { arguments: call.args, question });
        }
        let (call, is_supplied) = match consent.input((turn, id()), &call, tool, input).await? {
            InputVerdict::Ready { call, begun, .. } => (call, begun.is_some()),
            InputVerdict::Ask(question) => return consent.put(request, question, None, false).await,
            InputVerdict::Wait(question) => return Ok(waiting(question)),
            InputVerdict::Refused(error) => return Ok(StepAdmission::Refused(error)),
        };
        let approval = earlier.of(&call.id);
        let arguments = approval.map_or(&call.args, Approval::arguments).clone();
        let overrides = TurnOverrides::of(std::slice::from_ref(&call));
        match consent.decide((turn, id(), &overrides), &call, tool, approval, None).await? {
            ConsentVerdict::Run { approval, .. } => Ok(match consent.unfit(tool, &arguments).await? {
                Some(error) => StepAdmission::Refused(error),
                None => StepAdmission::Admitted { arguments, question: approval.or(input.map(|asked| asked.id)) },
            }),
            ConsentVerdict::Ask(..) if !unseen.is_empty() => Ok(StepAdmission::Refused(unseen_error(unseen))),
            ConsentVerdict::Ask(question, replaces) => consent.put(request, question, replaces, is_supplied).await,
            ConsentVerdict::Wait(question) => Ok(waiting(question)),
            ConsentVerdict::Refused(error) => Ok(StepAdmission::Refused(error)),
        }
    }
}

impl Consent<'_> {
    /// Suspends the step with a question, which may stand in the place of an earlier one, unless as many runs of the
    /// tenant wait for people as may. Where a person has supplied fields (`is_supplied`), the run has waited already.
    async fn put(
        &self,
        request: &AgentRequest,
        question: Box<Approval>,
        replaces: Option<Uuid>,
        is_supplied: bool,
    ) -> Result<StepAdmission, RunError> {
        let instruction = question.proposal.arguments[TASK_INSTRUCTION].as_str().unwrap_or_default();
        if instruction.chars().count() > LONGEST_TEXT as usize {
            let message = format!("a person is asked first, so the instruction may have {LONGEST_TEXT} characters");
            return Ok(StepAdmission::Refused(ToolError::arguments(message)));
        }
        let is_first = replaces.is_none() && !is_supplied;
        if is_first && !self.store.may_suspend().await.map_err(run_error)? {
            let message = "a person is asked first, and as many runs wait already as the quota `suspended_agents` lets";
            let error = ToolError::for_model(ToolFailure::ResourceError, "too_many_suspended", message);
            return Ok(StepAdmission::Refused(error));
        }
        StreamEmitter::new(request.sink.clone()).approval_required(&question);
        let asks = vec![(Approval { batch_id: new_id(self.clock.now()), ..*question }, replaces)];
        Ok(StepAdmission::Suspended(Suspension { asks, open: Vec::new(), usage: Usage::default() }))
    }

    /// The fault of fields that are invalid though a person has supplied or approved them; `None`: they are valid.
    async fn unfit(&self, tool: &RegisteredTool, arguments: &Value) -> Result<Option<ToolError>, RunError> {
        let (rules, given) = (tool.tool.clone(), arguments.clone());
        let steps = tool.tool.input_steps(arguments);
        let invalid = self.compute.run_if_costly(self.tenant, steps, move || rules.invalid_input(&given)).await;
        let invalid = invalid.map_err(|panicked| RunError::fail("panicked", panicked.to_string()))?;
        let faults: Vec<String> =
            invalid.into_iter().map(|one| format!("{}: {}", one.name, one.fault.message)).collect();
        Ok((!faults.is_empty()).then(|| ToolError::arguments(faults.join("; "))))
    }
}

/// The refusal of a step about which a person has to be asked, who would not see all of it.
fn unseen_error(unseen: &[&str]) -> ToolError {
    let listed = unseen.join("`, `");
    ToolError::arguments(format!("a person is asked first, and would not see `{listed}`; say it in [[agents]]"))
}

/// The step waits on for the answer to an earlier question.
fn waiting(question: OpenQuestion) -> StepAdmission {
    StepAdmission::Suspended(Suspension { asks: Vec::new(), open: vec![question], usage: Usage::default() })
}
