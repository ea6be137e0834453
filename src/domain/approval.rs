//! Which acts a person has to agree to, what exactly they are asked, and what their answer means. Decided purely:
//! nothing here asks anybody, stores or sends.
//!
//! A call runs as it was shown: a proposal is hashed whole, an answer names the hash, and who executes computes it
//! again.

pub mod arguments;
pub mod link;
pub mod matrix;
pub mod policy;
pub mod proposal;
mod question;
pub mod reason_code;
pub mod reply;
pub mod server_question;
pub mod settings;
pub mod stored_override;
pub mod tool_difference;
pub mod tool_pin;
pub mod voter;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::words::words;

pub use arguments::{ArgumentFault, ArgumentPart};
pub use matrix::{ApprovalLevel, Category, Consequence};
pub use policy::{Policy, PolicyAct, PolicyRules, Ruling};
pub use proposal::{Proposal, ProposalIdentity, digest};
pub use question::{FieldFault, InputForm, OpenQuestion, QuestionKind};
pub use reason_code::{ReasonCode, RuleBy};
pub use server_question::{
    CallContinuation, Continuation, ContinuationKind, PartField, PartMode, QuestionPart, ServerAnswer, ServerQuestion,
};
pub use settings::Settings;
pub use stored_override::ApprovalOverride;
pub use tool_pin::{PinState, PinVerdict, PinnedDefinition, SeenDefinition, ToolPin};
pub use voter::{Vote, VoterIdentities};

/// The result that the model gets for a call that a person refused.
pub const CANCELLED: &str = "User cancelled this action.";
/// The result that the model gets for a call whose question expired.
pub const EXPIRED: &str = "Nobody approved this action in time; it was not executed.";
/// The result that the model gets for a call whose question for input expired.
pub const INPUT_EXPIRED: &str = "Nobody answered in time; nothing was done.";
/// The decider of calls that are held and about which nobody is asked.
pub const POLICY: &str = "policy";
/// Longest comment of a person, in characters.
pub const COMMENT_LENGTH: usize = 2_000;

words! {
    /// Where a question stands. All but `Pending` are final.
    #[derive(utoipa::ToSchema)]
    pub enum ApprovalStatus {
        /// Nobody has decided about the call yet.
        Pending = "pending",
        /// The call may be executed.
        Approved = "approved",
        /// Approved with other arguments.
        Edited = "edited",
        /// A person refused the call, or its run ended first.
        Cancelled = "cancelled",
        /// Nobody answered in time, which is a no.
        Expired = "expired",
    }
}

impl ApprovalStatus {
    /// Whether nothing follows any more.
    pub fn is_settled(self) -> bool {
        self != ApprovalStatus::Pending
    }

    /// Whether the call may run.
    pub fn allows(self) -> bool {
        matches!(self, ApprovalStatus::Approved | ApprovalStatus::Edited)
    }
}

/// A person's possible answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalChoice {
    /// The call is executed as proposed.
    Approve,
    /// The call is executed with the arguments that the person gives.
    Edit,
    /// The call is not executed.
    Cancel,
    /// The call goes on, and the server that asks is told no.
    Decline,
}

/// The fate of a run when nobody answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The run expires, unless something of the same batch was approved.
    #[default]
    Expire,
    /// The call counts as cancelled, and the loop goes on and is told.
    Cancel,
}

words! {
    /// The way by which an answer came.
    #[derive(utoipa::ToSchema)]
    pub enum Via {
        /// The link page.
        Link = "link",
        /// A decision over the API, by a token.
        Api = "api",
        /// The service itself: expiry, a standing grant, the end of a run.
        Service = "service",
    }
}

/// A question to a person about one pending tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Approval {
    /// Id of the approval, a UUIDv7.
    pub id: Uuid,
    /// The open calls of one turn are one batch.
    pub batch_id: Uuid,
    /// The run that waits for the decision.
    pub run_id: Uuid,
    /// The run's task; `None` for a chat run.
    pub task_id: Option<Uuid>,
    /// The tenant that owns the run.
    pub tenant_id: String,
    /// The model's turn within the run, from 1.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: String,
    /// Of the proposal; an answer has to name it. Hexadecimal.
    pub digest: String,
    /// The call as the person is shown it.
    pub proposal: Proposal,
    /// Whether, and how, it was decided.
    pub status: ApprovalStatus,
    /// The instant of the question.
    pub created_at: DateTime<Utc>,
    /// The instant from which no decision is taken.
    pub expires_at: DateTime<Utc>,
    /// The instant of the decision or of its expiry.
    pub decided_at: Option<DateTime<Utc>>,
    /// The decider: `recipient:<id>`, `token:<id>` or `policy`.
    pub decided_by: Option<String>,
    /// The way on which the decision came.
    pub decided_via: Option<Via>,
    /// The decider's comment, at most [`COMMENT_LENGTH`] characters.
    pub comment: Option<String>,
    /// The arguments that were put in the place of the proposed ones.
    pub modifications: Option<Value>,
    /// The digest of what may run: the proposal's, or that of the edited call.
    pub decided_digest: Option<String>,
    /// The call may still be stopped until then, and is not executed before.
    pub hold_until: Option<DateTime<Utc>>,
    /// When its execution began.
    pub execution_started_at: Option<DateTime<Utc>>,
    /// The result of the call, once it was executed.
    pub outcome: Option<CallOutcome>,
    /// The votes of those who have agreed, where more than one person has to.
    pub votes: Vec<Vote>,
}

/// Outcome of a call that was approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CallOutcome {
    /// The call failed.
    pub is_error: bool,
    /// The beginning of the result.
    pub text: String,
}

/// An answer, as it is put to the store.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalAnswer {
    /// The decision itself.
    pub choice: ApprovalChoice,
    /// Hash of the proposal that was shown: the digest of the approval.
    pub digest: String,
    /// `Edit`: the arguments, which fit the tool's schema, and the digest of the call with them.
    pub edited: Option<(Value, String)>,
    /// A comment for the model and for the record.
    pub comment: Option<String>,
    /// The decider: `recipient:<id>` by a link, `token:<id>` over the API.
    pub by: String,
    /// The way on which the decision came.
    pub via: Via,
}

/// Whether the execution of an approved call begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovedCallStart {
    /// The call begins with this step, and its effect is still to come.
    Now,
    /// It began before: whether it had its effect is not known.
    Before,
    /// It may not, or not yet.
    Refused,
}

/// A call of a run, for which a standing grant is looked for.
#[derive(Debug, Clone, Copy)]
pub struct GrantAsk<'a> {
    /// The model's turn within the run.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: &'a str,
    /// Name of the tool.
    pub tool: &'a str,
    /// The hash of the tool's definition.
    pub definition: &'a str,
    /// Arguments of the call.
    pub arguments: &'a Value,
}

impl Approval {
    /// A question about a call that is put now; its time is the proposal's.
    pub fn asked(
        (id, batch_id): (Uuid, Uuid),
        of: ProposalIdentity,
        task_id: Option<Uuid>,
        proposal: Proposal,
        now: DateTime<Utc>,
    ) -> Approval {
        Approval {
            id,
            batch_id,
            run_id: of.run_id,
            task_id,
            tenant_id: of.tenant.to_owned(),
            turn: of.turn,
            call_id: of.call_id.to_owned(),
            digest: proposal.digest(&of, &proposal.arguments),
            expires_at: now + to_delta(Duration::from_secs(proposal.timeout_seconds)),
            proposal,
            status: ApprovalStatus::Pending,
            created_at: now,
            decided_at: None,
            decided_by: None,
            decided_via: None,
            comment: None,
            modifications: None,
            decided_digest: None,
            hold_until: None,
            execution_started_at: None,
            outcome: None,
            votes: Vec::new(),
        }
    }

    /// A call about which nobody is asked, held from now on, so that it may be stopped before it runs.
    pub fn new_hold(
        ids: (Uuid, Uuid),
        of: ProposalIdentity,
        task_id: Option<Uuid>,
        proposal: Proposal,
        (window, now): (TimeDelta, DateTime<Utc>),
    ) -> Approval {
        let proposal =
            Proposal { approvers: 0, options: vec![ApprovalChoice::Cancel], allow_modification: false, ..proposal };
        let asked = Approval::asked(ids, of, task_id, proposal, now);
        let until = now + window;
        Approval {
            status: ApprovalStatus::Approved,
            expires_at: until,
            decided_at: Some(now),
            decided_by: Some(POLICY.to_owned()),
            decided_via: Some(Via::Service),
            decided_digest: Some(asked.digest.clone()),
            hold_until: Some(until),
            ..asked
        }
    }

    /// The arguments with which the call runs.
    pub fn arguments(&self) -> &Value {
        self.modifications.as_ref().unwrap_or(&self.proposal.arguments)
    }

    /// The answer that the server gets which has asked; `None`: it gets none, or no server has asked.
    pub fn server_answer(&self) -> Option<ServerAnswer> {
        match self.status {
            _ if !self.proposal.is_of_server() => None,
            ApprovalStatus::Approved => Some(ServerAnswer::Decline),
            ApprovalStatus::Edited => Some(ServerAnswer::Accept(self.arguments().clone())),
            ApprovalStatus::Pending | ApprovalStatus::Cancelled | ApprovalStatus::Expired => None,
        }
    }

    /// How many people have agreed so far, where more than one has to.
    pub fn agreed_count(&self) -> usize {
        voter::distinct_people(&self.votes)
    }

    /// Whether it was approved and can still be stopped: its execution is held, and has not begun.
    pub fn is_held(&self, now: DateTime<Utc>) -> bool {
        self.status.allows() && self.execution_started_at.is_none() && self.hold_until.is_some_and(|until| now < until)
    }

    /// The question as a run waits for it.
    pub fn open_question(&self) -> OpenQuestion {
        OpenQuestion { id: self.id, turn: self.turn, kind: self.proposal.kind }
    }

    /// The identity of the call: its run, turn and id.
    pub fn identity(&self) -> ProposalIdentity<'_> {
        ProposalIdentity { tenant: &self.tenant_id, run_id: self.run_id, turn: self.turn, call_id: &self.call_id }
    }
}

/// A question of a test: what would happen, when it was put, when it expires.
#[cfg(test)]
pub(crate) fn test_question(summary: &str, created_at: DateTime<Utc>, expires_at: DateTime<Utc>) -> Approval {
    let proposal = serde_json::from_value(serde_json::json!({
        "tool": "pay", "version": "1", "definition": "d", "summary": summary, "description": "Pays.",
        "arguments": {}, "parameters": {}, "category": "write", "consequence": "low", "reasons": [],
        "options": ["approve", "edit", "cancel"], "allow_modification": true, "source": "trigger", "approvers": 1,
        "timeout_seconds": 1800,
    }));
    let of = ProposalIdentity { tenant: "ann", run_id: Uuid::from_u128(3), turn: 1, call_id: "call_1" };
    let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
    Approval { expires_at, ..Approval::asked(ids, of, None, proposal.expect("a proposal"), created_at) }
}
