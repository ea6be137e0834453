//! Events, windows and polls: what becomes of them.

pub mod forwarder;
pub mod matcher;
pub mod watcher;
pub mod windows;
