//! The parts of a run that its page shows, and the rows of a part by themselves, for the script.

use std::sync::Arc;

use axum::extract::Path;
use serde_json::{Value, json};

use crate::base::compute::steps_to_write;
use crate::base::token::Permission;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::run::head::head;
use crate::http::ui::work::run::pages::{ENTRIES, EntryPage, computed, entries, number};
use crate::http::ui::work::run::timeline::{TimelineSource, items_of, timeline};

/// Approvals of a run, and messages about it, that its page shows.
const SHOWN: usize = 200;
/// Bytes of an entry without its texts, of which a timeline looks at the beginnings alone.
const ENTRY_BYTES: usize = 500;

/// A run, with the part of its transcript that a page shows.
pub struct RunParts {
    /// The run, as the API answers it.
    pub run: Value,
    /// The number of the first entry that was asked for.
    pub from: u32,
    /// The entries, or why there are none.
    pub part: Result<EntryPage, UiError>,
    /// Its approvals and questions, as [`Visit::part`] has them.
    pub approvals: Value,
    /// The messages about it, as [`Visit::part`] has them.
    pub deliveries: Value,
}

/// Asks for a run, and for entries of its transcript from `from` on.
///
/// # Errors
/// The reader may not see the run, or there is none.
pub async fn parts_of(visit: &Visit, id: &str, (from, limit): (u32, u32)) -> Result<RunParts, UiError> {
    let (path, asked) = (["v1", "runs", id], [("run_id", id.to_owned()), ("limit", SHOWN.to_string())]);
    let (run, part, approvals, deliveries) = tokio::join!(
        visit.get(&path, &[]),
        entries(visit, id, from, limit),
        visit.part(&["v1", "approvals"], &asked),
        visit.part(&["v1", "deliveries"], &asked),
    );
    Ok(RunParts { run: run?, from, part: part.map_err(UiError::from), approvals, deliveries })
}

/// The timeline of these parts, made in the reader's turn: as [`timeline()`] has it, or `{problem}`.
///
/// # Errors
/// It could not be made.
pub async fn timeline_of(visit: &Visit, parts: &Arc<RunParts>, selected: Option<u32>) -> Result<Value, UiError> {
    let page = match &parts.part {
        Ok(page) => page,
        Err(problem) => return Ok(json!({ "problem": problem.sentence() })),
    };
    let (bytes, now, parts) = (page.items.len() * ENTRY_BYTES, visit.now, Arc::clone(parts));
    computed(visit, bytes, move || {
        let none = EntryPage::default();
        let page = parts.part.as_ref().unwrap_or(&none);
        timeline(&TimelineSource {
            run: &parts.run,
            from: parts.from,
            entries: &page.items,
            next: page.next,
            approvals: items_of(&parts.approvals),
            deliveries: items_of(&parts.deliveries),
            now,
            selected: selected.map(i64::from),
        })
    })
    .await
}

/// The head of the run of these parts, made in the reader's turn.
///
/// # Errors
/// It could not be made.
pub async fn head_of(visit: &Visit, parts: &Arc<RunParts>) -> Result<Value, UiError> {
    let (may_write, now, steps) = (visit.holds(Permission::RunsWrite), visit.now, steps_to_write(&parts.run));
    let parts = Arc::clone(parts);
    visit.compute(steps, move || head(&parts.run, (&parts.approvals, &parts.deliveries), may_write, now)).await
}

/// The rows of a part, with the head of the run as it is now.
pub async fn show_rows(visit: Visit, Path(id): Path<String>) -> UiResult {
    let from = number(visit.query("from"));
    let parts = Arc::new(parts_of(&visit, &id, (from, ENTRIES)).await?);
    let page = json!({
        "id": parts.run["id"],
        "head": head_of(&visit, &parts).await?,
        "timeline": timeline_of(&visit, &parts, None).await?,
    });
    visit.show("run_rows.html", "Rows", page).await
}
