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
use crate::domain::run::Run;
use crate::domain::task::Task;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, connection, fault, with_timeout};
use crate::store::runs::lease::{Blocked, ClaimCursor, Lease, RunClaim, StartedRow, Take};
use crate::store::runs::overlap::resolve_blocked;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// Result of a take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taking {
    /// The runs that started and those that did not.
    pub starts: Starts,
    /// Those that are due later.
    pub claims: Vec<RunClaim>,
    /// Where to go on, if it was done in turn.
    pub turn: ClaimCursor,
    /// How many runs were leased, whatever became of them.
    pub leased: usize,
}

impl Taking {
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
    /// `None` for a chat run.
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

/// Result of a start with a batch of claims.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Starts {
    /// Runs that started.
    pub started: Vec<StartedRun>,
    /// Runs that found their task's slot taken, and what became of them.
    pub blocked: Vec<(Uuid, Blocked)>,
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
    pub async fn take_runs(&self, take: &Take) -> Result<Taking, StoreError> {
        let (taken, blocked) = match &self.db {
            // one statement, which is its own transaction; what it could not start it has claimed, as a start finds it
            Db::Postgres { engine, waits, .. } if !take.limits.any() => {
                let taken =
                    with_timeout(Tx::Postgres(&mut *connection("engine", engine, waits).await?).take(take)).await?;
                fault()?;
                let blocked = self.resolve(&taken.stopped).await;
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
        let leased = taken.started.len() + taken.stopped.len() + taken.claims.len();
        let starts = self.starts(taken.started, blocked, take.lease_until).await?;
        Ok(Taking { starts, claims: taken.claims, turn: taken.turn, leased })
    }

    /// Decides about claims that were not started. Where that fails they run out, and are taken again.
    async fn resolve(&self, claims: &[Lease]) -> Vec<(Uuid, Blocked)> {
        if claims.is_empty() {
            return Vec::new();
        }
        let resolved = async {
            let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
            let tx = &mut write.tx();
            let blocked = resolve_blocked(tx, claims.to_vec(), self.clock.now()).await?;
            write.commit().await?;
            Ok::<_, StoreError>(blocked)
        };
        resolved.await.unwrap_or_else(|error| {
            tracing::warn!(%error, runs = claims.len(), "what becomes of runs that can't start is not known yet");
            Vec::new()
        })
    }

    /// Starts claims whose instant has come. Claims that an edit took back are silently left out; those that these
    /// leases have started already are answered again, so after an error the same call is safe.
    pub async fn start_runs(&self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Starts, StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let now = self.clock.now();
        let started = tx.start(leases, now, lease_until).await?;
        let gone: HashSet<Uuid> = started.iter().map(|g| g.lease.run_id).collect();
        let left = leases.iter().filter(|lease| !gone.contains(&lease.run_id));
        let blocked = resolve_blocked(tx, left.copied().collect(), now).await?;
        write.commit().await?;
        self.starts(started, blocked, lease_until).await
    }

    async fn starts(
        &self,
        started: Vec<StartedRow>,
        blocked: Vec<(Uuid, Blocked)>,
        lease_until: DateTime<Utc>,
    ) -> Result<Starts, StoreError> {
        let skipped = blocked.iter().filter(|(_, fate)| *fate == Blocked::Skipped).count();
        self.counts.skipped("overlap", skipped);
        if blocked.iter().any(|(_, fate)| *fate == Blocked::Behind) {
            self.notify(Topic::Cancels);
        }
        if blocked.iter().any(|(_, fate)| matches!(fate, Blocked::Again | Blocked::Cancelled)) {
            self.notify(Topic::Queue);
        }
        Ok(Starts { started: self.read_started(started, &mut HashMap::new(), lease_until).await?, blocked })
    }

    /// Adds to runs that were just started their records, their tasks, and who is told of them. What is not known is read;
    /// tasks are known from then on.
    pub(in crate::store) async fn read_started(
        &self,
        started: Vec<StartedRow>,
        tasks: &mut HashMap<Uuid, Arc<Task>>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRun>, StoreError> {
        if started.is_empty() {
            return Ok(Vec::new());
        }
        let unread: Vec<Uuid> = started.iter().filter(|g| g.run.is_none()).map(|g| g.lease.run_id).collect();
        let read = retry_unavailable(|| self.runs_by_id(&unread));
        let (mut runs, around) = tokio::try_join!(read, self.load_context(&started, tasks))?;
        let started = started.into_iter().filter_map(|mut started| {
            // one that can't be read is told of, and left to its lease
            let run = started.run.take().or_else(|| runs.remove(&started.lease.run_id))?;
            Some(around.to_started_run(started, run, lease_until))
        });
        Ok(started.collect())
    }

    /// Reads the surroundings of runs, beside the tasks that are known.
    async fn load_context<'a>(
        &self,
        started: &[StartedRow],
        tasks: &'a mut HashMap<Uuid, Arc<Task>>,
    ) -> Result<Around<'a>, StoreError> {
        let unknown = started.iter().filter_map(|started| started.task_id).filter(|id| !tasks.contains_key(id));
        let unknown: BTreeSet<Uuid> = unknown.collect();
        let tenants: BTreeSet<&str> = started.iter().map(|started| started.tenant_id.as_str()).collect();
        let (unknown, tenants): (Vec<_>, Vec<_>) = (unknown.into_iter().collect(), tenants.into_iter().collect());
        let (read, recipients) = retry_unavailable(|| async {
            tokio::try_join!(self.tasks_by_id(&unknown), self.recipients_by_tenant(&tenants))
        })
        .await?;
        tasks.extend(read.into_iter().map(|(id, task)| (id, Arc::new(task))));
        let recipients = recipients.into_iter().map(|(tenant, recipient)| (tenant, Arc::new(recipient))).collect();
        Ok(Around { tasks, recipients })
    }
}

/// The tasks of runs, and who is told of them, by tenant.
struct Around<'a> {
    tasks: &'a HashMap<Uuid, Arc<Task>>,
    recipients: HashMap<String, Arc<Recipient>>,
}

impl Around<'_> {
    fn to_started_run(&self, started: StartedRow, run: Run, lease_until: DateTime<Utc>) -> StartedRun {
        StartedRun {
            lease: started.lease,
            task: run.task_id.and_then(|id| self.tasks.get(&id)).cloned(),
            recipient: self.recipients.get(&run.tenant_id).cloned(),
            run: Arc::new(run),
            lease_until,
            deadline_at: started.deadline_at,
            is_first: started.is_first,
        }
    }
}
