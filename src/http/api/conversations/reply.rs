//! A message in a conversation that waits for a person: it may answer a question of that conversation, and of no other. What is
//! ambiguous is asked back, and what can't be undone is decided on the page.

use serde_json::Value;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::reply::read_reply;
use crate::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, Category, Consequence, QuestionKind, arguments,
};
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::api::runs::input::{answer_of, asked_back};
use crate::http::error::ApiError;
use crate::store::ApprovalFilter;

/// Open questions of a conversation that are looked at.
const MOST: i64 = 50;
/// Words that agree to a call, or refuse it.
const AGREES: [&str; 8] = ["yes", "y", "ok", "okay", "approve", "approved", "ja", "freigeben"];
const REFUSES: [&str; 7] = ["no", "n", "cancel", "reject", "stop", "nein", "ablehnen"];

/// The meaning of a message.
pub enum ChatReply {
    /// A message like any other.
    Message,
    /// The answer to this question.
    Decides(Box<Approval>, Decision),
    /// It is meant for a question, and it is not clear for which or how. The words ask for it once more.
    Unclear(Uuid, String),
}

/// Reads a message of a person in a conversation.
pub async fn read(state: &HttpState, scope: &Scope, conversation: Uuid, message: &str) -> Result<ChatReply, ApiError> {
    let status = Some(ApprovalStatus::Pending);
    let filter = ApprovalFilter { task_id: Some(conversation), status, limit: MOST, ..ApprovalFilter::default() };
    let mut open = state.store.approvals_page(scope, &filter).await?.rows;
    open.retain(|question| question.expires_at > state.clock.now());
    open.reverse();
    let (inputs, approvals): (Vec<_>, Vec<_>) =
        open.into_iter().partition(|question| question.proposal.kind == QuestionKind::Input);
    Ok(match inputs.is_empty() {
        true => as_decision(approvals, message),
        false => as_answer(inputs, message),
    })
}

/// The answer to the one question that it fits.
fn as_answer(inputs: Vec<Approval>, message: &str) -> ChatReply {
    let several = inputs.len() > 1;
    let asked: Vec<String> = inputs.iter().map(asked_back).collect();
    let run_id = inputs[0].run_id;
    let given = |question: &Approval| {
        let proposal = &question.proposal;
        let given = read_reply(message, &proposal.parameters, &proposal.arguments)?;
        // of several questions, it has to name the fields of one
        let names = message.contains([':', '=', '{']);
        (!several || names).then_some(given)
    };
    let mut fitting = inputs.into_iter().filter_map(|question| Some((given(&question)?, question)));
    match (fitting.next(), fitting.next()) {
        (Some((given, question)), None) => {
            let decision = answer_of(&question, &given);
            ChatReply::Decides(Box::new(question), decision)
        }
        _ => ChatReply::Unclear(run_id, asked.join("\n")),
    }
}

/// The decision about the one call that waits; words of a decision about one of several are asked back.
fn as_decision(approvals: Vec<Approval>, message: &str) -> ChatReply {
    let word = message.trim().trim_end_matches(['.', '!']).to_lowercase();
    let (agrees, refuses) = (AGREES.contains(&word.as_str()), REFUSES.contains(&word.as_str()));
    let listed = || {
        let lines: Vec<String> = approvals.iter().map(|one| format!("{}: {}", one.id, one.proposal.summary)).collect();
        format!("Several calls wait for a decision. Decide each on its page, or by its id:\n{}", lines.join("\n"))
    };
    let Some(question) = approvals.first() else { return ChatReply::Message };
    if approvals.len() > 1 {
        return match agrees || refuses {
            true => ChatReply::Unclear(question.run_id, listed()),
            false => ChatReply::Message,
        };
    }
    let edited = edited_arguments(question, message).filter(|_| question.proposal.allow_modification);
    let choice = match (agrees, refuses, &edited) {
        (true, _, _) => ApprovalChoice::Approve,
        (_, true, _) => ApprovalChoice::Cancel,
        (_, _, Some(_)) => ApprovalChoice::Edit,
        (false, false, None) => return ChatReply::Message,
    };
    if choice != ApprovalChoice::Cancel && needs_page(question) {
        let summary = &question.proposal.summary;
        let why = format!("This may be impossible to undo: {summary}. Decide on the page whose link you were sent.");
        return ChatReply::Unclear(question.run_id, why);
    }
    let digest = question.digest.clone();
    let decision = Decision { choice, digest, arguments: edited, comment: None, grant: None };
    ChatReply::Decides(Box::new(question.clone()), decision)
}

/// The arguments of the call with those that the message names, a line each.
fn edited_arguments(question: &Approval, message: &str) -> Option<Value> {
    let proposal = &question.proposal;
    // one awaited field would take any message
    let given =
        read_reply(message, &proposal.parameters, &proposal.arguments).filter(|_| message.contains([':', '=', '{']))?;
    Some(arguments::changed(&proposal.arguments, &given))
}

fn needs_page(question: &Approval) -> bool {
    let proposal = &question.proposal;
    proposal.consequence == Consequence::High
        || proposal.category == Category::Delete
        || proposal.confirmation.is_some()
        || proposal.approvers > 1
}
