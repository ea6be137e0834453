//! The question of an MCP server as people are shown it over the API and in conversations: nothing of how the call goes
//! on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::approval::{Approval, PartMode, Proposal, ServerAnswer, ServerQuestion};

/// The word with which a message declines.
pub const DECLINE: &str = "/decline";
/// The word with which a message stops the call.
pub const CANCEL: &str = "/cancel";
/// The word with which a message says that a page was seen to.
pub const DONE: &str = "/done";

/// A question that an MCP server asks in the middle of a call. Its words are those of the server.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ServerQuestionView {
    /// Name of the server as it is configured.
    #[schema(example = "github")]
    pub server: String,
    /// The server's tool, in a call of which it asks.
    #[schema(example = "create_issue")]
    pub tool: String,
    /// The round of the call that this question is, from 1.
    pub round: u32,
    /// The words with which the server asks for fields, in its order.
    pub messages: Vec<String>,
    /// Pages to which the server sends the person; they have not been opened.
    pub links: Vec<QuestionLink>,
    /// The server may be told no, and the call goes on.
    pub may_decline: bool,
}

/// A page to which an MCP server sends a person.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QuestionLink {
    /// The address of the page.
    #[schema(example = "https://github.com/login/device")]
    pub url: String,
    /// Host of the address, in ASCII, with the port where one is named.
    #[schema(example = "github.com")]
    pub host: String,
    /// The server's words about it.
    pub message: String,
}

/// The answer that an MCP server has got, or gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerToServer {
    /// The fields, and that each page was seen to.
    Accept,
    /// A no.
    Decline,
}

impl ServerQuestionView {
    /// The question of a server in this proposal; `None`: no server asks.
    pub fn of(proposal: &Proposal) -> Option<ServerQuestionView> {
        let asked = proposal.server.as_ref()?;
        let mut view = ServerQuestionView {
            server: asked.server.clone(),
            tool: tool_of(asked, proposal).to_owned(),
            round: asked.continuation.round,
            messages: Vec::new(),
            links: Vec::new(),
            may_decline: true,
        };
        for part in &asked.parts {
            let message = part.message.clone();
            match &part.mode {
                PartMode::Form { .. } => view.messages.push(message),
                PartMode::Url { url, host } => {
                    view.links.push(QuestionLink { url: url.clone(), host: host.clone(), message });
                }
            }
        }
        Some(view)
    }
}

impl AnswerToServer {
    /// The answer that this question has given to a server; `None`: none.
    pub fn of(approval: &Approval) -> Option<AnswerToServer> {
        Some(match approval.server_answer()? {
            ServerAnswer::Accept(_) => AnswerToServer::Accept,
            ServerAnswer::Decline => AnswerToServer::Decline,
        })
    }
}

/// Whether a server asks for no field: pages are to be seen to, or its words to be agreed to.
pub fn is_without_form(proposal: &Proposal) -> bool {
    proposal.server.as_ref().is_some_and(|asked| asked.field_names().next().is_none())
}

/// The words of a question of a server: the server, what it asks for, and the words that answer. `None`: no server
/// asks.
pub fn words_of_server(proposal: &Proposal) -> Option<String> {
    let asked = proposal.server.as_ref()?;
    let (server, tool) = (&asked.server, tool_of(asked, proposal));
    let mut lines = vec![format!("{server} ({tool}) asks: {}", proposal.summary)];
    lines.extend((!proposal.description.is_empty()).then(|| proposal.description.clone()));
    lines.extend(asked.links().map(|(url, host)| format!("{host}, which has not been opened: {url}")));
    let others = format!("{DECLINE} tells {server} no, {CANCEL} stops the call");
    let answers = match is_without_form(proposal) {
        true => format!("{DONE} says that you have done it, {others}"),
        false => others,
    };
    lines.push(format!("{answers}."));
    Some(lines.join("\n"))
}

/// The texts among which a field is chosen, each with its title where it has one: `blue`, or `1 (one day)`.
pub fn choices_of(field: &Value) -> Vec<String> {
    let listed = |of: &Value| of.get("enum").and_then(Value::as_array).cloned();
    let titled = |of: &Value| of.get("oneOf").or_else(|| of.get("anyOf")).and_then(Value::as_array).cloned();
    let items = field.get("items").unwrap_or(&Value::Null);
    if let Some(words) = listed(field).or_else(|| listed(items)) {
        return words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    }
    let words = titled(field).or_else(|| titled(items)).unwrap_or_default();
    let shown = |choice: &Value| {
        let word = choice.get("const")?.as_str()?;
        let title = choice.get("title").and_then(Value::as_str).filter(|title| *title != word);
        Some(title.map_or_else(|| word.to_owned(), |title| format!("{word} ({title})")))
    };
    words.iter().filter_map(shown).collect()
}

/// The name of the tool within its server.
fn tool_of<'a>(asked: &ServerQuestion, proposal: &'a Proposal) -> &'a str {
    let within = proposal.tool.strip_prefix(asked.server.as_str()).and_then(|rest| rest.strip_prefix('.'));
    within.unwrap_or(&proposal.tool)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::{ApprovalStatus, QuestionKind, test_question};

    fn part(key: &str, mode: Value) -> Value {
        let mut part = json!({ "key": key, "message": format!("About {key}?") });
        part.as_object_mut().unwrap().extend(mode.as_object().unwrap().clone());
        part
    }

    fn form() -> Value {
        part("k-form", json!({ "mode": "form", "fields": [{ "name": "sure", "field": "sure" }] }))
    }

    fn page() -> Value {
        part("k-page", json!({ "mode": "url", "url": "https://example.org/a", "host": "example.org" }))
    }

    /// A question of the server `github` in a call of its tool `issue`.
    fn asked(parts: &[Value]) -> Approval {
        let now = "2027-03-01T08:00:00Z".parse().unwrap();
        let question = test_question("About it?", now, now);
        let server = json!({
            "server": "github", "parts": parts,
            "continuation": { "kind": "continue", "round": 2, "request_state": "c2VjcmV0" },
        });
        let proposal = Proposal {
            kind: QuestionKind::Input,
            tool: "github.issue".into(),
            description: String::new(),
            server: Some(serde_json::from_value(server).unwrap()),
            ..question.proposal.clone()
        };
        Approval { proposal, ..question }
    }

    #[test]
    fn view_has_the_words_and_pages_and_nothing_of_how_the_call_goes_on() {
        let view = ServerQuestionView::of(&asked(&[form(), page()]).proposal);
        let expected = json!({
            "server": "github", "tool": "issue", "round": 2, "messages": ["About k-form?"],
            "links": [{ "url": "https://example.org/a", "host": "example.org", "message": "About k-page?" }],
            "may_decline": true,
        });
        assert_eq!(json!(view), expected);
        let mut plain = asked(&[form()]).proposal;
        plain.server = None;
        assert_eq!(ServerQuestionView::of(&plain), None);
    }

    #[test]
    fn answer_is_told_once_there_is_one() {
        let answer = |status| AnswerToServer::of(&Approval { status, ..asked(&[form()]) });
        assert_eq!(answer(ApprovalStatus::Edited), Some(AnswerToServer::Accept));
        assert_eq!(answer(ApprovalStatus::Approved), Some(AnswerToServer::Decline));
        assert_eq!(answer(ApprovalStatus::Cancelled), None);
    }

    #[test]
    fn words_name_the_server_and_its_tool_and_host_and_the_words_that_answer() {
        let words = |parts: &[Value]| words_of_server(&asked(parts).proposal).unwrap();
        assert_eq!(
            words(&[form()]),
            "github (issue) asks: About it?\n/decline tells github no, /cancel stops the call."
        );
        assert_eq!(
            words(&[page()]),
            "github (issue) asks: About it?\nexample.org, which has not been opened: https://example.org/a\n\
             /done says that you have done it, /decline tells github no, /cancel stops the call."
        );
        let is_without = |parts: &[Value]| is_without_form(&asked(parts).proposal);
        let empty = || part("k-form", json!({ "mode": "form", "fields": [] }));
        assert_eq!([is_without(&[page()]), is_without(&[empty()]), is_without(&[page(), form()])], [true, true, false]);
    }

    #[test]
    fn choices_of_a_field_are_named_with_their_titles() {
        let titled = json!([{ "const": "1", "title": "one day" }, { "const": "2", "title": "2" }]);
        for field in [json!({ "oneOf": titled }), json!({ "type": "array", "items": { "anyOf": titled } })] {
            assert_eq!(choices_of(&field), ["1 (one day)", "2"], "{field}");
        }
        for field in [json!({ "enum": ["a", "b"] }), json!({ "type": "array", "items": { "enum": ["a", "b"] } })] {
            assert_eq!(choices_of(&field), ["a", "b"], "{field}");
        }
        assert!(choices_of(&json!({ "type": "string" })).is_empty());
    }
}
