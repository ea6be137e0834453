//! `[[agents]]`: agents that steps of pipelines name instead of describing them.

use serde::{Deserialize, Serialize};

use crate::invalid::{Faults, did_you_mean};

/// One entry of `[[agents]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    /// What steps call it.
    pub name: String,
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// Who it is and how it works: its system message.
    pub instruction: String,
    /// The only tools that it may use; absent: all.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// One of `[llm.models]`; absent: the default.
    #[serde(default)]
    pub model: Option<String>,
    /// Turns with tools; absent: as `[react]` says.
    #[serde(default)]
    pub max_turns: Option<u32>,
}

impl Configured {
    /// Adds what is wrong with these; pointers begin with `/agents`.
    pub fn check(agents: &[Configured], tools: &[&str], models: &[&str], faults: &mut Faults) {
        for (index, agent) in agents.iter().enumerate() {
            let place = format!("/agents/{index}");
            if agent.name.trim().is_empty() {
                faults.add(format!("{place}/name"), "must not be empty");
            }
            if agents[..index].iter().any(|other| other.name == agent.name) {
                faults.add(format!("{place}/name"), format!("two agents are named `{}`", agent.name));
            }
            if agent.instruction.trim().is_empty() {
                faults.add(format!("{place}/instruction"), "must not be empty");
            }
            if agent.max_turns.is_some_and(|turns| !(1..=100).contains(&turns)) {
                faults.add(format!("{place}/max_turns"), "must be from 1 to 100");
            }
            for (at, tool) in agent.tools.iter().flatten().enumerate() {
                if !tools.contains(&tool.as_str()) {
                    let near = did_you_mean(tool, tools.iter().copied());
                    faults.add(format!("{place}/tools/{at}"), format!("unknown tool `{tool}`{near}"));
                }
            }
            if let Some(model) = agent.model.as_deref().filter(|model| !models.contains(model)) {
                let near = did_you_mean(model, models.iter().copied());
                faults.add(format!("{place}/model"), format!("no model `{model}` in [llm.models]{near}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> Configured {
        let instruction = "You book tables.".into();
        Configured {
            name: name.into(),
            description: String::new(),
            instruction,
            tools: None,
            model: None,
            max_turns: None,
        }
    }

    #[test]
    fn names_are_unique_and_what_is_named_is_there() {
        let odd = Configured {
            instruction: " ".into(),
            tools: Some(vec!["current_tim".into()]),
            model: Some("mian".into()),
            max_turns: Some(0),
            ..agent("book")
        };
        let mut faults = Faults::new();
        Configured::check(&[agent("book"), odd], &["current_time"], &["main"], &mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(
            told,
            [
                "/agents/1/name: two agents are named `book`",
                "/agents/1/instruction: must not be empty",
                "/agents/1/max_turns: must be from 1 to 100",
                "/agents/1/tools/0: unknown tool `current_tim`; did you mean `current_time`?",
                "/agents/1/model: no model `mian` in [llm.models]; did you mean `main`?",
            ]
        );
        let mut faults = Faults::new();
        Configured::check(&[agent("book")], &[], &[], &mut faults);
        assert_eq!(faults, Faults::new());
    }
}
