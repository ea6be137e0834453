//! The way of each request: limits, identity, body, query.

pub mod auth;
pub mod body;
pub mod guard;
pub mod host;
pub mod idempotency;
pub mod page;
pub mod path;
pub mod query;
pub mod wrong_tokens;
