//! `check_pending_agents`: whether an agent of the embedder waits for a message. One that does gets it first, and says
//! what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::agent::gate::GateMessage;
use crate::base::clock::Clock;
use crate::base::template::untrusted::fenced;
use crate::domain::run::{RunError, TranscriptMessage};

/// The longest that agents are waited for.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The source of the message that has the result of an agent.
const SOURCE: &str = "pending_agent";

/// The decision about a message that agents of an embedder were asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PendingVerdict {
    /// None of them waited for it: the next ones are asked, and then the model.
    Continue,
    /// The answer of the agent that waited for it. The run ends with it, and no model is asked.
    Answer(String),
    /// The result of the agent that waited for it and has done its part. The model reads it before the message, and
    /// goes on.
    Done(String),
    /// The message gets to no agent and no model: its run is skipped, with this word as the reason.
    Refuse(String),
}

/// Agents of an embedder that may wait for a message.
pub trait PendingAgents: Send + Sync {
    /// Name of them, for the log.
    fn name(&self) -> &'static str;

    /// Decides about a message. An error ends the run, or has it tried again, as it says. After a crash the same run
    /// may bring its message once more. Has 30 seconds; then the run is tried again.
    fn take<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<PendingVerdict, RunError>>;
}

/// All that may wait, in the order in which they are asked. Cheap to clone.
#[derive(Clone, Default)]
pub struct PendingChecks(Arc<Vec<Arc<dyn PendingAgents>>>);

impl PendingChecks {
    /// These, the first one first.
    pub fn new(agents: Vec<Arc<dyn PendingAgents>>) -> PendingChecks {
        PendingChecks(Arc::new(agents))
    }

    /// The decision of the first that waited for the message.
    pub async fn take(&self, message: GateMessage<'_>, clock: &Clock) -> Result<PendingVerdict, RunError> {
        for agents in self.0.iter() {
            let verdict = tokio::select! {
                biased;
                verdict = agents.take(message) => verdict?,
                () = clock.sleep(TIME_LIMIT) => {
                    let message = format!("{} has not come to an end in {} s", agents.name(), TIME_LIMIT.as_secs());
                    return Err(RunError::retry("pending_agents", message));
                }
            };
            if verdict != PendingVerdict::Continue {
                tracing::debug!(run_id = %message.run_id, agents = agents.name(), "message taken by an agent that waited");
                return Ok(verdict);
            }
        }
        Ok(PendingVerdict::Continue)
    }
}

/// The answer of an agent, as that of the run.
pub fn answer_message(text: String) -> TranscriptMessage {
    TranscriptMessage::Assistant { text: Some(text), tool_calls: Vec::new(), provider_message: None, finish: None }
}

/// The result of an agent, for the model. It stands before the message, which stays what the model has to answer, and
/// is labelled as data: it may be from anywhere.
pub fn result_message(result: &str) -> TranscriptMessage {
    let result = fenced("agent", result);
    let text = format!("[Agent] An agent that waited for the next message has done its part. Its result:\n{result}");
    TranscriptMessage::User { text, metadata: Map::from_iter([("source".to_owned(), Value::from(SOURCE))]) }
}
