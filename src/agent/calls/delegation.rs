//! Calls of configured agents. Each answers in a part of the run's transcript that is its own, so a run that goes on after a crash
//! or a suspension goes on at the innermost call.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::agent::calls::ToolRunner;
use crate::agent::calls::call_turn::CallTurn;
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::shown::FetchedOutput;
use crate::agent::configured::agent_tool::AgentTool;
use crate::agent::consent::input::SCHEMA_CHANGED;
use crate::agent::{AgentOverrides, AgentRequest, AgentResponse, StreamSink, Suspension, UncountedSlot};
use crate::base::metrics::trace;
use crate::domain::run::delegation::MOST_DEEP;
use crate::domain::run::{
    Delegation, RunError, RunFault, ToolAttribution, ToolCall, TranscriptEntry, TranscriptMessage, Usage,
};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{ToolError, ToolFailure, ToolOutput};

/// The key of the message's metadata with the version of the agent's fields.
const SCHEMA_VERSION: &str = "schema_version";

/// Outcome of a call of an agent.
pub enum DelegationEnd {
    /// It has answered, or failed.
    Answered(Result<FetchedOutput, ToolError>, Usage),
    /// People have to be heard before it can.
    Waits(Vec<PendingCall>),
    /// The run stops here, or can't go on.
    Ended(RunError),
}

impl ToolRunner<'_> {
    /// Lets an agent answer a call whose arguments are whole.
    pub(super) async fn delegate(&self, turn: CallTurn<'_>, call: &ToolCall, agent: &AgentTool) -> DelegationEnd {
        let failed = |error| DelegationEnd::Answered(Err(error), Usage::default());
        let chain: Vec<String> = self.incoming.chain().iter().chain([&call.name]).cloned().collect();
        if chain.len() > MOST_DEEP {
            return failed(too_deep());
        }
        let delegation = Delegation { chain, turn: turn.number, call_id: call.id.clone() };
        let Some(store) = self.incoming.store.delegated(delegation.clone()) else {
            return failed(not_here(&call.name));
        };
        let limit = agent.time_limit(self.agent.settings.agent_limit());
        let request = AgentRequest { store: Arc::clone(&store), ..self.request(turn, call, agent, delegation) };
        let span = trace::invoke_agent(&call.name);
        let answer = tokio::select! {
            biased;
            answer = self.handled(&request).instrument(span.clone()) => answer,
            () = self.clock.sleep(limit) => {
                let message = format!("the agent has not answered within {} s", limit.as_secs_f64());
                return DelegationEnd::Answered(
                    Err(ToolError::for_model(ToolFailure::Timeout, "timeout", message)),
                    store.whole_usage(),
                );
            }
        };
        if let Err(error) = &answer {
            trace::fail(&span, error.code());
        }
        match answer {
            Ok(AgentResponse::Answered(result)) => {
                let output = ToolOutput::text(result.response);
                DelegationEnd::Answered(Ok(FetchedOutput { output, at: self.clock.now(), level: None }), result.usage)
            }
            Ok(AgentResponse::Suspended(suspension)) => DelegationEnd::Waits(pending_calls(suspension)),
            Ok(AgentResponse::Refused { reason }) => {
                let message = format!("the agent was not asked: {reason}");
                failed(ToolError::for_model(ToolFailure::PermissionDenied, "refused", message))
            }
            Err(RunError::Fail { fault }) if fault.code == SCHEMA_CHANGED => {
                DelegationEnd::Ended(RunError::Fail { fault })
            }
            Err(RunError::Fail { fault } | RunError::Retry { fault, .. }) => {
                let RunFault { code, message, .. } = fault;
                let error = ToolError::for_model(ToolFailure::ExecutionError, code, message);
                DelegationEnd::Answered(Err(error), store.whole_usage())
            }
            Err(error) => DelegationEnd::Ended(error),
        }
    }

    /// The way of every message. Boxed, because an agent may call another one.
    fn handled<'a>(&'a self, request: &'a AgentRequest) -> BoxFuture<'a, Result<AgentResponse, RunError>> {
        Box::pin(self.agent.handle_message(request))
    }

    /// The message to the agent. It acts for whom its caller acts, with tools of its own.
    fn request(&self, turn: CallTurn<'_>, call: &ToolCall, agent: &AgentTool, delegation: Delegation) -> AgentRequest {
        let caller = self.incoming;
        let slot = match turn.is_single {
            true => Arc::clone(&caller.slot),
            // of several calls at once, none may give up the place of the others
            false => Arc::new(UncountedSlot),
        };
        AgentRequest {
            tenant: caller.tenant.clone(),
            run_id: caller.run_id,
            attribution: ToolAttribution {
                agent: Some(call.name.clone()),
                step: caller.attribution.step.clone(),
                turn: 0,
            },
            text: agent.message(&call.arguments),
            metadata: metadata(call, agent),
            continues: false,
            wishes: AgentOverrides {
                system_prompt: Some(agent.configured.instruction.clone()),
                model: agent.configured.model.clone(),
                max_turns: agent.configured.max_turns,
                tools: Arc::new(limits_of(agent, self.limits)),
                credentials: caller.wishes.credentials.clone(),
            },
            first_turn: turn.number,
            timezone: caller.timezone,
            channel: None,
            agent: Some(agent.calling.clone()),
            skills: agent.configured.skills.clone(),
            asking: caller.asking.clone(),
            delegation: Some(delegation),
            host: Arc::clone(&caller.host),
            store: Arc::clone(&caller.store),
            stop: caller.stop.clone(),
            slot,
            sink: sink_of(&caller.sink, &call.name),
            clock: caller.clock.clone(),
            known: caller.known.clone(),
        }
    }
}

/// An agent that names its tools has these, and one that does not those of its caller; what the caller may not use, it may
/// not either.
fn limits_of(agent: &AgentTool, caller: &ToolLimits) -> ToolLimits {
    let ToolLimits { allow, mut deny } = agent.configured.limits();
    deny.extend(caller.deny.iter().cloned());
    ToolLimits { allow: allow.or_else(|| caller.allow.clone()), deny }
}

fn metadata(call: &ToolCall, agent: &AgentTool) -> Map<String, Value> {
    let fields =
        [("source", json!("agent")), ("agent", json!(call.name)), (SCHEMA_VERSION, json!(agent.schema_version()))];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Watchers hear of the calls of the agent, by its name; its words are told to its caller alone.
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

fn too_deep() -> ToolError {
    let message = format!("agents call each other at most {MOST_DEEP} deep; this one was not asked");
    ToolError::for_model(ToolFailure::PermissionDenied, "too_deep", message)
}

fn not_here(name: &str) -> ToolError {
    ToolError::for_model(
        ToolFailure::ExecutionError,
        "no_agents",
        format!("`{name}` is an agent, and none can be called here"),
    )
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
