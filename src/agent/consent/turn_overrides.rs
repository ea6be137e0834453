//! Overrides of the matrix for the calls of one turn: read once, when the first of them is judged.

use std::collections::BTreeSet;

use tokio::sync::OnceCell;

use crate::agent::checkpoint::agent_store::{AgentStore, AppendError};
use crate::domain::approval::ApprovalOverride;
use crate::domain::run::ToolCall;

/// Overrides for the tools that a turn calls.
pub struct TurnOverrides<'a> {
    tools: Vec<&'a str>,
    read: OnceCell<Vec<ApprovalOverride>>,
}

impl<'a> TurnOverrides<'a> {
    /// Those of these calls; none is read yet.
    pub fn of(calls: &'a [ToolCall]) -> TurnOverrides<'a> {
        let tools: BTreeSet<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        TurnOverrides { tools: tools.into_iter().collect(), read: OnceCell::new() }
    }

    /// Those that hold for a tool. A read that fails is made again by the next call.
    pub async fn for_tool(
        &self,
        store: &dyn AgentStore,
        agent: Option<&str>,
        tool: &str,
    ) -> Result<Vec<ApprovalOverride>, AppendError> {
        let all = self.read.get_or_try_init(|| store.overrides(agent, &self.tools)).await?;
        Ok(all.iter().filter(|stored| stored.tool == tool).cloned().collect())
    }
}
