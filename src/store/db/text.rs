//! Texts as both databases keep them.
//!
//! Postgres takes no NUL, neither in `text` nor in `jsonb`; SQLite would. Models, tools and mail servers do send one
//! now and then, and a run must not hang on it, so each NUL is stored as U+FFFD, the replacement character, and reads
//! back the same from both. Everything that comes from outside is bound through here.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::types::{Json, JsonRawValue};

use crate::store::StoreError;

/// Text in the place of a NUL.
const REPLACEMENT: &str = "\u{FFFD}";
/// A NUL as serde_json writes it.
const NUL_ESCAPE: &str = "\\u0000";

/// A text without NUL.
pub(in crate::store) fn text(from: &str) -> Cow<'_, str> {
    if from.contains('\0') { Cow::Owned(from.replace('\0', REPLACEMENT)) } else { Cow::Borrowed(from) }
}

/// A text without NUL, which may be absent.
pub(in crate::store) fn optional(from: Option<&str>) -> Option<Cow<'_, str>> {
    from.map(text)
}

/// A document that is written already, for a JSON column. Cheap to copy.
#[derive(Debug, Clone)]
pub(in crate::store) struct StoredJson(Arc<JsonRawValue>);

impl StoredJson {
    /// A value as it is stored.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<StoredJson, StoreError> {
        Ok(StoredJson(document(value)?.0.into()))
    }

    /// Takes on what others have written.
    pub fn from_raw(raw: &Arc<JsonRawValue>) -> Result<StoredJson, StoreError> {
        match raw.get().contains(NUL_ESCAPE) {
            true => StoredJson::of(&**raw),
            false => Ok(StoredJson(Arc::clone(raw))),
        }
    }

    /// To be bound.
    pub fn json(&self) -> Json<&JsonRawValue> {
        Json(&self.0)
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.0.get().len()
    }

    /// The value that it is the JSON of; `None` where that is of another type.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.0.get()).ok()
    }
}

impl PartialEq for StoredJson {
    fn eq(&self, other: &StoredJson) -> bool {
        self.0.get() == other.0.get()
    }
}

/// A document for a JSON column, none of its texts and names with a NUL.
pub(in crate::store) fn document<T: Serialize + ?Sized>(value: &T) -> Result<Json<Box<JsonRawValue>>, StoreError> {
    let unwritable = |error: serde_json::Error| StoreError::Corrupt(format!("it can't be written as JSON: {error}"));
    let written = serde_json::value::to_raw_value(value).map_err(unwritable)?;
    if !written.get().contains(NUL_ESCAPE) {
        return Ok(Json(written));
    }
    JsonRawValue::from_string(without_nul(written.get())).map(Json).map_err(unwritable)
}

/// A document without NUL, which may be absent.
pub(in crate::store) fn optional_document<T: Serialize>(
    value: Option<&T>,
) -> Result<Option<Json<Box<JsonRawValue>>>, StoreError> {
    value.map(document).transpose()
}

/// Replaces the escapes that are one: in `\\u0000` the backslash itself is escaped.
fn without_nul(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        clean.push_str(before);
        if let Some(after) = escape.strip_prefix(NUL_ESCAPE) {
            clean.push_str(REPLACEMENT);
            rest = after;
        } else {
            // an escape is two bytes at least, both of them ASCII
            let (kept, after) = escape.split_at(2.min(escape.len()));
            clean.push_str(kept);
            rest = after;
        }
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn nul_becomes_the_replacement_character_and_nothing_else_changes() {
        assert_eq!(text("a\0b\0"), "a\u{FFFD}b\u{FFFD}");
        assert!(matches!(text("a\u{1}b\\u0000"), Cow::Borrowed("a\u{1}b\\u0000")));
    }

    #[test]
    fn document_that_others_have_written_is_the_same() {
        let value = json!({"a\0": "\0", "b": [1, "\\u0000"]});
        let raw: Arc<JsonRawValue> = serde_json::value::to_raw_value(&value).unwrap().into();
        assert_eq!(StoredJson::from_raw(&raw).unwrap(), StoredJson::of(&value).unwrap());
    }

    #[test]
    fn documents_lose_their_nuls_and_keep_what_only_looks_like_one() {
        let value = json!({"a\0": ["\0", "\\u0000", "\\\0\\", "é\"\n\u{1}"], "n": 1.5});
        let stored: Value = serde_json::from_str(document(&value).unwrap().0.get()).unwrap();
        assert_eq!(stored, json!({"a\u{FFFD}": ["\u{FFFD}", "\\u0000", "\\\u{FFFD}\\", "é\"\n\u{1}"], "n": 1.5}));
    }
}
