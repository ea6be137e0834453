//! Reveille wakes AI agents.
pub mod channel;
pub mod cli;
pub mod clock;
pub mod config;
pub mod egress;
pub mod id;
pub mod invalid;
pub mod notification;
pub mod run;
pub mod secret;
pub mod task;
pub mod telemetry;
pub mod trigger;
pub mod vault;
