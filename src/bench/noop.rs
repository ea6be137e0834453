//! The executor of the measurements: it does nothing, counts how often it was asked to, and may note when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::domain::run::Usage;
use crate::domain::run::outcome::{RunError, RunOutcome};
use crate::domain::task::Action;
use crate::executor::{Executor, Job};

/// The name that tasks have it by.
pub const NAME: &str = "bench";

/// When a run was handed to its executor: on the record it is started by then.
#[derive(Debug, Clone)]
pub struct NoopStart {
    pub run_id: Uuid,
    pub tenant: String,
    pub scheduled_for: DateTime<Utc>,
    /// [`crate::base::clock::Clock::elapsed`], which all processes of a machine share.
    pub at: Duration,
}

/// Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Noop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    executed: AtomicU64,
    noting: AtomicBool,
    starts: Mutex<Vec<NoopStart>>,
    listener: Mutex<Option<mpsc::UnboundedSender<NoopStart>>>,
    /// Rings when it was executed so often; nobody is woken for each.
    awaited: AtomicU64,
    bell: Notify,
}

impl Noop {
    /// How often it was executed.
    pub fn executed(&self) -> u64 {
        self.0.executed.load(Ordering::Acquire)
    }

    /// Notes starts from now on.
    pub fn start_recording(&self) {
        self.0.noting.store(true, Ordering::Release);
    }

    /// The starts that were noted, and notes no more.
    pub fn take_recorded(&self) -> Vec<NoopStart> {
        self.0.noting.store(false, Ordering::Release);
        std::mem::take(&mut self.0.starts.lock().expect("bench lock"))
    }

    /// Each start from now on, as it comes.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<NoopStart> {
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

impl Executor for Noop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn validate(&self, _: &Action, _: &mut ValidationErrors) {}

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        let at = job.clock.elapsed();
        let shared = &*self.0;
        let start = || NoopStart {
            run_id: job.run.id,
            tenant: job.run.tenant_id.clone(),
            scheduled_for: job.run.scheduled_for,
            at,
        };
        if shared.noting.load(Ordering::Acquire) {
            shared.starts.lock().expect("bench lock").push(start());
        }
        if let Some(listener) = &*shared.listener.lock().expect("bench lock") {
            let _ = listener.send(start());
        }
        if shared.executed.fetch_add(1, Ordering::AcqRel) + 1 >= shared.awaited.load(Ordering::Acquire) {
            shared.bell.notify_waiters();
        }
        Box::pin(async { Ok(RunOutcome::Succeeded { output: String::new(), usage: Usage::default() }) })
    }
}
