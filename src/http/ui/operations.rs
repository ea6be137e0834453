//! Pages of what the operator looks after.

mod audit;
mod budgets;
mod skills;
mod system;
mod tools;
mod usage;
mod whole_list;

use axum::Router;

use crate::http::HttpState;

/// The pages of this section.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .merge(tools::routes())
        .merge(skills::routes())
        .merge(budgets::routes())
        .merge(usage::routes())
        .merge(audit::routes())
        .merge(system::routes())
}
