//! Approvals through the whole service: people are asked, reminded and told, over the API and on the page behind a
//! link, and what they decide is what happens.

mod api;
pub mod browser;
mod expiry;
mod flow;
mod grants;
pub mod harness;
mod inputs;
mod links;
mod of_steps;
mod overrides;
mod page;
mod record;
mod safety;
pub mod server_answers;
pub mod servers;
mod undo_window;
