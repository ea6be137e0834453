//! Deliveries: their words, their attempts, and when an attempt has to wait.

pub(super) mod approval_links;
pub mod attempt;
pub mod breaker;
pub(super) mod hold_policy;
pub mod notifier;
pub(super) mod sending;
