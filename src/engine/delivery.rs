//! Deliveries: their words, their attempts, and the limits of both.

pub(super) mod approval_links;
pub mod attempt;
pub mod breaker;
pub(super) mod delivery_limiter;
pub(super) mod hold_policy;
pub mod notifier;
pub(super) mod sending;
