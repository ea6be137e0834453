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
use crate::base::clock::Clock;
use crate::domain::run::Usage;
use crate::domain::run::outcome::{RunError, RunFault};
use crate::domain::run::transcript::{LEDGER, StepOutcome, TranscriptEntry, TranscriptMessage};

/// Largest value of a step, in bytes of JSON.
pub const VALUE_BYTES: usize = 256 * 1024;

/// Where a step, or one item of it, stands.
#[derive(Debug, Clone, PartialEq)]
pub enum StepStanding {
    /// Not begun, or it had no effect.
    Fresh,
    /// Begun: it may have had its effect.
    Open,
    Done(Value),
    Failed(RunFault),
}

pub struct Ledger {
    checkpoint: Mutex<Checkpoint>,
    steps: Locked<HashMap<(String, Option<u32>), StepStanding>>,
    store: Arc<dyn AgentStore>,
    clock: Clock,
}

/// The entry with which a pipeline began.
#[derive(Debug, Clone, PartialEq)]
pub struct StepStart {
    pub digest: String,
    pub state: Map<String, Value>,
}

impl Ledger {
    /// Reads what there is; `None` where the run has not begun.
    pub async fn load(store: Arc<dyn AgentStore>, clock: Clock) -> Result<(Ledger, Option<StepStart>), RunError> {
        let checkpoint = Checkpoint::load(store.clone(), clock.clone()).await?;
        let (beginning, steps) = read(checkpoint.entries())?;
        let ledger = Ledger { checkpoint: Mutex::new(checkpoint), steps: Locked::new(steps), store, clock };
        Ok((ledger, beginning))
    }

    pub async fn begin(&self, beginning: &StepStart) -> Result<(), RunError> {
        let StepStart { digest, state } = beginning.clone();
        let entry = TranscriptMessage::Pipeline { digest, state: Value::Object(state), ledger: LEDGER };
        self.checkpoint.lock().await.append(0, vec![Added::plain(entry)]).await
    }

    pub fn step_state(&self, step: &str, index: Option<u32>) -> StepStanding {
        let steps = self.steps.lock().expect("ledger lock");
        steps.get(&(step.to_owned(), index)).cloned().unwrap_or(StepStanding::Fresh)
    }

    /// Usage of all steps together, in all attempts.
    pub async fn usage(&self) -> Usage {
        self.checkpoint.lock().await.usage()
    }

    /// Written before an effect.
    pub async fn record_intent(&self, position: i64, step: &str, index: Option<u32>) -> Result<(), RunError> {
        let entry = TranscriptMessage::Step { name: step.to_owned(), index, ledger: LEDGER };
        self.checkpoint.lock().await.append(position, vec![Added::plain(entry)]).await?;
        self.set(step, index, StepStanding::Open);
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
        let entry = TranscriptMessage::StepResult { name: step.to_owned(), index, outcome, ledger: LEDGER };
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

    fn set(&self, step: &str, index: Option<u32>, standing: StepStanding) {
        self.steps.lock().expect("ledger lock").insert((step.to_owned(), index), standing);
    }
}

fn standing_of(outcome: &StepOutcome) -> StepStanding {
    match outcome {
        StepOutcome::Done { value } => StepStanding::Done(value.clone()),
        StepOutcome::Failed { error } => StepStanding::Failed(error.clone()),
        StepOutcome::Again { .. } => StepStanding::Fresh,
    }
}

type StepLedger = HashMap<(String, Option<u32>), StepStanding>;

fn read(entries: &[TranscriptEntry]) -> Result<(Option<StepStart>, StepLedger), RunError> {
    let mut beginning = None;
    let mut steps = HashMap::new();
    for entry in entries {
        match &entry.message {
            TranscriptMessage::Pipeline { ledger, .. }
            | TranscriptMessage::Step { ledger, .. }
            | TranscriptMessage::StepResult { ledger, .. }
                if *ledger > LEDGER =>
            {
                let message = format!("its ledger has the version {ledger}, known is {LEDGER}");
                return Err(RunError::fail("ledger_unknown", message));
            }
            TranscriptMessage::Pipeline { digest, state, .. } => {
                let state = state.as_object().cloned().unwrap_or_default();
                beginning = Some(StepStart { digest: digest.clone(), state });
            }
            TranscriptMessage::Step { name, index, .. } => {
                steps.insert((name.clone(), *index), StepStanding::Open);
            }
            TranscriptMessage::StepResult { name, index, outcome, .. } => {
                steps.insert((name.clone(), *index), standing_of(outcome));
            }
            _ => {}
        }
    }
    Ok((beginning, steps))
}
