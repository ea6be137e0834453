//! Reveille wakes AI agents.
pub mod channel;
pub mod clock;
pub mod egress;
pub mod http;
pub mod id;
pub mod invalid;
pub mod metrics;
pub mod notification;
pub mod run;
pub mod secret;
pub mod task;
pub mod token;
pub mod trigger;
pub mod vault;
