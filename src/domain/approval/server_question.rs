//! A question that an MCP server has in the middle of a call, and how the call goes on with its answer.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, NaiveDate};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;

use crate::domain::approval::{ArgumentFault, FieldFault};

/// Rounds in which a server may ask during one call.
pub const ROUNDS: u32 = 5;
/// Longest e-mail address, in bytes.
const EMAIL_BYTES: usize = 254;

/// A question of a server in the middle of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerQuestion {
    /// Name of the server as it is configured.
    pub server: String,
    /// The parts of the question, in the order of the keys; never empty.
    pub parts: Vec<QuestionPart>,
    /// How the call goes on.
    pub continuation: Continuation,
}

/// One thing that a server asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionPart {
    /// The server's key, or the hash by which the request is known again ([`ContinuationKind::Repeat`]).
    pub key: String,
    /// In the server's words; nothing is hidden in it.
    pub message: String,
    /// How a person answers.
    #[serde(flatten)]
    pub mode: PartMode,
}

/// How a person answers a part of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum PartMode {
    /// By fields of the form.
    Form {
        /// In the server's order.
        fields: Vec<PartField>,
    },
    /// On a page of its own.
    Url {
        /// The address of the page.
        url: String,
        /// As the address has it, in ASCII, with the port where one is named.
        host: String,
    },
}

/// A field that a server asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartField {
    /// In the form: a property of the proposal's `parameters`.
    pub name: String,
    /// As the server calls it.
    pub field: String,
}

/// How a call goes on once a person has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// The way.
    pub kind: ContinuationKind,
    /// The round that this question is, from 1.
    pub round: u32,
    /// Base64 of the server's opaque text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_state: Option<String>,
    /// Of a call that is repeated: answers of earlier rounds, by their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answered: BTreeMap<String, Value>,
}

/// A way in which a call goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContinuationKind {
    /// The answers go along with the next request.
    Continue,
    /// The call is repeated, and the answers lie ready for when the server asks.
    Repeat,
}

/// A person's answer to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAnswer {
    /// The fields by the names of the form, and every page was seen to.
    Accept(Value),
    /// A no to all of it.
    Decline,
}

/// A call that goes on with a person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallContinuation {
    /// The question that was put.
    pub question: ServerQuestion,
    /// Its answer.
    pub answer: ServerAnswer,
}

impl ServerQuestion {
    /// The names of the form, in the server's order.
    pub fn field_names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(|part| part.mode.fields()).map(|field| field.name.as_str())
    }

    /// Addresses to open, each with its host.
    pub fn links(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().filter_map(|part| match &part.mode {
            PartMode::Url { url, host } => Some((url.as_str(), host.as_str())),
            PartMode::Form { .. } => None,
        })
    }

    /// Whether there is a form to fill in.
    pub fn has_form(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.mode, PartMode::Form { .. }))
    }

    /// The server's opaque text, as it was received. `None`: there is none, or it can't be decoded.
    pub fn request_state(&self) -> Option<String> {
        let decoded = STANDARD.decode(self.continuation.request_state.as_ref()?).ok()?;
        String::from_utf8(decoded).ok()
    }

    /// The faults of an answer beyond the schema: texts that are no e-mail address, address, date or time, by the
    /// `format` that `parameters` gives them.
    pub fn invalid_fields(&self, parameters: &Value, arguments: &Value) -> Vec<FieldFault> {
        let fault = |name: &str| {
            let format = parameters.get("properties")?.get(name)?.get("format")?.as_str()?;
            let text = arguments.get(name)?.as_str()?;
            Some(FieldFault::new(name, fault_of_format(format, text)?))
        };
        self.field_names().filter_map(fault).collect()
    }
}

impl PartMode {
    fn fields(&self) -> &[PartField] {
        match self {
            PartMode::Form { fields } => fields,
            PartMode::Url { .. } => &[],
        }
    }
}

impl CallContinuation {
    /// The answers of this round for the server, by its keys.
    pub fn responses(&self) -> BTreeMap<String, Value> {
        let parts = self.question.parts.iter();
        parts.map(|part| (part.key.clone(), self.response(&part.mode))).collect()
    }

    /// The answers of this round and those of earlier ones.
    pub fn all_responses(&self) -> BTreeMap<String, Value> {
        let mut responses = self.question.continuation.answered.clone();
        responses.extend(self.responses());
        responses
    }

    /// The server's opaque text, as it was received. `None`: there is none, or it can't be decoded.
    pub fn request_state(&self) -> Option<String> {
        self.question.request_state()
    }

    fn response(&self, mode: &PartMode) -> Value {
        match (&self.answer, mode) {
            (ServerAnswer::Decline, _) => json!({ "action": "decline" }),
            (ServerAnswer::Accept(_), PartMode::Url { .. }) => json!({ "action": "accept" }),
            (ServerAnswer::Accept(values), PartMode::Form { fields }) => {
                let given = |field: &PartField| Some((field.field.clone(), values.get(&field.name)?.clone()));
                let content: Map<String, Value> = fields.iter().filter_map(given).collect();
                json!({ "action": "accept", "content": content })
            }
        }
    }
}

/// The fault of a text that is not what its format says; a format that is not known here has none.
fn fault_of_format(format: &str, text: &str) -> Option<ArgumentFault> {
    let (is_sound, expected, phrase) = match format {
        "email" => (is_email(text), "must be an e-mail address", "fault_email"),
        "uri" => (Url::parse(text).is_ok(), "must be an address, as https://example.org/page", "fault_uri"),
        "date" => {
            let is_date = text.len() == 10 && NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok();
            (is_date, "must be a date, as 2026-07-28", "fault_date")
        }
        "date-time" => {
            let is_time = DateTime::parse_from_rfc3339(text).is_ok();
            (is_time, "must be a time, as 2026-07-28T09:30:00Z", "fault_date_time")
        }
        _ => return None,
    };
    (!is_sound).then(|| ArgumentFault::with("", expected, phrase, &[]))
}

fn is_email(text: &str) -> bool {
    let Some((name, host)) = text.split_once('@') else { return false };
    let is_whole = !name.is_empty() && !host.contains('@') && !text.contains(char::is_whitespace);
    let has_dot = host.split_once('.').is_some_and(|(first, rest)| !first.is_empty() && !rest.is_empty());
    is_whole && text.len() <= EMAIL_BYTES && (host == "localhost" || has_dot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, field: &str) -> PartField {
        PartField { name: name.to_owned(), field: field.to_owned() }
    }

    /// A question with two forms and a page.
    fn question() -> ServerQuestion {
        let part = |key: &str, mode| QuestionPart { key: key.to_owned(), message: "Sure?".to_owned(), mode };
        let url = PartMode::Url { url: "https://example.org/a".to_owned(), host: "example.org".to_owned() };
        ServerQuestion {
            server: "github".to_owned(),
            parts: vec![
                part("a", PartMode::Form { fields: vec![field("z", "z"), field("a.b", "b")] }),
                part("c", PartMode::Form { fields: vec![field("c.b", "b")] }),
                part("d", url),
            ],
            continuation: Continuation {
                kind: ContinuationKind::Continue,
                round: 1,
                request_state: Some(STANDARD.encode("s\0é")),
                answered: BTreeMap::from([("old".to_owned(), json!({ "action": "accept" }))]),
            },
        }
    }

    fn continued(answer: ServerAnswer) -> CallContinuation {
        CallContinuation { question: question(), answer }
    }

    #[test]
    fn answer_is_given_by_the_keys_and_fields_of_the_server() {
        let accepted = continued(ServerAnswer::Accept(json!({ "z": 1, "c.b": "two", "other": 3 })));
        let responses = json!({
            "a": { "action": "accept", "content": { "z": 1 } },
            "c": { "action": "accept", "content": { "b": "two" } },
            "d": { "action": "accept" },
        });
        assert_eq!(json!(accepted.responses()), responses);
        let mut all = responses.as_object().unwrap().clone();
        all.insert("old".to_owned(), json!({ "action": "accept" }));
        assert_eq!(json!(accepted.all_responses()), Value::Object(all));
        let declined = json!({ "action": "decline" });
        assert_eq!(
            json!(continued(ServerAnswer::Decline).responses()),
            json!({ "a": declined, "c": declined, "d": declined })
        );
    }

    #[test]
    fn state_is_handed_back_as_it_came() {
        let mut whole = continued(ServerAnswer::Decline);
        assert_eq!(whole.request_state().as_deref(), Some("s\0é"));
        whole.question.continuation.request_state = Some("%".to_owned());
        assert_eq!(whole.request_state(), None);
        whole.question.continuation.request_state = None;
        assert_eq!(whole.request_state(), None);
    }

    #[test]
    fn question_is_stored_and_read_again() {
        let question = question();
        let stored = serde_json::to_value(&question).unwrap();
        assert_eq!(
            stored["parts"][2],
            json!({
                "key": "d", "message": "Sure?", "mode": "url", "url": "https://example.org/a", "host": "example.org",
            })
        );
        assert_eq!(stored["parts"][1]["fields"], json!([{ "name": "c.b", "field": "b" }]));
        assert_eq!(stored["continuation"]["kind"], "continue");
        assert_eq!(serde_json::from_value::<ServerQuestion>(stored).unwrap(), question);
    }

    #[test]
    fn names_and_links_are_in_the_order_of_the_server() {
        let question = question();
        assert_eq!(question.field_names().collect::<Vec<_>>(), ["z", "a.b", "c.b"]);
        assert_eq!(question.links().collect::<Vec<_>>(), [("https://example.org/a", "example.org")]);
        assert!(question.has_form());
        let only_link = ServerQuestion { parts: vec![question.parts[2].clone()], ..question };
        assert!(!only_link.has_form());
    }

    #[test]
    fn texts_are_held_against_the_formats_that_are_known() {
        let faults = |format: &str, text: &str| {
            let parameters = json!({ "properties": { "z": { "type": "string", "format": format } } });
            let found = question().invalid_fields(&parameters, &json!({ "z": text }));
            found
                .into_iter()
                .map(|fault| format!("{}: {}", fault.name, fault.fault.phrase))
                .collect::<Vec<_>>()
                .join("")
        };
        let longest = format!("{}@b.org", "a".repeat(EMAIL_BYTES - "@b.org".len()));
        for (format, text) in [
            ("email", "ann@example.org"),
            ("email", "ann@localhost"),
            ("email", longest.as_str()),
            ("uri", "https://example.org/a?b=c"),
            ("uri", "mailto:ann@example.org"),
            ("date", "2026-02-28"),
            ("date-time", "2026-02-28T09:30:00Z"),
            ("date-time", "2026-02-28T09:30:00.5+01:00"),
            ("color", "anything"),
        ] {
            assert_eq!(faults(format, text), "", "{format} {text}");
        }
        let too_long = format!("a{longest}");
        for (format, phrase, texts) in [
            (
                "email",
                "fault_email",
                &["ann", "@b.org", "ann@", "a@b@c.org", "ann@org", "a nn@b.org", "ann@.", too_long.as_str()][..],
            ),
            ("uri", "fault_uri", &["example.org", "/a", ""]),
            ("date", "fault_date", &["2026-02-30", "2026-2-3", "28.02.2026", ""]),
            ("date-time", "fault_date_time", &["2026-02-28", "2026-02-28T09:30:00", "now"]),
        ] {
            for text in texts {
                assert_eq!(faults(format, text), format!("z: {phrase}"), "{format} {text}");
            }
        }
    }

    #[test]
    fn field_that_is_left_out_has_no_fault_of_its_format() {
        let parameters = json!({ "properties": { "z": { "type": "string", "format": "date" } } });
        assert_eq!(question().invalid_fields(&parameters, &json!({})), []);
        assert_eq!(question().invalid_fields(&json!({}), &json!({ "z": "x" })), []);
    }
}
