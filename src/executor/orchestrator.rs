//! `orchestrator`: turns a fire into a message and hands it to the agent, which does not know the difference from a
//! person's. The default executor.

use std::sync::Arc;

use chrono::SecondsFormat;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::agent::{
    Agent, AgentOverrides, AgentRequest, AgentResponse, ApprovalContext, CHAT, Suspension, TRIGGER, TranscriptSlice,
};
use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::template::untrusted::fenced;
use crate::domain::budget::{self, TaskBudget};
use crate::domain::credential::references;
use crate::domain::run::{Cause, MissedInstants, Run, RunError, RunOutcome, ToolAttribution, Usage};
use crate::domain::task::{Action, Task};
use crate::domain::trigger::zone::shown_in;
use crate::executor::recall_words::recall_words;
use crate::executor::task_rules::{TASK_RULES_KEY, check_task_rules, rules_of_run};
use crate::executor::{Executor, Job, in_span};
use crate::ports::tool::access::{ToolLimits, check_written};

/// The keys of `action.config`.
const KEYS: [&str; 9] = [
    "system_prompt",
    "model",
    "max_turns",
    "tools",
    "deny_tools",
    "credentials",
    TASK_RULES_KEY,
    "conversation",
    budget::TASK_KEY,
];
/// The words of `action.config.conversation`.
const CONVERSATIONS: [&str; 2] = ["fresh", "continue"];
/// Longest persona of a task, in characters.
const PERSONA_LENGTH: usize = 32_768;
/// Longest type of an event that is named outside of the event, in characters.
const LONGEST_KIND: usize = 100;
/// Most turns that a task may ask for.
const MOST_TURNS: u64 = 100;

/// The executor that hands a run's instruction to an agent.
pub struct Orchestrator {
    agent: Agent,
}

impl Orchestrator {
    /// The executor with its agent.
    pub fn new(agent: Agent) -> Orchestrator {
        Orchestrator { agent }
    }

    async fn run(&self, job: Job) -> Result<RunOutcome, RunError> {
        let task = job.task.as_ref().ok_or_else(|| RunError::fail("no_task", "the task of the run is gone"))?;
        let Message { source, text, about } = Message::of(&job, task);
        let rules = rules_of_run(&job, task, &self.agent.compute).await;
        let approval_context = ApprovalContext { task_id: job.run.task_id, source, rules };
        let incoming = AgentRequest {
            tenant: Tenant::stored(&job.run.tenant_id).map_err(|why| RunError::fail("invalid_tenant", why))?,
            run_id: job.run.id,
            attribution: ToolAttribution { agent: Some(self.name().to_owned()), ..ToolAttribution::default() },
            metadata: metadata(&job.run, source),
            text,
            about,
            is_repeated: job.run.is_repeated(),
            continues: task.is_chat() || task.spec.action.continues(),
            overrides: self.parse_overrides(&task.spec.action)?,
            first_turn: 0,
            timezone: job.timezone,
            locale: job.locale,
            channel: job.channel,
            agent: None,
            approval_context,
            delegation: None,
            skills: None,
            host: job.host,
            store: Arc::new(TranscriptSlice::of_run(job.store)),
            stop: job.stop,
            slot: job.slot,
            sink: job.sink,
            clock: job.clock,
            used_secrets: job.used_secrets,
        };
        // from here on the tools stay those that there are now
        let agent = self.agent.current();
        match agent.handle_message(&incoming).await? {
            AgentResponse::Answered(result) => {
                Ok(RunOutcome::Succeeded { output: result.response, finish: result.finish, usage: result.usage })
            }
            AgentResponse::Suspended(Suspension { asks, open, usage }) => Ok(RunOutcome::Asks { asks, open, usage }),
            AgentResponse::Refused { reason } => Ok(RunOutcome::Skipped { reason, usage: Usage::default() }),
        }
    }

    /// The task's overrides once more: models and tools may have gone since they were checked.
    fn parse_overrides(&self, action: &Action) -> Result<AgentOverrides, RunError> {
        let mut faults = ValidationErrors::new();
        let overrides = self.check_overrides(&action.config, &mut faults);
        faults.into_result(overrides).map_err(|faults| RunError::fail("invalid_action", faults.to_string()))
    }

    fn check_overrides(&self, config: &Map<String, Value>, faults: &mut ValidationErrors) -> AgentOverrides {
        for key in unknown_fields(config, &KEYS) {
            let hint = did_you_mean(key, KEYS);
            let place = format!("/action/config/{}", escape(key));
            faults.add(place, format!("unknown key `{key}`{hint}; known: {}", KEYS.join(", ")));
        }
        let given = |key: &str| config.get(key).filter(|value| !value.is_null());
        AgentOverrides {
            system_prompt: given("system_prompt").and_then(|value| persona(value, faults)),
            model: given("model").and_then(|value| self.model(value, faults)),
            max_turns: given("max_turns").and_then(|value| max_turns(value, faults)),
            tools: Arc::new(ToolLimits {
                allow: given("tools").and_then(|value| self.tool_names(value, "tools", faults)),
                deny: given("deny_tools")
                    .and_then(|value| self.tool_names(value, "deny_tools", faults))
                    .unwrap_or_default(),
            }),
            credentials: given("credentials")
                .map(|value| references(value, "/action/config/credentials", faults))
                .unwrap_or_default(),
        }
    }

    fn model(&self, value: &Value, faults: &mut ValidationErrors) -> Option<String> {
        let place = "/action/config/model";
        let name = text(value, place, faults)?;
        if !self.agent.models.names().any(|known| known == name) {
            let hint = did_you_mean(&name, self.agent.models.names());
            faults.add(place, format!("unknown model `{name}`{hint}"));
        }
        Some(name)
    }

    fn tool_names(&self, value: &Value, key: &str, faults: &mut ValidationErrors) -> Option<Vec<String>> {
        let place = format!("/action/config/{key}");
        let names: Vec<String> = faults.read(value, &place)?;
        check_written(&place, &names, self.agent.current_tools().known_names(), faults);
        Some(names)
    }
}

impl Executor for Orchestrator {
    fn name(&self) -> &'static str {
        "orchestrator"
    }

    fn tool_limits(&self, action: &Action) -> Option<ToolLimits> {
        let mut faults = ValidationErrors::new();
        let overrides = self.check_overrides(&action.config, &mut faults);
        // a run of what can't be read any more fails before a model is asked
        Some(match faults.0.is_empty() {
            true => ToolLimits::clone(&overrides.tools),
            false => ToolLimits { allow: Some(Vec::new()), ..ToolLimits::default() },
        })
    }

    fn config_schema(&self) -> Value {
        crate::executor::schema::of::<crate::executor::schema::OrchestratorConfig>()
    }

    fn validate(&self, action: &Action, faults: &mut ValidationErrors) {
        conversation(&action.config, faults);
        if action.instruction.trim().is_empty() {
            faults.add("/action/instruction", "is missing: what the agent is to do, in plain words");
        }
        self.check_overrides(&action.config, faults);
        TaskBudget::read(&action.config, "/action/config", faults);
        let tools = self.agent.current_tools();
        let known: Vec<&str> = tools.known_names().collect();
        check_task_rules(&action.config, "/action/config", &known, faults);
    }

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        let (span, traced) = (job.span(), job.traced().invoke_agent(self.name()));
        Box::pin(in_span(traced, self.run(job)).instrument(span))
    }
}

fn text(value: &Value, place: &str, faults: &mut ValidationErrors) -> Option<String> {
    faults.read::<String>(value, place)
}

fn persona(value: &Value, faults: &mut ValidationErrors) -> Option<String> {
    let place = "/action/config/system_prompt";
    let persona = text(value, place, faults)?;
    if persona.chars().count() > PERSONA_LENGTH {
        faults.add(place, format!("must be at most {PERSONA_LENGTH} characters"));
    }
    Some(persona)
}

fn max_turns(value: &Value, faults: &mut ValidationErrors) -> Option<u32> {
    match value.as_u64().filter(|turns| (1..=MOST_TURNS).contains(turns)) {
        Some(turns) => u32::try_from(turns).ok(),
        None => {
            faults.add("/action/config/max_turns", format!("must be a whole number from 1 to {MOST_TURNS}"));
            None
        }
    }
}

fn conversation(config: &Map<String, Value>, faults: &mut ValidationErrors) {
    let place = "/action/config/conversation";
    let Some(value) = config.get("conversation").filter(|value| !value.is_null()) else { return };
    let Some(word) = text(value, place, faults) else { return };
    if !CONVERSATIONS.contains(&word.as_str()) {
        let hint = did_you_mean(&word, CONVERSATIONS);
        faults.add(place, format!("must be `fresh` or `continue`{hint}"));
    }
}

/// The message of a run, and the source that it is of.
struct Message {
    source: &'static str,
    text: String,
    /// Its words by which facts are looked for; `None`: all of them.
    about: Option<String>,
}

impl Message {
    /// A person's own words, or those of the service in a person's place.
    fn of(job: &Job, task: &Task) -> Message {
        match (&job.run.input, task.is_chat()) {
            (Some(Value::String(said)), true) => Message { source: CHAT, text: said.clone(), about: None },
            _ => Message {
                source: TRIGGER,
                text: fire_text(job, task),
                about: Some(recall_words(&job.run, &task.spec.action.instruction)),
            },
        }
    }
}

/// Metadata of the message in the transcript.
fn metadata(run: &Run, source: &str) -> Map<String, Value> {
    let fields = [
        ("source", json!(source)),
        ("trigger_type", json!(run.trigger_type)),
        ("task_id", json!(run.task_id)),
        ("run_id", json!(run.id)),
        ("fire_key", json!(run.fire_key)),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The trigger message: cause and instruction, then which run this is. Words from outside are labelled as data.
fn fire_text(job: &Job, task: &Task) -> String {
    let instruction = &task.spec.action.instruction;
    let mut text = match &job.run.cause {
        None => format!("[Scheduled Task] {instruction}"),
        Some(Cause::Event { event, events }) => {
            let kind = event["type"].as_str().filter(|kind| is_word(kind)).unwrap_or("event");
            match events.as_slice() {
                [] | [_] => {
                    format!("[Event Trigger] {kind}:\n{}\n\n{instruction}", fenced("event", &event.to_string()))
                }
                all => {
                    let events = fenced("events", &json!(all).to_string());
                    format!("[Event Trigger] {kind}, {} events:\n{events}\n\n{instruction}", all.len())
                }
            }
        }
        Some(Cause::Condition { expression, value, .. }) => {
            let value = fenced("value", &value.to_string());
            format!("[Condition Trigger] Condition met: {expression}\nValue:\n{value}\n\n{instruction}")
        }
    };
    let due = shown_in(job.run.scheduled_for, job.timezone).to_rfc3339_opts(SecondsFormat::Secs, false);
    text.push_str(&format!("\n\nThis is run {} of the task \"{}\", due {due}.", job.run.id, task.name));
    if let Some(missed) = &job.run.missed {
        text.push_str(&format!(" {}", missed_text(missed, job)));
    }
    if let Some(input) = &job.run.input {
        text.push_str(&format!("\nInput:\n{}", fenced("input", &input.to_string())));
    }
    text
}

/// Whether the type of an event can stand among our own words: it comes from outside, too.
fn is_word(kind: &str) -> bool {
    let fits = |letter: char| letter.is_alphanumeric() || "._-:/".contains(letter);
    kind.chars().count() <= LONGEST_KIND && kind.chars().all(fits)
}

fn missed_text(missed: &MissedInstants, job: &Job) -> String {
    let local =
        |at: chrono::DateTime<chrono::Utc>| shown_in(at, job.timezone).to_rfc3339_opts(SecondsFormat::Secs, false);
    let (count, fires) = match missed.count {
        Some(1) => ("1".to_owned(), "fire was"),
        Some(count) => (count.to_string(), "fires were"),
        None => ("Very many".to_owned(), "fires were"),
    };
    format!(
        "{count} earlier {fires} missed, from {} to {}; this run stands for all of them.",
        local(missed.from),
        local(missed.to)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{KEYS, PERSONA_LENGTH, persona};
    use crate::base::invalid::ValidationErrors;
    use crate::executor::schema::{OrchestratorConfig, fields_of};

    #[test]
    fn persona_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let faults = |length: usize| {
            let mut faults = ValidationErrors::new();
            persona(&json!("é".repeat(length)), &mut faults);
            faults.0.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect::<Vec<_>>()
        };
        assert_eq!(faults(PERSONA_LENGTH), [""; 0]);
        let refused = "/action/config/system_prompt: must be at most 32768 characters";
        assert_eq!(faults(PERSONA_LENGTH + 1), [refused]);
    }

    #[test]
    fn published_settings_are_those_that_are_read() {
        let mut read = KEYS.to_vec();
        read.sort_unstable();
        assert_eq!(fields_of::<OrchestratorConfig>(), read);
    }
}
