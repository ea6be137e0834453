//! An approval as it is answered.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, CallOutcome, Category, Consequence, Proposal, QuestionKind, Via,
};
use crate::http::api::runs::server_question::{AnswerToServer, ServerQuestionView};

/// A question to a person about one pending tool call.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ApprovalView {
    /// Id of the approval.
    pub id: Uuid,
    /// Kind of the question: whether the call may be executed, or for what it lacks.
    pub kind: QuestionKind,
    /// The open calls of one turn are one batch, and are shown together.
    pub batch_id: Uuid,
    /// The run that waits for the decision.
    pub run_id: Uuid,
    /// The model's turn within the run.
    pub turn: i64,
    /// The run's task; null for a chat run.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// SHA-256 of what will run, hexadecimal. A decision names it.
    pub digest: String,
    /// The tool that is to be called.
    #[schema(example = "send_note")]
    pub agent_name: String,
    /// Effect of the call, in a sentence made from the tool's own words and the arguments.
    pub action_summary: String,
    /// Description in the tool's definition.
    pub description: String,
    /// The arguments as they were proposed.
    pub details: Value,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// Category in the tool's definition.
    pub category: Category,
    /// Consequence in the tool's definition.
    pub consequence: Consequence,
    /// Why it is asked about: each rule that had a part in it, in order.
    pub reasons: Vec<String>,
    /// Decisions that can be taken.
    pub options: Vec<ApprovalChoice>,
    /// The arguments may be changed.
    pub allow_modification: bool,
    /// `trigger` or `chat`.
    #[schema(example = "trigger")]
    pub source: String,
    /// The agents through which the call came, outermost first.
    pub delegation_chain: Vec<String>,
    /// The step of a pipeline whose agent asks; `name:3` is the fourth of a list.
    #[schema(required, example = "book")]
    pub step: Option<String>,
    /// Whether, and how, it was decided.
    pub status: ApprovalStatus,
    /// The instant of the question.
    pub created_at: DateTime<Utc>,
    /// The instant from which no decision is taken.
    pub expires_at: DateTime<Utc>,
    /// The instant of the decision or of its expiry.
    #[schema(required)]
    pub decided_at: Option<DateTime<Utc>>,
    /// `recipient:<id>`, `token:<id>`, `service`, or `policy` where nobody had to agree and the call is only held.
    #[schema(required, example = "recipient:user_123")]
    pub decided_by: Option<String>,
    /// The way of the decision.
    #[schema(required)]
    pub decided_via: Option<Via>,
    /// The decider's comment.
    #[schema(required)]
    pub comment: Option<String>,
    /// The whole arguments as they were decided, where they were edited.
    #[schema(required)]
    pub modifications: Option<Value>,
    /// Outcome of the call, once it was executed.
    #[schema(required)]
    pub outcome: Option<CallOutcome>,
    /// Finding of the tool's own look at what the call would meet, at the time of the question.
    #[schema(required)]
    pub precheck: Option<Value>,
    /// How many people have to agree; 0 where nobody is asked and the call is only held.
    pub required_approvers: u32,
    /// Those who have agreed so far, where more than one person has to.
    pub votes: Vec<String>,
    /// How many people they are: a recipient's link, the tokens of the same tenant and all that share an address or
    /// descend from one token count once.
    pub agreed: usize,
    /// The call may still be stopped until then, and is not executed before.
    #[schema(required)]
    pub hold_until: Option<DateTime<Utc>>,
    /// The question of an MCP server in the middle of the call; null where no server asks.
    #[schema(required)]
    pub server: Option<ServerQuestionView>,
    /// The answer that the server has got; null where it has none, or none asks.
    #[schema(required)]
    pub answer: Option<AnswerToServer>,
}

/// An approval as a run names it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ApprovalOfRun {
    /// Id of the approval.
    pub id: Uuid,
    /// Whether, and how, it was decided.
    pub status: ApprovalStatus,
    /// The tool that is to be called.
    pub tool: String,
    /// Kind of the question.
    pub kind: QuestionKind,
}

impl ApprovalView {
    /// The approval as the API shows it.
    pub fn of(approval: Approval) -> ApprovalView {
        let agreed = approval.agreed_count();
        let answer = AnswerToServer::of(&approval);
        let Approval { proposal, .. } = approval;
        let (server, options) = (ServerQuestionView::of(&proposal), offered(&proposal));
        ApprovalView {
            id: approval.id,
            kind: proposal.kind,
            batch_id: approval.batch_id,
            run_id: approval.run_id,
            turn: approval.turn,
            task_id: approval.task_id,
            tenant_id: approval.tenant_id,
            digest: approval.digest,
            agent_name: proposal.tool,
            action_summary: proposal.summary,
            description: proposal.description,
            details: proposal.arguments,
            parameters: proposal.parameters,
            category: proposal.category,
            consequence: proposal.consequence,
            reasons: proposal.reasons,
            options,
            allow_modification: proposal.allow_modification,
            source: proposal.source,
            delegation_chain: proposal.delegation_chain,
            step: proposal.step,
            status: approval.status,
            created_at: approval.created_at,
            expires_at: approval.expires_at,
            decided_at: approval.decided_at,
            decided_by: approval.decided_by,
            decided_via: approval.decided_via,
            comment: approval.comment,
            modifications: approval.modifications,
            outcome: approval.outcome,
            precheck: proposal.precheck,
            required_approvers: proposal.approvers,
            votes: approval.votes.into_iter().map(|vote| vote.by).collect(),
            agreed,
            hold_until: approval.hold_until,
            server,
            answer,
        }
    }
}

/// The decisions that can be taken: those that are stored, and a no to a server that asks.
pub fn offered(proposal: &Proposal) -> Vec<ApprovalChoice> {
    let declines = [ApprovalChoice::Decline].into_iter().filter(|choice| proposal.offers(*choice));
    proposal.options.iter().copied().chain(declines).collect()
}

impl ApprovalOfRun {
    /// The part of an approval that a run shows.
    pub fn of(approval: Approval) -> ApprovalOfRun {
        ApprovalOfRun {
            id: approval.id,
            status: approval.status,
            kind: approval.proposal.kind,
            tool: approval.proposal.tool,
        }
    }
}
