//! A message in a conversation that waits for a person: it may answer a question of that conversation, and of no other. What is
//! ambiguous is asked back, and what can't be undone is decided on the page.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::reply::{named_reply, read_reply};
use crate::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, Category, Consequence, QuestionKind, arguments,
};
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::api::runs::input::{answer_of, asked_back};
use crate::http::error::ApiError;
use crate::store::{ApprovalFilter, StoreError};

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
    /// An answer to a question of this run, which was taken before.
    Taken(Uuid),
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
    Ok(meaning(open, message))
}

/// Reads a message anew that was read as a reply to this question; `None`: to no question.
pub async fn read_again(state: &HttpState, scope: &Scope, id: Uuid, message: &str) -> Result<ChatReply, ApiError> {
    let question = match state.store.get_approval(scope, id).await {
        Ok(question) => question,
        Err(StoreError::NotFound) => return Ok(ChatReply::Message),
        Err(error) => return Err(error.into()),
    };
    if question.status != ApprovalStatus::Pending {
        return Ok(ChatReply::Taken(question.run_id));
    }
    let (question, message) = addressed(vec![question], message);
    Ok(question.into_iter().next().map_or(ChatReply::Message, |question| reply_to(question, message)))
}

/// The meaning of a message where these questions are open, oldest first.
fn meaning(open: Vec<Approval>, message: &str) -> ChatReply {
    let (open, message) = addressed(open, message);
    let Some(run_id) = open.first().map(|question| question.run_id) else { return ChatReply::Message };
    if open.len() == 1 {
        return open.into_iter().next().map_or(ChatReply::Message, |question| reply_to(question, message));
    }
    let asks_for_input = open.iter().any(is_input);
    if !asks_for_input && decision_word(message).is_none() {
        return ChatReply::Message;
    }
    let unclear = ChatReply::Unclear(run_id, listed(&open));
    // of several, it has to name the fields of one
    let mut fitting = open.into_iter().filter(|question| named_reply(message, &question.proposal.parameters).is_some());
    match (fitting.next(), fitting.next()) {
        (Some(question), None) if asks_for_input => reply_to(question, message),
        _ => unclear,
    }
}

/// A message that begins with the id of a question is about that one; the rest of it is the reply.
fn addressed(mut open: Vec<Approval>, message: &str) -> (Vec<Approval>, &str) {
    let named = open.iter().enumerate().find_map(|(index, question)| {
        Some((index, message.trim_start().strip_prefix(question.id.to_string().as_str())?))
    });
    match named {
        Some((index, rest)) => (vec![open.swap_remove(index)], rest.trim_start_matches([':', ' ', '\n', '\r', '\t'])),
        None => (open, message),
    }
}

fn is_input(question: &Approval) -> bool {
    question.proposal.kind == QuestionKind::Input
}

fn listed(open: &[Approval]) -> String {
    let words = |one: &Approval| if is_input(one) { asked_back(one) } else { one.proposal.summary.clone() };
    let lines: Vec<String> = open.iter().map(|one| format!("{}: {}", one.id, words(one))).collect();
    format!("Several questions are open. Begin with the id of the one that you answer:\n{}", lines.join("\n"))
}

/// Whether a message agrees to a call or refuses it, with a word.
fn decision_word(message: &str) -> Option<ApprovalChoice> {
    let word = message.trim().trim_end_matches(['.', '!']).to_lowercase();
    match word.as_str() {
        word if AGREES.contains(&word) => Some(ApprovalChoice::Approve),
        word if REFUSES.contains(&word) => Some(ApprovalChoice::Cancel),
        _ => None,
    }
}

/// The meaning of a message about one question.
fn reply_to(question: Approval, message: &str) -> ChatReply {
    if !is_input(&question) {
        return as_decision(question, message);
    }
    let proposal = &question.proposal;
    match read_reply(message, &proposal.parameters, &proposal.arguments) {
        Some(given) => {
            let decision = answer_of(&question, &given);
            ChatReply::Decides(Box::new(question), decision)
        }
        None => ChatReply::Unclear(question.run_id, asked_back(&question)),
    }
}

/// The decision about a call, with a word or with the arguments that are to be otherwise; anything else is a message.
fn as_decision(question: Approval, message: &str) -> ChatReply {
    let proposal = &question.proposal;
    let edited = named_reply(message, &proposal.parameters).filter(|_| proposal.allow_modification);
    let choice = match (decision_word(message), &edited) {
        (Some(choice), _) => choice,
        (None, Some(_)) => ApprovalChoice::Edit,
        (None, None) => return ChatReply::Message,
    };
    if choice != ApprovalChoice::Cancel && needs_page(&question) {
        let summary = &proposal.summary;
        let why = format!("This may be impossible to undo: {summary}. Decide on the page whose link you were sent.");
        return ChatReply::Unclear(question.run_id, why);
    }
    let digest = question.digest.clone();
    let arguments = edited.map(|given| arguments::changed(&proposal.arguments, &given));
    let decision = Decision { choice, digest, arguments, comment: None, grant: None };
    ChatReply::Decides(Box::new(question), decision)
}

fn needs_page(question: &Approval) -> bool {
    let proposal = &question.proposal;
    proposal.consequence == Consequence::High
        || proposal.category == Category::Delete
        || proposal.confirmation.is_some()
        || proposal.approvers > 1
}
