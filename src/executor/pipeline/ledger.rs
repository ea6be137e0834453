//! The ledger of a run's steps: an entry before an effect, an entry after it, in the run's transcript.
//!
//! A run that is resumed reads it and goes on where it ends: what has a result is not executed again. Entries of items
//! of a `for_each` come in the order in which they happen.
//!
//! An entry is stored before anything takes effect that follows from it. Until then it is deferred: to the intent of
//! the next effect, to the end of the run, or for a second. A step whose entry is lost with the process is executed
//! again.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex as Locked};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify};

use crate::agent::AgentStore;
use crate::agent::checkpoint::{Checkpoint, DEFERRED_BYTES, NewEntry};
use crate::base::clock::Clock;
use crate::base::json::length::bytes_of;
use crate::domain::run::transcript::LEDGER;
use crate::domain::run::{RunError, RunFault, RunFinish, StepOutcome, TranscriptEntry, TranscriptMessage, Usage};
use crate::executor::pipeline::account::StepAccount;

/// Largest value of a step, in bytes of JSON.
pub const VALUE_BYTES: usize = 256 * 1024;
/// Entries wait no longer, so that a slow step does not cost the results before it.
const DEFER_LIMIT: Duration = Duration::from_secs(1);

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

/// The entries of a run's steps: those that are stored, and those that are deferred.
pub struct Ledger {
    entries: Mutex<Entries>,
    steps: Locked<StepLedger>,
    store: Arc<dyn AgentStore>,
    clock: Clock,
    /// Told of each entry that is deferred.
    deferred: Notify,
}

struct Entries {
    checkpoint: Checkpoint,
    /// Bytes of the entries that are not stored.
    waiting: usize,
}

/// A step, or one item of it, and its position in the pipeline.
#[derive(Debug, Clone, Copy)]
pub struct StepPlace<'a> {
    pub position: i64,
    pub step: &'a str,
    pub index: Option<u32>,
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
        let ledger = Ledger {
            entries: Mutex::new(Entries { checkpoint, waiting: 0 }),
            steps: Locked::new(steps),
            store,
            clock,
            deferred: Notify::new(),
        };
        Ok((ledger, beginning))
    }

    /// The first entry of all.
    pub async fn begin(&self, beginning: &StepStart) -> Result<(), RunError> {
        let StepStart { digest, state } = beginning.clone();
        let entry = TranscriptMessage::Pipeline { digest, state: Value::Object(state), ledger: LEDGER };
        self.defer(0, NewEntry::plain(entry)).await
    }

    /// How far a step has come, or one item of it.
    pub fn step_state(&self, step: &str, index: Option<u32>) -> StepStanding {
        let steps = self.steps.lock().expect("ledger lock");
        steps.standings.get(&(step.to_owned(), index)).cloned().unwrap_or(StepStanding::Fresh)
    }

    /// Whether a step was ever begun, whatever came of it.
    pub fn was_begun(&self, place: StepPlace<'_>) -> bool {
        let steps = self.steps.lock().expect("ledger lock");
        steps.begun.contains(&(place.step.to_owned(), place.index))
    }

    /// `max_turns`: the agent of a step was stopped at its limit of turns.
    pub fn finish(&self) -> Option<RunFinish> {
        self.steps.lock().expect("ledger lock").finish
    }

    /// Usage of all steps together, in all attempts.
    pub async fn usage(&self) -> Usage {
        self.entries.lock().await.checkpoint.usage()
    }

    /// Stores the intent of an effect, with all entries before it.
    pub async fn record_intent(&self, place: StepPlace<'_>) -> Result<(), RunError> {
        let mut entries = self.entries.lock().await;
        entries.checkpoint.append(place.position, vec![intent_of(place)]).await?;
        entries.waiting = 0;
        self.set(place, StepStanding::Open);
        Ok(())
    }

    /// Notes the intent of a step that has no effect.
    pub async fn defer_intent(&self, place: StepPlace<'_>) -> Result<(), RunError> {
        self.defer(place.position, intent_of(place)).await?;
        self.set(place, StepStanding::Open);
        Ok(())
    }

    /// Notes what came of an execution.
    pub async fn defer_result(
        &self,
        place: StepPlace<'_>,
        outcome: StepOutcome,
        account: StepAccount,
        duration_ms: i64,
    ) -> Result<(), RunError> {
        let (standing, finish) = (standing_of(&outcome), finish_of(&outcome));
        let StepPlace { position, step, index } = place;
        let message = TranscriptMessage::StepResult { name: step.to_owned(), index, outcome, ledger: LEDGER };
        let StepAccount { usage, model_call, tool_record } = account;
        let (model_call, tool_record) = (model_call.map(|call| *call), tool_record.map(|record| *record));
        self.defer(position, NewEntry { message, usage, duration_ms: Some(duration_ms), model_call, tool_record })
            .await?;
        self.set(place, standing);
        self.steps.lock().expect("ledger lock").note_finish(finish);
        Ok(())
    }

    /// Stores every entry.
    pub async fn flush(&self) -> Result<(), RunError> {
        self.entries.lock().await.flush().await
    }

    /// Stores what has waited for long, while steps are executed. A store that fails here fails where they need it.
    pub async fn flush_overdue(&self) -> Infallible {
        loop {
            self.deferred.notified().await;
            self.clock.sleep(DEFER_LIMIT).await;
            if let Err(error) = self.flush().await {
                tracing::warn!(?error, "the results of steps could not be stored while others are executed");
                return pending().await;
            }
        }
    }

    /// Adds an entry that may wait, unless too much waits already.
    async fn defer(&self, position: i64, added: NewEntry) -> Result<(), RunError> {
        let mut entries = self.entries.lock().await;
        entries.waiting += bytes_of(&added.message);
        entries.checkpoint.defer(position, vec![added]);
        if entries.waiting > DEFERRED_BYTES {
            entries.flush().await?;
        }
        self.deferred.notify_one();
        Ok(())
    }

    /// Reads again what others have appended: the conversation of an agent.
    pub async fn catch_up(&self) -> Result<(), RunError> {
        let fresh = Checkpoint::load(self.store.clone(), self.clock.clone()).await?;
        *self.entries.lock().await = Entries { checkpoint: fresh, waiting: 0 };
        Ok(())
    }

    fn set(&self, place: StepPlace<'_>, standing: StepStanding) {
        self.steps.lock().expect("ledger lock").set((place.step.to_owned(), place.index), standing);
    }
}

impl Entries {
    async fn flush(&mut self) -> Result<(), RunError> {
        self.checkpoint.flush().await?;
        self.waiting = 0;
        Ok(())
    }
}

fn intent_of(place: StepPlace<'_>) -> NewEntry {
    NewEntry::plain(TranscriptMessage::Step { name: place.step.to_owned(), index: place.index, ledger: LEDGER })
}

fn standing_of(outcome: &StepOutcome) -> StepStanding {
    match outcome {
        StepOutcome::Done { value, .. } => StepStanding::Done(value.clone()),
        StepOutcome::Failed { error } => StepStanding::Failed(error.clone()),
        StepOutcome::Again { .. } => StepStanding::Fresh,
    }
}

fn finish_of(outcome: &StepOutcome) -> Option<RunFinish> {
    match outcome {
        StepOutcome::Done { finish, .. } => *finish,
        StepOutcome::Failed { .. } | StepOutcome::Again { .. } => None,
    }
}

/// Standing of the steps, and of their items, as the entries say it.
#[derive(Default)]
struct StepLedger {
    standings: HashMap<(String, Option<u32>), StepStanding>,
    /// Those that were begun, also where they are to be executed again.
    begun: HashSet<(String, Option<u32>)>,
    /// How an agent ended that was stopped.
    finish: Option<RunFinish>,
}

impl StepLedger {
    fn set(&mut self, place: (String, Option<u32>), standing: StepStanding) {
        if standing == StepStanding::Open {
            self.begun.insert(place.clone());
        }
        self.standings.insert(place, standing);
    }

    fn note_finish(&mut self, finish: Option<RunFinish>) {
        self.finish = finish.or(self.finish);
    }
}

fn read(entries: &[TranscriptEntry]) -> Result<(Option<StepStart>, StepLedger), RunError> {
    let mut beginning = None;
    let mut steps = StepLedger::default();
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
                steps.set((name.clone(), *index), StepStanding::Open);
            }
            TranscriptMessage::StepResult { name, index, outcome, .. } => {
                steps.set((name.clone(), *index), standing_of(outcome));
                steps.note_finish(finish_of(outcome));
            }
            _ => {}
        }
    }
    Ok((beginning, steps))
}
