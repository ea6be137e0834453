//! One run from its start to its recorded end.
//!
//! It ends when its executor does, when its time is over, when someone asks for it, or the moment its lease may be
//! someone else's: then nothing more is done or written here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use serde_json::json;
use tokio::runtime::Handle;

use crate::agent::{ChannelLimits, LoopStopReason, RunSlot, StopSignal};
use crate::base::clock;
use crate::base::id::Tenant;
use crate::domain::notification::Recipient;
use crate::domain::notification::new_delivery::channels as order_of;
use crate::domain::run::{Run, RunError, RunFault, RunOutcome, RunState, StreamEvent};
use crate::domain::task::Output;
use crate::engine::run_metrics::RunMetrics;
use crate::engine::running::credential_pause;
use crate::engine::running::ending::{RunEnding, depends_on_recipient};
use crate::engine::running::execution_budget::{ExecutionBudget, NO_TIME_LEFT, time_is_used_up};
use crate::engine::running::finisher::Finisher;
use crate::engine::scheduling::active::{ActiveRuns, RunGuard};
use crate::executor::host::StoreHost;
use crate::executor::hub::Hub;
use crate::executor::leased_transcript::LeasedTranscript;
use crate::executor::post_process::{AnsweredRun, PostProcessing};
use crate::executor::secrets::without_secrets;
use crate::executor::{ExecutorRegistry, Job};
use crate::ports::channel::ChannelRegistry;
use crate::ports::tool::ToolHost;
use crate::ports::vault::credentials::{TenantCredentials, UsedSecrets};
use crate::store::{Finish, StartedRun, Store, StoreError, with_timeout};

/// How long an executor may take to hand its run back once it was asked to.
pub const HAND_BACK_LIMIT: Duration = Duration::from_secs(2);
/// How long, where calls under way are waited for: longer than a call may take.
const HALT_LIMIT: Duration = Duration::from_secs(330);
/// For so long after the start, what was read of the recipient then is good for the end, too.
const RECIPIENT_FRESH: Duration = Duration::from_secs(1);
/// The wait between two questions to a store that is away.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The parts that every execution needs. Cheap to clone.
#[derive(Clone)]
pub struct Executions(Arc<Shared>);

struct Shared {
    /// Executions run on the engine's threads, whoever asks for them.
    runtime: Handle,
    store: Store,
    executors: ExecutorRegistry,
    channels: ChannelRegistry,
    host: Arc<StoreHost>,
    hub: Hub,
    finisher: Finisher,
    active: ActiveRuns,
    metrics: RunMetrics,
    post_processing: PostProcessing,
    lease: Duration,
    margin: TimeDelta,
}

impl Executions {
    /// The parts of every execution, with this lease time.
    #[allow(clippy::too_many_arguments)] // a list of parts, named where it is called
    pub fn new(
        store: Store,
        executors: ExecutorRegistry,
        channels: ChannelRegistry,
        host: Arc<StoreHost>,
        hub: Hub,
        finisher: Finisher,
        active: ActiveRuns,
        metrics: RunMetrics,
        post_processing: PostProcessing,
        lease: Duration,
    ) -> Executions {
        // two instances may each be wrong by what a measurement may be wrong
        let margin = clock::to_delta((clock::MEASUREMENT_ERROR * 2).min(lease / 10));
        Executions(Arc::new(Shared {
            runtime: Handle::current(),
            store,
            executors,
            channels,
            host,
            hub,
            finisher,
            active,
            metrics,
            post_processing,
            lease,
            margin,
        }))
    }

    /// How long the leases of started runs last.
    pub fn lease(&self) -> Duration {
        self.0.lease
    }

    /// Executes a started run in a task of its own.
    pub fn spawn(&self, started: StartedRun) {
        let shared = Arc::clone(&self.0);
        shared.metrics.record_start(&shared.store, &started, shared.store.clock().now());
        // the slot is taken before the task runs: who counts free slots must see it
        let guard = shared.active.add(started.lease, &started.run.tenant_id, started.lease_until);
        let runtime = shared.runtime.clone();
        runtime.spawn(async move { shared.execute(started, guard).await });
    }
}

/// Whether a worker looks at its leases by itself. What it writes is fenced all the same.
fn looks_at_lease() -> bool {
    if failpoint!("append_without_fence") {
        return false;
    }
    !failpoint!("no_fence")
}

/// There are as many of these as runs under way, so what few of them come to (the store's futures are large) is boxed.
impl Shared {
    async fn execute(&self, started: StartedRun, guard: RunGuard) {
        let run_id = started.run.id;
        self.publish_state(run_id, RunState::Running, None);
        // it begins once it has its slot: the wait for that is no execution
        let (started_at, mut began) = (self.store.clock().elapsed(), None);
        let budget = Box::pin(ExecutionBudget::of(&self.store, &started)).await;
        let transcript = LeasedTranscript::new(self.store.clone(), started.lease, &started.run, started.is_first);
        let transcript = Arc::new(transcript.spending(budget.spending));
        let result = tokio::select! {
            biased;
            () = self.lease_expired(&guard), if looks_at_lease() => return log_lost(run_id),
            result = self.run_to_end(&started, &guard, Arc::clone(&transcript), budget.until, &mut began) => result,
            () = self.lease_lost(&guard), if looks_at_lease() => return log_lost(run_id),
        };
        // Nothing has effects from here on, and writes are fenced by the token: so an end is offered to a store
        // that is away for as long as it takes, rather than executed once more.
        let ended_at = self.store.clock().elapsed();
        let ran = ended_at.saturating_sub(began.unwrap_or(ended_at));
        let owner_notified = tokio::select! {
            biased;
            () = self.lease_expired(&guard), if looks_at_lease() => return log_lost(run_id),
            owner_notified = self.stop_task(&started, &result) => owner_notified,
            () = self.lease_lost(&guard), if looks_at_lease() => return log_lost(run_id),
        };
        let is_fresh = ended_at < started_at + RECIPIENT_FRESH;
        let is_known = is_fresh || !depends_on_recipient(started.task.as_deref(), &result);
        let recipient = match is_known {
            true => started.recipient.clone(),
            false => Box::pin(self.recipient(&started.run.tenant_id)).await,
        };
        let ending = RunEnding {
            lease: started.lease,
            run: &started.run,
            task: started.task.as_deref(),
            recipient: recipient.as_deref(),
            usage: transcript.usage(),
            ran,
            now: self.store.clock().now(),
            owner_notified,
            random: fastrand::f64(),
        };
        match ending.finish(result) {
            Ok(Some(finish)) => {
                let (entries, budget) = Box::pin(transcript.end()).await;
                let extracts = finish.state == RunState::Succeeded && transcript.may_extract();
                let is_transcript_settled = transcript.is_settled();
                let finish = Finish { entries, is_transcript_settled, budget, extracts, ..finish };
                // the rest of the work is the store's: others compute meanwhile
                guard.slot.leave();
                self.record(Box::new(finish), &started, owner_notified).await;
            }
            Ok(None) => tracing::warn!(%run_id, "the run was taken over while it was executed"),
            Err(illegal) => tracing::error!(%run_id, %illegal, "an execution ended in no way that a run can"),
        }
    }

    /// Executes, no longer than the run's time, and no longer than its end is asked for. Only while the lease stands.
    async fn run_to_end(
        &self,
        started: &StartedRun,
        guard: &RunGuard,
        transcript: Arc<LeasedTranscript>,
        until: Result<Option<DateTime<Utc>>, RunError>,
        began: &mut Option<Duration>,
    ) -> Result<RunOutcome, RunError> {
        let until = until?;
        if let (Some(task_id), None) = (started.run.task_id, &started.task) {
            return Err(RunError::fail("no_task", format!("the task {task_id} is gone, or can't be read")));
        }
        let name = started.task.as_ref().map_or("orchestrator", |task| task.spec.executor.as_str());
        let Some(executor) = self.executors.find(name) else {
            return Err(RunError::fail("executor_unknown", format!("there is no executor `{name}` in this service")));
        };
        guard.wait_for_slot(self.store.clock()).await?;
        *began = Some(self.store.clock().elapsed());
        let stop = &guard.stop;
        let job = self.job(started, transcript, guard)?;
        let credentials = job.credentials.clone();
        let used_secrets = job.used_secrets.clone();
        let work = AssertUnwindSafe(executor.execute(job)).catch_unwind();
        let ended = tokio::select! {
            ended = work => ended.unwrap_or_else(|_| Err(RunError::fail("panicked", "the executor panicked"))),
            () = self.store.clock().sleep_until(started.deadline_at) => Err(too_long(started)),
            () = time_is_used_up(self.store.clock(), until) => Err(RunError::Fail { fault: NO_TIME_LEFT.fault() }),
            asked = stop_ignored(stop) => Err(asked),
        };
        if !started.is_first
            && let Err(why) = Box::pin(credentials.recall()).await
        {
            // what an earlier execution has read may be in it
            return Err(RunError::Infrastructure { fault: RunFault::new("store", why) });
        }
        let ended = Box::pin(without_secrets(ended, &used_secrets)).await;
        match (ended, stop.check()) {
            // whose end was asked for is not tried again
            (Err(RunError::Retry { .. } | RunError::Infrastructure { .. } | RunError::HandBack), Err(asked)) => {
                Err(asked)
            }
            (ended, _) => ended,
        }
    }

    async fn record(&self, finish: Box<Finish>, started: &StartedRun, owner_notified: bool) {
        let run_id = started.run.id;
        let (state, reason, usage, how) = (finish.state, finish.reason.clone(), finish.usage, finish.finish);
        let took = Duration::from_millis(finish.execution_ms.max(0) as u64);
        let error = finish.error.clone();
        let answer = finish.output.clone().filter(|_| state == RunState::Succeeded && !self.post_processing.is_empty());
        if !self.finisher.finish(finish).await {
            tracing::warn!(%run_id, "the end of the run could not be recorded, it goes on elsewhere");
            return;
        }
        if let Some(output) = answer {
            self.post_processing.begin(AnsweredRun { run: Arc::clone(&started.run), output }, &self.runtime);
        }
        self.metrics.record_end(self.executor_of(started), state, took);
        log_end(started, state, took, error.as_ref());
        if let Some(fault) = error {
            self.hub.publish(run_id, || StreamEvent::Error { code: fault.code, message: fault.message });
        }
        self.publish_state(run_id, state, reason);
        if state.is_final() {
            self.hub.publish(run_id, || StreamEvent::ExecutionEnd {
                conversation_id: started.run.conversation_id().map(|id| id.to_string()),
                usage: json!(usage),
                finish: how,
            });
        }
        if state == RunState::Failed && !owner_notified {
            Box::pin(self.pause_if_failing(started)).await;
        }
    }

    /// Where the run failed for want of a credential its task is paused, and where its action can't be read it is
    /// disabled; whether its owner is told by that.
    async fn stop_task(&self, started: &StartedRun, result: &Result<RunOutcome, RunError>) -> bool {
        match (&started.task, credential_pause::credential_issue(result), credential_pause::unreadable(result)) {
            (Some(task), Some(issue), _) => Box::pin(credential_pause::pause(&self.store, task.id, issue)).await,
            (Some(task), _, Some(why)) => Box::pin(credential_pause::disable(&self.store, task, why)).await,
            _ => false,
        }
    }

    async fn pause_if_failing(&self, started: &StartedRun) {
        let Some(task) = &started.task else { return };
        let Some(limit) = task.spec.pause_after_failures else { return };
        match with_timeout(self.store.pause_if_failing(task.id, limit)).await {
            Ok(true) => tracing::warn!(task_id = %task.id, failures = limit, "a task keeps failing, it is paused"),
            Ok(false) => {}
            Err(error) => tracing::warn!(task_id = %task.id, %error, "failures could not be counted"),
        }
    }

    /// The executor's name; one that is not there has none, or anybody could make names up.
    fn executor_of<'a>(&self, started: &'a StartedRun) -> &'a str {
        let name = started.task.as_ref().map_or("orchestrator", |task| task.spec.executor.as_str());
        self.executors.find(name).map_or("unknown", |_| name)
    }

    fn job(&self, started: &StartedRun, transcript: Arc<LeasedTranscript>, guard: &RunGuard) -> Result<Job, RunError> {
        let recipient = started.recipient.as_deref();
        let output = started.task.as_ref().map_or_else(Output::nobody, |task| task.spec.output.clone());
        let first = order_of(&output, recipient).into_iter().next();
        let channel = first.and_then(|name| self.channels.get(&name)).map(|channel| ChannelLimits {
            name: channel.name().to_owned(),
            supported_formats: channel.capabilities().supported_formats.iter().map(|f| (*f).to_owned()).collect(),
            renders_markdown: channel.renders_markdown(),
            max_response_length: Some(channel.capabilities().max_response_length),
        });
        let (used_secrets, host) = (UsedSecrets::of(&started.run), self.host.of_run(started.lease));
        let ids = (Some(started.run.id), started.run.task_id);
        let by = format!("executor:{}", self.executor_of(started));
        let tenant = Tenant::stored(&started.run.tenant_id).map_err(|why| RunError::fail("invalid_tenant", why))?;
        Ok(Job {
            credentials: TenantCredentials::new(host.credentials(), tenant, ids, by, used_secrets.clone()),
            run: started.run.clone(),
            is_first: started.is_first,
            task: started.task.clone(),
            timezone: recipient.map_or(chrono_tz::Tz::UTC, |recipient| recipient.timezone),
            locale: recipient.map(|recipient| recipient.locale.as_str().into()),
            channel,
            store: transcript,
            host: Arc::new(host),
            stop: guard.stop.clone(),
            slot: Arc::clone(&guard.slot) as Arc<dyn RunSlot>,
            sink: self.hub.sink(started.run.id),
            clock: self.store.clock().clone(),
            used_secrets,
        })
    }

    /// The tenant's recipient; a store that is away is asked until it answers.
    async fn recipient(&self, tenant: &str) -> Option<Arc<Recipient>> {
        loop {
            match with_timeout(self.store.recipient_to_tell(tenant)).await {
                Ok(found) => return found.map(Arc::new),
                Err(StoreError::Unavailable(_) | StoreError::TimedOut(_)) => clock::pause(ASK_AGAIN).await,
                Err(error) => {
                    tracing::error!(tenant_id = tenant, %error, "a recipient can't be read");
                    return None;
                }
            }
        }
    }

    /// Until when the lease of this place is surely ours: `margin` before others may think that it is not, because
    /// their clocks and ours agree only so well.
    fn lease_deadline(&self, guard: &RunGuard) -> DateTime<Utc> {
        *guard.valid_until.borrow() - self.margin
    }

    /// Returns when the lease was not renewed in time, or was taken; for who looks anyway: it wakes nobody. Looked at
    /// before each step of the work, it keeps a process that was stopped for longer than the lease from another step.
    fn lease_expired(&self, guard: &RunGuard) -> impl Future<Output = ()> {
        std::future::poll_fn(|_| match self.store.clock().now() >= self.lease_deadline(guard) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// Returns when the lease was not renewed in time, or was taken, and wakes its caller.
    async fn lease_lost(&self, guard: &RunGuard) {
        let (clock, mut valid_until) = (self.store.clock(), guard.valid_until.clone());
        loop {
            valid_until.mark_unchanged();
            let until = self.lease_deadline(guard);
            if clock.now() >= until {
                return;
            }
            tokio::select! {
                () = clock.sleep_until(until) => {}
                changed = valid_until.changed() => if changed.is_err() { clock.sleep_until(until).await },
            }
        }
    }

    fn publish_state(&self, run_id: uuid::Uuid, state: RunState, reason: Option<String>) {
        self.hub.publish(run_id, || StreamEvent::StateChange { state: state.as_str().to_owned(), reason });
    }
}

/// The one line that the log has of an execution, once its end is on the record.
fn log_end(started: &StartedRun, state: RunState, took: Duration, error: Option<&RunFault>) {
    let Run { id, tenant_id, attempt, .. } = &*started.run;
    let task = started.task.as_ref();
    let (task_id, name) = (task.map(|task| tracing::field::display(task.id)), task.map(|task| task.name.as_str()));
    let (state, duration_ms) = (state.as_str(), took.as_millis() as u64);
    match error {
        Some(RunFault { code, message, .. }) => tracing::warn!(
            run_id = %id, task_id, task = name, tenant_id, state, duration_ms, attempt, code, error = message, "execution failed"
        ),
        None => {
            tracing::info!(run_id = %id, task_id, task = name, tenant_id, state, duration_ms, attempt, "execution ended")
        }
    }
}

fn log_lost(run_id: uuid::Uuid) {
    tracing::warn!(%run_id, "the lease is lost, the run goes on elsewhere");
}

/// Returns when an end was asked for and the executor did not come to it by itself.
async fn stop_ignored(stop: &StopSignal) -> RunError {
    stop.requested().await;
    let limit = if stop.reason() == Some(&LoopStopReason::Halt) { HALT_LIMIT } else { HAND_BACK_LIMIT };
    clock::pause(limit).await;
    stop.check().err().unwrap_or(RunError::HandBack)
}

fn too_long(started: &StartedRun) -> RunError {
    let limit = started.time_limit().as_secs();
    RunError::fail("timeout", format!("the run took longer than its limit of {limit} s"))
}
