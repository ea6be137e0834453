//! The dashboard: what agents did, what they do and what they will do, for people who would rather look.
//!
//! A page asks the API of this process in its reader's name, and a template shows the answers. So nothing is shown or
//! done here that the reader's token does not permit. All markup stands in the templates; the pages are whole without
//! the script, and the script adds live rows, keys and relative times.
//!
//! Reading order: `frame::session` knows the reader, `frame::visit` asks the API for them, `frame::list` reads the
//! address of a list, `frame::form` reads a form, `frame::render` shows a template; then a file per page in `work`
//! (tasks, runs, events), `people` (approvals, messages, conversations) and `operations` (tools, budgets, the system).

mod frame;
mod operations;
mod people;
mod work;

use axum::response::Redirect;
use axum::routing::get;
use axum::{Extension, Router};

use crate::http::HttpState;
use crate::http::in_process::InProcessApi;

/// The pages of the dashboard, which call this API.
pub(in crate::http) fn routes(api: InProcessApi) -> Router<HttpState> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/ui") }))
        .merge(frame::routes())
        .merge(work::routes())
        .merge(people::routes())
        .merge(operations::routes())
        .layer(Extension(api))
}
