//! A person's answer, from whatever way it came: held against what was asked, put to the store, and what follows.
//!
//! The store settles a question at most once, and keeps the standing grant that goes with it in the same transaction.

use chrono::TimeDelta;
use serde_json::{Map, Value, json};

use crate::base::id::{Scope, new_id};
use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::approval::{
    Approval, ApprovalAnswer, ApprovalChoice, ArgumentFault, COMMENT_LENGTH, Category, Consequence, FieldFault, Via,
    arguments,
};
use crate::http::HttpState;
use crate::http::api::approvals::view::offered;
use crate::http::error::ApiError;
use crate::store::{DecisionOutcome, DecisionRefusal, Grant, StoreError};

/// For how many days a grant holds where nothing is said.
pub const GRANT_DAYS: i64 = 30;
/// The longest.
pub const MOST_GRANT_DAYS: i64 = 365;
/// How often a grant may be used at most, where that is limited.
pub const MOST_GRANT_USES: i64 = 100_000;

/// A person's decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The decision itself.
    pub choice: ApprovalChoice,
    /// The digest that they were shown.
    pub digest: String,
    /// `Edit`: the whole arguments with which the call is to run.
    pub arguments: Option<Value>,
    /// A comment for the model and for the record.
    pub comment: Option<String>,
    /// The standing grant that is asked for with an approval.
    pub grant: Option<GrantRequest>,
}

/// A request for a standing grant: "always allow this".
#[derive(Debug, Clone, PartialEq)]
pub struct GrantRequest {
    /// Days for which it holds.
    pub days: i64,
    /// `None`: as often as it likes.
    pub uses: Option<i64>,
    /// The arguments that have to be the same as now; the others are free.
    pub args: Vec<String>,
}

/// The person or token that decides, and the way of the decision.
#[derive(Debug, Clone)]
pub struct Decider {
    /// Name for the record: `recipient:<id>` or `token:<id>`.
    pub by: String,
    /// The way of the decision.
    pub via: Via,
}

/// Why a grant can't be given for this call; `None`: it can.
pub fn ungrantable(approval: &Approval) -> Option<&'static str> {
    let proposal = &approval.proposal;
    match () {
        _ if approval.task_id.is_none() => Some("only the calls of a task can be allowed for good"),
        _ if proposal.consequence == Consequence::High => {
            Some("a tool of high consequence is asked about each time; it can't be allowed for good")
        }
        _ if proposal.category == Category::Delete => {
            Some("what is deleted can't be brought back; it is asked about each time and can't be allowed for good")
        }
        _ if proposal.approvers > 1 => {
            Some("more than one person has to agree to this call; one alone can't allow it for good")
        }
        _ => None,
    }
}

impl Decision {
    /// [`Decision::faults`], found on a computing thread: edited arguments are held against the tool's schema.
    pub async fn computed_faults(
        &self,
        state: &HttpState,
        approval: &Approval,
    ) -> Result<Vec<ArgumentFault>, ApiError> {
        let (answer, of) = (self.clone(), approval.clone());
        state.compute_for(&approval.tenant_id, move || answer.faults(&of)).await
    }

    /// Every fault of the decision, before anything is asked of the store.
    pub fn faults(&self, approval: &Approval) -> Vec<ArgumentFault> {
        let mut found = Vec::new();
        let proposal = &approval.proposal;
        if self.comment.as_ref().is_some_and(|comment| comment.chars().count() > COMMENT_LENGTH) {
            let message = format!("must have at most {COMMENT_LENGTH} characters");
            found.push(ArgumentFault::with(
                "/comment",
                message,
                "fault_max_length",
                &[("limit", COMMENT_LENGTH.to_string())],
            ));
        }
        if !proposal.offers(self.choice) {
            found.push(ArgumentFault::untranslated("/decision", "is not among the options of this approval"));
        }
        match (&self.arguments, self.choice) {
            (Some(_), ApprovalChoice::Edit) if !proposal.allow_modification => {
                let why = "the arguments of this call can't be changed: approve it as it is, or reject it";
                found.push(ArgumentFault::untranslated("/decision", why));
            }
            (Some(edited), ApprovalChoice::Edit) => {
                found.extend(arguments::faults(&proposal.parameters, edited, "/modifications"));
            }
            (None, ApprovalChoice::Edit) => {
                let why = "is missing: the arguments that are to be otherwise";
                found.push(ArgumentFault::untranslated("/modifications", why));
            }
            (Some(_), _) => {
                found.push(ArgumentFault::untranslated("/modifications", "goes with the decision `edit` only"))
            }
            (None, _) => {}
        }
        if let Some(grant) = &self.grant {
            grant.check(self.choice, approval, &mut found);
        }
        found
    }

    /// The arguments that are invalid by the rules of the tool, and of an answer to a server, by the formats that it
    /// names. Where the tool takes others by now than when the question was put, an answer for the missing fields is
    /// taken as it is: the run that goes on with it ends, and says so.
    pub async fn invalid_fields(&self, state: &HttpState, approval: &Approval) -> Result<Vec<ArgumentFault>, ApiError> {
        let proposal = &approval.proposal;
        if let Some(server) = proposal.server.clone() {
            let Some(arguments) = self.arguments.clone() else { return Ok(Vec::new()) };
            let parameters = proposal.parameters.clone();
            let find = move || server.invalid_fields(&parameters, &arguments);
            return Ok(at_modifications(state.compute_for(&approval.tenant_id, find).await?));
        }
        let registered = || state.tools.current().find(&proposal.tool).map(|registered| registered.tool.clone());
        let Some(tool) = state.pipeline.agent_of_steps(&proposal.tool, &proposal.version).or_else(registered) else {
            return Ok(Vec::new());
        };
        let is_of_old = proposal.is_input() && proposal.version != tool.definition().version;
        let Some(arguments) = self.arguments.clone().filter(|_| !is_of_old) else {
            return Ok(Vec::new());
        };
        let unfit = state.compute_for(&approval.tenant_id, move || tool.invalid_input(&arguments)).await?;
        Ok(at_modifications(unfit))
    }

    /// Puts the answer to the store, and gives the grant that goes with it. Answers how things stand and the grant.
    ///
    /// # Errors
    /// What is wrong with the answer; then nothing has changed.
    pub async fn put(
        &self,
        state: &HttpState,
        scope: &Scope,
        approval: &Approval,
        who: Decider,
    ) -> Result<(DecisionOutcome, Option<Grant>), ApiError> {
        let moot = self.digest != approval.digest || approval.status.is_settled();
        if !moot {
            ArgumentFault::faults(self.computed_faults(state, approval).await?)?;
            ArgumentFault::faults(self.invalid_fields(state, approval).await?)?;
        }
        let grant = match &self.grant {
            Some(request) if !moot => Some(request.grant(state, scope, approval, &who.by).await?),
            _ => None,
        };
        let edited = self.arguments.clone().filter(|_| self.choice == ApprovalChoice::Edit).map(|arguments| {
            let digest = approval.proposal.digest(&approval.identity(), &arguments);
            (arguments, digest)
        });
        let answer = ApprovalAnswer {
            choice: self.choice,
            digest: self.digest.clone(),
            edited,
            comment: self.comment.clone(),
            by: who.by,
            via: who.via,
        };
        let decided = match &grant {
            Some(grant) => state.store.decide_and_grant(scope, approval.id, &answer, grant).await,
            None => state.store.decide_approval(scope, approval.id, &answer).await,
        };
        let decided = decided.map_err(missing)?;
        let grant = grant.filter(|_| matches!(decided, DecisionOutcome::Done(_)));
        Ok((decided, grant))
    }
}

impl GrantRequest {
    fn check(&self, choice: ApprovalChoice, approval: &Approval, found: &mut Vec<ArgumentFault>) {
        if choice != ApprovalChoice::Approve {
            let why = "goes with the decision `approve` only";
            found.push(ArgumentFault::with("/grant", why, "fault_grant_as_shown", &[]));
        }
        if let Some(why) = ungrantable(approval) {
            found.push(ArgumentFault::untranslated("/grant", why));
        }
        if !(1..=MOST_GRANT_DAYS).contains(&self.days) {
            let message = format!("must lie between 1 and {MOST_GRANT_DAYS}");
            let limits = [("from", "1".to_owned()), ("to", MOST_GRANT_DAYS.to_string())];
            found.push(ArgumentFault::with("/grant/days", message, "fault_between", &limits));
        }
        if self.uses.is_some_and(|uses| !(1..=MOST_GRANT_USES).contains(&uses)) {
            let message = format!("must lie between 1 and {MOST_GRANT_USES}, or be null");
            found.push(ArgumentFault::untranslated("/grant/uses", message));
        }
        for (index, name) in self.args.iter().enumerate() {
            if approval.proposal.arguments.get(name).is_none() {
                found.push(ArgumentFault::untranslated(format!("/grant/args/{index}"), "is no argument of this call"));
            }
        }
    }

    async fn grant(&self, state: &HttpState, scope: &Scope, approval: &Approval, by: &str) -> Result<Grant, ApiError> {
        let gone = || ValidationErrors::one("/grant", "the task was deleted; there is nothing to allow for good");
        let task = match approval.task_id {
            Some(task) => state.store.find_task(scope, task).await?,
            None => None,
        };
        let task = task.ok_or_else(gone)?;
        let now = state.clock.now();
        let proposal = &approval.proposal;
        let pinned =
            self.args.iter().filter_map(|name| proposal.arguments.get(name).map(|value| (name.clone(), value.clone())));
        Ok(Grant {
            id: new_id(now),
            tenant_id: approval.tenant_id.clone(),
            task_id: task.id,
            tool: proposal.tool.clone(),
            epoch: task.epoch,
            args: Value::Object(pinned.collect::<Map<_, _>>()),
            definition: proposal.definition.clone(),
            uses_left: self.uses,
            created_at: now,
            created_by: by.to_owned(),
            expires_at: now + TimeDelta::days(self.days),
            revoked_at: None,
            revoked_by: None,
        })
    }
}

/// Faults of fields as faults of the arguments of a decision.
fn at_modifications(unfit: Vec<FieldFault>) -> Vec<ArgumentFault> {
    let argument_fault = |FieldFault { name, fault }| {
        let pointer = format!("/modifications/{}", escape(&name));
        ArgumentFault { pointer, ..fault }
    };
    unfit.into_iter().map(argument_fault).collect()
}

/// A refusal in a sentence, for people.
pub fn sentence(refusal: DecisionRefusal, approval: &Approval) -> String {
    match refusal {
        DecisionRefusal::Settled => format!("the approval is {} already", approval.status.as_str()),
        DecisionRefusal::Expired => "the time to answer is over; no answer is a no".into(),
        DecisionRefusal::OtherDigest => {
            "what is asked is not what was shown: look at the approval again, and decide on that".into()
        }
        DecisionRefusal::Excluded => "who asked for the call may not decide on it".into(),
        DecisionRefusal::NotOffered => {
            format!("this is not offered; the options are {}", json!(offered(&approval.proposal)))
        }
        DecisionRefusal::Paused => "the agent is paused and takes no answer; it has to be resumed first".into(),
    }
}

pub(super) fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "approval")
}
