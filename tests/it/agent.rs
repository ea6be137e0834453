//! The agent: what goes over the wire to models, and how the loop behaves when models, tools and processes do not.

mod consent;
mod looping;
mod orchestrator;
mod resume;
pub mod stage;
mod tools;
mod wire;
