//! Reveille wakes AI agents.
pub mod clock;
pub mod config;
pub mod id;
pub mod invalid;
pub mod run;
pub mod task;
pub mod telemetry;
pub mod trigger;
