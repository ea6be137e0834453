//! Parts of a transcript, as a page asks for them: never the whole. What is made of a long part is made in the turn of
//! the reader's tenant.

use serde_json::Value;

use crate::base::compute::steps_to_parse;
use crate::http::in_process::CallError;
use crate::http::request::ForwardPage;
use crate::http::ui::frame::{UiError, Visit};
use crate::http::ui::work::run::entry::list;

/// Entries that a timeline shows first, and each time that more are asked for; the API answers no more at once.
pub const ENTRIES: u32 = 200;

/// A part of a transcript.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EntryPage {
    /// The entries, as the API has them.
    pub items: Vec<Value>,
    /// The number with which the transcript goes on; `None`: these are the last.
    pub next: Option<u32>,
}

/// The entries of a run from this number on, `limit` at most.
///
/// # Errors
/// The problem with which the API answers.
pub async fn entries(visit: &Visit, id: &str, from: u32, limit: u32) -> Result<EntryPage, CallError> {
    let asked = [("cursor", ForwardPage::cursor(from)), ("limit", limit.to_string())];
    let answer = visit.get(&["v1", "runs", id, "transcript"], &asked).await?;
    Ok(read(answer))
}

fn read(mut answer: Value) -> EntryPage {
    let goes_on = answer["next_cursor"].is_string();
    let last = list(&answer["items"]).last().and_then(|last| last["seq"].as_u64());
    let next = last.filter(|_| goes_on).and_then(|last| u32::try_from(last + 1).ok());
    match answer["items"].take() {
        Value::Array(items) => EntryPage { items, next },
        _ => EntryPage::default(),
    }
}

/// The result of work that goes through so many bytes.
///
/// # Errors
/// The work panicked.
pub async fn computed<T: Send + 'static>(
    visit: &Visit,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, UiError> {
    visit.compute(steps_to_parse(bytes), work).await
}

/// A number of the address.
pub fn number(text: Option<&str>) -> u32 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_goes_on_behind_its_last_entry_and_the_last_one_does_not() {
        let of = |next: Value| read(json!({ "items": [{ "seq": 3 }, { "seq": 4 }], "next_cursor": next }));
        assert_eq!((of(json!("c")).next, of(json!("c")).items.len()), (Some(5), 2));
        assert_eq!(of(Value::Null).next, None);
        assert_eq!(read(json!({ "items": [], "next_cursor": null })), EntryPage::default());
        assert_eq!([number(Some("200")), number(Some("-1")), number(Some("x")), number(None)], [200, 0, 0, 0]);
    }
}
