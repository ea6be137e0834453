//! Suspended agents: runs that wait for people, listed, paused, resumed and cancelled.

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use serde_json::json;

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};

/// The address of the list.
const HREF: &str = "/ui/inbox/agents";

/// The pages.
pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route(HREF, get(show_agents))
        .route("/ui/inbox/agents/{run}/pause", post(pause))
        .route("/ui/inbox/agents/{run}/resume", post(resume))
        .route("/ui/inbox/agents/{run}/cancel", get(ask_to_cancel).post(cancel))
}

async fn show_agents(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &[]).ask(&visit, &["v1", "agents", "suspended"], HREF).await?;
    let rows = list["items"].as_array();
    let names = task_names(&visit, rows.into_iter().flatten()).await;
    let page = json!({ "list": list, "names": names, "may_write": visit.holds(Permission::RunsWrite) });
    visit.show("inbox_agents.html", "Suspended agents", page).await
}

async fn pause(Path(run): Path<String>, form: UiForm) -> UiResult {
    act(&form, &run, "pause", "paused").await
}

async fn resume(Path(run): Path<String>, form: UiForm) -> UiResult {
    act(&form, &run, "resume", "resumed").await
}

async fn cancel(Path(run): Path<String>, form: UiForm) -> UiResult {
    act(&form, &run, "cancel", "cancelled").await
}

/// Does something to an agent once, and leads back to the list.
async fn act(form: &UiForm, run: &str, act: &str, done: &'static str) -> UiResult {
    form.visit.post(&["v1", "agents", "suspended", run, act], json!({}), form.key()).await?;
    Ok(form.done(HREF, done))
}

async fn ask_to_cancel(Path(run): Path<String>, visit: Visit) -> UiResult {
    let found = visit.get(&["v1", "runs", &run], &[]).await?;
    let thing = format!("Run {run}, which is {}", found["state"].as_str().unwrap_or_default().replace('_', " "));
    let removal = Removal {
        title: "Cancel this agent?",
        thing: &thing,
        consequences: &[
            "Its run is cancelled with all agents that wait in it.",
            "What they ask is withdrawn, and nobody can answer it any more.",
        ],
        action: &address(&["ui", "inbox", "agents", &run, "cancel"], &[]),
        label: "Cancel the agent",
        back: HREF,
    };
    removal::ask(&visit, removal).await
}
