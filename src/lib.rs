//! Reveille wakes AI agents.
pub mod channel;
pub mod clock;
pub mod config;
pub mod egress;
pub mod engine;
pub mod id;
pub mod invalid;
pub mod notification;
pub mod run;
pub mod secret;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod trigger;
pub mod vault;
