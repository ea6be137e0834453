//! The kinds of steps, a file each.

pub(super) mod agent;
pub(super) mod filter;
pub(super) mod for_each;
pub(super) mod http;
pub(super) mod llm;
pub(super) mod map;
pub(super) mod notify;
pub(super) mod publish;
pub(super) mod store;
pub(super) mod tool;
