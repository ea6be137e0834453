//! How runs start: ready ones are taken and start in one commit; those that were claimed ahead start at their instant.
//!
//! What was answered as started is running on the record, and may have effects. An answer that was lost leaves a lease
//! that runs out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::backoff::full_jitter;
use crate::base::clock::pause;
use crate::domain::notification::Recipient;
use crate::domain::run::{Run, RunState};
use crate::domain::task::Task;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, connection, fault, with_timeout};
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
    /// Those that are due later.
    pub claims: Vec<RunClaim>,
    /// Where to go on, if it was done in turn.
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
    /// Where its tenant is reached, as of now.
    pub recipient: Option<Arc<Recipient>>,
    /// The lease ends then unless it is renewed.
    pub lease_until: DateTime<Utc>,
    /// The run's time limit.
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

/// Reads what belongs to runs that are started on the record: a store that is away for a moment is asked again, since
/// nobody else would execute them until their leases run out. Starts of claims are asked for
/// again as a whole after ten seconds.
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

/// How often what belongs to a started run is read again, and the first and the longest wait before that.
const TRIES: u32 = 8;
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Store {
    /// Leases ready runs that are due until `ahead`, and starts those that are due by now: one commit. On Postgres
    /// those that could not start are judged in another one.
    pub async fn take_runs(&self, take: &TakeRequest) -> Result<TakeResult, StoreError> {
        let (taken, blocked) = match &self.db {
            // one statement, which is its own transaction; what it could not start it has claimed, as a start finds it
            Db::Postgres { engine, waits, .. } if !take.limits.any() => {
                let taken =
                    with_timeout(Tx::Postgres(&mut *connection("engine", engine, waits).await?).take(take)).await?;
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

    /// Decides about claims that were not started. Where that fails they run out, and are taken again.
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

    /// Starts claims whose instant has come. Claims that an edit took back are silently left out; those that these
    /// leases have started already are answered again, so after an error the same call is safe.
    pub async fn start_runs(&self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Starts, StoreError> {
        let now = self.clock.now();
        let (started, blocked) = match &self.db {
            // one statement, which is its own transaction: what it left is judged in another one, by a call that may be repeated
            Db::Postgres { engine, waits, .. } => {
                let started = Tx::Postgres(&mut *connection("engine", engine, waits).await?)
                    .start(leases, now, lease_until)
                    .await?;
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

    /// Adds to runs that were just started their records, their tasks, and who is told of them. What is not known is read;
    /// tasks are known from then on.
    pub(in crate::store) async fn read_started(
        &self,
        started: StartedRows,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRun>, StoreError> {
        let StartedRows { rows: started, recipients } = started;
        if started.is_empty() {
            return Ok(Vec::new());
        }
        let unread: Vec<Uuid> = started.iter().filter(|g| g.run.is_none()).map(|g| g.lease.run_id).collect();
        let (mut runs, tasks, recipients) = tokio::try_join!(
            retry_unavailable(|| self.runs_by_id(&unread)),
            self.definitions(&started),
            self.recipients_of(&started, recipients),
        )?;
        let started = started.into_iter().filter_map(|started| {
            // one that can't be read is told of, and left to its lease
            let run = started.run.or_else(|| runs.remove(&started.lease.run_id))?;
            Some(StartedRun {
                lease: started.lease,
                task: started.task.or_else(|| tasks.get(&run.task_id?).cloned()),
                recipient: recipients.get(&run.tenant_id).cloned(),
                run: Arc::new(run),
                lease_until,
                deadline_at: started.deadline_at,
                is_first: started.is_first,
            })
        });
        Ok(started.collect())
    }

    /// The tasks of runs that bring none along; those that are not known in their version are read.
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

/// Those of these claims that were not started.
fn left_of(leases: &[Lease], started: &StartedRows) -> Vec<Lease> {
    let started: HashSet<Uuid> = started.rows.iter().map(|started| started.lease.run_id).collect();
    leases.iter().filter(|lease| !started.contains(&lease.run_id)).copied().collect()
}
