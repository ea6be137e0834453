//! Questions to people about calls: those that wait, those that were decided, and what is allowed for good.

mod answer;
mod line;
mod question;
mod standing;

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::http::HttpState;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::{UiList, UiResult, Visit};
use crate::http::ui::people::approvals::line::shorten;

/// Address of the list.
const HREF: &str = "/ui/approvals";
/// Filters of the list, as the API has them.
const FILTERS: [&str; 4] = ["status", "task_id", "run_id", "batch_id"];
/// Questions that wait and are shown before all others.
const WAITING: usize = 50;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/approvals", get(show_queue))
        .route("/ui/approvals/grants", get(standing::show_grants))
        .route("/ui/approvals/grants/{id}/revoke", post(standing::revoke_grant))
        .route("/ui/approvals/overrides", get(standing::show_overrides))
        .route("/ui/approvals/overrides/{id}/revoke", post(standing::remove_override))
        .route("/ui/approvals/{id}", get(question::show))
        .route("/ui/approvals/{id}/decision", post(answer::decide))
}

/// The questions that wait, and behind them those that were decided; with a state as a filter, those in it.
async fn show_queue(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let is_of_state = list.get("status").is_some();
    let waiting = async {
        match is_of_state || visit.query("cursor").is_some() {
            true => Value::Null,
            false => waiting(&visit, &list).await,
        }
    };
    let (view, waiting) = tokio::join!(list.ask(&visit, &["v1", "approvals"], HREF), waiting);
    let mut view = view?;
    if let Value::Array(items) = &mut view["items"] {
        items.retain(|approval| is_of_state || approval["status"] != "pending");
        items.iter_mut().for_each(shorten);
    }
    let lists = [&view["items"], &waiting["answer"]["items"]];
    let rows = lists.into_iter().filter_map(Value::as_array).flatten();
    let names = task_names(&visit, rows).await;
    let page = json!({ "list": view, "waiting": waiting, "is_of_state": is_of_state, "names": names });
    visit.show("approvals.html", "Approvals", page).await
}

/// The newest questions that wait, those first whose time is over first.
async fn waiting(visit: &Visit, list: &UiList) -> Value {
    let more = [("status", "pending".to_owned()), ("limit", WAITING.to_string())];
    let asked: Vec<(&str, String)> = list.filters().into_iter().chain(more).collect();
    let mut part = visit.part(&["v1", "approvals"], &asked).await;
    if let Value::Array(items) = &mut part["answer"]["items"] {
        items.sort_by_cached_key(|approval| approval["expires_at"].as_str().unwrap_or_default().to_owned());
        items.iter_mut().for_each(shorten);
    }
    part["all"] = more_href(list).into();
    part
}

/// Address of the list of all questions that wait, with the other filters.
fn more_href(list: &UiList) -> String {
    let own = list.href(HREF, None);
    let joint = if own.contains('?') { '&' } else { '?' };
    format!("{own}{joint}status=pending")
}
