//! `[[agents]]`: agents that others call as tools, and that steps of pipelines name instead of describing them.

pub mod agent_field;
pub mod agent_tool;
pub mod fields;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::configured::agent_field::AgentField;
use crate::agent::configured::fields::FieldRules;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, is_known_name};
use crate::domain::approval::PolicyRules;
use crate::domain::approval::settings::Override;
use crate::ports::tool::access::{ToolLimits, check_names};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;

/// One entry of `[[agents]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AgentDefinition {
    /// The name by which agents and steps call it.
    pub name: String,
    /// Its purpose, for models that may call it, and for people.
    #[serde(default)]
    pub description: String,
    /// Its role and way of working: the system message.
    pub instruction: String,
    /// The only tools that it may use; absent: all.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// Tools that it may not use.
    #[serde(default)]
    pub deny_tools: Vec<String>,
    /// One of `[llm.models]`; absent: the default.
    #[serde(default)]
    pub model: Option<String>,
    /// Facts that it needs to be told: the parameters of the tool as which it is called, and the `args` of a step.
    #[serde(default)]
    pub fields: Vec<AgentField>,
    /// The only skills that it may use; absent: all.
    #[serde(default)]
    pub skills: Option<Vec<String>>,
    /// Whether other agents may call it as a tool. Steps of pipelines may in any case.
    #[serde(default = "yes")]
    pub expose_as_tool: bool,
    /// Whether a person has to agree each time before it works: for another agent, or in a step of a pipeline.
    #[serde(default)]
    pub approval: bool,
    /// How long a call of it, or a step, may take, in seconds; absent: as `[react] agent_tool_execution_timeout` says.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// Turns with tools; absent: as `[react]` says.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// Overrides for named tools when this agent calls them. They outweigh the settings of the operator and the tenant,
    /// and are outweighed by the task's.
    #[serde(default)]
    pub approvals: BTreeMap<String, Override>,
}

/// Longest name of an agent that is a tool: what providers of models take.
const LONGEST_NAME: usize = 64;

fn yes() -> bool {
    true
}

/// A configured agent as its calls are judged. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallingAgent {
    /// Name of the agent.
    pub name: Arc<str>,
    /// Its say in what people are asked about; `None`: it has none.
    pub rules: Option<Arc<PolicyRules>>,
}

impl AgentDefinition {
    /// Adds what is wrong with these as tools: their names, their fields. Pointers begin with `/agents`.
    pub fn check_fields(agents: &[AgentDefinition], faults: &mut ValidationErrors) {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        for (index, agent) in agents.iter().enumerate() {
            let place = format!("/agents/{index}");
            if agent.expose_as_tool && !(agent.name.len() <= LONGEST_NAME && agent.name.chars().all(fits)) {
                let message = format!(
                    "must be 1 to {LONGEST_NAME} letters, digits, `_` or `-`, because models call it; or set `expose_as_tool = false`"
                );
                faults.add(format!("{place}/name"), message);
            }
            if agent.timeout_seconds.is_some_and(|seconds| !(1..=3600).contains(&seconds)) {
                faults.add(format!("{place}/timeout_seconds"), "must be from 1 to 3600 seconds");
            }
            FieldRules::check(&agent.fields, &format!("{place}/fields"), faults);
        }
    }

    /// Adds what is wrong with these; pointers begin with `/agents`. `server.*` among the tools stands for every name
    /// below it.
    pub fn check(agents: &[AgentDefinition], tools: &[&str], models: &[&str], faults: &mut ValidationErrors) {
        for (index, agent) in agents.iter().enumerate() {
            let place = format!("/agents/{index}");
            if agent.name.trim().is_empty() {
                faults.add(format!("{place}/name"), "must not be empty");
            }
            if agents[..index].iter().any(|other| other.name == agent.name) {
                faults.add(format!("{place}/name"), format!("two agents are named `{}`", agent.name));
            }
            if !agent.expose_as_tool && is_known_name(&agent.name, tools) {
                let message = format!("there is a tool `{}`; rules for it would hold for the agent, too", agent.name);
                faults.add(format!("{place}/name"), message);
            }
            if agent.instruction.trim().is_empty() {
                faults.add(format!("{place}/instruction"), "must not be empty");
            }
            if agent.max_turns.is_some_and(|turns| !(1..=100).contains(&turns)) {
                faults.add(format!("{place}/max_turns"), "must be from 1 to 100");
            }
            check_names(&format!("{place}/tools"), agent.tools.as_deref().unwrap_or_default(), tools, faults);
            check_names(&format!("{place}/deny_tools"), &agent.deny_tools, tools, faults);
            if let Some(model) = agent.model.as_deref().filter(|model| !models.contains(model)) {
                let near = did_you_mean(model, models.iter().copied());
                faults.add(format!("{place}/model"), format!("no model `{model}` in [llm.models]{near}"));
            }
            for tool in agent.approvals.keys().filter(|tool| !is_known_name(tool, tools)) {
                let near = did_you_mean(tool, tools.iter().copied());
                faults.add(format!("{place}/approvals/{}", escape(tool)), format!("unknown tool `{tool}`{near}"));
            }
            PolicyRules::compile(&agent.approvals, &format!("{place}/approvals"), faults);
        }
    }

    /// The tools that it may use: those that it names, and with skills those that read them.
    pub fn limits(&self) -> ToolLimits {
        let mut allow = self.tools.clone();
        if let Some(tools) = allow.as_mut().filter(|_| self.skills.as_ref().is_some_and(|skills| !skills.is_empty())) {
            tools.extend(SKILL_TOOLS.map(str::to_owned));
        }
        ToolLimits { allow, deny: self.deny_tools.clone() }
    }

    /// The names of the agents that have this tool, because they name it, or an agent that has it. Only those that may
    /// be called as tools count.
    pub fn holders<'a>(agents: &'a [AgentDefinition], tool: &str) -> Vec<&'a str> {
        let mut holders: Vec<&str> = Vec::new();
        loop {
            let has = |agent: &&AgentDefinition| {
                let mut named = agent.tools.iter().flatten().filter(|name| !agent.deny_tools.contains(name));
                named.any(|name| name == tool || holders.contains(&name.as_str()))
            };
            let is_other = |agent: &&AgentDefinition| !holders.contains(&agent.name.as_str());
            let more = agents.iter().filter(|agent| agent.expose_as_tool).filter(is_other).filter(has);
            let more: Vec<&str> = more.map(|agent| agent.name.as_str()).collect();
            if more.is_empty() {
                return holders;
            }
            holders.extend(more);
        }
    }

    /// The agent as its calls are judged. Rules that [`AgentDefinition::check`] found fault with ask a person.
    pub fn calling(&self) -> CallingAgent {
        let written = (!self.approvals.is_empty()).then_some(&self.approvals);
        let compile = |written| PolicyRules::compile(written, "/approvals", &mut ValidationErrors::new());
        CallingAgent { name: self.name.as_str().into(), rules: written.map(compile).map(Arc::new) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{self, ApprovalLevel, Category, Consequence, Policy, PolicyAct, RuleBy};

    fn agent(name: &str) -> AgentDefinition {
        let instruction = "You book tables.".into();
        AgentDefinition {
            name: name.into(),
            description: String::new(),
            instruction,
            tools: None,
            deny_tools: Vec::new(),
            model: None,
            fields: Vec::new(),
            skills: None,
            expose_as_tool: true,
            approval: false,
            timeout_seconds: None,
            max_turns: None,
            approvals: BTreeMap::new(),
        }
    }

    fn rules(written: serde_json::Value) -> BTreeMap<String, Override> {
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn names_are_unique_and_what_is_named_is_there() {
        let odd = AgentDefinition {
            instruction: " ".into(),
            tools: Some(vec!["current_tim".into()]),
            model: Some("mian".into()),
            max_turns: Some(0),
            approvals: rules(serde_json::json!({
                "current_tim": { "gate": "auto" },
                "current_time": { "gate": "confirm", "when": "args.zone ==" },
            })),
            ..agent("book")
        };
        let mut faults = ValidationErrors::new();
        AgentDefinition::check(&[agent("book"), odd], &["current_time"], &["main"], &mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        let (syntax, told) = told.split_last().unwrap();
        assert!(syntax.starts_with("/agents/1/approvals/current_time/when: "), "{syntax}");
        assert_eq!(
            told,
            [
                "/agents/1/name: two agents are named `book`",
                "/agents/1/instruction: must not be empty",
                "/agents/1/max_turns: must be from 1 to 100",
                "/agents/1/tools/0: unknown tool `current_tim`; did you mean `current_time`?",
                "/agents/1/model: no model `mian` in [llm.models]; did you mean `main`?",
                "/agents/1/approvals/current_tim: unknown tool `current_tim`; did you mean `current_time`?",
            ]
        );
        let mut faults = ValidationErrors::new();
        let sound = AgentDefinition {
            approvals: rules(serde_json::json!({ "current_time": { "gate": "auto", "when": "args.zone == 'UTC'" } })),
            ..agent("ask")
        };
        AgentDefinition::check(&[agent("book"), sound], &["current_time"], &[], &mut faults);
        assert_eq!(faults, ValidationErrors::new());
    }

    #[test]
    fn name_below_a_server_is_known_while_the_server_is_away() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let booker = AgentDefinition {
            tools: Some(names(&["github.search", "gitlab.search"])),
            deny_tools: names(&["github.delete_repository"]),
            approvals: rules(
                serde_json::json!({ "github.search": { "gate": "auto" }, "gitlab.a": { "gate": "auto" } }),
            ),
            ..agent("book")
        };
        let mut faults = ValidationErrors::new();
        AgentDefinition::check(&[booker], &["current_time", "github.*"], &[], &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/agents/0/tools/1", "/agents/0/approvals/gitlab.a"]);
    }

    #[test]
    fn rule_of_an_agent_that_can_not_be_read_asks_a_person() {
        let broken = serde_json::json!({ "current_time": { "gate": "auto", "when": "args.zone ==" } });
        let own = AgentDefinition { approvals: rules(broken), ..agent("book") }.calling().rules.unwrap();
        let act = PolicyAct {
            tool: "current_time",
            category: Category::Read,
            consequence: Consequence::Low,
            requires_confirmation: false,
            arguments: &serde_json::json!({ "zone": "UTC" }),
            tenant: "ann",
            credential: None,
        };
        let policy = Policy::new(&approval::Settings::default()).unwrap();
        assert_eq!(policy.decide(&act, &[]).gate, ApprovalLevel::Auto);
        assert_eq!(policy.decide(&act, &[(RuleBy::Agent, &*own)]).gate, ApprovalLevel::Confirm);
    }

    #[test]
    fn holders_of_a_tool_name_it_or_an_agent_that_has_it() {
        let with = |name: &str, tools: &[&str]| AgentDefinition {
            tools: Some(tools.iter().map(|tool| (*tool).to_owned()).collect()),
            ..agent(name)
        };
        let agents = [
            with("Head", &["Clerk"]),
            with("Clerk", &["a.read", "Head"]),
            with("Other", &["a.write"]),
            agent("All"),
            AgentDefinition { deny_tools: vec!["a.read".into()], ..with("Denied", &["a.read"]) },
            AgentDefinition { expose_as_tool: false, ..with("Inner", &["a.read"]) },
        ];
        assert_eq!(AgentDefinition::holders(&agents, "a.read"), ["Clerk", "Head"]);
        assert!(AgentDefinition::holders(&agents, "a.none").is_empty());
    }
}
