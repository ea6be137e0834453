//! Reveille wakes AI agents.
pub mod agent;
pub mod approval;
pub mod clock;
pub mod egress;
pub mod executor;
pub mod id;
pub mod invalid;
pub mod llm;
pub mod run;
pub mod secret;
pub mod task;
pub mod tool;
pub mod trigger;
