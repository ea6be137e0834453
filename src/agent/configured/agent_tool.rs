//! A configured agent as a tool: its fields are the parameters, and a call of it is a message to the agent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::agent::configured::agent_field::{LONGEST_TEXT, TASK_INSTRUCTION};
use crate::agent::configured::fields::FieldRules;
use crate::agent::{AgentDefinition, CallingAgent};
use crate::base::invalid::did_you_mean;
use crate::base::json::length::is_longer_than;
use crate::base::template::untrusted::fenced;
use crate::domain::approval::{Category, Consequence, FieldFault, InputForm};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolFailure, ToolOutput, ToolRegistry, ToolSource};

/// Longest arguments of a call, in bytes as JSON.
const MOST_ARGUMENTS: usize = 256 * 1_024;
/// The end of the description of an agent that a person has to confirm.
const NEEDS_CONFIRMATION: &str = "[Requires user confirmation before execution]";

/// An agent of `[[agents]]` that others may call.
pub struct AgentTool {
    /// The agent as it is configured.
    pub configured: AgentDefinition,
    /// The agent as its calls are judged.
    pub calling: CallingAgent,
    definition: Definition,
    rules: FieldRules,
}

/// The agents of `[[agents]]` as steps of pipelines call them, each compiled once.
#[derive(Default)]
pub struct StepAgents {
    configured: Vec<AgentDefinition>,
    compiled: BTreeMap<String, StepAgent>,
}

impl StepAgents {
    /// These agents. Those with faults that [`AgentDefinition::check_fields`] finds can't be called.
    pub fn new(configured: Vec<AgentDefinition>) -> StepAgents {
        let compiled = configured.iter().filter_map(|agent| Some((agent.name.clone(), StepAgent::new(agent)?)));
        StepAgents { compiled: compiled.collect(), configured }
    }

    /// All of them as they are configured, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, AgentDefinition> {
        self.configured.iter()
    }

    /// The agent of this name, if it can be called.
    pub fn get(&self, name: &str) -> Option<&StepAgent> {
        self.compiled.get(name)
    }

    /// Names of those that steps alone may call. No tool has them.
    pub fn hidden_names(&self) -> impl Iterator<Item = &str> {
        self.configured.iter().filter(|agent| !agent.expose_as_tool).map(|agent| agent.name.as_str())
    }
}

/// A configured agent as steps of pipelines call it, whether or not other agents may. Cheap to clone.
#[derive(Clone)]
pub struct StepAgent {
    /// The agent.
    pub agent: Arc<AgentTool>,
    /// The agent as a tool, as its calls are judged.
    pub tool: Arc<RegisteredTool>,
}

impl StepAgent {
    fn new(configured: &AgentDefinition) -> Option<StepAgent> {
        let agent = Arc::new(AgentTool::new(configured));
        let alone = ToolRegistry::new(vec![Arc::clone(&agent) as Arc<dyn Tool>]).ok()?;
        let tool = alone.find(&configured.name).cloned()?;
        Some(StepAgent { agent, tool })
    }
}

impl AgentTool {
    /// The agents among these that others may call. Those with faults that [`AgentDefinition::check_fields`] finds make
    /// none.
    pub fn all(agents: &[AgentDefinition]) -> Vec<AgentTool> {
        agents.iter().filter(|agent| agent.expose_as_tool).map(AgentTool::new).collect()
    }

    fn new(agent: &AgentDefinition) -> AgentTool {
        let rules = FieldRules::new(&agent.fields);
        let description = match agent.description.trim() {
            "" => format!("Lets the agent {} do its work.", agent.name),
            text => text.to_owned(),
        };
        let description = if agent.approval { format!("{description} {NEEDS_CONFIRMATION}") } else { description };
        let definition = Definition {
            requires_confirmation: agent.approval,
            version: rules.version(),
            ..Definition::new(
                &agent.name,
                &description,
                FieldRules::offered_schema(&agent.fields),
                Category::Internal,
                Consequence::Low,
            )
        };
        AgentTool { calling: agent.calling(), configured: agent.clone(), definition, rules }
    }

    /// Name of the agent.
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Hash of the fields.
    pub fn schema_version(&self) -> &str {
        &self.definition.version
    }

    /// How long one execution may take.
    pub fn time_limit(&self, usual: Duration) -> Duration {
        self.configured.timeout_seconds.map_or(usual, Duration::from_secs)
    }

    /// The message to the agent, whose arguments are whole.
    pub fn message(&self, arguments: &Value) -> String {
        let mut text = format!("[Agent Call] {}", self.name());
        if let Some(instruction) = arguments[TASK_INSTRUCTION].as_str().filter(|text| !text.trim().is_empty()) {
            let _ = write!(text, "\n{instruction}");
        }
        self.with_fields(text, arguments)
    }

    /// The message of a step to the agent, whose arguments are whole: the instruction, and the fields.
    pub fn step_message(&self, arguments: &Value) -> String {
        self.with_fields(arguments[TASK_INSTRUCTION].as_str().unwrap_or_default().to_owned(), arguments)
    }

    fn with_fields(&self, text: String, arguments: &Value) -> String {
        let values = self.rules.values(arguments);
        match values.is_empty() {
            true => text,
            false => format!("{text}\n\nFields:\n{}", fenced("fields", &Value::Object(values).to_string())),
        }
    }
}

impl Tool for AgentTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Agent
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let message = format!("`{}` is an agent: an agent can call it, and a pipeline in a step `agent`", self.name());
        Box::pin(std::future::ready(Err(ToolError::for_model(ToolFailure::ExecutionError, "agent", message))))
    }

    fn checks_schema(&self) -> bool {
        false
    }

    /// An invalid value is asked for; a name that no field has is a mistake of the caller.
    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        if is_longer_than(arguments, MOST_ARGUMENTS) {
            let message = format!("the arguments of an agent may have {} KiB", MOST_ARGUMENTS / 1_024);
            return Err(ToolError::for_model(ToolFailure::InvalidParameters, "args_too_long", message));
        }
        let fits = match &arguments[TASK_INSTRUCTION] {
            Value::String(text) => text.chars().count() <= LONGEST_TEXT as usize,
            other => other.is_null(),
        };
        if !fits {
            let message = format!("`{TASK_INSTRUCTION}` is a text of at most {LONGEST_TEXT} characters");
            return Err(ToolError::arguments(message));
        }
        let known = || self.rules.names().chain([TASK_INSTRUCTION]);
        let unknown =
            arguments.as_object().into_iter().flat_map(Map::keys).find(|name| !known().any(|field| field == *name));
        match unknown {
            None => Ok(()),
            Some(name) => {
                let (near, all) = (did_you_mean(name, known()), known().collect::<Vec<_>>().join(", "));
                Err(ToolError::arguments(format!("`{}` has no field `{name}`{near}; it has {all}", self.name())))
            }
        }
    }

    fn may_need_input(&self) -> bool {
        true
    }

    fn invalid_input(&self, arguments: &Value) -> Vec<FieldFault> {
        self.rules.collect(arguments).missing
    }

    fn input_steps(&self, arguments: &Value) -> u64 {
        self.rules.steps(arguments)
    }

    fn input(&self, arguments: &Value) -> Option<InputForm> {
        let collected = self.rules.collect(arguments);
        if collected.missing.is_empty() {
            return None;
        }
        let names: Vec<&str> = collected.missing.iter().map(|one| one.name.as_str()).collect();
        let line = |one: &FieldFault| format!("{}: {}", one.name, one.fault.message);
        let mut values = collected.values;
        if let Some(instruction) = arguments[TASK_INSTRUCTION].as_str() {
            values.insert(TASK_INSTRUCTION.to_owned(), instruction.into());
        }
        let mut parameters = self.rules.asked_schema(&collected.missing);
        // it goes along, and is no field of the form's own
        parameters["properties"][TASK_INSTRUCTION] = self.definition.parameters["properties"][TASK_INSTRUCTION].clone();
        Some(InputForm {
            question: format!("{} needs to know: {}", self.name(), names.join(", ")),
            description: collected.missing.iter().map(line).collect::<Vec<_>>().join("\n"),
            parameters,
            values: Value::Object(values),
            lacks: collected.missing,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn agent(written: Value) -> AgentTool {
        let mut whole = json!({
            "name": "BookTable", "description": "Book a table.", "instruction": "You book.", "approval": true,
            "fields": [{ "name": "party", "type": "integer", "required": true, "min": 1, "max": 12 }],
        });
        whole.as_object_mut().unwrap().extend(written.as_object().cloned().unwrap_or_default());
        AgentTool::all(&[serde_json::from_value(whole).unwrap()]).remove(0)
    }

    #[test]
    fn agent_has_its_fields_as_parameters_and_says_that_a_person_confirms_it() {
        let tool = agent(json!({}));
        assert_eq!(tool.definition().description, "Book a table. [Requires user confirmation before execution]");
        assert!(tool.definition().requires_confirmation && tool.definition().idempotent);
        let plain = agent(json!({ "approval": false, "description": "" }));
        assert_eq!(plain.definition().description, "Lets the agent BookTable do its work.");
        assert_ne!(tool.schema_version(), agent(json!({ "fields": [] })).schema_version());
        let told = tool.check(&json!({ "party": 3, "partyy": 3 })).unwrap_err().to_string();
        assert!(
            told.contains("has no field `partyy`; did you mean `party`?; it has party, task_instruction"),
            "{told}"
        );
        assert!(tool.check(&json!({ "task_instruction": null })).is_ok());
        let hidden =
            serde_json::from_value(json!({ "name": "x", "instruction": "y", "expose_as_tool": false })).unwrap();
        assert!(AgentTool::all(&[hidden]).is_empty());
    }

    #[test]
    fn instruction_and_arguments_are_taken_at_their_longest_and_refused_one_beyond_it() {
        let tool = agent(json!({}));
        let told = |instruction: Value| tool.check(&json!({ "task_instruction": instruction }));
        assert!(told(json!("x".repeat(10_000))).is_ok());
        for refused in [json!("x".repeat(10_001)), json!(3)] {
            assert!(told(refused).unwrap_err().to_string().contains("a text of at most 10000 characters"));
        }
        let long = |bytes: usize| tool.check(&json!({ "party": "x".repeat(bytes - r#"{"party":""}"#.len()) }));
        assert!(long(MOST_ARGUMENTS).is_ok());
        assert!(long(MOST_ARGUMENTS + 1).unwrap_err().to_string().contains("256 KiB"));
    }

    #[test]
    fn missing_and_invalid_fields_are_asked_for_and_the_message_has_the_others() {
        let tool = agent(json!({}));
        assert_eq!(tool.input(&json!({ "party": "4" })), None);
        let form = tool.input(&json!({ "party": 13, "task_instruction": "quiet" })).unwrap();
        assert_eq!(form.question, "BookTable needs to know: party");
        assert_eq!(
            (form.values, form.parameters["required"].clone()),
            (json!({ "task_instruction": "quiet" }), json!(["party"]))
        );
        assert!(form.description.starts_with("party: "), "{}", form.description);
        let lacks: Vec<(&str, &str)> = form.lacks.iter().map(|one| (one.name.as_str(), &*one.fault.phrase)).collect();
        assert_eq!(lacks, [("party", "fault_maximum")]);
        let without = tool.input(&json!({ "task_instruction": null })).unwrap();
        assert_eq!(without.values, json!({}), "what is not said is no value that an answer would have to keep");
        let message = tool.message(&json!({ "party": "4", "task_instruction": "quiet" }));
        assert!(message.starts_with("[Agent Call] BookTable\nquiet\n\nFields:\n<untrusted-"), "{message}");
        assert!(message.contains(r#"{"party":4}"#), "{message}");
        assert_eq!(agent(json!({ "fields": [] })).message(&json!({})), "[Agent Call] BookTable");
        let of_step = tool.step_message(&json!({ "party": "4", "task_instruction": "quiet" }));
        assert_eq!(of_step, message.replacen("[Agent Call] BookTable\n", "", 1));
    }
}
