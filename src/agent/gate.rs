//! The gate: an ordered list of checks before the first model call of a run, for triggers and chat alike. The first one
//! that refuses is the reason on record; a run that has begun is not asked again.

pub(in crate::agent) mod pending_agents;
pub mod rates;
pub mod safety;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::base::clock::Clock;

/// The longest that a check is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A message that wants to get to a model.
#[derive(Debug, Clone, Copy)]
pub struct GateMessage<'a> {
    /// The tenant that owns the run.
    pub tenant: &'a str,
    /// The run of the message.
    pub run_id: Uuid,
    /// The run's task; `None` where it has none.
    pub task_id: Option<Uuid>,
    /// `trigger`, `chat`, `agent` for one that another agent has called, or `step` for an agent or a question to a
    /// model in a pipeline.
    pub source: &'static str,
    /// The message, whole.
    pub text: &'a str,
    /// Whether an earlier execution of its run, or an earlier try of its step, has come to the gate with it: it was
    /// counted then.
    pub is_repeated: bool,
}

/// Why a message does not get to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateRefusal {
    /// Its run is recorded as skipped, with this word as the reason.
    Skip(String),
    /// Its run goes back into the queue: it may begin later.
    NotNow,
}

/// One check of the gate.
pub trait GateCheck: Send + Sync {
    /// Name of the check, for the log.
    fn name(&self) -> &'static str;

    /// Lets the message pass, or says why not. Waits for no person and for no model, and has 10 seconds: then the run
    /// goes back into the queue.
    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>>;

    /// Takes back what the check has counted for a message that a later check has sent back: it is counted when it
    /// comes again.
    fn withdraw(&self, _message: GateMessage<'_>) {}
}

/// The checks, in their order. Cheap to clone.
#[derive(Clone, Default)]
pub struct Gate(Arc<Vec<Arc<dyn GateCheck>>>);

impl Gate {
    /// A gate of these checks, the first one first.
    pub fn new(checks: Vec<Arc<dyn GateCheck>>) -> Gate {
        Gate(Arc::new(checks))
    }

    /// Asks one check after the other, until one refuses.
    pub async fn admit(&self, message: GateMessage<'_>, clock: &Clock) -> Result<(), GateRefusal> {
        for (place, check) in self.0.iter().enumerate() {
            let admitted = tokio::select! {
                biased;
                admitted = check.check(message) => admitted,
                () = clock.sleep(TIME_LIMIT) => {
                    tracing::warn!(check = check.name(), "a check of the gate has not come to an end in its time");
                    Err(GateRefusal::NotNow)
                }
            };
            if let Err(refusal) = admitted {
                tracing::info!(run_id = %message.run_id, check = check.name(), ?refusal, "message refused by the gate");
                if refusal == GateRefusal::NotNow {
                    self.0[..place].iter().for_each(|passed| passed.withdraw(message));
                }
                return Err(refusal);
            }
        }
        Ok(())
    }
}
