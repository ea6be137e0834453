//! `agent`: the loop of an agent as one step. Its conversation is in the run's transcript between the step's intent and
//! its result, so a crash goes on at its last finished turn. Where people have to be asked, the run waits, and the step
//! goes on with what they answer. A configured agent is called with its fields, by the rules for a call by another
//! agent.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;
use uuid::Uuid;

use crate::agent::configured::agent_field::TASK_INSTRUCTION;
use crate::agent::configured::agent_tool::StepAgent;
use crate::agent::{
    Agent, AgentDefinition, AgentOverrides, AgentRequest, AgentResponse, AgentStore, StepAdmission, StepCall,
    TranscriptSlice,
};
use crate::base::invalid::did_you_mean;
use crate::base::metrics::trace;
use crate::base::template::{Template, Tree};
use crate::domain::approval::{CallOutcome, FieldFault};
use crate::domain::credential::references;
use crate::domain::run::outcome::SCHEMA_CHANGED;
use crate::domain::run::{RunError, RunFinish, ToolAttribution};
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::schema::AgentStep;
use crate::executor::pipeline::scope::{OWN_NAMES, StepScope};
use crate::executor::pipeline::steps::llm::model;
use crate::executor::pipeline::steps::tool::message;
use crate::ports::tool::access::{ToolLimits, check_written};
use crate::ports::tool::{ToolError, ToolFailure};

/// Turns that may be asked for.
const TURNS: std::ops::RangeInclusive<u64> = 1..=100;
/// Turns of the agents of one run count on from these steps, so that the keys of their calls differ.
const TURNS_OF_A_STEP: i64 = 1_000;
/// How much of an answer a person who was asked before is shown, in characters.
const OUTCOME_SHOWN: usize = 500;

/// Settings in a step that change what a configured agent does, and that no question about it shows.
const UNSEEN: [&str; 4] = ["system_prompt", "model", "tools", "credentials"];

struct AgentExecution {
    instruction: Template,
    overrides: AgentOverrides,
    /// The call of the `[[agents]]` entry that it comes from.
    called: Option<AgentCall>,
}

/// A configured agent, and the fields with which it is called.
struct AgentCall {
    agent: StepAgent,
    args: Tree,
    /// Settings of the agent that the step has put others in the place of, which a person who is asked would not see.
    unseen: Vec<&'static str>,
}

/// `{"instruction": …, "system_prompt"?, "model"?, "max_turns"?, "tools"?, "deny_tools"?, "credentials"?}`, or the
/// `name` of a configured one with its fields, `args`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<AgentStep>(value)?;
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
    let own = configured.map(AgentDefinition::limits).unwrap_or_default();
    let overrides = AgentOverrides {
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
    let called = match configured {
        Some(configured) => Some(AgentCall::read(configured, fields, reading)?),
        None => {
            if given(fields, "args").is_some() {
                reading.below("args").fault("goes with `name`: it has the fields of an agent in [[agents]]");
            }
            None
        }
    };
    reading.need(fields, "instruction")?;
    let instruction = reading.template(fields, "instruction")?;
    Some(Box::new(AgentExecution { instruction, overrides, called }))
}

fn tools(fields: &Map<String, Value>, key: &str, reading: &mut StepReader) -> Option<Vec<String>> {
    let list = given(fields, key)?;
    let place = format!("{}/{key}", reading.pointer);
    let names: Vec<String> = reading.faults.read(list, &place)?;
    check_written(&place, &names, reading.parts.tools().known_names(), reading.faults);
    Some(names)
}

impl AgentCall {
    fn read(configured: &AgentDefinition, fields: &Map<String, Value>, reading: &mut StepReader) -> Option<AgentCall> {
        let Some(agent) = reading.parts.agents.get(&configured.name).cloned() else {
            reading.below("name").fault("the fields of this agent are at fault in [[agents]]");
            return None;
        };
        let (none, before) = (Map::new(), reading.faults.0.len());
        let (written, args) = match given(fields, "args") {
            None => (&none, Tree::Literal(json!({}))),
            Some(Value::Object(written)) => (written, reading.tree(fields, "args")?),
            Some(_) => {
                reading.below("args").fault("must be an object: the fields of the agent by their names");
                return None;
            }
        };
        let unseen: Vec<&str> = UNSEEN.into_iter().filter(|key| given(fields, key).is_some()).collect();
        if let Some(key) = unseen.first().filter(|_| reading.is_saved && configured.approval) {
            reading.below(key).fault("a person who agrees to this agent would not see it; say it in [[agents]]");
        }
        let call = AgentCall { agent, args, unseen };
        if reading.is_saved && reading.faults.0.len() == before {
            call.check(written, &mut reading.below("args"));
        }
        Some(call)
    }

    /// Adds what is wrong before anything is put in: fields that the agent has not, required ones that are not given,
    /// and literal values that are invalid.
    fn check(&self, written: &Map<String, Value>, reading: &mut StepReader) {
        if written.contains_key(TASK_INSTRUCTION) {
            reading.below(TASK_INSTRUCTION).fault("is said by the step's `instruction`");
            return;
        }
        if let Err(error) = self.agent.tool.check(&Value::Object(written.clone())) {
            reading.fault(message(&error));
            return;
        }
        let is_literal = |name: &str| match &self.args {
            Tree::Literal(_) => true,
            Tree::Object(fields) => fields.iter().any(|(field, value)| field == name && value.literal().is_some()),
            Tree::Text(_) | Tree::List(_) => false,
        };
        let literal = written.iter().filter(|(name, _)| is_literal(name));
        let literal = literal.map(|(name, value)| (name.clone(), value.clone())).collect();
        for FieldFault { name, fault } in self.agent.tool.tool.invalid_input(&Value::Object(literal)) {
            if !written.contains_key(&name) || is_literal(&name) {
                reading.below(&name).fault(fault.message);
            }
        }
    }

    /// The arguments with which the agent works, once it may, and the question that a person has answered before.
    async fn admit(
        &self,
        act: &StepAction<'_>,
        agent: &Agent,
        request: &AgentRequest,
        fields: Value,
    ) -> Result<(Value, Option<Uuid>), StepError> {
        let (tool, steps) = (Arc::clone(&self.agent.tool), self.agent.tool.steps(&fields));
        let checked = act.compute(steps, move |_| match tool.check(&fields) {
            Err(error) => Err(StepFault::new("invalid_args", message(&error))),
            Ok(()) => Ok(fields),
        });
        let mut arguments = checked.await?;
        if let Some(arguments) = arguments.as_object_mut() {
            arguments.insert(TASK_INSTRUCTION.to_owned(), json!(request.text));
        }
        let call = StepCall { tool: &self.agent.tool, arguments, unseen: &self.unseen };
        let admitted = agent.admit_step(request, call).await.map_err(|error| match error {
            // the run ends with it, whatever the step says of faults: the person whose answer is void is told
            RunError::Fail { fault } if fault.code == SCHEMA_CHANGED => StepError::Run(RunError::Fail { fault }),
            error => error.into(),
        });
        match admitted? {
            StepAdmission::Admitted { arguments, question } => Ok((arguments, question)),
            StepAdmission::Suspended(suspension) => Err(StepError::Asks(Box::new(suspension))),
            StepAdmission::Refused(error) => Err(refusal(&error).into()),
        }
    }
}

/// The failure of a step whose agent may not work.
fn refusal(error: &ToolError) -> StepFault {
    match error {
        // others may be answered meanwhile
        ToolError::Tell { kind: ToolFailure::ResourceError, .. } | ToolError::Unsent { .. } => {
            StepFault::passing(error.code(), message(error), None)
        }
        _ => StepFault::new(error.code(), message(error)),
    }
}

/// Notes what came of the work of an agent, for the person who was asked before.
async fn note_outcome(request: &AgentRequest, question: Uuid, ended: &Result<AgentResponse, RunError>) {
    let (is_error, text) = match ended {
        Ok(AgentResponse::Answered(result)) => (false, result.response.as_str()),
        Ok(AgentResponse::Refused { reason }) => (true, reason.as_str()),
        Err(RunError::Fail { fault }) => (true, fault.message.as_str()),
        Ok(AgentResponse::Suspended(_)) | Err(_) => return,
    };
    let outcome = CallOutcome { is_error, text: text.chars().take(OUTCOME_SHOWN).collect() };
    request.store.note_outcome(question, outcome).await;
}

impl AgentExecution {
    /// The name of the configured agent.
    fn name(&self) -> Option<&str> {
        self.called.as_ref().map(|call| call.agent.agent.name())
    }

    async fn run(&self, act: &StepAction<'_>) -> Result<StepResult, StepError> {
        let (instruction, args) = (self.instruction.clone(), self.called.as_ref().map(|call| call.args.clone()));
        let put_in = act.compute(self.steps(act.scope), move |scope| {
            let text = instruction.prompt(&scope.template, &OWN_NAMES)?;
            // a field that is not there is asked for
            let fields = args.map(|args| args.present(&scope.template)).transpose()?;
            Ok((text, fields))
        });
        let (text, fields) = put_in.await?;
        let world = act.world;
        let called = self.called.as_ref().map(|call| &call.agent.agent);
        let metadata = [
            ("source", json!("pipeline")),
            ("run_id", json!(world.run_id)),
            ("task_id", json!(world.task_id)),
            ("step", json!(act.step)),
        ];
        let transcript = TranscriptSlice::of_step(world.store.clone(), act.step);
        let mut incoming = AgentRequest {
            tenant: world.tenant.clone(),
            run_id: world.run_id,
            attribution: ToolAttribution { agent: self.name().map(str::to_owned), step: Some(act.place()), turn: 0 },
            text,
            about: None,
            is_repeated: false,
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            continues: false,
            overrides: self.overrides.clone(),
            first_turn: act.position * TURNS_OF_A_STEP,
            timezone: world.timezone,
            locale: world.locale.clone(),
            channel: world.channel.clone(),
            agent: called.map(|agent| agent.calling.clone()),
            approval_context: world.approval_context.clone(),
            delegation: None,
            skills: called.and_then(|agent| agent.configured.skills.clone()),
            host: world.host.clone(),
            store: Arc::new(transcript),
            stop: world.stop.clone(),
            slot: Arc::clone(act.slot),
            sink: world.sink.clone(),
            clock: world.clock.clone(),
            used_secrets: world.used_secrets.clone(),
        };
        // from here on the tools stay those that there are now
        let agent = world.parts.agent.current();
        let mut asked = None;
        if let (Some(call), Some(fields)) = (&self.called, fields) {
            let (arguments, question) = call.admit(act, &agent, &incoming, fields).await?;
            (incoming.text, asked) = (call.agent.agent.step_message(&arguments), question);
        }
        // one about which a person was asked has begun by the question, before the gate
        incoming.is_repeated = act.begun_before && (asked.is_none() || world.was_interrupted);
        let span = trace::invoke_agent(self.name().unwrap_or("agent"), incoming.chain());
        let ended = agent.handle_message(&incoming).instrument(span.clone()).await;
        if let Some(question) = asked {
            note_outcome(&incoming, question, &ended).await;
        }
        match ended {
            // what it used is in its own entries
            Ok(AgentResponse::Answered(result)) => {
                let finish = result.finish.filter(|finish| *finish == RunFinish::MaxTurns);
                Ok(StepResult { finish, ..StepResult::plain(json!(result.response)) })
            }
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
        let args = self.called.as_ref().map_or(0, |call| call.args.steps(&scope.template));
        self.instruction.steps(&scope.template).saturating_add(args)
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let instruction = self.instruction.prompt(&scope.template, &OWN_NAMES)?;
        let args = self.called.as_ref().map(|call| call.args.present(&scope.template)).transpose()?;
        let AgentOverrides { model, max_turns, tools, .. } = &self.overrides;
        Ok(json!({
            "name": self.name(), "args": args, "instruction": instruction, "model": model, "max_turns": max_turns,
            "tools": tools.allow, "deny_tools": tools.deny,
        }))
    }

    fn time_limit(&self) -> Option<Duration> {
        let seconds = self.called.as_ref().and_then(|call| call.agent.agent.configured.timeout_seconds);
        seconds.map(Duration::from_secs)
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(self.run(act))
    }
}
