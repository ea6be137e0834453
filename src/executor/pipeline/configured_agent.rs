//! Configured agents as people see them: what one is for, and what it can do.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::AgentDefinition;
use crate::agent::configured::agent_tool::StepAgent;
use crate::agent::configured::fields::FieldRules;
use crate::executor::pipeline::Pipeline;
use crate::ports::tool::Tool;
use crate::ports::tool::access::ToolLimits;

/// An entry of `[[agents]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredAgent<'a> {
    /// The name by which steps call it.
    pub name: &'a str,
    /// Its purpose.
    pub description: &'a str,
    /// Whether other agents may call it.
    pub is_exposed: bool,
    /// Whether a person has to agree each time before it works, for another agent or in a step.
    pub needs_approval: bool,
    /// JSON Schema of its fields.
    pub fields: Value,
    /// One of `[llm.models]`; `None`: the default.
    pub model: Option<&'a str>,
    /// Whether that model is there.
    pub has_model: bool,
    /// The tools that it may use.
    pub limits: ToolLimits,
}

impl Pipeline {
    /// The agent of this name, as a tool, that steps alone may call, if it takes fields of this version.
    pub fn agent_of_steps(&self, name: &str, version: &str) -> Option<Arc<dyn Tool>> {
        let StepAgent { agent, .. } = self.0.agents.get(name)?;
        let is_meant = !agent.configured.expose_as_tool && agent.schema_version() == version;
        is_meant.then(|| Arc::clone(agent) as Arc<dyn Tool>)
    }

    /// All configured agents, in order.
    pub fn configured_agents(&self) -> impl Iterator<Item = ConfiguredAgent<'_>> {
        self.0.agents.iter().map(|agent: &AgentDefinition| ConfiguredAgent {
            name: &agent.name,
            description: &agent.description,
            is_exposed: agent.expose_as_tool,
            needs_approval: agent.approval,
            fields: FieldRules::schema(&agent.fields),
            model: agent.model.as_deref(),
            has_model: self.0.agent.models.has(agent.model.as_deref()),
            limits: agent.limits(),
        })
    }
}
