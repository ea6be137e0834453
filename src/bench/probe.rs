//! The executor of the measurements: it notes when a run is handed to it, and has one of the service's own executors
//! execute it. Without such a target it does nothing.
//!
//! The service knows it as an executor that an embedder adds, so no part of the product is measured by a hook of its
//! own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::domain::run::{RunError, RunOutcome, Usage};
use crate::domain::task::Action;
use crate::executor::{Executor, Job};

/// The name that tasks have it by.
pub const NAME: &str = "bench";

/// When a run was handed to its executor, on the record started by then; or when the executor was done with it.
#[derive(Debug, Clone)]
pub struct ProbedRun {
    pub run_id: Uuid,
    pub tenant: String,
    pub scheduled_for: DateTime<Utc>,
    /// [`crate::base::clock::Clock::elapsed`], which all processes of a machine share.
    pub at: Duration,
}

/// Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct ExecutorProbe(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Executes the runs; unset: nothing is done.
    target: OnceLock<Arc<dyn Executor>>,
    /// Ends runs that no target executes; unset: they end at once.
    held: OnceLock<CancellationToken>,
    executed: AtomicU64,
    noting: AtomicBool,
    starts: Mutex<Vec<ProbedRun>>,
    /// Of runs that a target has executed.
    ends: Mutex<Vec<ProbedRun>>,
    listener: Mutex<Option<mpsc::UnboundedSender<ProbedRun>>>,
    /// Rings when it was executed so often; nobody is woken for each.
    awaited: AtomicU64,
    bell: Notify,
}

impl ExecutorProbe {
    /// Hands runs to this executor from now on. The first target stays.
    pub fn set_target(&self, target: Arc<dyn Executor>) {
        let _ = self.0.target.set(target);
    }

    /// Lets runs that no target executes go on until the token is cancelled. The first token stays.
    pub fn hold_runs(&self, until: CancellationToken) {
        let _ = self.0.held.set(until);
    }

    /// How many executions have ended; without a target, how many have begun.
    pub fn executed(&self) -> u64 {
        self.0.executed.load(Ordering::Acquire)
    }

    /// Notes starts, and ends of what a target executes, from now on.
    pub fn start_recording(&self) {
        self.0.noting.store(true, Ordering::Release);
    }

    /// The starts that were noted, and notes no more.
    pub fn take_recorded(&self) -> Vec<ProbedRun> {
        self.take_starts_and_ends().0
    }

    /// The starts and the ends that were noted, and notes no more.
    pub fn take_starts_and_ends(&self) -> (Vec<ProbedRun>, Vec<ProbedRun>) {
        self.0.noting.store(false, Ordering::Release);
        let take = |noted: &Mutex<Vec<ProbedRun>>| std::mem::take(&mut *noted.lock().expect("bench lock"));
        (take(&self.0.starts), take(&self.0.ends))
    }

    /// Each start from now on, as it comes.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<ProbedRun> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.0.listener.lock().expect("bench lock") = Some(sender);
        receiver
    }

    /// Returns once it was executed so often.
    ///
    /// # Errors
    /// That takes longer than `patience`.
    pub async fn until_executed(&self, times: u64, patience: Duration) -> anyhow::Result<()> {
        self.0.awaited.store(times, Ordering::Release);
        let until = async {
            loop {
                let bell = self.0.bell.notified();
                if self.executed() >= times {
                    return;
                }
                let _ = tokio::time::timeout(Duration::from_millis(50), bell).await;
            }
        };
        let waited = tokio::time::timeout(patience, until).await;
        waited.map_err(|_| anyhow::anyhow!("{} of {times} runs were executed within {patience:?}", self.executed()))
    }
}

impl ProbedRun {
    fn now(job: &Job) -> ProbedRun {
        ProbedRun {
            run_id: job.run.id,
            tenant: job.run.tenant_id.clone(),
            scheduled_for: job.run.scheduled_for,
            at: job.clock.elapsed(),
        }
    }
}

impl Shared {
    /// Notes the start of a run, if anybody wants to know.
    fn note_start(&self, job: &Job) {
        if self.noting.load(Ordering::Acquire) {
            self.starts.lock().expect("bench lock").push(ProbedRun::now(job));
        }
        if let Some(listener) = &*self.listener.lock().expect("bench lock") {
            let _ = listener.send(ProbedRun::now(job));
        }
    }

    /// Executes a run by the target, and notes its end, if anybody wants to know.
    async fn execute(&self, target: &dyn Executor, job: Job) -> Result<RunOutcome, RunError> {
        let noted = self.noting.load(Ordering::Acquire).then(|| job.clone());
        let ended = target.execute(job).await;
        if let Some(job) = noted {
            self.ends.lock().expect("bench lock").push(ProbedRun::now(&job));
        }
        self.count();
        ended
    }

    fn count(&self) {
        if self.executed.fetch_add(1, Ordering::AcqRel) + 1 >= self.awaited.load(Ordering::Acquire) {
            self.bell.notify_waiters();
        }
    }
}

impl Executor for ExecutorProbe {
    fn name(&self) -> &'static str {
        NAME
    }

    fn validate(&self, action: &Action, faults: &mut ValidationErrors) {
        if let Some(target) = self.0.target.get() {
            target.validate(action, faults);
        }
    }

    fn seal(&self, tenant: &Tenant, action: &mut Action, before: Option<&Action>) -> Result<(), ValidationErrors> {
        self.0.target.get().map_or(Ok(()), |target| target.seal(tenant, action, before))
    }

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        self.0.note_start(&job);
        match self.0.target.get() {
            Some(target) => Box::pin(self.0.execute(&**target, job)),
            None => {
                self.0.count();
                let held = self.0.held.get().cloned();
                Box::pin(async move {
                    if let Some(held) = held {
                        held.cancelled().await;
                    }
                    Ok(RunOutcome::Succeeded { output: String::new(), finish: None, usage: Usage::default() })
                })
            }
        }
    }
}
