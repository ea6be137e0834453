//! The transcript of a run as it was said: the beginning of each text, one entry after the other.

use chrono::SecondsFormat;
use serde_json::{Value, json};

use crate::http::ui::work::run::cut::cut_text;
use crate::http::ui::work::run::entry::RunEntry;
use crate::http::ui::work::run::sections::sections;
use crate::http::ui::work::run::words::words;

/// Entries of a page.
pub const ENTRIES: u32 = 50;
/// Bytes of the texts of an entry that the page shows, together.
const TEXT_BYTES: usize = 1_000;

/// The entries as the template shows them: `[{seq, kind, label, agent, at, failed, texts}]`.
pub fn said(entries: &[Value], from: u32) -> Vec<Value> {
    entries.iter().filter_map(RunEntry::of).map(|entry| view(&entry, from)).collect()
}

fn view(entry: &RunEntry, from: u32) -> Value {
    let words = words(entry);
    let mut room = TEXT_BYTES;
    let texts = sections(entry, None).into_iter().map(|section| {
        let cut = cut_text(&section.text, room);
        room -= cut.shown.len();
        json!({ "name": section.name, "shown": cut.shown, "is_cut": cut.is_cut, "bytes": section.text.len() })
    });
    json!({
        "seq": entry.seq,
        "kind": words.kind,
        "label": words.label,
        "agent": entry.agent(),
        "at": entry.at.to_rfc3339_opts(SecondsFormat::Millis, true),
        "failed": entry.is_failure(),
        "texts": texts.collect::<Vec<_>>(),
        "href": format!("?view=transcript&from={from}&row={}#detail", entry.seq),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_an_entry_share_its_room() {
        let call = |id: &str| json!({ "id": id, "name": "look", "args": { "text": "x".repeat(TEXT_BYTES) } });
        let entry = json!({ "seq": 7, "turn": 1, "at": "2026-11-21T00:00:00Z", "role": "assistant", "text": "I look.",
            "tool_calls": [call("a"), call("b")] });
        let texts = said(&[entry], 0).remove(0)["texts"].as_array().unwrap().clone();
        let bytes: usize = texts.iter().map(|text| text["shown"].as_str().unwrap().len()).sum();
        assert!(texts.len() > 1 && bytes <= TEXT_BYTES, "{bytes} in {}", texts.len());
        assert_eq!(texts.last().unwrap()["is_cut"], true);
    }

    #[test]
    fn long_texts_are_cut_and_lead_to_the_whole() {
        let shown = |bytes: usize| {
            let entry = json!({ "seq": 7, "turn": 1, "at": "2026-11-21T00:00:00Z", "role": "tool", "name": "look",
                "content": "x".repeat(bytes), "is_error": true });
            said(&[entry], 0).remove(0)
        };
        let longer = shown(TEXT_BYTES + 1);
        let whole = |said: &Value| said["texts"][0]["is_cut"] == false;
        assert!(whole(&shown(TEXT_BYTES)) && !whole(&longer));
        assert_eq!((&longer["failed"], &longer["label"]), (&json!(true), &json!("look")));
        assert_eq!(longer["href"], "?view=transcript&from=0&row=7#detail");
    }
}
