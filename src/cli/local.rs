//! Commands that work on this machine, without a service.

pub(super) mod bench;
pub(super) mod check;
pub(super) mod completions;
pub(super) mod demo;
pub(super) mod mcp_supervise;
pub(super) mod memory;
pub(super) mod migrate;
pub(super) mod schedule;
pub(super) mod serve;
pub(super) mod setup;
pub(super) mod version;
