//! The ledger of a run's steps: an entry before an effect, an entry after it, in the run's transcript.
//!
//! A run that is resumed reads it and goes on where it ends: what has a result is not executed again. Entries of items
//! of a `for_each` come in the order in which they happen.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex as Locked;

use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::agent::AgentStore;
use crate::agent::checkpoint::{Added, Checkpoint};
use crate::clock::Clock;
use crate::run::Usage;
use crate::run::outcome::{RunError, RunFault};
use crate::run::transcript::{Entry, LEDGER, Message, StepOutcome};

/// Largest value of a step, in bytes of JSON.
pub const VALUE_BYTES: usize = 256 * 1024;

/// Where a step, or one item of it, stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Not begun, or it had no effect.
    Fresh,
    /// Begun: it may have had its effect.
    Open,
    Done(Value),
    Failed(RunFault),
}

pub struct Ledger {
    checkpoint: Mutex<Checkpoint>,
    steps: Locked<HashMap<(String, Option<u32>), Standing>>,
    store: Arc<dyn AgentStore>,
    clock: Clock,
}

/// The entry with which a pipeline began.
#[derive(Debug, Clone, PartialEq)]
pub struct Beginning {
    pub digest: String,
    pub state: Map<String, Value>,
}

impl Ledger {
    /// Reads what there is; `None` where the run has not begun.
    pub async fn load(store: Arc<dyn AgentStore>, clock: Clock) -> Result<(Ledger, Option<Beginning>), RunError> {
        let checkpoint = Checkpoint::load(store.clone(), clock.clone()).await?;
        let (beginning, steps) = read(checkpoint.entries())?;
        let ledger = Ledger { checkpoint: Mutex::new(checkpoint), steps: Locked::new(steps), store, clock };
        Ok((ledger, beginning))
    }

    pub async fn begin(&self, beginning: &Beginning) -> Result<(), RunError> {
        let Beginning { digest, state } = beginning.clone();
        let entry = Message::Pipeline { digest, state: Value::Object(state), ledger: LEDGER };
        self.checkpoint.lock().await.append(0, vec![Added::plain(entry)]).await
    }

    pub fn standing(&self, step: &str, index: Option<u32>) -> Standing {
        let steps = self.steps.lock().expect("ledger lock");
        steps.get(&(step.to_owned(), index)).cloned().unwrap_or(Standing::Fresh)
    }

    /// Usage of all steps together, in all attempts.
    pub async fn usage(&self) -> Usage {
        self.checkpoint.lock().await.usage()
    }

    /// Written before an effect.
    pub async fn intend(&self, position: i64, step: &str, index: Option<u32>) -> Result<(), RunError> {
        let entry = Message::Step { name: step.to_owned(), index, ledger: LEDGER };
        self.checkpoint.lock().await.append(position, vec![Added::plain(entry)]).await?;
        self.set(step, index, Standing::Open);
        Ok(())
    }

    /// Written after it.
    pub async fn record(
        &self,
        position: i64,
        step: &str,
        index: Option<u32>,
        outcome: StepOutcome,
        usage: Usage,
        duration_ms: i64,
    ) -> Result<(), RunError> {
        let standing = standing_of(&outcome);
        let entry = Message::StepResult { name: step.to_owned(), index, outcome, ledger: LEDGER };
        let added = Added { message: entry, usage, duration_ms: Some(duration_ms) };
        self.checkpoint.lock().await.append(position, vec![added]).await?;
        self.set(step, index, standing);
        Ok(())
    }

    /// Reads again what others have appended: the conversation of an agent.
    pub async fn catch_up(&self) -> Result<(), RunError> {
        let fresh = Checkpoint::load(self.store.clone(), self.clock.clone()).await?;
        *self.checkpoint.lock().await = fresh;
        Ok(())
    }

    fn set(&self, step: &str, index: Option<u32>, standing: Standing) {
        self.steps.lock().expect("ledger lock").insert((step.to_owned(), index), standing);
    }
}

fn standing_of(outcome: &StepOutcome) -> Standing {
    match outcome {
        StepOutcome::Done { value } => Standing::Done(value.clone()),
        StepOutcome::Failed { error } => Standing::Failed(error.clone()),
        StepOutcome::Again { .. } => Standing::Fresh,
    }
}

type Steps = HashMap<(String, Option<u32>), Standing>;

fn read(entries: &[Entry]) -> Result<(Option<Beginning>, Steps), RunError> {
    let mut beginning = None;
    let mut steps = HashMap::new();
    for entry in entries {
        match &entry.message {
            Message::Pipeline { ledger, .. } | Message::Step { ledger, .. } | Message::StepResult { ledger, .. }
                if *ledger > LEDGER =>
            {
                let message = format!("its ledger has the version {ledger}, known is {LEDGER}");
                return Err(RunError::fail("ledger_unknown", message));
            }
            Message::Pipeline { digest, state, .. } => {
                let state = state.as_object().cloned().unwrap_or_default();
                beginning = Some(Beginning { digest: digest.clone(), state });
            }
            Message::Step { name, index, .. } => {
                steps.insert((name.clone(), *index), Standing::Open);
            }
            Message::StepResult { name, index, outcome, .. } => {
                steps.insert((name.clone(), *index), standing_of(outcome));
            }
            _ => {}
        }
    }
    Ok((beginning, steps))
}
