//! A run to take along: as Markdown for people, as JSON for programs.
//!
//! Texts of models and tools stand in fences that are longer than any in them, so that none of them is markup.

use axum::extract::Path;
use axum::response::Response;
use serde_json::Value;

use crate::base::compute::steps_to_write;
use crate::base::unicode_safety::escape_hidden;
use crate::http::ui::frame::text::readable;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::run::cut::one_line;
use crate::http::ui::work::run::entry::{RunEntry, text};
use crate::http::ui::work::run::pages::{ENTRIES, computed, entries};
use crate::http::ui::work::run::raw::{MARKDOWN, json_file, raw};
use crate::http::ui::work::run::sections::sections;
use crate::http::ui::work::run::words::words;

/// Entries of a transcript that are exported.
const EXPORT_ENTRIES: u32 = 5_000;
/// Bytes after which an export goes on with no further part.
const EXPORT_BYTES: usize = 16_777_216;
/// Characters of a name that Markdown has.
const NAME: usize = 200;

/// The run as Markdown.
pub async fn show_markdown(visit: Visit, Path(id): Path<String>) -> UiResult {
    let run = visit.get(&["v1", "runs", &id], &[]).await?;
    let of_run = visit.compute(steps_to_write(&run), move || markdown_of_run(&run)).await?;
    let (mut written, rest) = written(&visit, &id, of_run, add_markdown).await?;
    if let Some(from) = rest {
        written += &format!("\n_The rows from {from} on are left out._\n");
    }
    Ok(raw(MARKDOWN, written))
}

/// The run as a file: `{"run": …, "transcript": […], "next_from": null}`; `next_from` is the number of the first entry
/// that is left out.
pub async fn download_json(visit: Visit, Path(id): Path<String>) -> Result<Response, UiError> {
    let run = visit.get(&["v1", "runs", &id], &[]).await?;
    let steps = steps_to_write(&run);
    let file = format!("run-{}.json", text(&run["id"]));
    let begin = move || format!("{{\"run\":{run},\"transcript\":[");
    let of_run = visit.compute(steps, begin).await?;
    let (written, rest) = written(&visit, &id, of_run, add_json).await?;
    let rest = rest.map_or("null".to_owned(), |from| from.to_string());
    Ok(json_file(&file, format!("{written}],\"next_from\":{rest}}}\n")))
}

/// The text with each entry added to it, and the number of the first entry that is left out.
async fn written(
    visit: &Visit,
    id: &str,
    mut text: String,
    add: fn(&mut String, &Value),
) -> Result<(String, Option<u32>), UiError> {
    let mut from = 0;
    while from < EXPORT_ENTRIES && text.len() < EXPORT_BYTES {
        let part = entries(visit, id, from, ENTRIES.min(EXPORT_ENTRIES - from)).await?;
        let work = move || {
            part.items.iter().for_each(|entry| add(&mut text, entry));
            text
        };
        text = computed(visit, usize::MAX, work).await?;
        match part.next {
            None => return Ok((text, None)),
            Some(next) => from = next,
        }
    }
    Ok((text, Some(from)))
}

fn add_json(to: &mut String, entry: &Value) {
    if !to.ends_with('[') {
        to.push(',');
    }
    *to += &entry.to_string();
}

fn markdown_of_run(run: &Value) -> String {
    let mut written = format!("# Run {}\n\n", code(text(&run["id"])));
    let facts = [
        ("State", "state"),
        ("Reason", "reason"),
        ("Tenant", "tenant_id"),
        ("Task", "task_id"),
        ("Trigger", "trigger_type"),
        ("Fire key", "fire_key"),
        ("Scheduled for", "scheduled_for"),
        ("Started", "started_at"),
        ("Finished", "finished_at"),
        ("Attempts", "attempt"),
        ("Cost in US dollars", "cost_usd"),
    ];
    for (name, field) in facts {
        let value = if field == "cost_usd" { &run["usage"][field] } else { &run[field] };
        if !value.is_null() {
            written += &format!("- {name}: {}\n", code(&readable(value)));
        }
    }
    for (name, value) in [("Error", &run["error"]["message"]), ("Input", &run["input"]), ("Output", &run["output"])] {
        if !value.is_null() {
            add_text(&mut written, name, &readable(value));
        }
    }
    written
}

fn add_markdown(to: &mut String, entry: &Value) {
    let Some(entry) = RunEntry::of(entry) else { return };
    let words = words(&entry);
    let label = if words.label.is_empty() { String::new() } else { format!(" {}", code(&words.label)) };
    let agent = entry.agent().map(|agent| format!(" of {}", code(agent))).unwrap_or_default();
    let failed = if entry.is_failure() { " (failed)" } else { "" };
    let at = entry.at.format("%Y-%m-%dT%H:%M:%S%.3fZ");
    *to += &format!("\n## {}: {}{label}{agent}{failed}\n\n{at}\n", entry.seq, words.kind);
    for section in sections(&entry, None) {
        add_text(to, &section.name, &section.text);
    }
}

/// A text below its name, in a fence that no line of it closes.
fn add_text(to: &mut String, name: &str, text: &str) {
    let fence = "`".repeat(longest_ticks(text).max(2) + 1);
    let name = match name.strip_prefix("Call of ") {
        Some(called) => format!("Call of {}", code(called)),
        None => name.to_owned(),
    };
    *to += &format!("\n{name}:\n\n{fence}\n{}\n{fence}\n", escape_hidden(text));
}

/// A short text as code within a line, without what would end it.
fn code(text: &str) -> String {
    format!("`{}`", escape_hidden(&one_line(text, NAME)).replace('`', "'"))
}

/// Length of the longest row of backticks.
fn longest_ticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_of_a_tool_ends_its_fence() {
        let content = "```\n# not a heading\n`````\n<script>\u{202e}";
        let entry = json!({ "seq": 3, "turn": 1, "at": "2026-11-21T00:00:00Z", "role": "tool", "name": "a`b\n# c",
            "content": content });
        let mut written = String::new();
        add_markdown(&mut written, &entry);
        let visible = content.replace('\u{202e}', "\u{27e6}U+202E\u{27e7}");
        assert!(written.contains(&format!("\n``````\n{visible}\n``````\n")), "{written}");
        assert!(written.starts_with("\n## 3: tool `a'b # c`\n\n2026-11-21T00:00:00.000Z\n"), "{written}");
    }

    #[test]
    fn file_of_json_is_one_document() {
        let mut written = String::from("{\"run\":{},\"transcript\":[");
        for seq in 0..2 {
            add_json(&mut written, &json!({ "seq": seq, "text": "[" }));
        }
        let read: Value = serde_json::from_str(&(written + "]}")).unwrap();
        assert_eq!(read["transcript"], json!([{ "seq": 0, "text": "[" }, { "seq": 1, "text": "[" }]));
    }

    #[test]
    fn run_is_told_in_facts_and_texts() {
        let run = json!({ "id": "7", "state": "failed", "attempt": 2, "usage": { "cost_usd": 0.5 }, "input": { "n": 1 },
            "error": { "code": "x", "message": "took `too` long" }, "output": null });
        let written = markdown_of_run(&run);
        for line in ["# Run `7`", "- State: `failed`", "- Attempts: `2`", "- Cost in US dollars: `0.5`"] {
            assert!(written.lines().any(|one| one == line), "{line} in {written}");
        }
        assert!(written.contains("Error:\n\n```\ntook `too` long\n```\n") && !written.contains("Output:"), "{written}");
    }
}
