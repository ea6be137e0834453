//! Names of entries of a transcript in a timeline, and their texts in one line.

use serde_json::Value;

use crate::http::ui::work::run::cut::one_line;
use crate::http::ui::work::run::entry::{RunEntry, list, text};

/// Characters of a text that a row shows.
const LINE: usize = 70;
/// Arguments of a call of which a row shows any.
const ARGUMENTS: usize = 10;

/// An entry in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryWords {
    /// Kind of the row, which is a class of it, too.
    pub kind: &'static str,
    /// Name of what it is about: a model, a tool, a step.
    pub label: String,
    /// The beginning of its text.
    pub line: String,
}

/// The words of an entry.
pub fn words(entry: &RunEntry) -> EntryWords {
    let (kind, label, line) = match entry.role {
        "system" => ("instructions", String::new(), line(entry.text("text"))),
        "user" => ("message", source(entry), line(entry.text("text"))),
        "assistant" => ("model", text(&entry.json["model_call"]["model"]).to_owned(), answer(entry)),
        "tool" => ("tool", entry.text("name").to_owned(), line(entry.text("content"))),
        "unusable" => ("unusable", String::new(), format!("The answer could not be used: {}", entry.text("code"))),
        "verdict" => ("check", String::new(), findings(entry)),
        "compaction" => ("shortened", String::new(), shortened(entry)),
        "pipeline" => ("pipeline", String::new(), "Its steps begin".to_owned()),
        "step" => ("step", step(entry), String::new()),
        "step_result" => ("step", step(entry), outcome(entry)),
        other => ("entry", other.to_owned(), line(&entry.json.to_string())),
    };
    EntryWords { kind, label: one_line(&label, LINE), line }
}

/// The arguments of a call in one line: `to: ann, copies: 2`.
pub fn arguments_line(call: &Value) -> String {
    match &call["args"] {
        Value::Object(fields) => {
            let told = fields.iter().take(ARGUMENTS).map(|(name, value)| format!("{name}: {}", argument(value)));
            line(&told.collect::<Vec<_>>().join(", "))
        }
        args => argument(args),
    }
}

fn argument(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(written) => line(written),
        Value::Object(fields) => format!("{{{} fields}}", fields.len()),
        Value::Array(items) => format!("[{} items]", items.len()),
        value => value.to_string(),
    }
}

fn line(text: &str) -> String {
    one_line(text, LINE)
}

/// The origin of a message: the kind of a trigger, or nothing for a person.
fn source(entry: &RunEntry) -> String {
    text(&entry.json["metadata"]["trigger_type"]).to_owned()
}

/// The text of an answer, or the calls that it asks for.
fn answer(entry: &RunEntry) -> String {
    let said = entry.text("text");
    if !said.is_empty() {
        return line(said);
    }
    let names: Vec<&str> = entry.calls().iter().map(|call| text(&call["name"])).collect();
    if names.is_empty() { String::new() } else { line(&format!("calls {}", names.join(", "))) }
}

fn findings(entry: &RunEntry) -> String {
    let all = list(&entry.json["flags"]).iter().chain(list(&entry.json["warnings"]));
    let all: Vec<&str> = all.map(text).collect();
    if all.is_empty() { "Nothing was found".to_owned() } else { line(&all.join("; ")) }
}

fn shortened(entry: &RunEntry) -> String {
    let how = match entry.json["by"]["kind"].as_str() {
        Some("dropped") => "left out",
        Some("extracted") => "told by their essentials",
        Some("cut") => "cut",
        Some("summarised") => "summarised",
        _ => "shortened",
    };
    let (from, to) = (&entry.json["from"], &entry.json["to"]);
    format!("The model is shown the rows {from} to {to} {how}")
}

/// The name of a step; of an item of a list, `name:3` is the fourth.
fn step(entry: &RunEntry) -> String {
    match entry.json["index"].as_u64() {
        Some(index) => format!("{}:{index}", entry.text("name")),
        None => entry.text("name").to_owned(),
    }
}

fn outcome(entry: &RunEntry) -> String {
    let outcome = &entry.json["outcome"];
    match outcome["status"].as_str() {
        Some("done") => match &outcome["value"] {
            Value::Null => String::new(),
            Value::String(value) => line(value),
            value => line(&value.to_string()),
        },
        Some("again") => format!("To be tried again: {}", line(text(&outcome["error"]["message"]))),
        _ => line(text(&outcome["error"]["message"])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(mut entry: Value) -> (&'static str, String, String) {
        entry["seq"] = json!(7);
        entry["at"] = json!("2026-11-21T00:00:00Z");
        let words = words(&RunEntry::of(&entry).unwrap());
        (words.kind, words.label, words.line)
    }

    #[test]
    fn entries_are_named_by_what_they_are_about() {
        let of = |kind, label: &str, line: &str| (kind, label.to_owned(), line.to_owned());
        let call = json!({ "id": "c", "name": "look", "args": {} });
        let answer = json!({ "role": "assistant", "tool_calls": [call, call], "model_call": { "model": "main" } });
        assert_eq!(told(answer), of("model", "main", "calls look, look"));
        let result = json!({ "role": "tool", "name": "look", "content": "line\none" });
        assert_eq!(told(result), of("tool", "look", "line one"));
        let step = json!({ "role": "step_result", "name": "book", "index": 3,
            "outcome": { "status": "failed", "error": { "code": "x", "message": "No table" } } });
        assert_eq!(told(step), of("step", "book:3", "No table"));
        let verdict = json!({ "role": "verdict", "flags": ["R-0001: a secret"], "warnings": ["I-0001: long"] });
        assert_eq!(told(verdict), of("check", "", "R-0001: a secret; I-0001: long"));
        let less = json!({ "role": "compaction", "from": 3, "to": 9, "by": { "kind": "cut" } });
        assert_eq!(told(less).2, "The model is shown the rows 3 to 9 cut");
        assert_eq!(told(json!({ "role": "novel" })).1, "novel", "an entry of a newer release");
    }

    #[test]
    fn long_texts_are_one_short_line() {
        let (_, _, line) = told(json!({ "role": "tool", "name": "look", "content": "x".repeat(1 << 20) }));
        assert!(line.chars().count() <= LINE + 1 && line.ends_with('…'), "{line}");
        assert_eq!(arguments_line(&json!({ "args": {} })), "");
        let args = json!({ "args": { "copies": 2, "list": [1, 2], "more": { "a": 1 }, "to": "ann\nb" } });
        assert_eq!(arguments_line(&args), "copies: 2, list: [2 items], more: {1 fields}, to: ann b");
        assert_eq!(arguments_line(&json!({ "args": "{broken" })), "{broken");
    }
}
