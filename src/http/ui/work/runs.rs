//! The list of runs. What is done to several of them at once is in `bulk`.

mod bulk;

use axum::Router;
use axum::routing::get;
use serde_json::json;

use crate::base::token::Permission;
use crate::domain::run::RunState;
use crate::http::HttpState;
use crate::http::ui::frame::{UiList, UiResult, Visit};

/// Address of the list.
const HREF: &str = "/ui/runs";
/// The filters of the list, by their names in the API.
const FILTERS: [&str; 5] = ["q", "state", "task_id", "since", "until"];

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_runs)).merge(bulk::routes())
}

async fn show_runs(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let view = list.ask(&visit, &["v1", "runs"], HREF).await?;
    let page = json!({
        "list": view,
        "states": RunState::WORDS,
        "may_change": visit.holds(Permission::RunsWrite),
        "retry": list.href(bulk::RETRY, None),
        "cancel": list.href(bulk::CANCEL, None),
    });
    visit.show("runs.html", "Runs", page).await
}
