//! A message in a conversation that waits for a person: it may answer a question of that conversation, or, by its id,
//! what another run of the tenant asks for. An ambiguous reply is asked back, and a call that can't be undone is
//! decided on the page.

use serde_json::Map;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::domain::approval::matrix::is_irreversible;
use crate::domain::approval::reply::{awaited_fields, named_reply, read_reply, typed_value};
use crate::domain::approval::{Approval, ApprovalChoice, ApprovalStatus, arguments};
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::api::runs::input::{answer_of, asked_back, refusal_of};
use crate::http::api::runs::server_question::{CANCEL, DECLINE, DONE, is_without_form};
use crate::http::error::ApiError;
use crate::http::request::AuthenticatedCaller;
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
pub async fn read(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    scope: &Scope,
    conversation: Uuid,
    message: &str,
    answers_elsewhere: bool,
) -> Result<ChatReply, ApiError> {
    if let Some((id, rest)) = named_question(message) {
        // the answer of that run comes back, too
        let may = |permission| caller.may(permission).is_ok();
        let may_answer_runs = answers_elsewhere && may(Permission::RunsInput) && may(Permission::RunsRead);
        match state.store.get_approval(scope, id).await {
            Ok(question) if is_open(state, &question) && is_for(&question, conversation, may_answer_runs) => {
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

/// Whether a message of this conversation may answer a question by its id: any of its own, and of other runs what they
/// lack, for a token that may answer runs. Calls of other runs are decided elsewhere.
fn is_for(question: &Approval, conversation: Uuid, may_answer_runs: bool) -> bool {
    question.task_id == Some(conversation) || question.proposal.is_input() && may_answer_runs
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
    /// A word decides the one call that waits. Else the question is meant whose fields are named, or else the only one
    /// that asks for input.
    fn meaning_of(self, message: &str) -> ChatReply {
        let unclear = self.clarification();
        let OpenQuestions { mut questions, has_more } = self;
        if questions.len() == 1 && !has_more {
            return questions.pop().map_or(ChatReply::Message, |question| reply_to(question, message));
        }
        let decision = decision_word(message);
        match questions.iter().any(|question| question.proposal.is_input()) {
            false if decision.is_none() => return ChatReply::Message,
            _ if has_more => return unclear,
            _ => {}
        }
        let (inputs, mut calls): (Vec<Approval>, Vec<Approval>) =
            questions.into_iter().partition(|question| question.proposal.is_input());
        if let Some(choice) = decision {
            let is_ambiguous = calls.len() != 1 || inputs.iter().any(|input| takes_word(input, choice, message));
            return calls.pop().filter(|_| !is_ambiguous).map_or(unclear, |call| as_decision(call, message));
        }
        let is_named = |question: &Approval| named_reply(message, &question.proposal.parameters).is_some();
        calls.retain(|call| call.proposal.allow_modification && is_named(call));
        let (mut named, mut others): (Vec<Approval>, Vec<Approval>) = inputs.into_iter().partition(is_named);
        named.append(&mut calls);
        let meant = if named.is_empty() { &mut others } else { &mut named };
        match meant.len() {
            1 => meant.pop().map_or(unclear, |question| reply_to(question, message)),
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
    match word_of(message).to_lowercase().as_str() {
        word if AGREES.contains(&word) => Some(ApprovalChoice::Approve),
        word if REFUSES.contains(&word) => Some(ApprovalChoice::Cancel),
        _ => None,
    }
}

fn word_of(message: &str) -> &str {
    message.trim().trim_end_matches(['.', '!'])
}

/// Whether a word may be meant as the value of the one field that is awaited: as one of its choices, and a word that
/// agrees as a yes, or as a text of its own. A call is never executed by a word that may have been the answer to
/// something else.
fn takes_word(input: &Approval, choice: ApprovalChoice, message: &str) -> bool {
    let proposal = &input.proposal;
    match awaited_fields(&proposal.parameters, &proposal.arguments)[..] {
        [awaited] => {
            let field = &proposal.parameters["properties"][awaited];
            let value = typed_value(word_of(message), field);
            match (field["enum"].as_array(), field["type"].as_str()) {
                (Some(choices), _) => choices.contains(&value),
                (None, Some("boolean")) => value.is_boolean() || choice != ApprovalChoice::Cancel,
                (None, Some("integer" | "number" | "array" | "object" | "null")) => false,
                (None, _) => choice != ApprovalChoice::Cancel,
            }
        }
        _ => false,
    }
}

/// The meaning of a message about one question.
fn reply_to(question: Approval, message: &str) -> ChatReply {
    if !question.proposal.is_input() {
        return as_decision(question, message);
    }
    if let Some(decision) = as_answer_to_server(&question, message) {
        return ChatReply::Decides(Box::new(question), decision);
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

/// The decision about the question of a server with one of the words that stand for it. No other word declines, and a
/// word is exact: a `no` may be the value of a field.
fn as_answer_to_server(question: &Approval, message: &str) -> Option<Decision> {
    if !question.proposal.is_of_server() {
        return None;
    }
    match message.trim() {
        DECLINE => Some(refusal_of(question, ApprovalChoice::Decline)),
        CANCEL => Some(refusal_of(question, ApprovalChoice::Cancel)),
        DONE if is_without_form(&question.proposal) => Some(answer_of(question, &Map::new())),
        _ => None,
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
    is_irreversible(proposal.category, proposal.consequence)
        || proposal.confirmation.is_some()
        || proposal.approvers > 1
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::approval::ProposalIdentity;

    const CALL: u128 = 1;
    const CITY: u128 = 2;
    const PARTY: u128 = 3;

    fn question(id: u128, kind: &str, properties: Value, required: Value) -> Approval {
        let proposal = json!({
            "kind": kind, "tool": "book", "version": "1", "definition": "d", "summary": format!("question {id}"), "description": "",
            "arguments": {}, "parameters": { "type": "object", "required": required, "properties": properties },
            "category": "side_effect", "consequence": "low", "reasons": [], "options": ["approve", "edit", "cancel"],
            "allow_modification": true, "source": "chat", "approvers": 1, "timeout_seconds": 60,
        });
        let [id, run_id] = [id, 100 + id].map(Uuid::from_u128);
        let of = ProposalIdentity { tenant: "ann", run_id, turn: 1, call_id: "c" };
        let proposal = serde_json::from_value(proposal).expect("a proposal");
        Approval::asked((id, id), of, Some(Uuid::nil()), proposal, "2027-03-01T08:00:00Z".parse().unwrap())
    }

    /// A call of which the amount may be changed.
    fn call() -> Approval {
        question(CALL, "approval", json!({ "amount": { "type": "integer" } }), json!([]))
    }

    /// An agent that waits for a city.
    fn city() -> Approval {
        question(CITY, "input", json!({ "city": { "type": "string" } }), json!(["city"]))
    }

    /// An agent that waits for the number of people.
    fn party() -> Approval {
        question(PARTY, "input", json!({ "party": { "type": "integer" } }), json!(["party"]))
    }

    /// The meaning of a message while these questions are open: the one that it answers, how, and with which arguments.
    fn meaning(questions: Vec<Approval>, message: &str) -> String {
        match (OpenQuestions { questions, has_more: false }).meaning_of(message) {
            ChatReply::Message => "message".into(),
            ChatReply::Unclear(_, words) if words.starts_with("Several questions are open.") => "several".into(),
            ChatReply::Unclear(_, words) => format!("back: {words}"),
            ChatReply::Taken(_) => "taken".into(),
            ChatReply::Decides(question, Decision { choice, arguments, .. }) => {
                let arguments = arguments.map(|arguments| arguments.to_string()).unwrap_or_default();
                let choice = format!("{choice:?}").to_lowercase();
                format!("{} {choice} {arguments}", question.id.as_u128()).trim_end().to_owned()
            }
        }
    }

    #[test]
    fn value_alone_is_for_the_agent_that_waits_for_input_and_a_refusal_for_the_call_beside_it() {
        for questions in [[call(), city()], [city(), call()]] {
            let meaning = |message: &str| meaning(questions.to_vec(), message);
            assert_eq!(meaning("NYC"), "2 edit {\"city\":\"NYC\"}");
            assert_eq!(meaning("city: NYC"), "2 edit {\"city\":\"NYC\"}");
            assert_eq!((meaning("Yes."), meaning("no")), ("several".into(), "1 cancel".into()));
            assert_eq!(
                meaning("amount: 80"),
                "1 edit {\"amount\":80}",
                "fields that are named are those of one question"
            );
        }
        let beside_a_number = |message: &str| meaning(vec![call(), party()], message);
        assert_eq!(["yes", "no"].map(beside_a_number), ["1 approve", "1 cancel"], "neither is a number");
        let fixed = || {
            let mut fixed = call();
            fixed.proposal.allow_modification = false;
            fixed
        };
        assert_eq!(meaning(vec![fixed(), city()], "amount: 80"), "2 edit {\"city\":\"amount: 80\"}");
        let both = question(PARTY, "input", json!({ "from": {}, "to": {} }), json!(["from", "to"]));
        let asked = "back: question 3 (one line for each, such as \"from: …\")";
        assert_eq!(meaning(vec![call(), both], "NYC"), asked, "two fields are awaited");
    }

    #[test]
    fn word_that_may_be_the_answer_of_an_agent_decides_no_call_beside_it() {
        for field in [json!({ "type": "boolean" }), json!({ "type": "string", "enum": ["Yes", "No", "Later"] })] {
            let outside = || question(CITY, "input", json!({ "outside": field }), json!(["outside"]));
            assert_eq!(meaning(vec![call(), outside()], "yes"), "several");
            assert_eq!(
                meaning(vec![call(), question(CITY, "input", json!({ "city": {} }), json!(["city"]))], "ok"),
                "several"
            );
            assert_eq!(meaning(vec![call(), outside()], "cancel"), "1 cancel");
            assert!(meaning(vec![outside()], "yes").starts_with("2 edit "));
        }
    }

    #[test]
    fn of_several_agents_that_wait_the_one_whose_fields_are_named_is_answered() {
        let meaning = |message: &str| meaning(vec![city(), party()], message);
        assert_eq!(meaning("party: 4"), "3 edit {\"party\":4}");
        assert_eq!(meaning("{\"city\": \"NYC\"}"), "2 edit {\"city\":\"NYC\"}");
        assert_eq!(["NYC", "4", "yes", "guests: 4"].map(meaning), ["several"; 4]);
    }

    /// A question of a server in the middle of a call, with this one field or none, and then a page.
    fn of_server(properties: Value, required: Value) -> Approval {
        let has_form = required.as_array().is_some_and(|names| !names.is_empty());
        let mode = match has_form {
            true => json!({ "mode": "form", "fields": [{ "name": "sure", "field": "sure" }] }),
            false => json!({ "mode": "url", "url": "https://example.org/a", "host": "example.org" }),
        };
        let mut part = json!({ "key": "k", "message": "Sure?" });
        part.as_object_mut().unwrap().extend(mode.as_object().unwrap().clone());
        let server = json!({
            "server": "github", "parts": [part],
            "continuation": { "kind": "continue", "round": 1, "request_state": "c2VjcmV0" },
        });
        let mut asked = question(CITY, "input", properties, required);
        asked.proposal.server = Some(serde_json::from_value(server).expect("a question"));
        asked
    }

    #[test]
    fn server_is_told_no_and_its_call_stopped_by_a_word_of_its_own_alone() {
        let form = || of_server(json!({ "sure": { "type": "string" } }), json!(["sure"]));
        let words = ["/decline", " /cancel\n", "no", "cancel", "/done", "/Decline", "/decline it"];
        let meanings = [
            "2 decline",
            "2 cancel",
            r#"2 edit {"sure":"no"}"#,
            r#"2 edit {"sure":"cancel"}"#,
            r#"2 edit {"sure":"/done"}"#,
            r#"2 edit {"sure":"/Decline"}"#,
            r#"2 edit {"sure":"/decline it"}"#,
        ];
        assert_eq!(words.map(|word| meaning(vec![form()], word)), meanings);
        let page = || of_server(json!({}), json!([]));
        assert_eq!(meaning(vec![page()], "/done"), "2 edit {}");
        assert_eq!(meaning(vec![page()], "/decline"), "2 decline");
        let back = "back: github (book) asks: question 2\nexample.org, which has not been opened: https://example.org/a\n\
                    /done says that you have done it, /decline tells github no, /cancel stops the call.";
        assert_eq!(meaning(vec![page()], "done"), back);
        assert_eq!(meaning(vec![page(), form()], "/decline"), "several", "of which one nobody knows");
        assert_eq!(meaning(vec![city()], "/decline"), r#"2 edit {"city":"/decline"}"#, "no server asks");
    }

    #[test]
    fn calls_alone_are_decided_by_a_word_where_there_is_one_and_anything_else_is_a_message() {
        assert_eq!(
            ["yes", "What for?", "amount: 80"].map(|message| meaning(vec![call()], message)),
            ["1 approve", "message", "1 edit {\"amount\":80}"]
        );
        assert_eq!(
            ["yes", "What for?", "amount: 80"].map(|message| meaning(vec![call(), call()], message)),
            ["several", "message", "message"]
        );
        let more = OpenQuestions { questions: vec![call(), city()], has_more: true };
        assert!(matches!(more.meaning_of("NYC"), ChatReply::Unclear(..)), "there may be another agent that waits");
    }

    #[test]
    fn question_is_named_by_its_id_in_its_conversation_or_where_an_agent_elsewhere_lacks_input() {
        let (here, elsewhere) = (Uuid::nil(), Uuid::from_u128(9));
        let is_for = |question: Approval| {
            [(here, false), (here, true), (elsewhere, false), (elsewhere, true)]
                .map(|(conversation, may_answer)| super::is_for(&question, conversation, may_answer))
        };
        assert_eq!(is_for(city()), [true, true, false, true]);
        assert_eq!(is_for(call()), [true, true, false, false], "a call is decided in its own conversation");
    }
}
