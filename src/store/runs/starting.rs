//! How runs start. Ready runs are taken and start in one commit; runs that were claimed ahead start at their instant.
//!
//! A run that was answered as started is recorded as running, and may have effects. Where an answer is lost, the lease
//! of its run runs out.

pub(in crate::store) mod immediate_start;
pub(in crate::store) mod local_starter;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::backoff::full_jitter;
use crate::base::clock::pause;
use crate::base::compute::{ENGINE, steps_to_parse};
use crate::domain::notification::Recipient;
use crate::domain::run::{Cause, Run, RunState};
use crate::domain::task::Task;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::StoredJson;
use crate::store::db::{Db, engine_connection, fault, with_timeout};
use crate::store::runs::lease::{
    ClaimCursor, Lease, OverlapOutcome, RunClaim, StartedRow, StartedRows, TakeRequest, time_limit,
};
use crate::store::runs::overlap::rule::REASON_SUPERSEDED;
use crate::store::runs::overlap::{ResolvedClaims, resolve_blocked};
use crate::store::runs::slots::log_ends_outside_execution;
use crate::store::tasks::task_cache::CachedTask;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// Result of a take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TakeResult {
    /// The runs that started and those that did not.
    pub starts: Starts,
    /// Runs that were claimed ahead and are due later.
    pub claims: Vec<RunClaim>,
    /// The position at which the next take goes on, if tenants have turns.
    pub turn: ClaimCursor,
    /// How many runs were leased, whatever became of them.
    pub leased: usize,
}

impl TakeResult {
    /// How many runs are not ready any more.
    pub fn len(&self) -> usize {
        self.leased
    }

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run that was started, with what its executor has to know.
#[derive(Debug, Clone, PartialEq)]
pub struct StartedRun {
    /// The lease under which it is executed.
    pub lease: Lease,
    /// The run as it was started.
    pub run: Arc<Run>,
    /// The [definition](Task::into_definition()) of its task; `None` for a chat run.
    pub task: Option<Arc<Task>>,
    /// The recipient of its tenant's messages, as of now.
    pub recipient: Option<Arc<Recipient>>,
    /// The instant at which the lease ends unless it is renewed.
    pub lease_until: DateTime<Utc>,
    /// The instant at which the run's time limit is over.
    pub deadline_at: DateTime<Utc>,
    /// Whether it has never been started before: then nothing is in its transcript.
    pub is_first: bool,
}

impl StartedRun {
    /// The running time that it may take, all executions together.
    pub fn time_limit(&self) -> Duration {
        time_limit(self.task.as_deref())
    }
}

/// Result of a start with a batch of claims.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Starts {
    /// Runs that started.
    pub started: Vec<StartedRun>,
    /// Runs that found their task's slot taken, and what became of them.
    pub blocked: Vec<(Uuid, OverlapOutcome)>,
}

/// Values that belong to started runs and are not in their rows.
#[derive(Default)]
struct StartContext {
    /// Records that are not in the rows, by the run's id.
    runs: HashMap<Uuid, Run>,
    /// Tasks by their ids.
    tasks: HashMap<Uuid, Arc<Task>>,
    /// Recipients by their tenants.
    recipients: HashMap<String, Arc<Recipient>>,
}

/// Reads values that belong to runs which are recorded as started. A store that is unavailable for a moment is asked
/// again, because no other instance executes these runs until their leases run out. A start of claims is repeated as a
/// whole after ten seconds.
async fn retry_unavailable<T, R>(read: impl Fn() -> R) -> Result<T, StoreError>
where
    R: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        match with_timeout(read()).await {
            Err(StoreError::Unavailable(_)) if tries < TRIES => {
                tries += 1;
                pause(full_jitter(BACK_OFF.0, tries, BACK_OFF.1, fastrand::f64())).await;
            }
            read => return read,
        }
    }
}

/// Kinds of work that have the engine's connections to Postgres in turn with others: what is ready is taken, and claims
/// start at their instant.
const TAKES: QueueFlow = QueueFlow::Engine("takes of ready runs");
const STARTS: QueueFlow = QueueFlow::Engine("starts of claims");

/// Repetitions of such a read, and the first and the longest wait between two of them.
const TRIES: u32 = 8;
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Store {
    /// Leases ready runs that are due until `ahead`, and starts those that are due by now, in one commit. On Postgres
    /// another commit decides about those that could not start.
    pub async fn take_runs(&self, take: &TakeRequest) -> Result<TakeResult, StoreError> {
        let (taken, blocked) = match &self.db {
            // one statement, which is its own transaction; it leaves a run that it could not start claimed, as a start
            // of claims does
            Db::Postgres { engine, waits, .. } if !take.limits.any() => {
                let mut held = engine_connection(engine, waits, TAKES).await?;
                let taken = with_timeout(Tx::Postgres(&mut held).take(take)).await?;
                drop(held);
                fault()?;
                let blocked = self.resolve(taken.stopped.clone()).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, "what becomes of runs that can't start is not known yet");
                    ResolvedClaims::default()
                });
                (taken, blocked)
            }
            _ => {
                let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
                let tx = &mut write.tx();
                let taken = tx.take(take).await?;
                let blocked = resolve_blocked(tx, taken.stopped.clone(), take.now).await?;
                write.commit().await?;
                (taken, blocked)
            }
        };
        let leased = taken.started.rows.len() + taken.stopped.len() + taken.claims.len();
        let starts = self.starts(taken.started, blocked, take.lease_until).await?;
        Ok(TakeResult { starts, claims: taken.claims, turn: taken.turn, leased })
    }

    /// Decides about claims that were not started. Where that fails, the claims run out and their runs are taken again.
    async fn resolve(&self, claims: Vec<Lease>) -> Result<ResolvedClaims, StoreError> {
        if claims.is_empty() {
            return Ok(ResolvedClaims::default());
        }
        let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let blocked = resolve_blocked(tx, claims, self.clock.now()).await?;
        write.commit().await?;
        Ok(blocked)
    }

    /// Starts claims whose instant has come. Claims that an edit took back are silently left out. Runs that these
    /// leases have started already are answered again, so the call may be repeated after an error.
    pub async fn start_runs(&self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Starts, StoreError> {
        let now = self.clock.now();
        let (started, blocked) = match &self.db {
            // one statement, which is its own transaction; another one decides about the claims that it left, and this
            // call may be repeated
            Db::Postgres { engine, waits, .. } => {
                let mut held = engine_connection(engine, waits, STARTS).await?;
                let started = Tx::Postgres(&mut held).start(leases, now, lease_until).await?;
                drop(held);
                fault()?;
                let blocked = self.resolve(left_of(leases, &started)).await?;
                (started, blocked)
            }
            Db::Sqlite { .. } => {
                let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
                let tx = &mut write.tx();
                let started = tx.start(leases, now, lease_until).await?;
                let blocked = resolve_blocked(tx, left_of(leases, &started), now).await?;
                write.commit().await?;
                (started, blocked)
            }
        };
        self.starts(started, blocked, lease_until).await
    }

    async fn starts(
        &self,
        started: StartedRows,
        ResolvedClaims { outcomes: blocked, superseded }: ResolvedClaims,
        lease_until: DateTime<Utc>,
    ) -> Result<Starts, StoreError> {
        for (run_id, why) in &started.unreadable {
            self.unreadable.report("queue", run_id, why);
        }
        let count_of = |fate: OverlapOutcome| blocked.iter().filter(|(_, of)| *of == fate).count();
        let (skipped, cancelled) = (count_of(OverlapOutcome::Skipped), count_of(OverlapOutcome::Cancelled));
        self.counts.skipped("overlap", skipped);
        log_ends_outside_execution(skipped, RunState::Skipped, None, None);
        log_ends_outside_execution(cancelled, RunState::Cancelled, None, None);
        log_ends_outside_execution(superseded, RunState::Cancelled, None, Some(REASON_SUPERSEDED));
        if blocked.iter().any(|(_, fate)| *fate == OverlapOutcome::Behind) {
            self.notify(Topic::Cancels);
        }
        if blocked.iter().any(|(_, fate)| matches!(fate, OverlapOutcome::Again | OverlapOutcome::Cancelled)) {
            self.notify(Topic::Queue);
        }
        Ok(Starts { started: self.read_started(started, lease_until).await?, blocked })
    }

    /// Completes runs that were just started by their records, their tasks and the recipients of their messages. Values
    /// that are not known are read; tasks are known from then on.
    pub(in crate::store) async fn read_started(
        &self,
        started: StartedRows,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRun>, StoreError> {
        let StartedRows { rows, recipients, .. } = started;
        let rows = self.read_causes(rows).await;
        let context = self.read_start_context(&rows, recipients).await?;
        Ok(with_context(rows, context, lease_until))
    }

    /// As [`Store::read_started`], for a caller that takes an error for a batch that was not written. Where the read
    /// fails twice, none is answered: the runs are left to their leases, and are rescued when those have run out.
    pub(in crate::store) async fn read_committed_starts(
        &self,
        started: StartedRows,
        lease_until: DateTime<Utc>,
    ) -> Vec<StartedRun> {
        let StartedRows { rows, recipients, .. } = started;
        let rows = self.read_causes(rows).await;
        let mut context = self.read_start_context(&rows, recipients).await;
        if context.is_err() {
            context = self.read_start_context(&rows, None).await;
        }
        match context {
            Ok(context) => with_context(rows, context, lease_until),
            Err(error) => {
                tracing::warn!(%error, runs = rows.len(), "runs that have started can't be read, they are left to their leases");
                Vec::new()
            }
        }
    }

    /// Reads the causes, which the rows have as stored texts: on a computing thread where they are long. A run whose
    /// cause can't be read has none.
    async fn read_causes(&self, mut rows: Vec<StartedRow>) -> Vec<StartedRow> {
        let written: Vec<Option<StoredJson>> = rows.iter_mut().map(|row| row.cause.take()).collect();
        let bytes: usize = written.iter().flatten().map(StoredJson::bytes).sum();
        let read = move || written.iter().map(|cause| cause.as_ref()?.read()).collect::<Vec<Option<Cause>>>();
        let causes = self.computing.run_if_costly(ENGINE, steps_to_parse(bytes), read).await.unwrap_or_default();
        for (row, cause) in rows.iter_mut().zip(causes) {
            if let Some(run) = row.run.as_mut().filter(|_| cause.is_some()) {
                run.cause = cause;
            }
        }
        rows
    }

    /// Reads values that the rows of started runs do not have, and the recipients of their tenants where they were not
    /// `answered`.
    async fn read_start_context(
        &self,
        started: &[StartedRow],
        answered: Option<Vec<(String, String)>>,
    ) -> Result<StartContext, StoreError> {
        if started.is_empty() {
            return Ok(StartContext::default());
        }
        let unread: Vec<Uuid> = started.iter().filter(|g| g.run.is_none()).map(|g| g.lease.run_id).collect();
        let (runs, tasks, recipients) = tokio::try_join!(
            retry_unavailable(|| self.runs_by_id(&unread)),
            self.definitions(started),
            self.recipients_of(started, answered),
        )?;
        Ok(StartContext { runs, tasks, recipients })
    }

    /// The tasks of runs whose rows have none. A task that is not known in the run's version is read.
    async fn definitions(&self, started: &[StartedRow]) -> Result<HashMap<Uuid, Arc<Task>>, StoreError> {
        let without = started.iter().filter(|started| started.task.is_none());
        let versions = without.clone().filter_map(|started| started.task_id.zip(started.task_version));
        let mut tasks = self.task_cache.known(versions);
        let unknown = without.filter_map(|started| started.task_id).filter(|id| !tasks.contains_key(id));
        let unknown: Vec<Uuid> = unknown.collect::<BTreeSet<_>>().into_iter().collect();
        let read = retry_unavailable(|| self.tasks_by_id(&unknown)).await?;
        let read: Vec<CachedTask> = read.into_values().map(CachedTask::measured).collect();
        tasks.extend(read.iter().map(|read| (read.task().id, Arc::clone(read.task()))));
        self.task_cache.keep(read);
        Ok(tasks)
    }

    /// The recipients of runs' tenants, by tenant; read where they were not `answered`.
    async fn recipients_of(
        &self,
        started: &[StartedRow],
        answered: Option<Vec<(String, String)>>,
    ) -> Result<HashMap<String, Arc<Recipient>>, StoreError> {
        let recipients = match answered {
            Some(answered) => self.readable_recipients(answered),
            None => {
                let tenants: BTreeSet<&str> = started.iter().map(|started| started.tenant_id.as_str()).collect();
                let tenants: Vec<&str> = tenants.into_iter().collect();
                retry_unavailable(|| self.recipients_by_tenant(&tenants)).await?
            }
        };
        Ok(recipients.into_iter().map(|(tenant, recipient)| (tenant, Arc::new(recipient))).collect())
    }
}

/// Started runs with what belongs to them. A run whose record can't be read was reported, and is left to its lease.
fn with_context(rows: Vec<StartedRow>, mut context: StartContext, lease_until: DateTime<Utc>) -> Vec<StartedRun> {
    let started = rows.into_iter().filter_map(|started| {
        let run = started.run.or_else(|| context.runs.remove(&started.lease.run_id))?;
        Some(StartedRun {
            lease: started.lease,
            task: started.task.or_else(|| context.tasks.get(&run.task_id?).cloned()),
            recipient: context.recipients.get(&run.tenant_id).cloned(),
            run: Arc::new(run),
            lease_until,
            deadline_at: started.deadline_at,
            is_first: started.is_first,
        })
    });
    started.collect()
}

/// Those of these claims that were not started.
fn left_of(leases: &[Lease], started: &StartedRows) -> Vec<Lease> {
    let started: HashSet<Uuid> = started.rows.iter().map(|started| started.lease.run_id).collect();
    leases.iter().filter(|lease| !started.contains(&lease.run_id)).copied().collect()
}
