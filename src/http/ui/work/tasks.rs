//! Tasks: the list, the page of one with its past and future, why it did not fire, the editor, and what people do to
//! it.
//!
//! Reading order: `list` and `page` are what is looked at, `explanation` says why a task fires or does not, `strip`
//! places its instants on a line, `trigger_words` tells its rule; `editor` takes a draft, which `trial` tries out, and
//! `actions` are the buttons.

mod action_view;
mod actions;
mod draft;
mod editor;
mod explanation;
mod list;
mod long_texts;
mod page;
mod strip;
mod trial;
mod trigger_words;

use axum::Router;
use axum::routing::{get, post};

use crate::http::HttpState;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/tasks", get(list::show_tasks))
        .route("/ui/tasks/new", get(editor::show_new).post(editor::send_new))
        .route("/ui/tasks/{id}", get(page::show_task))
        .route("/ui/tasks/{id}/edit", get(editor::show_edit).post(editor::send_edit))
        .route("/ui/tasks/{id}/delete", get(actions::confirm_delete).post(actions::delete_task))
        .route("/ui/tasks/{id}/pause", post(actions::pause_task))
        .route("/ui/tasks/{id}/resume", post(actions::resume_task))
        .route("/ui/tasks/{id}/run", post(actions::run_task))
        .route("/ui/tasks/{id}/backfill", post(actions::backfill_task))
        .route("/ui/tasks/{id}/disable", post(actions::disable_task))
        .route("/ui/tasks/{id}/enable", post(actions::enable_task))
}
