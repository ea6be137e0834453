//! The texts of an entry of a transcript, each by itself: arguments, results, answers.

use serde_json::Value;

use crate::http::ui::frame::text::readable;
use crate::http::ui::work::run::entry::{RunEntry, list, text};

/// A text of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySection {
    /// Its name in addresses.
    pub part: String,
    /// Its name on the page.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// The texts of an entry, empty ones left out; of the result of a call with its arguments, where the call is known.
pub fn sections(entry: &RunEntry, call: Option<&Value>) -> Vec<EntrySection> {
    let json = entry.json;
    let mut found = match entry.role {
        "system" => vec![section("text", "Instructions", &json["text"])],
        "user" => vec![section("text", "Text", &json["text"]), section("metadata", "Origin", &json["metadata"])],
        "assistant" => answer(entry),
        "tool" => {
            let arguments = call.map_or(&Value::Null, |call| &call["args"]);
            vec![section("arguments", "Arguments", arguments), section("result", "Result", &json["content"])]
        }
        "unusable" => vec![section("text", "Why it could not be used", &json["code"])],
        "verdict" => vec![lines("flags", "Flags", &json["flags"]), lines("warnings", "Warnings", &json["warnings"])],
        "compaction" => vec![
            section("text", "Summary", &json["by"]["summary"]),
            lines("errors", "Errors of calls", &json["by"]["errors"]),
        ],
        "pipeline" => vec![section("state", "Stored values at the start", &json["state"])],
        "step" => Vec::new(),
        "step_result" => vec![
            section("result", "Value", &json["outcome"]["value"]),
            section("error", "Error", &json["outcome"]["error"]["message"]),
        ],
        _ => vec![section("entry", "Entry", json)],
    };
    found.retain(|section| !section.text.is_empty());
    found
}

fn answer(entry: &RunEntry) -> Vec<EntrySection> {
    let call = |(index, call): (usize, &Value)| {
        let name = format!("Call of {}", text(&call["name"]));
        EntrySection { part: format!("call-{index}"), name, text: readable(&call["args"]) }
    };
    let said = section("text", "Text", &entry.json["text"]);
    std::iter::once(said).chain(entry.calls().iter().enumerate().map(call)).collect()
}

fn section(part: &str, name: &str, value: &Value) -> EntrySection {
    EntrySection { part: part.to_owned(), name: name.to_owned(), text: readable(value) }
}

fn lines(part: &str, name: &str, texts: &Value) -> EntrySection {
    let all: Vec<&str> = list(texts).iter().map(text).collect();
    EntrySection { part: part.to_owned(), name: name.to_owned(), text: all.join("\n") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(mut entry: Value, call: Option<Value>) -> Vec<(String, String)> {
        entry["seq"] = json!(1);
        entry["at"] = json!("2026-11-21T00:00:00Z");
        let found = sections(&RunEntry::of(&entry).unwrap(), call.as_ref());
        found.into_iter().map(|section| (section.part, section.text)).collect()
    }

    #[test]
    fn each_text_of_an_entry_is_found_by_its_name() {
        let of = |part: &str, text: &str| (part.to_owned(), text.to_owned());
        let calls =
            json!([{ "id": "a", "name": "look", "args": { "n": 1 } }, { "id": "b", "name": "go", "args": "{bad" }]);
        let answer = json!({ "role": "assistant", "text": "One moment", "tool_calls": calls });
        let expected = [of("text", "One moment"), of("call-0", "{\n  \"n\": 1\n}"), of("call-1", "{bad")];
        assert_eq!(parts(answer, None), expected);
        let result = json!({ "role": "tool", "content": "noon" });
        assert_eq!(parts(result.clone(), None), [of("result", "noon")]);
        assert_eq!(parts(result, Some(json!({ "args": "now" }))), [of("arguments", "now"), of("result", "noon")]);
        let verdict = json!({ "role": "verdict", "flags": ["a", "b"], "warnings": [] });
        assert_eq!(parts(verdict, None), [of("flags", "a\nb")]);
        assert_eq!(parts(json!({ "role": "step" }), None), []);
        assert_eq!(parts(json!({ "role": "novel" }), None)[0].0, "entry", "an entry of a newer release");
    }
}
