//! The call by which a configured agent came to speak in a run.

use serde::{Deserialize, Serialize};

/// Agents that call each other in one run, at most.
pub const MOST_DEEP: usize = 3;
/// Calls of agents in one run, at most.
pub const MOST_CALLS: usize = 100;

/// One call of a configured agent. Its entries are a conversation of their own within the transcript of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Delegation {
    /// The agents that were called, outermost first; the last one speaks.
    pub chain: Vec<String>,
    /// The caller's turn.
    pub turn: i64,
    /// The caller's id of the call.
    pub call_id: String,
}

impl Delegation {
    /// The agent that speaks.
    pub fn agent(&self) -> &str {
        self.chain.last().map_or("", String::as_str)
    }

    /// Whether this is the call of that turn, by whatever agents it came.
    pub fn is_call(&self, other: &Delegation) -> bool {
        self.turn == other.turn && self.call_id == other.call_id
    }
}
