//! Calls of configured agents. Each answers in a part of the run's transcript that is its own, so a run that goes on
//! after a crash or a suspension goes on at the innermost call.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::agent::calls::ToolRunner;
use crate::agent::calls::call_turn::CallTurn;
use crate::agent::calls::notice::turn_limit_notice;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::shown::FetchedOutput;
use crate::agent::checkpoint::transcript_slice::TranscriptSlice;
use crate::agent::configured::agent_tool::AgentTool;
use crate::agent::{
    AgentOverrides, AgentRequest, AgentResponse, FROM_AGENT, RunSlot, StreamSink, Suspension, TimedSlot,
};
use crate::base::metrics::trace;
use crate::domain::run::delegation::{MOST_CALLS, MOST_DEEP};
use crate::domain::run::outcome::SCHEMA_CHANGED;
use crate::domain::run::{
    Delegation, ResultNotice, RunError, RunFault, RunFinish, ToolAttribution, ToolCall, TranscriptEntry,
    TranscriptMessage, Usage,
};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{ToolError, ToolFailure, ToolOutput};

/// The key of the message's metadata with the version of the agent's fields.
const SCHEMA_VERSION: &str = "schema_version";

/// Outcome of a call of an agent.
pub enum DelegationOutcome {
    /// It has answered, or failed; with what its caller is told of the answer.
    Answered(Result<FetchedOutput, ToolError>, Usage, Option<ResultNotice>),
    /// The agent waits for people.
    Waits(Vec<PendingCall>),
    /// The run stops here, or can't go on.
    Ended(RunError),
}

impl ToolRunner<'_> {
    /// Lets an agent answer a call whose arguments are whole.
    pub(super) async fn delegate(&self, turn: CallTurn<'_>, call: &ToolCall, agent: &AgentTool) -> DelegationOutcome {
        let failed = |error| DelegationOutcome::Answered(Err(error), Usage::default(), None);
        let chain: Vec<String> = self.incoming.chain().iter().chain([&call.name]).cloned().collect();
        if chain.len() > MOST_DEEP {
            return failed(depth_error());
        }
        let delegation = Delegation { chain, turn: turn.number, call_id: call.id.clone() };
        let Some(store) = self.incoming.store.delegated(delegation.clone()) else { return failed(count_error()) };
        let limit = agent.time_limit(self.agent.settings.agent_limit());
        let slot = TimedSlot::of(turn.slot);
        let request = self.request((turn.number, slot.clone()), call, agent, (delegation, store));
        let span = trace::invoke_agent(&call.name, request.chain());
        let answer = tokio::select! {
            biased;
            answer = self.run_agent(&request).instrument(span.clone()) => answer,
            () = self.clock.sleep(limit).map(|()| slot.cut_off()) => {
                // a run that is to stop does not wait for its slot
                let _ = self.stop.run_until_stopped(slot.regain()).await;
                let message = format!("the agent has not answered within {} s", limit.as_secs_f64());
                return DelegationOutcome::Answered(
                    Err(ToolError::for_model(ToolFailure::Timeout, "timeout", message)),
                    request.store.whole_usage(),
                    None,
                );
            }
        };
        if let Err(error) = &answer {
            trace::fail(&span, error.code());
        }
        match answer {
            Ok(AgentResponse::Answered(result)) => {
                let notice = (result.finish == Some(RunFinish::MaxTurns)).then(turn_limit_notice);
                let output = ToolOutput::text(result.response);
                let answer = FetchedOutput { output, at: self.clock.now(), level: None };
                DelegationOutcome::Answered(Ok(answer), result.usage, notice)
            }
            Ok(AgentResponse::Suspended(suspension)) => DelegationOutcome::Waits(pending_calls(suspension)),
            Ok(AgentResponse::Refused { reason }) => {
                let message = format!("the agent was not asked: {reason}");
                failed(ToolError::for_model(ToolFailure::PermissionDenied, "refused", message))
            }
            Err(RunError::Fail { fault }) if fault.code == SCHEMA_CHANGED => {
                DelegationOutcome::Ended(RunError::Fail { fault })
            }
            Err(RunError::Fail { fault } | RunError::Retry { fault, .. }) => {
                let RunFault { code, message, .. } = fault;
                let error = ToolError::for_model(ToolFailure::ExecutionError, code, message);
                DelegationOutcome::Answered(Err(error), request.store.whole_usage(), None)
            }
            Err(error) => DelegationOutcome::Ended(error),
        }
    }

    /// Boxed, because an agent may call another one.
    fn run_agent<'a>(&'a self, request: &'a AgentRequest) -> BoxFuture<'a, Result<AgentResponse, RunError>> {
        Box::pin(self.agent.handle_message(request))
    }

    /// The message to the agent, which acts for the same tenant as its caller, with its own tools.
    fn request(
        &self,
        (turn, slot): (i64, Arc<dyn RunSlot>),
        call: &ToolCall,
        agent: &AgentTool,
        (delegation, store): (Delegation, TranscriptSlice),
    ) -> AgentRequest {
        let caller = self.incoming;
        AgentRequest {
            tenant: caller.tenant.clone(),
            run_id: caller.run_id,
            attribution: ToolAttribution {
                agent: Some(call.name.clone()),
                step: caller.attribution.step.clone(),
                turn: 0,
            },
            text: agent.message(&call.args),
            about: None,
            is_repeated: false,
            metadata: metadata(call, agent),
            continues: false,
            overrides: AgentOverrides {
                system_prompt: Some(agent.configured.instruction.clone()),
                model: agent.configured.model.clone(),
                max_turns: agent.configured.max_turns,
                tools: Arc::new(limits_of(agent, self.limits)),
                credentials: caller.overrides.credentials.clone(),
            },
            first_turn: turn,
            timezone: caller.timezone,
            locale: caller.locale.clone(),
            channel: None,
            agent: Some(agent.calling.clone()),
            skills: agent.configured.skills.clone(),
            approval_context: caller.approval_context.clone(),
            host: Arc::clone(&caller.host),
            store: Arc::new(store),
            delegation: Some(delegation),
            stop: caller.stop.clone(),
            slot,
            sink: sink_of(&caller.sink, &call.name),
            clock: caller.clock.clone(),
            used_secrets: caller.used_secrets.clone(),
        }
    }
}

/// The tools of an agent: those that its own `tools` name, and where it names none those of its caller, but none that
/// is denied to the caller. To be called at all it has to be in the list of the task, where that has one.
fn limits_of(agent: &AgentTool, caller: &ToolLimits) -> ToolLimits {
    let ToolLimits { allow, mut deny } = agent.configured.limits();
    deny.extend(caller.deny.iter().cloned());
    ToolLimits { allow: allow.or_else(|| caller.allow.clone()), deny }
}

fn metadata(call: &ToolCall, agent: &AgentTool) -> Map<String, Value> {
    let fields =
        [("source", json!(FROM_AGENT)), ("agent", json!(call.name)), (SCHEMA_VERSION, json!(agent.schema_version()))];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Stream subscribers see the agent's tool calls under its name, but not its text.
fn sink_of(sink: &StreamSink, agent: &str) -> StreamSink {
    let (sink, agent) = (Arc::clone(sink), agent.to_owned());
    Arc::new(move |event| {
        if let Some(event) = event.of_agent(&agent) {
            sink(event);
        }
    })
}

fn pending_calls(suspension: Suspension) -> Vec<PendingCall> {
    let Suspension { asks, open, .. } = suspension;
    let asks = asks.into_iter().map(|(approval, replaces)| PendingCall::Ask(Box::new(approval), replaces));
    asks.chain(open.into_iter().map(PendingCall::Put)).collect()
}

fn count_error() -> ToolError {
    let message = format!("a run calls at most {MOST_CALLS} agents; this one was not asked");
    ToolError::for_model(ToolFailure::PermissionDenied, "too_many_agents", message)
}

fn depth_error() -> ToolError {
    let message = format!("agents call each other at most {MOST_DEEP} deep; this one was not asked");
    ToolError::for_model(ToolFailure::PermissionDenied, "too_deep", message)
}

/// Fails where an agent takes other fields than when it was called.
pub fn check_schema(incoming: &AgentRequest, entries: &[TranscriptEntry]) -> Result<(), RunError> {
    let Some(version) = incoming.metadata.get(SCHEMA_VERSION) else { return Ok(()) };
    let begun = entries.iter().find_map(|entry| match &entry.message {
        TranscriptMessage::User { metadata, .. } => metadata.get(SCHEMA_VERSION),
        _ => None,
    });
    match begun {
        Some(begun) if begun != version => {
            let agent = incoming.chain().last().map_or("", String::as_str);
            let message = format!("the fields of the agent `{agent}` have changed since it was called");
            Err(RunError::fail(SCHEMA_CHANGED, message))
        }
        _ => Ok(()),
    }
}
