//! Approvals: what people are asked over the API and on the page behind a link, and what their answers do.

mod api;
mod browser;
mod grants;
mod page;
mod safety;
pub mod stage;
