//! `check_pending_agents`: whether an agent of the embedder waits for a message. Then it gets the message, and no model is asked.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::agent::gate::GateMessage;
use crate::base::clock::Clock;
use crate::domain::run::RunError;

/// The longest that agents are waited for.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Agents of an embedder that may wait for a message.
pub trait PendingAgents: Send + Sync {
    /// Name of them, for the log.
    fn name(&self) -> &'static str;

    /// The answer of the agent that waited for the message; `None`: none did. An error ends the run, or has it tried again, as
    /// it says. After a crash the same run may bring its message once more. Has 30 seconds; then the run is tried again.
    fn take<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<Option<String>, RunError>>;
}

/// All that may wait, in the order in which they are asked. Cheap to clone.
#[derive(Clone, Default)]
pub struct PendingChecks(Arc<Vec<Arc<dyn PendingAgents>>>);

impl PendingChecks {
    /// These, the first one first.
    pub fn new(agents: Vec<Arc<dyn PendingAgents>>) -> PendingChecks {
        PendingChecks(Arc::new(agents))
    }

    /// The answer of the first that waited for the message.
    pub async fn take(&self, message: GateMessage<'_>, clock: &Clock) -> Result<Option<String>, RunError> {
        for agents in self.0.iter() {
            let taken = tokio::select! {
                biased;
                taken = agents.take(message) => taken?,
                () = clock.sleep(TIME_LIMIT) => {
                    let message = format!("{} has not come to an end in {} s", agents.name(), TIME_LIMIT.as_secs());
                    return Err(RunError::retry("pending_agents", message));
                }
            };
            if let Some(answer) = taken {
                tracing::debug!(run_id = %message.run_id, agents = agents.name(), "message taken by an agent that waited");
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}
