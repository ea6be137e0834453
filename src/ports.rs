//! Ports to the outside: a trait and a list each, one file per adapter.

pub mod bus;
pub mod channel;
pub mod egress;
pub mod llm;
pub mod poll;
pub mod skill;
pub mod tool;
pub mod vault;
