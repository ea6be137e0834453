//! Several runs at once: a page that shows what would be done, and the form that does it to the runs that were shown.

use std::collections::HashSet;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::run::RunState;
use crate::http::HttpState;
use crate::http::ui::frame::list::take_items;
use crate::http::ui::frame::{UiError, UiForm, UiList, UiResult, Visit};
use crate::http::ui::work::runs::{FILTERS, HREF};

/// Address of the page that retries runs.
pub(super) const RETRY: &str = "/ui/runs/bulk/retry";
/// Address of the page that cancels runs.
pub(super) const CANCEL: &str = "/ui/runs/bulk/cancel";

/// Runs that are shown, and done, at once.
const MOST: usize = 200;
/// Pages of the list that are read for them: one by a state may have few runs, and go on.
const PAGES_READ: usize = 5;
/// Requests that are made at once.
const AT_ONCE: usize = 8;
/// The field of a run's id.
const RUN: &str = "run";

/// An action on runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BulkAction {
    Retry,
    Cancel,
}

pub(super) fn routes() -> Router<HttpState> {
    Router::new().route(RETRY, get(preview_retry).post(retry_runs)).route(CANCEL, get(preview_cancel).post(cancel_runs))
}

async fn preview_retry(visit: Visit) -> UiResult {
    preview(visit, BulkAction::Retry).await
}

async fn preview_cancel(visit: Visit) -> UiResult {
    preview(visit, BulkAction::Cancel).await
}

async fn retry_runs(form: UiForm) -> UiResult {
    act(form, BulkAction::Retry).await
}

async fn cancel_runs(form: UiForm) -> UiResult {
    act(form, BulkAction::Cancel).await
}

/// The runs that fit the filters: those that the action is for, and the others with the reason why not. Changes
/// nothing.
async fn preview(visit: Visit, action: BulkAction) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    list.refuse_everything()?;
    let (runs, has_more) = newest(&visit, &list).await?;
    let (hit, left_out) = action.sorted(runs, list.get("state"));
    let page = json!({
        "word": action.word(),
        "list": list.view(HREF, Value::Null),
        "hit": hit,
        "left_out": left_out,
        "has_more": has_more,
        "may_change": visit.holds(Permission::RunsWrite),
        "action": list.href(action.href(), None),
        "back": list.href(HREF, None),
    });
    visit.show("runs_bulk.html", action.title(), page).await
}

/// Does it to each of the runs that the form names, and says of each what came of it.
async fn act(form: UiForm, action: BulkAction) -> UiResult {
    let ids = chosen(form.all(RUN))?;
    let mut results = Vec::with_capacity(ids.len());
    for some in ids.chunks(AT_ONCE) {
        let calls: Vec<_> = some.iter().map(|id| action.call(&form, id)).collect();
        results.extend(join_all(calls).await);
    }
    let failed = results.iter().filter(|result| result["problem"].is_string()).count();
    let page = json!({
        "word": action.word(),
        "results": results,
        "done": results.len() - failed,
        "failed": failed,
        "back": UiList::of(&form.visit, &FILTERS).href(HREF, None),
    });
    form.visit.show("runs_bulk.html", action.title(), page).await
}

/// The newest runs that fit the filters, [`MOST`] of them at most, and whether there may be more.
async fn newest(visit: &Visit, list: &UiList) -> Result<(Vec<Value>, bool), UiError> {
    let mut runs: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_READ {
        let mut query = list.filters();
        query.push(("limit", (MOST - runs.len()).to_string()));
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let mut answer = visit.get(&["v1", "runs"], &query).await?;
        runs.extend(take_items(&mut answer));
        cursor = answer["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || runs.len() >= MOST {
            break;
        }
    }
    Ok((runs, cursor.is_some()))
}

/// The ids of a form, each once.
///
/// # Errors
/// There are none, or more than are shown at once.
fn chosen<'f>(ids: impl Iterator<Item = &'f str>) -> Result<Vec<String>, UiError> {
    let mut seen = HashSet::new();
    let ids: Vec<String> = ids.filter(|id| seen.insert(*id)).take(MOST + 1).map(str::to_owned).collect();
    let refused = |title: &str, sentence: &str| UiError::new(StatusCode::UNPROCESSABLE_ENTITY, title, sentence);
    match ids.len() {
        0 => Err(refused("No run was chosen", "Go back and choose at least one run.")),
        1..=MOST => Ok(ids),
        _ => Err(refused("These are too many runs", &format!("Choose {MOST} runs at most."))),
    }
}

impl BulkAction {
    /// The operation of the API.
    fn word(self) -> &'static str {
        match self {
            BulkAction::Retry => "retry",
            BulkAction::Cancel => "cancel",
        }
    }

    fn title(self) -> &'static str {
        match self {
            BulkAction::Retry => "Retry runs",
            BulkAction::Cancel => "Cancel runs",
        }
    }

    fn href(self) -> &'static str {
        match self {
            BulkAction::Retry => RETRY,
            BulkAction::Cancel => CANCEL,
        }
    }

    /// The runs that it is for, and those that it is not for, which have their reason in `left_out`. The list was asked
    /// for the runs of one state, or of any.
    fn sorted(self, runs: Vec<Value>, asked: Option<&str>) -> (Vec<Value>, Vec<Value>) {
        let (mut hit, mut left_out) = (Vec::new(), Vec::new());
        for mut run in runs {
            match self.refusal(&run, asked) {
                None => hit.push(run),
                Some(why) => {
                    run["left_out"] = why.into();
                    left_out.push(run);
                }
            }
        }
        (hit, left_out)
    }

    /// Why a run is left out.
    fn refusal(self, run: &Value, asked: Option<&str>) -> Option<&'static str> {
        let Some(state) = run["state"].as_str().and_then(RunState::parse) else {
            return Some("its state is not known");
        };
        match self {
            BulkAction::Cancel => state.is_final().then_some("it has ended, so it can’t be cancelled"),
            BulkAction::Retry if !state.is_final() => Some("it has not ended, so it can’t be retried yet"),
            BulkAction::Retry if run["task_name"].is_null() => Some("its task was deleted"),
            BulkAction::Retry if state == RunState::Succeeded && asked != Some(state.as_str()) => {
                Some("it has succeeded; filter by this state to run such runs again")
            }
            BulkAction::Retry => None,
        }
    }

    /// The outcome for one run. However often the form is sent, it takes effect once.
    async fn call(self, form: &UiForm, id: &str) -> Value {
        let key = form.key().map(|key| format!("{key}:{id}"));
        match form.visit.post(&["v1", "runs", id, self.word()], json!({}), key.as_deref()).await {
            Ok(run) => json!({ "id": id, "run_id": run["id"], "state": run["state"] }),
            Err(error) if error.status == 404 => json!({ "id": id, "problem": "There is no such run." }),
            Err(error) => json!({ "id": id, "problem": UiError::from(error).sentence() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(state: &str, task_name: Option<&str>) -> Value {
        json!({ "state": state, "task_name": task_name })
    }

    #[test]
    fn runs_that_can_not_be_retried_or_cancelled_are_left_out_with_a_reason() {
        let is_hit = |action: BulkAction, state: &str| action.refusal(&run(state, Some("Mail")), None).is_none();
        for state in RunState::ALL {
            let word = state.as_str();
            assert_eq!(is_hit(BulkAction::Cancel, word), !state.is_final(), "{word}");
            let is_retried = state.is_final() && state != RunState::Succeeded;
            assert_eq!(is_hit(BulkAction::Retry, word), is_retried, "{word}");
        }
        let retry = BulkAction::Retry;
        assert_eq!(retry.refusal(&run("succeeded", Some("Mail")), Some("succeeded")), None);
        assert_eq!(retry.refusal(&run("failed", None), None), Some("its task was deleted"));
        let (hit, left_out) = retry.sorted(vec![run("failed", Some("a")), run("running", Some("b"))], None);
        assert_eq!((hit.len(), left_out.len()), (1, 1));
        assert_eq!(left_out[0]["left_out"], "it has not ended, so it can’t be retried yet");
    }

    #[test]
    fn as_many_runs_are_taken_at_once_as_are_shown_and_none_more() {
        let ids: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        let chosen = |count: usize| chosen(ids[..count].iter().map(String::as_str));
        assert_eq!(chosen(MOST).map(|ids| ids.len()), Ok(MOST));
        for count in [0, MOST + 1] {
            assert_eq!(chosen(count).unwrap_err().status, StatusCode::UNPROCESSABLE_ENTITY, "{count}");
        }
        assert_eq!(super::chosen(["a", "b", "a"].into_iter()), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }
}
