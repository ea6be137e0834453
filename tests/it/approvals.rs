//! Approvals through the whole service: people are asked, reminded and told, and what they decide is what happens.

mod expiry;
mod links;
mod record;
