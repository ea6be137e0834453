//! The agent: a message goes in, an answer comes out, and what it took is in the transcript.
//!
//! Owns the way of a message (prepare, judge, loop, account) and the ports it needs. Reaches storage only through
//! [`AgentStore`] and [`crate::tool::Host`]. What survives a crash is the transcript: see `react.rs`.

pub mod stop;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::run::stream::StreamEvent;
use crate::run::transcript::Entry;

pub use stop::{Stop, StopReason};

/// Hears what happens in a run while it happens. Must not block.
pub type Sink = Arc<dyn Fn(StreamEvent) + Send + Sync>;

/// Why the transcript could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another worker holds the run now: stop at once.
    #[error("the lease is lost")]
    LeaseLost,
    #[error("the store is unavailable")]
    Unavailable,
}

/// The transcript of one run, fenced by the lease under which it is executed.
pub trait AgentStore: Send + Sync {
    /// All entries, in order.
    fn load(&self) -> BoxFuture<'_, Result<Vec<Entry>, AppendError>>;

    /// Appends entries in one transaction. Once it has returned they are durable; when it failed with
    /// `Unavailable` they may be durable or not.
    fn append(&self, entries: Vec<Entry>) -> BoxFuture<'_, Result<(), AppendError>>;
}

/// What the channel can carry that will tell the answer; the model is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLimits {
    pub name: String,
    /// `plain`, `markdown`, `html`, …
    pub supported_formats: Vec<String>,
    /// In characters.
    pub max_response_length: Option<usize>,
}
