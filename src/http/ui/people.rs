//! Pages of what people decide, are told and say.

mod approvals;
mod conversations;
pub(in crate::http::ui) mod credentials;
mod inbox;
mod memory;
mod recipients;

use axum::Router;

use crate::http::HttpState;

/// The pages of this section.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .merge(approvals::routes())
        .merge(inbox::routes())
        .merge(conversations::routes())
        .merge(memory::routes())
        .merge(recipients::routes())
        .merge(credentials::routes())
}
