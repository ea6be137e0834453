//! Startup warnings that do not keep the service from running.

use crate::agent::AgentDefinition;
use crate::base::invalid::did_you_mean;
use crate::ports::bus::Bus;
use crate::ports::skill::SkillSet;
use crate::store::Store;

/// The promise that tenants can't see each other has two walls; without the second one the service works on.
pub(super) async fn warn_of_role(store: &Store) -> anyhow::Result<()> {
    if store.facts().await?.above_row_security {
        tracing::warn!(
            "the database role is a superuser or has BYPASSRLS, so the database does not keep tenants apart; \
             give the service a role of its own: create role reveille login nosuperuser nobypassrls"
        );
    }
    Ok(())
}

/// Warns of a bus server that does not keep accepted events durably, as far as it is set up; the service works on
/// without it.
pub(super) async fn warn_of_bus(bus: &dyn Bus) {
    match bus.concerns().await {
        Ok(concerns) => concerns.iter().for_each(|concern| tracing::warn!("{concern}")),
        Err(error) => tracing::warn!(%error, "the event bus does not answer; it is asked again by itself"),
    }
}

/// Warns of skills that agents name and that are not there now: they may come, because folders are looked at again.
pub(super) fn warn_of_skills(agents: &[AgentDefinition], set: &SkillSet) {
    missing_skills(agents, set).iter().for_each(|missing| tracing::warn!("{missing}"));
}

/// Skills that agents name and that are not there, a sentence for each.
pub(crate) fn missing_skills(agents: &[AgentDefinition], set: &SkillSet) -> Vec<String> {
    let missing = |agent: &AgentDefinition| {
        let names = agent.skills.iter().flatten().filter(|name| set.find(name).is_none());
        let sentence = |name: &String| {
            let near = did_you_mean(name, set.names());
            format!("the agent `{}` names the skill `{name}`, which is not in [skills] dir{near}", agent.name)
        };
        names.map(sentence).collect::<Vec<_>>()
    };
    agents.iter().flat_map(missing).collect()
}
