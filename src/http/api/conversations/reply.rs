//! A message in a conversation that waits for a person: it may answer a question of that conversation, and of no other. What is
//! ambiguous is asked back, and what can't be undone is decided on the page.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::reply::{named_reply, read_reply};
use crate::domain::approval::{Approval, ApprovalChoice, ApprovalStatus, Category, Consequence, arguments};
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::api::runs::input::{answer_of, asked_back};
use crate::http::error::ApiError;
use crate::store::{ApprovalFilter, StoreError};

/// Open questions of a conversation that are looked at.
const MOST: i64 = 50;
/// Characters of an id.
const ID_LENGTH: usize = 36;
/// Words that agree to a call, or refuse it.
const AGREES: [&str; 8] = ["yes", "y", "ok", "okay", "approve", "approved", "ja", "freigeben"];
const REFUSES: [&str; 7] = ["no", "n", "cancel", "reject", "stop", "nein", "ablehnen"];

/// Open questions of a conversation, oldest first; there is at least one.
struct OpenQuestions {
    questions: Vec<Approval>,
    /// There are others.
    has_more: bool,
}

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

/// Interprets a message of a person in a conversation.
pub async fn read(state: &HttpState, scope: &Scope, conversation: Uuid, message: &str) -> Result<ChatReply, ApiError> {
    if let Some((id, rest)) = named_question(message) {
        match state.store.get_approval(scope, id).await {
            Ok(question) if question.task_id == Some(conversation) && is_open(state, &question) => {
                return interpret(state, OpenQuestions { questions: vec![question], has_more: false }, rest).await;
            }
            Ok(_) | Err(StoreError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let status = Some(ApprovalStatus::Pending);
    let filter = ApprovalFilter { task_id: Some(conversation), status, limit: MOST, ..ApprovalFilter::default() };
    let page = state.store.approvals_page(scope, &filter).await?;
    let has_more = page.is_cut || page.rows.len() as i64 == MOST;
    let mut questions: Vec<Approval> = page.rows.into_iter().filter(|question| is_open(state, question)).collect();
    questions.reverse();
    interpret(state, OpenQuestions { questions, has_more }, message).await
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
    let message = named_question(message).filter(|(named, _)| *named == id).map_or(message, |(_, rest)| rest);
    interpret(state, OpenQuestions { questions: vec![question], has_more: false }, message).await
}

fn is_open(state: &HttpState, question: &Approval) -> bool {
    question.status == ApprovalStatus::Pending && question.expires_at > state.clock.now()
}

/// The id at the beginning of a message, and the rest of it.
fn named_question(message: &str) -> Option<(Uuid, &str)> {
    let message = message.trim_start();
    let (id, rest) = message.split_at_checked(ID_LENGTH)?;
    Some((id.parse().ok()?, rest.trim_start_matches([':', ' ', '\n', '\r', '\t'])))
}

/// Off the runtime's threads: a long message is held against the fields of many questions.
async fn interpret(state: &HttpState, open: OpenQuestions, message: &str) -> Result<ChatReply, ApiError> {
    let Some(first) = open.questions.first() else { return Ok(ChatReply::Message) };
    let (tenant, message) = (first.tenant_id.clone(), message.to_owned());
    state.compute_for(&tenant, move || open.meaning_of(&message)).await
}

impl OpenQuestions {
    fn meaning_of(self, message: &str) -> ChatReply {
        let unclear = self.clarification();
        let OpenQuestions { questions, has_more } = self;
        let is_single = questions.len() == 1 && !has_more;
        let asks_for_input = questions.iter().any(|question| question.proposal.is_input());
        if !is_single && !asks_for_input && decision_word(message).is_none() {
            return ChatReply::Message;
        }
        // of several, it has to name the fields of one
        let fits = |question: &Approval| is_single || named_reply(message, &question.proposal.parameters).is_some();
        let mut fitting = questions.into_iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(question), None) if is_single || asks_for_input && !has_more => reply_to(question, message),
            _ => unclear,
        }
    }

    /// Asks which question is meant.
    fn clarification(&self) -> ChatReply {
        let words = |one: &Approval| match one.proposal.is_input() {
            true => asked_back(one),
            false => one.proposal.summary.clone(),
        };
        let mut lines: Vec<String> = self.questions.iter().map(|one| format!("{}: {}", one.id, words(one))).collect();
        lines.extend(self.has_more.then(|| "…".to_owned()));
        let run_id = self.questions.first().map_or(Uuid::nil(), |question| question.run_id);
        let ask = "Several questions are open. Begin with the id of the one that you answer:";
        ChatReply::Unclear(run_id, format!("{ask}\n{}", lines.join("\n")))
    }
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
    if !question.proposal.is_input() {
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
