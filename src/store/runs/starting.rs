//! How runs start: ready ones are taken and start in one commit; those that were claimed ahead start at their instant.
//!
//! What was answered as started is running on the record, and may have effects. An answer that was lost leaves a lease
//! that runs out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::retry::full_jitter;
use crate::domain::notification::Recipient;
use crate::domain::run::Run;
use crate::domain::task::Task;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, answered, connection, fault};
use crate::store::hot::Hot;
use crate::store::runs::leases::Blocked;
use crate::store::runs::leases::ClaimCursor;
use crate::store::runs::leases::Lease;
use crate::store::runs::leases::RunClaim;
use crate::store::runs::leases::StartedRow;
use crate::store::runs::leases::Take;
use crate::store::runs::slots::resolve_blocked;
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
async fn insist<T, R>(read: impl Fn() -> R) -> Result<T, StoreError>
where
    R: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        match answered(read()).await {
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
            Db::Postgres { hot, waits, .. } if !take.limits.any() => {
                let taken = answered(connection("hot", hot, waits).await?.take(take)).await?;
                fault()?;
                let blocked = self.resolve(&taken.stopped).await;
                (taken, blocked)
            }
            _ => {
                let mut write = self.db.write_hot(QueueFlow::of(None)).await?;
                let tx = &mut write.tx();
                let taken = tx.take(take).await?;
                let blocked = resolve_blocked(tx, taken.stopped.clone(), take.now).await?;
                write.commit().await?;
                (taken, blocked)
            }
        };
        let leased = taken.going.len() + taken.stopped.len() + taken.claims.len();
        let starts = self.starts(taken.going, blocked, take.lease_until).await?;
        Ok(Taking { starts, claims: taken.claims, turn: taken.turn, leased })
    }

    /// Decides about claims that were not started. Where that fails they run out, and are taken again.
    async fn resolve(&self, claims: &[Lease]) -> Vec<(Uuid, Blocked)> {
        if claims.is_empty() {
            return Vec::new();
        }
        let resolved = async {
            let mut write = self.db.write_hot(QueueFlow::of(None)).await?;
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
        let mut write = self.db.write_hot(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let now = self.clock.now();
        let going = tx.start(leases, now, lease_until).await?;
        let gone: HashSet<Uuid> = going.iter().map(|g| g.lease.run_id).collect();
        let left = leases.iter().filter(|lease| !gone.contains(&lease.run_id));
        let blocked = resolve_blocked(tx, left.copied().collect(), now).await?;
        write.commit().await?;
        self.starts(going, blocked, lease_until).await
    }

    async fn starts(
        &self,
        going: Vec<StartedRow>,
        blocked: Vec<(Uuid, Blocked)>,
        lease_until: DateTime<Utc>,
    ) -> Result<Starts, StoreError> {
        let skipped = blocked.iter().filter(|(_, fate)| *fate == Blocked::Skipped).count();
        self.counts.skipped("overlap", skipped);
        if blocked.iter().any(|(_, fate)| *fate == Blocked::Behind) {
            self.hint(Topic::Cancels);
        }
        if blocked.iter().any(|(_, fate)| matches!(fate, Blocked::Again | Blocked::Cancelled)) {
            self.hint(Topic::Queue);
        }
        Ok(Starts { started: self.read_started(going, &mut HashMap::new(), lease_until).await?, blocked })
    }

    /// Adds to runs that were just started their records, their tasks, and who is told of them. What is not known is read;
    /// tasks are known from then on.
    pub(in crate::store) async fn read_started(
        &self,
        going: Vec<StartedRow>,
        tasks: &mut HashMap<Uuid, Arc<Task>>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRun>, StoreError> {
        if going.is_empty() {
            return Ok(Vec::new());
        }
        let unread: Vec<Uuid> = going.iter().filter(|g| g.run.is_none()).map(|g| g.lease.run_id).collect();
        let read = insist(|| self.runs_by_id(&unread));
        let (mut runs, around) = tokio::try_join!(read, self.around(&going, tasks))?;
        let started = going.into_iter().filter_map(|mut going| {
            // one that can't be read is told of, and left to its lease
            let run = going.run.take().or_else(|| runs.remove(&going.lease.run_id))?;
            Some(around.started(going, run, lease_until))
        });
        Ok(started.collect())
    }

    /// Reads the surroundings of runs, beside the tasks that are known.
    async fn around<'a>(
        &self,
        going: &[StartedRow],
        tasks: &'a mut HashMap<Uuid, Arc<Task>>,
    ) -> Result<Around<'a>, StoreError> {
        let unknown = going.iter().filter_map(|going| going.task_id).filter(|id| !tasks.contains_key(id));
        let unknown: BTreeSet<Uuid> = unknown.collect();
        let tenants: BTreeSet<&str> = going.iter().map(|going| going.tenant_id.as_str()).collect();
        let (unknown, tenants): (Vec<_>, Vec<_>) = (unknown.into_iter().collect(), tenants.into_iter().collect());
        let (read, recipients) =
            insist(|| async { tokio::try_join!(self.tasks_by_id(&unknown), self.recipients_by_tenant(&tenants)) })
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
    fn started(&self, going: StartedRow, run: Run, lease_until: DateTime<Utc>) -> StartedRun {
        StartedRun {
            lease: going.lease,
            task: run.task_id.and_then(|id| self.tasks.get(&id)).cloned(),
            recipient: self.recipients.get(&run.tenant_id).cloned(),
            run: Arc::new(run),
            lease_until,
            deadline_at: going.deadline_at,
        }
    }
}
