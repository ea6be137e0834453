//! The page of a run, whole without the script.

use std::sync::Arc;

use axum::extract::Path;
use serde_json::{Value, json};

use crate::base::compute::steps_to_write;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::run::detail::detail;
use crate::http::ui::work::run::entry::text;
use crate::http::ui::work::run::head::{about, is_final};
use crate::http::ui::work::run::pages::{self, computed, number};
use crate::http::ui::work::run::related::{later_runs, repeated_runs, task_of, why};
use crate::http::ui::work::run::rows::{RunParts, head_of, parts_of, timeline_of};
use crate::http::ui::work::run::said;
use crate::http::ui::work::run::timeline::items_of;

/// Bytes that a transcript goes through for an entry, as far as its computing is shared out by them.
const ENTRY_BYTES: usize = 5_000;
/// Characters of an id that the title of a run without a task has.
const SHORT_ID: usize = 8;

/// A run: its head, its timeline or its transcript, and the details of a row.
pub async fn show_run(visit: Visit, Path(id): Path<String>) -> UiResult {
    let is_transcript = visit.query("view") == Some("transcript");
    let limit = if is_transcript { said::ENTRIES } else { pages::ENTRIES };
    let from = number(visit.query("from"));
    let parts = Arc::new(parts_of(&visit, &id, (from, limit)).await?);
    let selected = visit.query("row").and_then(|row| row.parse().ok());
    let id = text(&parts.run["id"]);
    let (task, earlier, later, why, detail) = tokio::join!(
        task_of(&visit, &parts.run),
        repeated_runs(&visit, &parts.run),
        later_runs(&visit, &parts.run),
        why(&visit, id),
        detail_of(&visit, &parts, selected),
    );
    let (timeline, transcript) = match is_transcript {
        true => (Value::Null, transcript_of(&visit, &parts).await?),
        false => (timeline_of(&visit, &parts, selected).await?, Value::Null),
    };
    let of_about = Arc::clone(&parts);
    let page = json!({
        "id": id,
        "head": head_of(&visit, &parts).await?,
        "about": visit.compute(steps_to_write(&parts.run), move || about(&of_about.run)).await?,
        "task": task,
        "earlier": earlier,
        "later": later,
        "why": why,
        "from": from,
        "is_transcript": is_transcript,
        "timeline": timeline,
        "transcript": transcript,
        "detail": detail,
        "is_live": !is_transcript && !is_final(&parts.run),
    });
    let title = title(&task, id);
    visit.show("run.html", title, page).await
}

fn title(task: &Value, id: &str) -> String {
    match task["name"].as_str() {
        Some(name) => format!("Run of {name}"),
        None => format!("Run {}", &id[..id.floor_char_boundary(SHORT_ID)]),
    }
}

/// The details of the selected row, or the problem with which they can't be shown; `null` where no row is selected.
async fn detail_of(visit: &Visit, parts: &RunParts, selected: Option<u32>) -> Value {
    let Some(seq) = selected else { return Value::Null };
    match detail(visit, text(&parts.run["id"]), seq, items_of(&parts.approvals)).await {
        Ok(detail) => detail,
        Err(problem) => json!({ "problem": problem.sentence() }),
    }
}

/// The transcript as it was said: `{entries, more}`, or `{problem}`.
async fn transcript_of(visit: &Visit, parts: &Arc<RunParts>) -> Result<Value, UiError> {
    let page = match &parts.part {
        Ok(page) => page,
        Err(problem) => return Ok(json!({ "problem": problem.sentence() })),
    };
    let (bytes, next, parts) = (page.items.len() * ENTRY_BYTES, page.next, Arc::clone(parts));
    let said = computed(visit, bytes, move || {
        let items = parts.part.as_ref().map_or(&[] as &[Value], |page| page.items.as_slice());
        said::said(items, parts.from)
    });
    Ok(json!({ "entries": said.await?, "more": next }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_that_of_the_task_where_the_reader_may_see_it() {
        assert_eq!(title(&json!({ "name": "Morning mail" }), "0199abcd-7"), "Run of Morning mail");
        assert_eq!(title(&json!({ "name": null }), "0199abcd-7"), "Run 0199abcd");
        assert_eq!(title(&Value::Null, "7"), "Run 7");
    }
}
