//! Validation of a configuration as a whole, without a database, a key or the network.
//!
//! `serve` builds from what stands here, and `check` asks for the faults alone, so neither refuses what the other
//! takes.

use std::path::Path;
use std::sync::Arc;

use crate::agent::AgentDefinition;
use crate::agent::configured::agent_tool::AgentTool;
use crate::app::faults_below;
use crate::base::clock::Clock;
use crate::base::invalid::ValidationErrors;
use crate::config::Config;
use crate::domain::approval::Policy;
use crate::engine::maintenance::housekeeping;
use crate::ports::bus;
use crate::ports::channel::ChannelRegistry;
use crate::ports::egress::Egress;
use crate::ports::llm::{Models, OwnEncoder, OwnModel};
use crate::ports::poll::Sources;
use crate::ports::skill::{Skill, SkillLibrary};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;
use crate::ports::tool::http::PreparedTool;
use crate::ports::tool::mcp::PreparedServer;
use crate::ports::tool::{self, Tool};
use crate::ports::vault::credentials::Credentials;
use crate::ports::vault::{Vault, WithoutKeys};

/// The parts that need nothing but the configuration.
pub struct ValidatedParts {
    /// Rules for outgoing requests.
    pub egress: Egress,
    /// Chains of models.
    pub models: Models,
    /// Approval rules.
    pub policy: Policy,
    /// The tools of `[[tools]]`.
    pub declared: Vec<PreparedTool>,
    /// The servers of `[[mcp_servers]]`.
    pub servers: Vec<Arc<PreparedServer>>,
}

/// Additions of an embedder that a configuration may name.
#[derive(Clone, Copy, Default)]
pub struct AppAdditions<'a> {
    /// Tools besides the built-in and declared ones.
    pub tools: &'a [Arc<dyn Tool>],
    /// Models besides those of `[llm.models]`.
    pub models: &'a [OwnModel],
    /// Encoders of models.
    pub encoders: &'a [OwnEncoder],
}

/// The names that a configuration makes known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredNames {
    /// Names of all tools, with those for skills whether there are skills or not; `server.*` stands for the tools of an
    /// MCP server.
    pub tools: Vec<String>,
    /// Names of all models.
    pub models: Vec<String>,
}

impl ValidatedParts {
    /// The names of all tools and models that there will be by this configuration.
    pub fn names(&self, config: &Config, added: AppAdditions<'_>) -> ConfiguredNames {
        let registry = tools(config, &self.egress, &self.declared, added.tools);
        let mut tools: Vec<String> = registry.iter().flat_map(|tools| tools.known_names()).map(str::to_owned).collect();
        tools.extend(SKILL_TOOLS.map(str::to_owned));
        ConfiguredNames { tools, models: self.models.names().map(str::to_owned).collect() }
    }
}

impl ConfiguredNames {
    /// The findings about a skill that names some of them.
    pub fn findings(&self, skill: &Skill) -> Vec<String> {
        fn names(names: &[String]) -> Vec<&str> {
            names.iter().map(String::as_str).collect()
        }
        skill.findings(&names(&self.tools), &names(&self.models))
    }
}

/// Judges a configuration with the tools and models that an embedder adds.
///
/// # Errors
/// Every fault that would refuse a start, whatever the state of database, keys and network. What depends on a faulty
/// part is not judged.
pub fn validate(
    config: &Config,
    data_dir: &Path,
    clock: &Clock,
    added: AppAdditions<'_>,
) -> Result<ValidatedParts, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let mut part = |place: &'static str, found: ValidationErrors| faults.0.extend(faults_below(place)(found).0);
    let egress = Egress::new(&config.egress).map_err(|found| part("/egress", found)).ok();
    let encoders = (&config.encoders, added.encoders);
    let models = Models::build_with(&config.llm, added.models, encoders, config.react.retry(), clock)
        .map_err(|found| part("/llm", found))
        .ok();
    let policy = Policy::new(&config.approvals).map_err(|found| part("/approvals", found)).ok();
    if let Err(why) = bus::check_address(&config.bus, clock) {
        part("/bus", ValidationErrors::one("/url", why));
    }
    if let Err(why) = housekeeping::times(&config.engine.housekeeping, clock.now()) {
        part("/engine", ValidationErrors::one("/housekeeping", why));
    }
    let mut unfound = ValidationErrors::new();
    config.skills.check(&mut unfound);
    OwnEncoder::check(added.encoders, &mut unfound);
    part("", unfound);
    let (mut declared, mut servers) = (None, None);
    if let Some(egress) = &egress {
        if let Err(found) = channels(config, egress) {
            part("/channels", found);
        }
        declared = tool::http::read(&config.tools, egress).map_err(|found| part("/tools", found)).ok();
        servers = tool::mcp::read(&config.mcp_servers, egress).map_err(|found| part("/mcp_servers", found)).ok();
    }
    let mut unfit = ValidationErrors::new();
    AgentDefinition::check_fields(&config.agents, &mut unfit);
    let are_fit = unfit.is_empty();
    part("", unfit);
    if let (Some(egress), Some(declared), true) = (&egress, &declared, are_fit) {
        match tools(config, egress, declared, added.tools) {
            Ok(tools) => with_tools(config, data_dir, egress, tools, models.as_ref(), &mut part),
            Err(why) => part("/tools", ValidationErrors::one("/tools", why)),
        }
    }
    match (egress, models, policy, declared, servers) {
        (Some(egress), Some(models), Some(policy), Some(declared), Some(servers)) if faults.is_empty() => {
            Ok(ValidatedParts { egress, models, policy, declared, servers })
        }
        _ => Err(faults),
    }
}

/// Checks the parts that name tools: polls, agents and the rules of approvals.
fn with_tools(
    config: &Config,
    data_dir: &Path,
    egress: &Egress,
    tools: tool::ToolRegistry,
    models: Option<&Models>,
    part: &mut impl FnMut(&'static str, ValidationErrors),
) {
    let names: Vec<&str> = tools.known_names().collect();
    let mut found = ValidationErrors::new();
    let declared: Vec<&str> = config.tools.iter().map(|tool| tool.name.as_str()).collect();
    tool::policy::check_named(&config.tool_policies, &tools.definitions().collect::<Vec<_>>(), &declared, &mut found);
    config.tool_access.check(&names, &mut found);
    let hidden = config.agents.iter().filter(|agent| !agent.expose_as_tool).map(|agent| agent.name.as_str());
    let callable: Vec<&str> = names.iter().copied().chain(hidden).collect();
    config.approvals.check_tools(&callable, &mut found);
    if let Some(models) = models {
        AgentDefinition::check(&config.agents, &names, &models.names().collect::<Vec<_>>(), &mut found);
    }
    part("", found);
    let tools = Arc::new(tools);
    if let Err(found) = Sources::new(&config.poll, &Credentials::none(egress.clone()), tools, data_dir) {
        part("/poll", found);
    }
}

/// All tools that there will be, with access to no credential. MCP servers have not listed theirs yet.
fn tools(
    config: &Config,
    egress: &Egress,
    declared: &[PreparedTool],
    added: &[Arc<dyn Tool>],
) -> Result<tool::ToolRegistry, String> {
    debug_assert_eq!(config.tools.len(), declared.len());
    let credentials = Credentials::none(egress.clone());
    let mut tools = tool::builtin::all(&credentials);
    if !config.skills.dirs().is_empty() {
        tools.extend(tool::builtin::skills::all(&SkillLibrary::empty()));
    }
    tools.extend(declared.iter().cloned().map(|tool| tool.with(&credentials)));
    tools.extend(AgentTool::all(&config.agents).into_iter().map(|agent| Arc::new(agent) as Arc<dyn Tool>));
    tools.extend(added.iter().cloned());
    let servers = config.mcp_servers.iter().map(|server| server.name.as_str());
    tool::ToolRegistry::new(tools).map(|registry| registry.with_servers(servers))
}

/// The channels are built for their faults alone: with a key that nobody keeps, and without Web Push, whose key may be
/// yet to be made.
fn channels(config: &Config, egress: &Egress) -> Result<(), ValidationErrors> {
    config.channels.push.check(WithoutKeys::Refuse)?;
    let vault = Vault::ephemeral().map_err(|error| ValidationErrors::one("", error.to_string()))?;
    ChannelRegistry::new(&config.channels, None, egress, &vault, config.server.public_url.as_deref()).map(drop)
}
