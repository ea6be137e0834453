//! `post_process`: steps of an embedder behind an answer, such as history, facts and usage. They run once the end of
//! the run is on the record, so that none of them delays or fails an answer; what they fail at is logged. A crash may
//! lose them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::domain::run::Run;

/// The longest step.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Answers that are processed at once; beyond them none waits.
const AT_ONCE: usize = 64;

/// An answer that is on the record.
#[derive(Clone)]
pub struct AnsweredRun {
    /// The run as it was started.
    pub run: Arc<Run>,
    /// The answer.
    pub output: String,
}

/// One step behind an answer.
pub trait PostProcess: Send + Sync {
    /// Name of the step, for the log.
    fn name(&self) -> &'static str;

    /// Does what follows from the answer; an error is logged. Has 30 seconds.
    fn process<'a>(&'a self, answered: &'a AnsweredRun) -> BoxFuture<'a, Result<(), String>>;
}

/// The steps, in their order. Cheap to clone.
#[derive(Clone)]
pub struct PostProcessing {
    steps: Arc<Vec<Arc<dyn PostProcess>>>,
    permits: Arc<Semaphore>,
}

impl PostProcessing {
    /// These steps, the first one first.
    pub fn new(steps: Vec<Arc<dyn PostProcess>>) -> PostProcessing {
        PostProcessing { steps: Arc::new(steps), permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Whether there is any step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Has the steps done aside, one after the other, and returns at once.
    pub fn begin(&self, answered: AnsweredRun, runtime: &Handle) {
        let run_id = answered.run.id;
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            tracing::warn!(%run_id, "too many answers are being processed, this one is left out");
            return;
        };
        let steps = Arc::clone(&self.steps);
        runtime.spawn(async move {
            for step in steps.iter() {
                let name = step.name();
                match timeout(TIME_LIMIT, AssertUnwindSafe(step.process(&answered)).catch_unwind()).await {
                    Ok(Ok(Ok(()))) => {}
                    Ok(Ok(Err(error))) => tracing::warn!(%run_id, step = name, error, "a step behind an answer failed"),
                    Ok(Err(_)) => tracing::error!(%run_id, step = name, "a step behind an answer panicked"),
                    Err(_) => tracing::warn!(%run_id, step = name, "a step behind an answer took too long"),
                }
            }
            drop(permit);
        });
    }
}
