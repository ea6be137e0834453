//! The agent: what goes over the wire to models, and how the loop behaves when models, tools and processes do not.

mod appends;
pub mod consent;
pub mod context;
mod data_files;
mod delegation;
mod gate;
pub mod harness;
mod http2;
mod inbox;
mod looping;
mod memory;
mod orchestrator;
mod output_levels;
mod repetition;
mod resume;
pub mod skills;
mod summaries;
mod task_changes;
pub mod tool_life;
mod tools;
mod turns;
mod verifiers;
pub mod wire;
