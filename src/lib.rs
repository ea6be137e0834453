//! Reveille wakes AI agents.
pub mod clock;
pub mod id;
pub mod invalid;
pub mod run;
pub mod task;
pub mod trigger;
