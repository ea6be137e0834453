//! Approval before a call is executed, and the answers that people gave.
//!
//! Asked before every call, at a resume as well. A question that was put is found again by run, turn and call; never is
//! a second one put while it stands. A call runs as it was agreed to: its hash is made again here, from the tool as it
//! is now, and where it differs the person is asked anew.
//!
//! A tool that may be stopped for a while (`undo_seconds`) is held for so long even where nobody has to agree: its call
//! is put as a question that is approved already.

pub mod input;
pub mod of_step;
pub mod server_question;
pub mod turn_overrides;

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;

use crate::agent::CallingAgent;
use crate::agent::checkpoint::run_error;
use crate::agent::consent::turn_overrides::TurnOverrides;
use crate::agent::ruling::RulingRequest;
use crate::agent::{Agent, AgentRequest, AgentStore, ApprovalContext};
use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::domain::actor::Actor;
use crate::domain::approval::proposal::{canonical_hash, undo_window};
use crate::domain::approval::{
    Approval, ApprovalChoice, ApprovalLevel, ApprovalStatus, ApprovedCallStart, CANCELLED, Consequence, EXPIRED,
    GrantAsk, INPUT_EXPIRED, OpenQuestion, Policy, Proposal, ProposalIdentity, QuestionKind, ReasonCode, Ruling,
    digest,
};
use crate::domain::credential::Reference;
use crate::domain::run::{RunError, ToolCall};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, ToolError, ToolFailure};

/// The code of a call that a person refused: the model is told their words and no others.
pub const REFUSED: &str = "refused_by_a_person";

/// The recipient and the rules by which a run asks for consent.
pub struct Consent<'a> {
    pub policy: &'a Policy,
    /// The configured agent that calls; `None`: none of them.
    pub agent: Option<&'a CallingAgent>,
    /// The agents through which calls come, outermost first.
    pub chain: &'a [String],
    /// The step of a pipeline that the agent is.
    pub step: Option<&'a str>,
    /// The credentials that the task names: its calls may use them.
    pub credentials: &'a [Reference],
    /// Whom the run may ask.
    pub approval_context: &'a ApprovalContext,
    pub store: &'a dyn AgentStore,
    pub tenant: &'a str,
    pub run_id: Uuid,
    pub clock: &'a Clock,
    pub compute: &'a Compute,
}

/// The decision about a call.
pub enum ConsentVerdict {
    /// It runs.
    Run {
        /// As edited by a person.
        arguments: Option<Value>,
        /// Under this approval.
        approval: Option<Uuid>,
        /// It may have been executed before.
        again: bool,
        /// Why nobody is asked.
        reasons: Vec<String>,
    },
    /// It does not run, and the model is told this.
    Refused(ToolError),
    /// A person is asked about this, in the place of an earlier question; or nobody is, and it is held first.
    Ask(Box<Approval>, Option<Uuid>),
    /// A person was asked and has not answered, or the act is held back for a while.
    Wait(OpenQuestion),
}

/// Where a question stands, whatever has become of its tool.
pub enum QuestionStanding {
    /// It has no answer, or its call is held back for a while.
    Open(OpenQuestion),
    /// The call is not carried out, and the model is told this.
    Refused(ToolError),
    /// The call may be carried out.
    Allowed,
}

/// Facts that a question shows besides the tool.
struct ShownQuestion<'a> {
    id: Uuid,
    arguments: &'a Value,
    ruling: Ruling,
    precheck: Option<Value>,
}

/// Earlier questions about calls, as a resume needs them.
#[derive(Default)]
pub struct EarlierQuestions(Vec<Approval>);

impl EarlierQuestions {
    /// Whether the call may run.
    pub fn of(&self, call_id: &str) -> Option<&Approval> {
        self.find(call_id, QuestionKind::Approval)
    }

    /// The question for arguments that the call lacked.
    pub fn input_of(&self, call_id: &str) -> Option<&Approval> {
        self.find(call_id, QuestionKind::Input).filter(|question| !question.proposal.is_of_server())
    }

    /// The question of an MCP server in the middle of the call.
    pub fn server_question_of(&self, call_id: &str) -> Option<&Approval> {
        self.find(call_id, QuestionKind::Input).filter(|question| question.proposal.is_of_server())
    }

    /// The last question about the call.
    pub fn last_of(&self, call_id: &str) -> Option<&Approval> {
        self.server_question_of(call_id).or_else(|| self.of(call_id)).or_else(|| self.input_of(call_id))
    }

    fn find(&self, call_id: &str, kind: QuestionKind) -> Option<&Approval> {
        self.0.iter().find(|approval| approval.call_id == call_id && approval.proposal.kind == kind)
    }
}

impl<'a> Consent<'a> {
    /// Consent to the calls of the agent that answers this message.
    pub fn of_request(agent: &'a Agent, request: &'a AgentRequest) -> Consent<'a> {
        Consent {
            policy: &agent.policy,
            agent: request.agent.as_ref(),
            chain: request.chain(),
            step: request.attribution.step.as_deref(),
            credentials: &request.overrides.credentials,
            approval_context: &request.approval_context,
            store: &*request.store,
            tenant: request.tenant.as_str(),
            run_id: request.run_id,
            clock: &request.clock,
            compute: &agent.compute,
        }
    }
}

impl Consent<'_> {
    /// The questions that were asked about calls of this turn.
    pub async fn earlier_questions(&self, turn: i64) -> Result<EarlierQuestions, RunError> {
        let asked = self.store.approvals(turn).await.map_err(run_error)?;
        Ok(EarlierQuestions(asked))
    }

    /// Decides about one call of a turn that has these overrides; a question about it has this id. `precheck` is what
    /// the tool's own look has found now, where it has one.
    pub async fn decide(
        &self,
        (turn, id, overrides): (i64, Uuid, &TurnOverrides<'_>),
        call: &ToolCall,
        tool: &Arc<RegisteredTool>,
        asked: Option<&Approval>,
        precheck: Option<Value>,
    ) -> Result<ConsentVerdict, RunError> {
        match asked {
            Some(approval) => self.decided_call((turn, id), call, tool, approval, precheck).await,
            None => self.first((turn, id, overrides), call, tool, precheck).await,
        }
    }

    async fn first(
        &self,
        (turn, id, overrides): (i64, Uuid, &TurnOverrides<'_>),
        call: &ToolCall,
        tool: &Arc<RegisteredTool>,
        precheck: Option<Value>,
    ) -> Result<ConsentVerdict, RunError> {
        let Definition { name, undo_seconds, .. } = tool.definition();
        let chosen = tool.tool.credential_chosen(&call.args);
        let agent = self.agent.map(|agent| &*agent.name);
        let overrides = match &precheck {
            // a look may take long, and an override be taken back meanwhile
            Some(_) => self.store.overrides(agent, &[name.as_str()]).await,
            None => overrides.for_tool(self.store, agent, name).await,
        };
        let overrides = overrides.map_err(run_error)?;
        let request = RulingRequest {
            policy: self.policy.clone(),
            tool: Arc::clone(tool),
            arguments: call.args.clone(),
            tenant: self.tenant.to_owned(),
            credential: chosen.filter(|chosen| !self.credentials.contains(chosen)),
            agent: self.agent.and_then(|agent| agent.rules.clone()),
            task: self.approval_context.rules.clone(),
            overrides,
        };
        let mut ruling = request.judge(self.compute).await;
        if ruling.gate == ApprovalLevel::Confirm {
            let definition = definition_hash(tool.definition());
            let (call_id, arguments) = (call.id.as_str(), &call.args);
            let ask = GrantAsk { turn, call_id, tool: name, definition: &definition, arguments };
            if self.store.use_grant(ask).await.map_err(run_error)?.is_none() {
                let shown = ShownQuestion { id, arguments, ruling, precheck };
                return Ok(ConsentVerdict::Ask(Box::new(self.question(turn, call, tool, shown)), None));
            }
            ruling.reasons.push("a standing grant covers it".to_owned());
            ruling.reason_codes.push(ReasonCode::Grant);
        }
        let Some(window) = undo_window(*undo_seconds) else {
            return Ok(ConsentVerdict::Run { arguments: None, approval: None, again: false, reasons: ruling.reasons });
        };
        let seconds = window.num_seconds();
        ruling.reasons.push(format!("`{name}` is held for {seconds} s before it runs, so that it may be stopped"));
        ruling.reason_codes.push(ReasonCode::UndoWindow);
        let shown = ShownQuestion { id, arguments: &call.args, ruling, precheck };
        let Approval { id, batch_id, proposal, .. } = self.question(turn, call, tool, shown);
        let of = self.identity(turn, call);
        let proposal = Proposal { excluded_approver: None, confirmation: None, ..proposal };
        let held =
            Approval::new_hold((id, batch_id), of, self.approval_context.task_id, proposal, (window, self.clock.now()));
        Ok(ConsentVerdict::Ask(Box::new(held), None))
    }

    fn identity<'a>(&'a self, turn: i64, call: &'a ToolCall) -> ProposalIdentity<'a> {
        ProposalIdentity { tenant: self.tenant, run_id: self.run_id, turn, call_id: &call.id }
    }

    /// Where a question stands now.
    pub fn standing(&self, question: &Approval) -> QuestionStanding {
        let words = match question.status {
            ApprovalStatus::Pending => return QuestionStanding::Open(question.open_question()),
            ApprovalStatus::Approved | ApprovalStatus::Edited => {
                return match question.hold_until.is_some_and(|until| until > self.clock.now()) {
                    true => QuestionStanding::Open(question.open_question()),
                    false => QuestionStanding::Allowed,
                };
            }
            ApprovalStatus::Cancelled => refusal(question.comment.as_deref()),
            ApprovalStatus::Expired if question.proposal.is_input() => INPUT_EXPIRED.to_owned(),
            ApprovalStatus::Expired => EXPIRED.to_owned(),
        };
        // the model is told these words and no others
        QuestionStanding::Refused(ToolError::for_model(ToolFailure::PermissionDenied, REFUSED, words))
    }

    /// A call that was asked about.
    async fn decided_call(
        &self,
        (turn, id): (i64, Uuid),
        call: &ToolCall,
        tool: &RegisteredTool,
        approval: &Approval,
        precheck: Option<Value>,
    ) -> Result<ConsentVerdict, RunError> {
        match self.standing(approval) {
            QuestionStanding::Open(question) => return Ok(ConsentVerdict::Wait(question)),
            QuestionStanding::Refused(observed) => return Ok(ConsentVerdict::Refused(observed)),
            QuestionStanding::Allowed => {}
        }
        let arguments = approval.arguments();
        let definition = definition_hash(tool.definition());
        let Definition { name, version, .. } = tool.definition();
        let now = digest(&approval.identity(), name, version, &definition, arguments);
        let begun_before = approval.execution_started_at.is_some();
        let same_act = approval.decided_digest.as_deref() == Some(now.as_str());
        // by their hashes: what is stored of a text or a number may be written in another way
        let seen = |found: &Option<Value>| found.as_ref().map(canonical_hash);
        let same_world = seen(&precheck) == seen(&approval.proposal.precheck);
        if !(begun_before || same_act && same_world) {
            let (reason, code) = match same_act {
                false => {
                    ("the tool has changed since it was approved, so it is asked about again", ReasonCode::ToolChanged)
                }
                true => (
                    "what the tool's check finds has changed since it was approved, so it is asked about again",
                    ReasonCode::CheckChanged,
                ),
            };
            let ruling =
                Ruling { gate: ApprovalLevel::Confirm, reasons: vec![reason.to_owned()], reason_codes: vec![code] };
            let question = self.question(turn, call, tool, ShownQuestion { id, arguments, ruling, precheck });
            return Ok(ConsentVerdict::Ask(Box::new(question), Some(approval.id)));
        }
        let edited = (approval.status == ApprovalStatus::Edited).then(|| arguments.clone());
        let run = |again| ConsentVerdict::Run {
            arguments: edited.clone(),
            approval: Some(approval.id),
            again,
            reasons: Vec::new(),
        };
        match self.store.begin(approval.id, &now).await.map_err(run_error)? {
            ApprovedCallStart::Now => Ok(run(false)),
            ApprovedCallStart::Before => Ok(run(true)),
            ApprovedCallStart::Refused => Ok(ConsentVerdict::Wait(approval.open_question())),
        }
    }

    fn question(&self, turn: i64, call: &ToolCall, tool: &RegisteredTool, shown: ShownQuestion) -> Approval {
        let ShownQuestion { id, arguments, ruling, precheck } = shown;
        let definition = tool.definition();
        let settings = self.policy.settings();
        let now = self.clock.now();
        let irreversible = definition.consequence == Consequence::High;
        let proposal = Proposal {
            kind: QuestionKind::Approval,
            tool: definition.name.clone(),
            version: definition.version.clone(),
            definition: definition_hash(definition),
            summary: definition.summary_of(arguments),
            description: definition.description.clone(),
            arguments: arguments.clone(),
            parameters: definition.parameters.clone(),
            lacks: Vec::new(),
            server: None,
            category: definition.category,
            consequence: definition.consequence,
            reasons: ruling.reasons,
            reason_codes: ruling.reason_codes,
            options: vec![ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel],
            allow_modification: true,
            source: self.approval_context.source.to_owned(),
            delegation_chain: self.chain.to_vec(),
            step: self.step.map(str::to_owned),
            on_expiry: settings.on_expiry,
            approvers: settings.required_approvers,
            excluded_approver: settings.exclude_requester.then(|| Actor::Recipient(self.tenant).to_string()),
            confirmation: (settings.require_typed_confirmation && irreversible).then(|| definition.name.clone()),
            undo_seconds: definition.undo_seconds,
            precheck,
            timeout_seconds: settings.timeout_minutes * 60,
        };
        // the batch is given to all questions of one turn together
        Approval::asked((id, Uuid::nil()), self.identity(turn, call), self.approval_context.task_id, proposal, now)
    }
}

/// The result that the model gets for a call that a person refused.
fn refusal(comment: Option<&str>) -> String {
    match comment.map(str::trim).filter(|comment| !comment.is_empty()) {
        Some(comment) => format!("{CANCELLED}\nTheir comment: {comment}"),
        None => CANCELLED.to_owned(),
    }
}

/// The hash of a tool's definition: with another one, what was agreed to is another act.
pub fn definition_hash(definition: &Definition) -> String {
    canonical_hash(&serde_json::to_value(definition).unwrap_or_default())
}
