//! Parts of a service that are made of one section of the configuration each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::agent::configured::agent_tool::AgentTool;
use crate::app::foreign_keys::refuse_foreign_keys;
use crate::app::keys_without_setting;
use crate::app::warnings::warn_of_skills;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::config::Config;
use crate::domain::trigger::zone::{self, Zones};
use crate::ports::channel::push::Vapid;
use crate::ports::skill::SkillLibrary;
use crate::ports::tool::http::PreparedTool;
use crate::ports::tool::{self, Tool, ToolRegistry};
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::Credentials;
use crate::store::Store;

/// The vault, and its key file if it was made now. The log names that file as well: a later part may fail, and it is
/// made only once.
pub(super) fn open_vault(config: &Config, data_dir: &Path) -> anyhow::Result<(Vault, Option<PathBuf>)> {
    let (vault, key_file) = Vault::open(&config.vault, keys_without_setting(config, data_dir))?;
    if let Some(file) = &key_file {
        tracing::warn!("the key file {} was made; keep a copy, secrets can't be read without it", file.display());
    }
    Ok((vault, key_file))
}

/// The key that signs Web Push, if there is one.
pub(super) fn open_vapid(config: &Config, data_dir: &Path) -> anyhow::Result<Option<Vapid>> {
    let without = keys_without_setting(config, data_dir);
    let (vapid, made) = config.channels.push.vapid(without, &config.server.public_url())?;
    if let Some(file) = made {
        tracing::warn!("the key file {} was made; without it every browser has to subscribe again", file.display());
    }
    Ok(vapid)
}

/// Makes the process go by the newest rules of time zones that it finds, and shows which they are.
pub(super) async fn renew_zones(config: &Config, metrics: &Metrics) -> anyhow::Result<()> {
    let time = config.time.clone();
    let warnings = tokio::task::spawn_blocking(move || time.renew(&Zones::of_process())).await?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let zones = zone::current();
    metrics.zones(zones.release().as_str(), zones.source().as_str());
    Ok(())
}

/// The store, whose secrets the vault opens, with the limits of all tenants.
pub(super) async fn open_store(
    config: &Config,
    data_dir: &Path,
    clock: Clock,
    waiting: impl Fn(&str),
    vault: &Vault,
    metrics: &Metrics,
) -> anyhow::Result<Store> {
    let store = Store::open(&config.database, data_dir, clock, waiting).await?;
    refuse_foreign_keys(config, &store, vault).await?;
    store.set_default_quotas(&config.default_quotas()).await?;
    store.set_default_budgets(config.budgets);
    store.show_counts(metrics);
    Ok(store)
}

/// The skills of `[skills]`. Those that agents name and that are not there are warned of.
pub(super) async fn open_skills(config: &Config, clock: Clock) -> anyhow::Result<SkillLibrary> {
    let dirs = config.skills.dirs();
    let skills = tokio::task::spawn_blocking(move || SkillLibrary::open(dirs, clock)).await?;
    warn_of_skills(&config.agents, &skills.current());
    Ok(skills)
}

/// All tools of the start by their names: built-in ones, `declared` ones, agents, and those that an embedder has
/// `added`. Names below an MCP server are known before it lists its tools.
pub(super) fn open_tools(
    config: &Config,
    credentials: &Credentials,
    skills: &SkillLibrary,
    agents: &[Arc<AgentTool>],
    declared: Vec<PreparedTool>,
    added: Vec<Arc<dyn Tool>>,
) -> anyhow::Result<ToolRegistry> {
    let mut tools = tool::builtin::all(credentials);
    if skills.is_configured() {
        tools.extend(tool::builtin::skills::all(skills));
    }
    tools.extend(declared.into_iter().map(|tool| tool.with(credentials)));
    tools.extend(agents.iter().map(|agent| Arc::clone(agent) as Arc<dyn Tool>));
    tools.extend(added);
    let tools = ToolRegistry::new(tools).map_err(anyhow::Error::msg)?;
    let servers = config.mcp_servers.iter().map(|server| server.name.as_str());
    Ok(tools.governed(&config.all_tool_policies(), &config.tool_access).with_servers(servers))
}
