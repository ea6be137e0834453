//! The questions of a run as requests that an MCP client shows to its person, and the answers that come back.
//!
//! A question for what a call lacks is a form, and the client's answer is taken as one over the API is. A question
//! about a call is a link to a page that only shows: it is decided by the message that its person was sent, and no
//! answer of a client decides anything. Each of them is told by the channels in any case.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::compute::steps_to_write;
use crate::base::token::Permission;
use crate::domain::approval::link::SHOWS_FOR;
use crate::domain::approval::reply::awaited_fields;
use crate::domain::approval::{Approval, Proposal};
use crate::http::api::runs::input::asked_back;
use crate::http::api::runs::pending_questions;
use crate::http::error::ApiError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::ToolRefusal;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::pages::approve::outcome_url::Ticket;

/// The most questions of one run that a client is shown at once: the oldest.
pub const MOST_REQUESTS: usize = 20;
/// Longest text of a request that comes from an agent or a tool, in characters.
const TEXT_CHARS: usize = 1_000;
/// Beginnings of the keys of requests; the id of the question follows.
const INPUT: &str = "input:";
const APPROVAL: &str = "approval:";
/// The field of a form that takes the answer in words.
const ANSWER: &str = "answer";
/// Formats of texts that a form may name.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The requests that the client can be sent for what a run waits for, by their keys.
///
/// # Errors
/// The questions can't be read now.
pub async fn requests(call: &McpCall, run: Uuid) -> Result<Map<String, Value>, RpcError> {
    let (shows_forms, opens_links) = abilities(call);
    if !shows_forms && !opens_links {
        return Ok(Map::new());
    }
    let now = call.state.clock.now();
    let mut open = open_questions(call, run).await?;
    open.retain(|question| {
        let is_shown = if question.proposal.is_input() { shows_forms } else { opens_links };
        is_shown && now < question.expires_at
    });
    open.truncate(MOST_REQUESTS);
    let steps = open.iter().map(|question| steps_to_write(&question.proposal.parameters));
    let steps = steps.fold(0, u64::saturating_add);
    let linked = |question: Approval| {
        let url = page_url(call, question.batch_id, &question.tenant_id, question.expires_at);
        (question, url)
    };
    let open: Vec<(Approval, String)> = open.into_iter().map(linked).collect();
    call.compute(steps, move || open.iter().map(|(question, url)| request(question, url)).collect()).await
}

/// Whether this client is shown forms, and whether links: what its token could not do, or see, it is not asked.
fn abilities(call: &McpCall) -> (bool, bool) {
    let shows_forms = call.client.shows_forms && call.holds(Permission::RunsInput);
    let opens_links = call.client.opens_links && call.holds(Permission::ApprovalsRead);
    (shows_forms, opens_links)
}

async fn open_questions(call: &McpCall, run: Uuid) -> Result<Vec<Approval>, RpcError> {
    let open = pending_questions(&call.state, &call.caller.scope, run).await;
    open.map_err(|error: ApiError| RpcError::refused(ToolRefusal::from(error).message))
}

/// Where a page shows a question and what came of it. It is good for looking alone: the way to decide is the link of
/// the message that the person was sent, which is never handed out here.
pub fn page_url(call: &McpCall, batch_id: Uuid, tenant: &str, expires_at: DateTime<Utc>) -> String {
    let ticket = Ticket { batch_id, recipient: tenant.to_owned(), expires_at: expires_at + SHOWS_FOR };
    let public_url = call.state.settings.public_url();
    format!("{}{}", public_url.trim_end_matches('/'), ticket.address(&call.state.vault))
}

/// The request for a question, with its key.
fn request(question: &Approval, url: &str) -> (String, Value) {
    let (id, proposal) = (question.id, &question.proposal);
    if !proposal.is_input() {
        let message = format!(
            "{} This needs a person's consent. The page at this link shows what is asked; it is decided by the message \
             that the person was sent, and not here.",
            as_sentence(&cut(&proposal.summary))
        );
        let params = json!({ "mode": "url", "message": message, "elicitationId": id, "url": url });
        return (format!("{APPROVAL}{id}"), json!({ "method": "elicitation/create", "params": params }));
    }
    let message = match proposal.description.as_str() {
        "" => cut(&proposal.summary),
        description => format!("{}\n{}", cut(&proposal.summary), cut(description)),
    };
    let fields = form_fields(proposal).unwrap_or_else(|| answer_field(question));
    let names: Vec<&String> = fields.keys().collect();
    let schema = json!({ "type": "object", "properties": fields, "required": names });
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
    (format!("{INPUT}{id}"), json!({ "method": "elicitation/create", "params": params }))
}

/// A field for each that is awaited. `None`: one of them has no simple form, or none is awaited by its name.
fn form_fields(proposal: &Proposal) -> Option<Map<String, Value>> {
    let awaited = awaited_fields(&proposal.parameters, &proposal.arguments);
    let field = |name: &&str| Some(((*name).to_owned(), form_field(&proposal.parameters["properties"][*name])?));
    let fields: Map<String, Value> = awaited.iter().map(field).collect::<Option<_>>()?;
    (!fields.is_empty()).then_some(fields)
}

/// The schema of a field as forms have it: a text, a number, yes or no, or one of several texts.
fn form_field(schema: &Value) -> Option<Value> {
    let kind = schema["type"].as_str();
    let mut field = Map::new();
    match schema.get("enum") {
        Some(choices) => {
            let choices = choices.as_array()?;
            let is_text = |choice: &Value| choice.as_str().is_some_and(|text| cut(text) == text);
            if kind.is_some_and(|kind| kind != "string") || choices.is_empty() || !choices.iter().all(is_text) {
                return None;
            }
            field.insert("type".into(), "string".into());
            field.insert("enum".into(), choices.clone().into());
        }
        None => {
            let kind = kind.filter(|kind| matches!(*kind, "string" | "number" | "integer" | "boolean"))?;
            field.insert("type".into(), kind.into());
            let format = schema["format"].as_str().filter(|format| kind == "string" && FORMATS.contains(format));
            field.extend(format.map(|format| ("format".to_owned(), format.into())));
        }
    }
    for text in ["title", "description"] {
        let words = schema[text].as_str().filter(|words| !words.is_empty());
        field.extend(words.map(|words| (text.to_owned(), cut(words).into())));
    }
    Some(field.into())
}

/// The one field of a form that takes the answer in words.
fn answer_field(question: &Approval) -> Map<String, Value> {
    let field = json!({ "type": "string", "title": "Answer", "description": cut(&asked_back(question)) });
    Map::from_iter([(ANSWER.to_owned(), field)])
}

/// At most [`TEXT_CHARS`] characters of a text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn as_sentence(text: &str) -> String {
    match text.ends_with(['.', '!', '?', '…']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// Key and content of each form that was sent, by the id of its question.
type Accepted<'a> = BTreeMap<Uuid, (&'a String, &'a Map<String, Value>)>;

/// Gives the run the answers to its questions for input. One that is declined or cancelled stays with the person, and a
/// key of anything else does nothing.
///
/// # Errors
/// An answer is not right; it says why. Those before it are taken.
pub async fn take(call: &McpCall, run: Uuid, responses: &Map<String, Value>) -> Result<(), RpcError> {
    let accepted = accepted(responses)?;
    if accepted.is_empty() {
        return Ok(());
    }
    let open = open_questions(call, run).await?;
    for question in open.iter().filter(|question| question.proposal.is_input()) {
        if let Some((key, content)) = accepted.get(&question.id) {
            answer(call, question, key, content).await?;
        }
    }
    Ok(())
}

/// The contents of the forms that were sent, by the ids of their questions.
fn accepted(responses: &Map<String, Value>) -> Result<Accepted<'_>, RpcError> {
    let mut accepted = Accepted::new();
    for (key, response) in responses {
        let fault = |why: &str| RpcError::invalid_params(format!("`inputResponses`: the answer to `{key}` {why}"));
        let response = response.as_object().ok_or_else(|| fault("must be an object with `action`"))?;
        match response.get("action").and_then(Value::as_str) {
            Some("accept") => {}
            Some("decline" | "cancel") => continue,
            _ => return Err(fault("must have `action`: `accept`, `decline` or `cancel`")),
        }
        if let Some(id) = key.strip_prefix(INPUT).and_then(|id| Uuid::try_parse(id).ok()) {
            let content = response.get("content").and_then(Value::as_object);
            let content = content.ok_or_else(|| fault("must have `content`: an object with the fields of the form"))?;
            accepted.insert(id, (key, content));
        }
    }
    Ok(accepted)
}

/// Gives the answer to one question. One that was answered meanwhile needs none.
async fn answer(call: &McpCall, question: &Approval, key: &str, content: &Map<String, Value>) -> Result<(), RpcError> {
    let mut body = json!({ "input_id": question.id });
    match form_fields(&question.proposal) {
        Some(_) => body["fields"] = content.clone().into(),
        None => {
            let words = content.get(ANSWER).and_then(Value::as_str);
            let fault = || RpcError::invalid_params(format!("`inputResponses`: `{key}` must have the text `{ANSWER}`"));
            body["message"] = words.ok_or_else(fault)?.into();
        }
    }
    // one request may answer several questions
    let repeated = call.client.key.as_ref().map(|key| format!("mcp:{}:{key}", question.id));
    let run = question.run_id.to_string();
    match call.post(&["v1", "runs", &run, "input"], &[], body, repeated.as_deref()).await {
        Ok(_) => Ok(()),
        Err(error) => match error.status {
            409 => Ok(()),
            422 => {
                let faults = error.problem.get("errors").cloned().unwrap_or_default();
                let message = ToolRefusal::from(error).message;
                Err(RpcError::invalid_params(message).with_data(json!({ "key": key, "errors": faults })))
            }
            _ => Err(RpcError::refused(ToolRefusal::from(error).message)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{QuestionKind, test_question};

    fn question(parameters: Value, values: Value) -> Approval {
        let mut question = test_question("BookTable needs to know: party", DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH);
        let proposal = &mut question.proposal;
        (proposal.kind, proposal.parameters, proposal.arguments) = (QuestionKind::Input, parameters, values);
        question
    }

    fn schema(question: &Approval) -> Value {
        let (key, request) = request(question, "https://example.org");
        assert_eq!(key, format!("input:{}", question.id));
        assert_eq!((&request["method"], &request["params"]["mode"]), (&json!("elicitation/create"), &json!("form")));
        request["params"]["requestedSchema"].clone()
    }

    #[test]
    fn awaited_fields_that_are_simple_are_a_form() {
        let parameters = json!({
            "type": "object", "required": ["party", "name", "outside", "room", "mail"], "properties": {
                "party": { "type": "integer", "minimum": 1, "x-secret": "s" },
                "name": { "type": "string", "title": "Name", "description": "Of the guest", "format": "regex" },
                "outside": { "type": "boolean" },
                "room": { "type": "string", "enum": ["Garden", "Hall"] },
                "mail": { "type": "string", "format": "email" },
                "more": { "type": "object" },
            },
        });
        let schema = schema(&question(parameters, json!({ "outside": true })));
        let expected = json!({
            "type": "object", "required": ["party", "name", "room", "mail"], "properties": {
                "party": { "type": "integer" },
                "name": { "type": "string", "title": "Name", "description": "Of the guest" },
                "room": { "type": "string", "enum": ["Garden", "Hall"] },
                "mail": { "type": "string", "format": "email" },
            },
        });
        let sorted = |schema: &Value| {
            let mut names: Vec<&str> =
                schema["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            names.sort_unstable();
            names.join(" ")
        };
        assert_eq!((&schema["type"], &schema["properties"]), (&expected["type"], &expected["properties"]));
        assert_eq!(sorted(&schema), sorted(&expected));
    }

    #[test]
    fn field_without_a_simple_form_is_answered_in_words() {
        let long = "x".repeat(TEXT_CHARS + 1);
        for odd in [
            json!({ "type": "object" }),
            json!({ "type": "array", "items": { "type": "string" } }),
            json!({ "type": ["string", "null"] }),
            json!({ "enum": ["a", 1] }),
            json!({ "type": "integer", "enum": [1] }),
            json!({ "enum": [] }),
            json!({ "enum": [long] }),
            json!({}),
        ] {
            let parameters = json!({ "required": ["a", "b"], "properties": { "a": { "type": "string" }, "b": odd } });
            let schema = schema(&question(parameters, json!({})));
            assert_eq!(schema["required"], json!(["answer"]), "{odd}");
            let description = schema["properties"]["answer"]["description"].as_str().unwrap();
            assert!(description.ends_with("(one line for each, such as \"a: …\")"), "{description}");
        }
        let nothing = question(json!({ "properties": { "a": { "type": "string" } } }), json!({}));
        assert_eq!(schema(&nothing)["required"], json!(["answer"]));
    }

    #[test]
    fn text_of_a_request_is_cut() {
        let long = "ä".repeat(100_000);
        let parameters = json!({ "required": ["a"], "properties": { "a": { "type": "string", "title": long, "description": long } } });
        let mut question = question(parameters, json!({}));
        (question.proposal.summary, question.proposal.description) = (long.clone(), long);
        let (_, asked) = request(&question, "https://example.org");
        assert_eq!(asked["params"]["message"].as_str().unwrap().chars().count(), 2 * (TEXT_CHARS + 1) + 1);
        assert!(asked.to_string().chars().count() < 5 * TEXT_CHARS);
        question.proposal.kind = QuestionKind::Approval;
        let (key, asked) = request(&question, "https://example.org/approvals/outcome/t");
        assert!(key.starts_with("approval:") && asked.to_string().chars().count() < 2 * TEXT_CHARS, "{asked}");
        assert_eq!((&asked["params"]["mode"], &asked["params"]["elicitationId"]), (&json!("url"), &json!(question.id)));
    }

    #[test]
    fn answers_are_read_before_any_is_given() {
        let read = |responses: Value| {
            let responses = responses.as_object().unwrap().clone();
            accepted(&responses).map(|accepted| accepted.keys().copied().collect::<Vec<Uuid>>())
        };
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let given = read(json!({
            format!("input:{one}"): { "action": "accept", "content": { "party": 4 } },
            format!("input:{two}"): { "action": "decline" },
            format!("approval:{two}"): { "action": "accept" },
            "input:7": { "action": "accept", "content": {} }, "other": { "action": "cancel" },
        }));
        assert_eq!(given, Ok(vec![one]), "no other is an answer");
        for (odd, why) in [
            (Value::Null, "must be an object"),
            (json!("yes"), "must be an object"),
            (json!({}), "must have `action`"),
            (json!({ "action": "approve" }), "must have `action`"),
            (json!({ "action": "accept" }), "must have `content`"),
            (json!({ "action": "accept", "content": "4" }), "must have `content`"),
        ] {
            let refused = read(json!({ format!("input:{one}"): odd })).unwrap_err();
            assert!(refused.code == -32602 && refused.message.contains(why), "{}", refused.message);
        }
    }
}
