//! The parts that all pipelines share.

use std::sync::Arc;

use crate::agent::Agent;
use crate::agent::configured::agent_tool::StepAgents;
use crate::base::compute::Compute;
use crate::ports::tool::{ToolCatalog, ToolRegistry};
use crate::ports::vault::credentials::Credentials;

/// The parts that all pipelines share.
pub struct StepParts {
    /// Credentials for requests.
    pub credentials: Credentials,
    /// The agent of `agent` steps, with its tools.
    pub agent: Agent,
    /// `[[agents]]`.
    pub agents: StepAgents,
    /// Names of the channels for `notify` steps.
    pub channels: Vec<String>,
    /// Threads for work that takes long.
    pub compute: Compute,
    /// The language of expressions.
    pub expressions: crate::base::expr::Language,
    /// The language of templates.
    pub templates: crate::base::template::TextTemplates,
}

impl StepParts {
    /// The tools that there are now, for `tool` steps.
    pub fn tools(&self) -> Arc<ToolRegistry> {
        self.agent.current_tools()
    }

    /// The list of these tools as it changes.
    pub fn catalog(&self) -> ToolCatalog {
        let Agent { catalog, tools, .. } = &self.agent;
        catalog.clone().unwrap_or_else(|| ToolCatalog::from(Arc::clone(tools)))
    }
}
