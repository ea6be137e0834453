//! Assistant messages as their providers wrote them: kept with the answer, and sent back unchanged to the same model at
//! the same address.
//!
//! Owns the bound of what is kept, and how a message that comes in pieces is put together. A message that is too large,
//! or holds the key, is not kept, and goes back in our own words.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value};

use crate::base::secret::Secret;
use crate::domain::run::{ProviderMessage, TranscriptMessage};
use crate::ports::llm::settings::ModelSettings;

/// Largest message that is kept, in bytes.
pub const LIMIT: usize = 1024 * 1024;

/// Fields that name something: servers repeat them in every piece.
const SAID_ONCE: [&str; 5] = ["role", "id", "type", "name", "format"];

/// Bytes of the hash of an address.
const ADDRESS_BYTES: usize = 8;

/// A model as the author of its messages. Two models of one name at two addresses are two authors: what one has signed,
/// the other refuses.
#[derive(Debug, Clone)]
pub struct MessageAuthor {
    /// The protocol.
    pub wire: &'static str,
    /// The provider's name of the model.
    pub model: String,
    /// The hash of the address, without the account that it may name; `None`: it is not known.
    pub address: Option<String>,
}

impl MessageAuthor {
    /// The model of these settings, asked over this protocol.
    pub fn new(wire: &'static str, settings: &ModelSettings) -> MessageAuthor {
        let hash = |endpoint: String| {
            hex::encode(&digest(&SHA256, without_account(endpoint).as_bytes()).as_ref()[..ADDRESS_BYTES])
        };
        MessageAuthor { wire, model: settings.model.clone(), address: settings.endpoint().map(hash) }
    }

    /// A message that is to be kept; `None` where it can't be.
    pub fn keep(&self, raw: String, key: Option<&Secret>) -> Option<Arc<ProviderMessage>> {
        let shows_key = key.is_some_and(|key| !key.expose().is_empty() && raw.contains(key.expose()));
        if shows_key || raw.len() > LIMIT {
            tracing::warn!(model = %self.model, bytes = raw.len(), "a message of the model can't be kept as it was");
            return None;
        }
        let (model, address) = (self.model.clone(), self.address.clone());
        Some(Arc::new(ProviderMessage { wire: self.wire.to_owned(), model, address, raw }))
    }

    /// The message as this model wrote it; `None`: another wrote it, or it was not kept. One without an address was
    /// kept by an earlier release, and is taken for this model's.
    pub fn message_of<'m>(&self, message: &'m TranscriptMessage) -> Option<&'m str> {
        let TranscriptMessage::Assistant { provider_message: Some(kept), .. } = message else { return None };
        let is_there = kept.address.is_none() || kept.address == self.address;
        (kept.wire == self.wire && kept.model == self.model && is_there).then_some(kept.raw.as_str())
    }
}

/// An address without user and password, which change while the place stays.
fn without_account(endpoint: String) -> String {
    let Ok(mut url) = url::Url::parse(&endpoint) else { return endpoint };
    // refused for addresses that have no host, and so no account
    let _ = (url.set_username(""), url.set_password(None));
    url.to_string()
}

/// Adds a piece of a streamed message: texts go on, lists grow by their items, names are said once, and a field that
/// nobody knows is kept, too.
pub fn add(whole: &mut Map<String, Value>, piece: &Map<String, Value>) {
    for (name, value) in piece {
        let place = whole.entry(name.as_str()).or_insert(Value::Null);
        match (place, value) {
            (_, Value::Null) => {}
            (place @ Value::Null, Value::Array(items)) => {
                let mut list = Vec::new();
                items.iter().for_each(|item| add_item(&mut list, name, item));
                *place = Value::Array(list);
            }
            (Value::String(text), Value::String(more)) => {
                if text.is_empty() || !SAID_ONCE.contains(&name.as_str()) {
                    text.push_str(more);
                }
            }
            (Value::Object(fields), Value::Object(more)) => add(fields, more),
            (Value::Array(list), Value::Array(items)) => items.iter().for_each(|item| add_item(list, name, item)),
            (place, value) => *place = value.clone(),
        }
    }
}

/// Adds an item, or a piece of one: the one with its index, or from servers that send none, with its id. A piece of a
/// call that has neither is of the last call.
fn add_item(list: &mut Vec<Value>, name: &str, item: &Value) {
    let id = item["id"].as_str().filter(|id| !id.is_empty());
    let known = match (&item["index"], id) {
        (Value::Null, Some(id)) => list.iter_mut().find(|known| known["id"] == *id),
        (Value::Null, None) if name == "tool_calls" => list.last_mut(),
        (Value::Null, None) => None,
        (index, _) => list.iter_mut().find(|known| known["index"] == *index),
    };
    match (known, item) {
        (Some(Value::Object(fields)), Value::Object(piece)) => add(fields, piece),
        _ => list.push(item.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn put_together(pieces: &[Value]) -> Value {
        let mut whole = Map::new();
        pieces.iter().for_each(|piece| add(&mut whole, piece.as_object().unwrap()));
        Value::Object(whole)
    }

    #[test]
    fn account_in_an_address_is_no_part_of_the_author() {
        let at = |base_url: &str| {
            let base_url = Some(base_url.to_owned());
            MessageAuthor::new("openai", &ModelSettings { base_url, ..ModelSettings::default() }).address.unwrap()
        };
        assert_eq!(at("https://a:old@llm.example.org/v1"), at("https://b:new@llm.example.org/v1"));
        assert_ne!(at("https://llm.example.org/v1"), at("https://llm.example.com/v1"));
    }

    #[test]
    fn pieces_of_texts_lists_and_unknown_fields_become_one_message() {
        let call = |index: u64, piece: Value| {
            let mut call = json!({ "index": index });
            call.as_object_mut().unwrap().extend(piece.as_object().unwrap().clone());
            json!({ "tool_calls": [call] })
        };
        let whole = put_together(&[
            json!({ "role": "assistant", "content": null, "reasoning_content": "" }),
            json!({ "role": "assistant", "reasoning_content": "Let " }),
            json!({ "reasoning_content": "me see", "odd": { "a": 1, "b": ["x"] } }),
            json!({ "reasoning_content": null, "odd": { "a": 2, "b": ["y"] } }),
            call(0, json!({ "id": "c1", "type": "function", "function": { "name": "read", "arguments": "" } })),
            call(0, json!({ "id": "c1", "function": { "name": "read", "arguments": "{\"a\":" } })),
            call(
                1,
                json!({ "id": "c2", "function": { "name": "read", "arguments": "{}" }, "extra_content": { "s": "x" } }),
            ),
            call(0, json!({ "function": { "arguments": "1}" } })),
        ]);
        assert_eq!(
            whole,
            json!({
                "role": "assistant", "content": null, "reasoning_content": "Let me see", "odd": { "a": 2, "b": ["x", "y"] },
                "tool_calls": [
                    { "index": 0, "id": "c1", "type": "function", "function": { "name": "read", "arguments": "{\"a\":1}" } },
                    { "index": 1, "id": "c2", "function": { "name": "read", "arguments": "{}" }, "extra_content": { "s": "x" } },
                ],
            })
        );
    }

    #[test]
    fn calls_without_an_index_are_told_apart_by_their_ids() {
        let whole = put_together(&[
            json!({ "tool_calls": [{ "id": "a", "function": { "arguments": "1" } }] }),
            json!({ "tool_calls": [{ "function": { "arguments": "2" } }] }),
            json!({ "tool_calls": [{ "id": "b", "function": { "arguments": "3" } }] }),
        ]);
        let calls =
            json!([{ "id": "a", "function": { "arguments": "12" } }, { "id": "b", "function": { "arguments": "3" } }]);
        assert_eq!(whole, json!({ "tool_calls": calls }));
    }

    #[test]
    fn message_is_kept_up_to_its_limit_and_never_with_the_key() {
        let (key, author) = (Secret::new("sk-canary"), author("w", "m", None));
        assert!(author.keep("x".repeat(LIMIT), Some(&key)).is_some());
        assert!(author.keep("x".repeat(LIMIT + 1), Some(&key)).is_none());
        assert!(author.keep("my key is sk-canary".into(), Some(&key)).is_none());
    }

    fn author(wire: &'static str, model: &str, base_url: Option<&str>) -> MessageAuthor {
        let base_url = base_url.map(str::to_owned);
        let settings = ModelSettings { model: model.into(), base_url, ..ModelSettings::default() };
        MessageAuthor::new(wire, &settings)
    }

    #[test]
    fn message_goes_back_to_the_model_that_wrote_it_alone() {
        let (own, elsewhere) = (author("w", "m", None), author("w", "m", Some("https://ann:canary@proxy.internal/v1")));
        let said = |author: &MessageAuthor| {
            let provider_message = author.keep("{}".into(), None);
            TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message, finish: None }
        };
        let message = said(&own);
        assert_eq!(own.message_of(&message), Some("{}"));
        let same = author("w", "m", Some("https://api.openai.com/v1/"));
        assert_eq!(same.message_of(&message), Some("{}"), "the provider's own address, written out");
        for other in [author("w", "n", None), author("v", "m", None), elsewhere.clone()] {
            assert_eq!(other.message_of(&message), None, "{other:?}");
        }
        let message = said(&elsewhere);
        assert_eq!((elsewhere.message_of(&message), own.message_of(&message)), (Some("{}"), None));
        assert!(!format!("{message:?}").contains("canary"), "{message:?}");
    }

    #[test]
    fn message_that_was_kept_without_an_address_goes_back_as_before() {
        let kept: ProviderMessage = serde_json::from_str(r#"{"wire":"w","model":"m","raw":"{}"}"#).unwrap();
        let provider_message = Some(Arc::new(kept));
        let message = TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message, finish: None };
        for base_url in [None, Some("https://proxy.internal/v1")] {
            assert_eq!(author("w", "m", base_url).message_of(&message), Some("{}"));
        }
        assert_eq!(author("w", "n", None).message_of(&message), None);
    }
}
