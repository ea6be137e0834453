//! Questions of a server in the middle of a call, read into a question that a person can be shown.
//!
//! Texts, schemas and addresses are a server's: each has a bound, and a question beyond one of them is put to nobody.
//! Nothing is answered here, and no address is opened.

pub mod read;
mod schema;
mod secrets;

use rmcp::model::{ElicitRequestParams, InputRequiredResult};
use serde_json::Value;

use crate::domain::approval::CallContinuation;
use crate::ports::tool::NeededInput;

pub use crate::ports::tool::mcp::input::read::asked_key;

/// The way by which a server asks.
#[derive(Debug, Clone)]
pub enum Asked {
    /// `input_required` with requests.
    Result(InputRequiredResult),
    /// The error -32042 with its data, which names pages.
    UrlRequired(Option<Value>),
    /// `elicitation/create` in the middle of the call.
    Live(Vec<ElicitRequestParams>),
}

/// Why nobody is asked, in a sentence for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRefusal(pub String);

/// Reads the question of a tool of a server; `before`: the answer with which the call went on already.
///
/// # Errors
/// It is one that can't be put to a person.
pub fn needed(
    asked: Asked,
    server: &str,
    tool: &str,
    before: Option<&CallContinuation>,
) -> Result<NeededInput, InputRefusal> {
    let refused = |why: String| {
        InputRefusal(format!("the tool `{tool}` of `{server}` asks a person, and nobody is asked: {why}"))
    };
    read::question(asked, server, before).map_err(refused)
}

/// The texts of a question that are kept and sent as they came: a known secret must be in none of them.
pub fn kept_texts(needed: &NeededInput) -> Vec<String> {
    let question = &needed.question;
    let mut texts: Vec<&str> = question.parts.iter().map(|part| part.key.as_str()).collect();
    texts.extend(question.links().map(|(url, _)| url));
    texts.extend(question.field_names());
    texts.extend(schema::choices(&needed.form.parameters));
    let joined = texts.join("\n");
    question.request_state().into_iter().chain([joined]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusal_names_the_tool_and_its_server() {
        let refused = needed(Asked::Live(Vec::new()), "shop", "order", None).unwrap_err();
        assert_eq!(
            refused.0,
            "the tool `order` of `shop` asks a person, and nobody is asked: it does not say what it asks for"
        );
    }

    #[test]
    fn texts_that_are_kept_are_state_keys_addresses_names_and_choices() {
        let asked: InputRequiredResult = serde_json::from_value(json!({
            "resultType": "input_required",
            "requestState": "st\0ate",
            "inputRequests": {
                "one": { "method": "elicitation/create", "params": {
                    "mode": "form", "message": "Which?",
                    "requestedSchema": { "type": "object", "properties": {
                        "color": { "type": "string", "enum": ["red", "green"] },
                        "sizes": { "type": "array", "items": { "anyOf": [{ "const": "s", "title": "Small" }] } },
                    } },
                } },
                "two": { "method": "elicitation/create", "params": {
                    "mode": "url", "message": "Go.", "url": "https://example.org/a",
                } },
            },
        }))
        .unwrap();
        let needed = needed(Asked::Result(asked), "shop", "order", None).unwrap();
        let kept = kept_texts(&needed);
        assert_eq!(kept[0], "st\0ate");
        assert_eq!(kept[1], "one\ntwo\nhttps://example.org/a\ncolor\nsizes\nred\ngreen\ns");
    }
}
