//! Pages of the work: today, tasks, runs, events and messages.

mod dead_letters;
mod deliveries;
mod events;
mod run;
mod runs;
mod tasks;
mod today;

use axum::Router;

use crate::http::HttpState;

/// The pages of this section.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .merge(today::routes())
        .merge(tasks::routes())
        .merge(runs::routes())
        .merge(run::routes())
        .merge(events::routes())
        .merge(dead_letters::routes())
        .merge(deliveries::routes())
}
