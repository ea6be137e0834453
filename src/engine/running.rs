//! One run from its start to its recorded end.

pub(super) mod approval_reminder;
pub(super) mod credential_pause;
pub mod ending;
pub mod execution;
mod execution_budget;
pub(super) mod expirer;
pub mod finisher;
mod run_retry;
