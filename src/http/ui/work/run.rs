//! A run: its timeline, its transcript, and the details of a row.
//!
//! Reading order: `pages` asks for a part of the transcript, `entry` reads an entry of it, `scale` says where in the
//! run an instant is, `row` has the words of a row, `blocks` puts rows that belong together into blocks, and `timeline`
//! is the whole of them; `head` has what is told of the run itself, `page` and `rows` show it all, `detail` one row.

mod actions;
mod blocks;
mod cut;
mod detail;
mod entry;
mod export;
mod head;
mod jump;
mod live;
mod page;
mod pages;
mod raw;
mod related;
mod row;
mod rows;
mod said;
mod scale;
mod sections;
mod timeline;
mod words;

use axum::Router;
use axum::routing::{get, post};

use crate::http::HttpState;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/runs/{id}", get(page::show_run))
        .route("/ui/runs/{id}/rows", get(rows::show_rows))
        .route("/ui/runs/{id}/rows/{row}", get(detail::show_detail))
        .route("/ui/runs/{id}/rows/{row}/body", get(detail::show_body))
        .route("/ui/runs/{id}/text/{part}", get(head::show_text))
        .route("/ui/runs/{id}/failure", get(jump::to_first_failure))
        .route("/ui/runs/{id}/end", get(jump::to_end))
        .route("/ui/runs/{id}/live", get(live::follow_run))
        .route("/ui/runs/{id}/markdown", get(export::show_markdown))
        .route("/ui/runs/{id}/json", get(export::download_json))
        .route("/ui/runs/{id}/cancel", post(actions::cancel_run))
        .route("/ui/runs/{id}/retry", post(actions::retry_run))
}
