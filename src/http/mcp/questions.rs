//! The questions of a run as requests that an MCP client shows to its person, and the answers that come back.
//!
//! A question for what a call lacks is a form, and the client's answer is taken as one over the API is. A question
//! about a call is a link to a page that only shows: it is decided by the message that its person was sent, and no
//! answer of a client decides anything. So it is with a question of an MCP server that sends the person to a page, which
//! a client may only decline. Each of them is told by the channels in any case.

mod form;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::compute::steps_to_write;
use crate::base::token::Permission;
use crate::domain::approval::link::SHOWS_FOR;
use crate::domain::approval::{Approval, Proposal};
use crate::http::api::runs::pending_questions;
use crate::http::api::runs::server_question::ServerQuestionView;
use crate::http::error::ApiError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::ToolRefusal;
use crate::http::mcp::questions::form::cut;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::pages::approve::outcome_url::Ticket;

/// The most questions of one run that a client is shown at once: the oldest.
pub const MOST_REQUESTS: usize = 20;
/// Beginnings of the keys of requests; the id of the question follows.
const INPUT: &str = "input:";
const APPROVAL: &str = "approval:";
/// The fault of a form that was accepted without its fields.
const NO_CONTENT: &str = "must have `content`: an object with the fields of the form";

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
        let is_shown = if is_link(&question.proposal) { opens_links } else { shows_forms };
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
    let words = words_of(proposal);
    let (kind, params) = match is_link(proposal) {
        true => {
            let kind = if proposal.is_input() { INPUT } else { APPROVAL };
            let message = format!("{} {}", as_sentence(&words), about_link(proposal));
            (kind, json!({ "mode": "url", "message": message, "elicitationId": id, "url": url }))
        }
        false => (INPUT, json!({ "mode": "form", "message": words, "requestedSchema": form::schema_of(question) })),
    };
    (format!("{kind}{id}"), json!({ "method": "elicitation/create", "params": params }))
}

/// The words of a question. Those of an MCP server are led by who asks, and are whole: they are agreed to.
fn words_of(proposal: &Proposal) -> String {
    if let Some(asked) = ServerQuestionView::of(proposal) {
        let pages = asked.links.iter().map(|link| &link.message);
        let words: Vec<&str> = asked.messages.iter().chain(pages).map(String::as_str).collect();
        return format!("{} ({}) asks: {}", asked.server, asked.tool, words.join("\n"));
    }
    match proposal.description.as_str() {
        description if proposal.is_input() && !description.is_empty() => {
            format!("{}\n{}", cut(&proposal.summary), cut(description))
        }
        _ => cut(&proposal.summary),
    }
}

/// Sentences about the link of a question.
fn about_link(proposal: &Proposal) -> &'static str {
    match proposal.is_input() {
        true => {
            "The page at this link shows where the person is sent; it is answered by the message that the person was \
             sent, and not here."
        }
        false => {
            "This needs a person's consent. The page at this link shows what is asked; it is decided by the message \
             that the person was sent, and not here."
        }
    }
}

/// Whether a client is shown a question as a link to the page that only shows.
fn is_link(proposal: &Proposal) -> bool {
    !proposal.is_input() || sends_to_page(proposal)
}

/// Whether the server that asks sends the person to a page of its own.
fn sends_to_page(proposal: &Proposal) -> bool {
    proposal.server.as_ref().is_some_and(|asked| asked.links().next().is_some())
}

fn as_sentence(text: &str) -> String {
    match text.ends_with(['.', '!', '?', '…']) {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// A response of a client to a request, before it is known which question it was.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ClientResponse<'a> {
    /// With the fields of a form, where it has sent some.
    Accept(Option<&'a Map<String, Value>>),
    Decline,
}

/// An answer to a question that a client may give.
#[derive(Clone, Copy)]
enum ClientAnswer<'a> {
    Fields(&'a Map<String, Value>),
    /// A no to the server that asks.
    Decline,
}

/// Key and response of each request, by the id of its question.
type ReadResponses<'a> = BTreeMap<Uuid, (&'a String, ClientResponse<'a>)>;

/// Gives the run the answers to its questions for input. A question of an MCP server that is declined is a no to that
/// server; any other that is declined, and each that is cancelled, stays with the person. A key of anything else does
/// nothing.
///
/// # Errors
/// An answer is not right, or is not taken now; it says why. Those before it are taken.
pub async fn take(call: &McpCall, run: Uuid, responses: &Map<String, Value>) -> Result<(), RpcError> {
    let responses = read(responses)?;
    if responses.is_empty() {
        return Ok(());
    }
    let open = open_questions(call, run).await?;
    let mut answers = Vec::new();
    for question in open.iter().filter(|question| question.proposal.is_input()) {
        let Some((key, response)) = responses.get(&question.id) else { continue };
        answers.extend(answer_of(question, key, *response)?.map(|answer| (question, *key, answer)));
    }
    for (question, key, given) in answers {
        answer(call, question, key, given).await?;
    }
    Ok(())
}

/// The responses that may be answers, by the ids of their questions.
fn read(responses: &Map<String, Value>) -> Result<ReadResponses<'_>, RpcError> {
    let mut read = ReadResponses::new();
    for (key, response) in responses {
        let response = response.as_object().ok_or_else(|| fault(key, "must be an object with `action`"))?;
        let given = match response.get("action").and_then(Value::as_str) {
            Some("accept") => match response.get("content") {
                None | Some(Value::Null) => ClientResponse::Accept(None),
                Some(Value::Object(content)) => ClientResponse::Accept(Some(content)),
                Some(_) => return Err(fault(key, NO_CONTENT)),
            },
            Some("decline") => ClientResponse::Decline,
            Some("cancel") => continue,
            _ => return Err(fault(key, "must have `action`: `accept`, `decline` or `cancel`")),
        };
        if let Some(id) = key.strip_prefix(INPUT).and_then(|id| Uuid::try_parse(id).ok()) {
            read.insert(id, (key, given));
        }
    }
    Ok(read)
}

fn fault(key: &str, why: &str) -> RpcError {
    RpcError::invalid_params(format!("`inputResponses`: the answer to `{key}` {why}"))
}

/// The answer to this question that a response is; `None`: it is none. That a link was opened is no answer: the page
/// behind it only shows, and the server's page may not have been seen.
fn answer_of<'a>(
    question: &Approval,
    key: &str,
    response: ClientResponse<'a>,
) -> Result<Option<ClientAnswer<'a>>, RpcError> {
    let sends_to_page = sends_to_page(&question.proposal);
    match response {
        ClientResponse::Decline => Ok(question.proposal.is_of_server().then_some(ClientAnswer::Decline)),
        ClientResponse::Accept(content) if sends_to_page => match content.is_none_or(Map::is_empty) {
            true => Ok(None),
            false => Err(fault(key, "must have no `content`: its page is seen to by way of the person's message")),
        },
        ClientResponse::Accept(Some(content)) => Ok(Some(ClientAnswer::Fields(content))),
        ClientResponse::Accept(None) => Err(fault(key, NO_CONTENT)),
    }
}

/// Gives the answer to one question. One that was answered meanwhile needs none.
async fn answer(call: &McpCall, question: &Approval, key: &str, given: ClientAnswer<'_>) -> Result<(), RpcError> {
    let mut body = json!({ "input_id": question.id });
    let has_form = has_form(call, question).await?;
    match given {
        ClientAnswer::Decline => body["action"] = "decline".into(),
        ClientAnswer::Fields(content) if has_form => body["fields"] = content.clone().into(),
        ClientAnswer::Fields(content) => {
            let words = content.get(form::ANSWER).and_then(Value::as_str);
            let missing = || fault(key, &format!("must have the text `{}`", form::ANSWER));
            body["message"] = words.ok_or_else(missing)?.into();
        }
    }
    // one request may answer several questions
    let repeated = call.client.key.as_ref().map(|key| format!("mcp:{}:{key}", question.id));
    let run = question.run_id.to_string();
    let answered = call.post(&["v1", "runs", &run, "input"], &[], body, repeated.as_deref()).await;
    let Err(error) = answered else { return Ok(()) };
    // a paused run takes no answer either
    if error.status == 409 && !is_open(call, question).await? {
        return Ok(());
    }
    if error.status != 422 {
        return Err(RpcError::refused(ToolRefusal::from(error).message));
    }
    let faults = error.problem.get("errors").cloned().unwrap_or_default();
    let message = ToolRefusal::from(error).message;
    Err(RpcError::invalid_params(message).with_data(json!({ "key": key, "errors": faults })))
}

/// Whether a question was shown with a field for each thing that is awaited.
async fn has_form(call: &McpCall, question: &Approval) -> Result<bool, RpcError> {
    let steps = steps_to_write(&question.proposal.parameters);
    let proposal = question.proposal.clone();
    call.compute(steps, move || form::has_fields(&proposal)).await
}

/// Whether the question for which an answer would be, this one or the only one that is open, sends its person to a
/// page: such an answer is not taken here.
///
/// # Errors
/// The questions can't be read now.
pub async fn is_answered_on_page(call: &McpCall, run: Uuid, input: Option<Uuid>) -> Result<bool, RpcError> {
    let mut open = open_questions(call, run).await?;
    open.retain(|question| question.proposal.is_input() && input.is_none_or(|id| question.id == id));
    Ok(matches!(open.as_slice(), [only] if sends_to_page(&only.proposal)))
}

/// Whether a question waits for its answer still.
async fn is_open(call: &McpCall, question: &Approval) -> Result<bool, RpcError> {
    let open = open_questions(call, question.run_id).await?;
    Ok(open.iter().any(|one| one.id == question.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{QuestionKind, test_question};
    use crate::http::mcp::questions::form::TEXT_CHARS;

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
            super::read(&responses).map(|read| read.keys().copied().collect::<Vec<Uuid>>())
        };
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let given = read(json!({
            format!("input:{one}"): { "action": "accept", "content": { "party": 4 } },
            format!("input:{two}"): { "action": "decline" },
            format!("approval:{two}"): { "action": "accept" },
            "input:7": { "action": "accept", "content": {} }, "other": { "action": "cancel" },
        }));
        assert_eq!(given, Ok(vec![one, two]), "no other may be an answer");
        for (odd, why) in [
            (Value::Null, "must be an object"),
            (json!("yes"), "must be an object"),
            (json!({}), "must have `action`"),
            (json!({ "action": "approve" }), "must have `action`"),
            (json!({ "action": "accept", "content": "4" }), "must have `content`"),
        ] {
            let refused = read(json!({ format!("input:{one}"): odd })).unwrap_err();
            assert!(refused.code == -32602 && refused.message.contains(why), "{}", refused.message);
        }
    }

    /// A question of the server `github` with these parts.
    fn of_server(parts: Value) -> Approval {
        let server = json!({
            "server": "github", "parts": parts, "continuation": { "kind": "continue", "round": 1 },
        });
        let mut question = question(json!({ "type": "object", "properties": {}, "required": [] }), json!({}));
        question.proposal.tool = "github.issue".into();
        question.proposal.server = Some(serde_json::from_value(server).unwrap());
        question
    }

    fn page() -> Value {
        json!({ "key": "p", "message": "Log in", "mode": "url", "url": "https://a.example/x", "host": "a.example" })
    }

    fn agreement() -> Value {
        json!({ "key": "f", "message": "May I go on?", "mode": "form", "fields": [] })
    }

    #[test]
    fn question_of_a_server_says_who_asks_and_is_a_link_where_it_sends_the_person_to_a_page() {
        let plain = of_server(json!([agreement()]));
        let (key, asked) = request(&plain, "https://example.org");
        assert_eq!(key, format!("input:{}", plain.id));
        assert_eq!(asked["params"]["message"], "github (issue) asks: May I go on?");
        assert_eq!(asked["params"]["requestedSchema"], json!({ "type": "object", "properties": {}, "required": [] }));
        for parts in [json!([page()]), json!([agreement(), page()])] {
            let question = of_server(parts);
            let (key, asked) = request(&question, "https://example.org/approvals/outcome/t");
            let params = &asked["params"];
            assert_eq!((key, &params["mode"]), (format!("input:{}", question.id), &json!("url")));
            assert_eq!(params["url"], "https://example.org/approvals/outcome/t");
            let message = params["message"].as_str().unwrap();
            assert!(message.starts_with("github (issue) asks: ") && message.contains("Log in. The page"), "{message}");
        }
    }

    #[test]
    fn page_is_accepted_by_no_client_and_only_a_server_is_declined() {
        let content = Map::from_iter([("a".to_owned(), json!(1))]);
        let empty = Map::new();
        let of = |question: &Approval, response| answer_of(question, "k", response).map(|answer| answer.is_some());
        let sent = of_server(json!([agreement(), page()]));
        assert_eq!(of(&sent, ClientResponse::Accept(None)), Ok(false));
        assert_eq!(of(&sent, ClientResponse::Accept(Some(&empty))), Ok(false));
        assert_eq!(of(&sent, ClientResponse::Accept(Some(&content))).unwrap_err().code, -32602);
        assert_eq!(of(&sent, ClientResponse::Decline), Ok(true));
        let asked = of_server(json!([agreement()]));
        assert_eq!(of(&asked, ClientResponse::Accept(Some(&empty))), Ok(true));
        assert_eq!(of(&asked, ClientResponse::Accept(None)).unwrap_err().code, -32602);
        let plain = question(json!({ "properties": {} }), json!({}));
        assert_eq!(of(&plain, ClientResponse::Decline), Ok(false), "it stays with the person");
        assert_eq!(of(&plain, ClientResponse::Accept(Some(&content))), Ok(true));
    }
}
