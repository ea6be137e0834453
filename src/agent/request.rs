//! A message to an agent: what is asked, for whom, and everything that its answer needs.

use std::sync::Arc;

use chrono_tz::Tz;
use serde_json::{Map, Value};
use tracing::Span;
use uuid::Uuid;

use crate::agent::checkpoint::NewEntry;
use crate::agent::checkpoint::transcript_slice::TranscriptSlice;
use crate::agent::configured::CallingAgent;
use crate::agent::gate::GateMessage;
use crate::agent::prompt::channel_limits::ChannelLimits;
use crate::agent::slot::RunSlot;
use crate::agent::stop::StopSignal;
use crate::base::clock::Clock;
use crate::base::id::Tenant;
use crate::base::metrics::trace;
use crate::domain::approval::PolicyRules;
use crate::domain::credential::Reference;
use crate::domain::run::{Delegation, ReactLoopResult, StreamEvent, ToolAttribution, TranscriptMessage};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::{ToolHost, UsedSecrets};

/// The source of messages that a person writes in a chat.
pub const CHAT: &str = "chat";

/// The source of messages that stand for a fire.
pub const TRIGGER: &str = "trigger";

/// The source of messages in a step of a pipeline.
pub const STEP: &str = "step";

/// The source of messages to an agent that another one calls.
pub const FROM_AGENT: &str = "agent";

/// Hears what happens in a run while it happens. Must not block.
pub type StreamSink = Arc<dyn Fn(StreamEvent) + Send + Sync>;

/// One message, and all that its answer needs.
pub struct AgentRequest {
    /// The tenant that owns the run.
    pub tenant: Tenant,
    /// The run, which names the transcript.
    pub run_id: Uuid,
    /// The agent within the run, to which its calls of tools are attributed.
    pub attribution: ToolAttribution,
    /// The message to answer.
    pub text: String,
    /// Its words by which facts are looked for: without ids and instants, so that messages that mean the same look for
    /// the same. `None`: all of it.
    pub about: Option<String>,
    /// Whether the gate was asked about it before.
    pub is_repeated: bool,
    /// Where it came from; kept in the transcript.
    pub metadata: Map<String, Value>,
    /// Whether the runs before this one are part of the conversation.
    pub continues: bool,
    /// Settings of the task in place of the configured ones.
    pub overrides: AgentOverrides,
    /// The turn before its first: where several agents speak in one run, the turns of each are its own.
    pub first_turn: i64,
    /// The recipient's.
    pub timezone: Tz,
    /// The recipient's language tag; `None`: there is no recipient.
    pub locale: Option<Arc<str>>,
    /// Limits of the channel that carries the answer.
    pub channel: Option<ChannelLimits>,
    /// The configured agent that answers; `None`: none of them.
    pub agent: Option<CallingAgent>,
    /// The only skills that the agent may use; `None`: all.
    pub skills: Option<Vec<String>>,
    /// The call by which the agent speaks; `None`: it is the run's own.
    pub delegation: Option<Delegation>,
    /// Whom the run may ask.
    pub approval_context: ApprovalContext,
    /// The host of tools.
    pub host: Arc<dyn ToolHost>,
    /// The store of the transcript.
    pub store: Arc<TranscriptSlice>,
    /// The signal to stop.
    pub stop: StopSignal,
    /// The slot in which the run computes.
    pub slot: Arc<dyn RunSlot>,
    /// The sink of live events.
    pub sink: StreamSink,
    /// Time of the engine.
    pub clock: Clock,
    /// The secrets that the run has used so far.
    pub used_secrets: UsedSecrets,
}

impl AgentRequest {
    /// The agents through which it came, outermost first; the last one answers.
    pub fn chain(&self) -> &[String] {
        self.delegation.as_ref().map_or(&[], |delegation| &delegation.chain)
    }

    /// Whether a person has written the message.
    pub(in crate::agent) fn is_chat(&self) -> bool {
        self.delegation.is_none() && self.approval_context.source == CHAT
    }

    /// Limits of what carries the answer: the channel, or the chat to which it goes back.
    pub(in crate::agent) fn carrier(&self) -> Option<&ChannelLimits> {
        self.channel.as_ref().or_else(|| self.is_chat().then(ChannelLimits::of_chat))
    }

    /// The message as the gate sees it.
    pub(in crate::agent) fn gate_message(&self) -> GateMessage<'_> {
        GateMessage {
            tenant: self.tenant.as_str(),
            run_id: self.run_id,
            task_id: self.approval_context.task_id,
            source: match (&self.delegation, &self.attribution.step) {
                (Some(_), _) => FROM_AGENT,
                (None, Some(_)) => STEP,
                (None, None) => self.approval_context.source,
            },
            text: &self.text,
            is_repeated: self.is_repeated,
        }
    }

    /// The first entries of a transcript: instructions, what was said before, and the message.
    pub(in crate::agent) fn initial_entries(
        &self,
        system: TranscriptMessage,
        before: impl IntoIterator<Item = TranscriptMessage>,
    ) -> Vec<NewEntry> {
        let user = TranscriptMessage::User { text: self.text.clone(), metadata: self.metadata.clone() };
        let messages = std::iter::once(system).chain(before).chain([user]);
        messages.map(NewEntry::plain).collect()
    }

    /// Notes message and answer on the span of the agent, where spans have content, unless there is a secret in them.
    pub(in crate::agent) async fn note_content(&self, answer: &str) {
        if !trace::has_content() {
            return;
        }
        for (field, text) in [(trace::INPUT, self.text.as_str()), (trace::OUTPUT, answer)] {
            if !self.used_secrets.finds(text).await {
                trace::note(&Span::current(), field, text);
            }
        }
    }

    /// Logs what an answer took. Never delays or fails it.
    pub(in crate::agent) fn log_account(&self, result: &ReactLoopResult) {
        tracing::debug!(
            run_id = %self.run_id,
            tenant_id = %self.tenant,
            turns = result.turns,
            tool_calls = result.usage.tool_calls,
            input_tokens = result.usage.input_tokens,
            output_tokens = result.usage.output_tokens,
            cost_micros = result.usage.cost_micros,
            duration_ms = result.duration_ms,
            "message answered"
        );
    }
}

/// Settings of a task that override the configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentOverrides {
    /// The system message; `None`: the configured one.
    pub system_prompt: Option<String>,
    /// Name of the chain of models; `None`: the configured one.
    pub model: Option<String>,
    /// Turns with tools; `None`: the configured number.
    pub max_turns: Option<u32>,
    /// The tools that may be used.
    pub tools: Arc<ToolLimits>,
    /// The credentials that its calls may use without anybody being asked for them.
    pub credentials: Vec<Reference>,
}

/// Whom a run may ask, and by which rules of its own.
#[derive(Debug, Clone)]
pub struct ApprovalContext {
    /// The run's task, for standing grants.
    pub task_id: Option<Uuid>,
    /// [`TRIGGER`] or [`CHAT`].
    pub source: &'static str,
    /// The task's own rules.
    pub rules: Option<Arc<PolicyRules>>,
}
