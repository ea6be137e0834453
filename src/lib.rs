//! Reveille wakes AI agents.
pub mod clock;
pub mod http;
pub mod id;
pub mod invalid;
pub mod metrics;
pub mod run;
pub mod task;
pub mod token;
pub mod trigger;
