//! Assistant messages as their providers wrote them: kept with the answer, and sent back to the same model unchanged.
//!
//! Owns the bound of what is kept, and how a message that comes in pieces is put together. What is too large, or holds
//! the key, is not kept; the message then goes back in our own words.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::secret::Secret;
use crate::domain::run::{ProviderMessage, TranscriptMessage};

/// Largest message that is kept, in bytes.
pub const LIMIT: usize = 1024 * 1024;

/// Fields that name something: servers repeat them in every piece.
const SAID_ONCE: [&str; 5] = ["role", "id", "type", "name", "format"];

/// A message that is to be kept; `None` where it can't be.
pub fn new(wire: &str, model: &str, raw: String, key: Option<&Secret>) -> Option<Arc<ProviderMessage>> {
    let shows_key = key.is_some_and(|key| !key.expose().is_empty() && raw.contains(key.expose()));
    if shows_key || raw.len() > LIMIT {
        tracing::warn!(model, bytes = raw.len(), "a message of the model can't be kept as it was");
        return None;
    }
    Some(Arc::new(ProviderMessage { wire: wire.to_owned(), model: model.to_owned(), raw }))
}

/// The message as this model wrote it; `None`: another wrote it, or it was not kept.
pub fn message_of<'a>(message: &'a TranscriptMessage, wire: &str, model: &str) -> Option<&'a str> {
    match message {
        TranscriptMessage::Assistant { provider_message: Some(provider_message), .. } => {
            (provider_message.wire == wire && provider_message.model == model).then_some(provider_message.raw.as_str())
        }
        _ => None,
    }
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
        let key = Secret::new("sk-canary");
        assert!(new("w", "m", "x".repeat(LIMIT), Some(&key)).is_some());
        assert!(new("w", "m", "x".repeat(LIMIT + 1), Some(&key)).is_none());
        assert!(new("w", "m", "my key is sk-canary".into(), Some(&key)).is_none());
    }

    #[test]
    fn message_goes_back_to_the_model_that_wrote_it_alone() {
        let provider_message = new("w", "m", "{}".into(), None);
        let message = TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message, finish: None };
        assert_eq!(message_of(&message, "w", "m"), Some("{}"));
        assert_eq!((message_of(&message, "w", "n"), message_of(&message, "v", "m")), (None, None));
    }
}
