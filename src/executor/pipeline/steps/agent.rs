//! `agent`: the loop of an agent as one step. Its conversation is in the run's transcript between the step's intent and
//! its result, so a crash goes on at its last finished turn. Where people have to be asked, the run waits, and the step goes on
//! with what they answer.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::agent::{AgentOverrides, AgentRequest, AgentResponse, CallingAgent, Configured, TranscriptSlice};
use crate::base::invalid::did_you_mean;
use crate::base::metrics::trace;
use crate::base::template::Template;
use crate::domain::credential::references;
use crate::domain::run::ToolAttribution;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::scope::{OWN_NAMES, StepScope};
use crate::executor::pipeline::steps::llm::model;
use crate::ports::tool::access::{ToolLimits, check_written};

/// Turns that may be asked for.
const TURNS: std::ops::RangeInclusive<u64> = 1..=100;
/// Turns of the agents of one run count on from these steps, so that the keys of their calls differ.
const TURNS_OF_A_STEP: i64 = 1_000;

struct AgentExecution {
    instruction: Template,
    wishes: AgentOverrides,
    /// The `[[agents]]` entry it comes from.
    name: Option<String>,
    /// Its say in what needs consent.
    agent: Option<CallingAgent>,
    /// The only skills that it may use; `None`: all.
    skills: Option<Vec<String>>,
}

/// `{"instruction": …, "system_prompt"?, "model"?, "max_turns"?, "tools"?, "deny_tools"?, "credentials"?}`, or the `name` of a
/// configured one.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let known = ["name", "instruction", "system_prompt", "model", "max_turns", "tools", "deny_tools", "credentials"];
    let fields = reading.object(value, &known)?;
    let name = reading.text(fields, "name");
    let configured = match &name {
        None => None,
        Some(name) => {
            let agents = &reading.parts.agents;
            let found = agents.iter().find(|agent| agent.name == *name);
            if found.is_none() {
                let hint = did_you_mean(name, agents.iter().map(|agent| agent.name.as_str()));
                reading.below("name").fault(format!("there is no agent `{name}` in [[agents]]{hint}"));
                return None;
            }
            found
        }
    };
    let own = configured.map(Configured::limits).unwrap_or_default();
    let wishes = AgentOverrides {
        system_prompt: reading.text(fields, "system_prompt").or(configured.map(|agent| agent.instruction.clone())),
        model: model(fields, reading).or(configured.and_then(|agent| agent.model.clone())),
        max_turns: reading
            .number(fields, "max_turns", TURNS)
            .map(|n| n as u32)
            .or(configured.and_then(|a| a.max_turns)),
        tools: Arc::new(ToolLimits {
            allow: tools(fields, "tools", reading).or(own.allow),
            deny: own.deny.into_iter().chain(tools(fields, "deny_tools", reading).unwrap_or_default()).collect(),
        }),
        credentials: given(fields, "credentials")
            .map(|list| references(list, &format!("{}/credentials", reading.pointer), reading.faults))
            .unwrap_or_default(),
    };
    reading.need(fields, "instruction")?;
    let instruction = reading.template(fields, "instruction")?;
    let agent = configured.map(Configured::calling);
    let skills = configured.and_then(|agent| agent.skills.clone());
    Some(Box::new(AgentExecution { instruction, wishes, name, agent, skills }))
}

fn tools(fields: &Map<String, Value>, key: &str, reading: &mut StepReader) -> Option<Vec<String>> {
    let list = given(fields, key)?;
    let place = format!("{}/{key}", reading.pointer);
    let names: Vec<String> = reading.faults.read(list, &place)?;
    let known = reading.parts.tools().clone();
    check_written(&place, &names, known.names(), reading.faults);
    Some(names)
}

impl AgentExecution {
    async fn run(&self, act: &StepAction<'_>) -> Result<StepResult, StepError> {
        let (instruction, steps) = (self.instruction.clone(), self.steps(act.scope));
        let text = act.compute(steps, move |scope| Ok(instruction.prompt(&scope.template, &OWN_NAMES)?)).await?;
        let world = act.world;
        let metadata = [
            ("source", json!("pipeline")),
            ("run_id", json!(world.run_id)),
            ("task_id", json!(world.task_id)),
            ("step", json!(act.step)),
        ];
        let transcript = TranscriptSlice::of_step(world.store.clone(), act.step);
        let incoming = AgentRequest {
            tenant: world.tenant.clone(),
            run_id: world.run_id,
            attribution: ToolAttribution { agent: self.name.clone(), step: Some(act.place()), turn: 0 },
            text,
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            continues: false,
            wishes: self.wishes.clone(),
            first_turn: act.position * TURNS_OF_A_STEP,
            timezone: world.timezone,
            channel: world.channel.clone(),
            agent: self.agent.clone(),
            asking: world.asking.clone(),
            delegation: None,
            skills: self.skills.clone(),
            host: world.host.clone(),
            store: Arc::new(transcript),
            stop: world.stop.clone(),
            slot: world.slot.clone(),
            sink: world.sink.clone(),
            clock: world.clock.clone(),
            known: world.known.clone(),
        };
        let span = trace::invoke_agent(self.name.as_deref().unwrap_or("agent"));
        match world.parts.agent.handle_message(&incoming).instrument(span.clone()).await {
            // what it used is in its own entries
            Ok(AgentResponse::Answered(result)) => Ok(StepResult::plain(json!(result.response))),
            Ok(AgentResponse::Refused { reason }) => Err(StepFault::new("refused", reason).into()),
            Ok(AgentResponse::Suspended(suspension)) => Err(StepError::Asks(Box::new(suspension))),
            Err(error) => {
                trace::fail(&span, error.code());
                Err(error.into())
            }
        }
    }
}

impl StepKind for AgentExecution {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        self.instruction.steps(&scope.template)
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let instruction = self.instruction.prompt(&scope.template, &OWN_NAMES)?;
        let AgentOverrides { model, max_turns, tools, .. } = &self.wishes;
        Ok(json!({
            "name": self.name, "instruction": instruction, "model": model, "max_turns": max_turns, "tools": tools.allow,
            "deny_tools": tools.deny,
        }))
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(self.run(act))
    }
}
