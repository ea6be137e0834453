//! Links into a long transcript: to its first failure, and to its end.

use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};

use crate::http::in_process::CallError;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::{UiResult, Visit};
use crate::http::ui::work::run::entry::{RunEntry, text};
use crate::http::ui::work::run::pages::{ENTRIES, entries};

/// Parts of a transcript that are looked through for a failure: 10,000 entries.
const PARTS: usize = 50;
/// Entries that are shown before the one that a link leads to.
const BEFORE: u32 = 20;
/// Where the end of a transcript is looked for first; no transcript has more than [`MOST`].
const NEAR: u32 = 256;
/// More entries than a transcript has.
const MOST: u32 = 1 << 30;

/// Leads to the first entry that tells of a failure, or to how the run ended.
pub async fn to_first_failure(visit: Visit, Path(id): Path<String>) -> UiResult {
    let run = visit.get(&["v1", "runs", &id], &[]).await?;
    let id = text(&run["id"]);
    let place = match first_failure(&visit, id).await? {
        None => "#outcome".to_owned(),
        Some(seq) if seq < ENTRIES => format!("?row={seq}#row-{seq}"),
        Some(seq) => format!("?from={}&row={seq}#row-{seq}", seq.saturating_sub(BEFORE)),
    };
    Ok(to(id, &place))
}

/// Leads to the last entries.
pub async fn to_end(visit: Visit, Path(id): Path<String>) -> UiResult {
    let run = visit.get(&["v1", "runs", &id], &[]).await?;
    let id = text(&run["id"]);
    let from = count(&visit, id).await?.saturating_sub(ENTRIES);
    Ok(to(id, &if from == 0 { "#end".to_owned() } else { format!("?from={from}#end") }))
}

fn to(id: &str, place: &str) -> Response {
    secured(Redirect::to(&format!("/ui/runs/{id}{place}")).into_response())
}

async fn first_failure(visit: &Visit, id: &str) -> Result<Option<u32>, CallError> {
    let mut from = 0;
    for _ in 0..PARTS {
        let part = entries(visit, id, from, ENTRIES).await?;
        let failed = part.items.iter().filter_map(RunEntry::of).find(RunEntry::is_failure);
        if let Some(failed) = failed {
            return Ok(u32::try_from(failed.seq).ok());
        }
        let Some(next) = part.next else { break };
        from = next;
    }
    Ok(None)
}

/// How many entries the transcript has: they are numbered from 0 on, so that a few looks find the last one.
async fn count(visit: &Visit, id: &str) -> Result<u32, CallError> {
    let (mut known, mut beyond) = (0, NEAR);
    while beyond < MOST && has_entry(visit, id, beyond).await? {
        (known, beyond) = (beyond, beyond * 2);
    }
    while known < beyond {
        let middle = known + (beyond - known) / 2;
        match has_entry(visit, id, middle).await? {
            true => known = middle + 1,
            false => beyond = middle,
        }
    }
    Ok(known)
}

async fn has_entry(visit: &Visit, id: &str, seq: u32) -> Result<bool, CallError> {
    Ok(!entries(visit, id, seq, 1).await?.items.is_empty())
}
