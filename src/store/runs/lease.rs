//! Execution of runs: claiming, starting, keeping and ending, each fenced by a lease token that is never reused.
//!
//! A write whose token is not the run's any more changes nothing. What `start` has returned is running on the record
//! and may have effects; what `finish` has returned has ended, with its deliveries in the outbox.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::Approval;
use crate::domain::notification::NewDelivery;
use crate::domain::notification::run_notification::RunNotification;
use crate::domain::run::outcome::RunFault;
use crate::domain::run::{RunState, Usage};
use crate::store::db::flow::QueueFlow;
use crate::store::hot::{FinishedRow, Hot};
use crate::store::runs::alerts::measured;
use crate::store::runs::parking::settle_park;
use crate::store::runs::slots::hand_over;
use crate::store::{Split, Store, StoreError, Topic, split};

/// Time after its instant at which a claim that was made ahead and not started is given up.
pub const CLAIM_MARGIN: TimeDelta = TimeDelta::seconds(5);

/// The right to write for a run, until someone else is given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, sqlx::FromRow)]
pub struct Lease {
    /// The run under the lease.
    pub run_id: Uuid,
    /// Token that fences every write; it is never given twice.
    #[sqlx(rename = "lease_token")]
    pub token: i64,
}

/// A run that is leased and waits for its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClaim {
    /// The lease of the claim.
    pub lease: Lease,
    /// The instant at which the run starts.
    pub run_at: DateTime<Utc>,
    /// The instant until which the claim holds.
    pub until: DateTime<Utc>,
    /// The line that it stands in, its tenant's: see [`line()`].
    pub line: u32,
}

/// The number of a tenant's line. Two tenants may share one, which costs them some patience and nothing else.
pub fn line(tenant: &str) -> u32 {
    crc32fast::hash(tenant.as_bytes())
}

/// A lease that is still held, and whether its run's end was asked for.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Beat {
    /// The run under the lease.
    pub run_id: Uuid,
    /// The reason for which it is to stop, if it is.
    pub cancel_reason: Option<String>,
}

/// How an execution ended, as it is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The lease under which the run was executed.
    pub lease: Lease,
    /// The run's task; `None` for a chat run.
    pub task_id: Option<Uuid>,
    /// Decided by `RunState::on`.
    pub state: RunState,
    /// The word for the reason, where there is one.
    pub reason: Option<String>,
    /// The answer of the run.
    pub output: Option<String>,
    /// The error of the run.
    pub error: Option<RunFault>,
    /// The run's whole usage, all attempts together.
    pub usage: Usage,
    /// How long this execution took, in milliseconds.
    pub ran_ms: i64,
    /// Back to the queue instead of an end.
    pub again: Option<RequeuedRun>,
    /// Messages that go out because of it.
    pub deliveries: Vec<NewDelivery>,
    /// Its end, to be told with measure.
    pub tells: Option<RunNotification>,
    /// The process that executed it died; it is counted with the end.
    pub crashed: bool,
    /// It goes back because a part of the infrastructure was away; it is counted with the end.
    pub infra_retry: bool,
    /// It waits instead of ending.
    pub park: Option<Park>,
    /// While it waits it counts as running: its task's slot stays with it.
    pub waiting_counts: bool,
}

/// The reason for which a run is parked.
#[derive(Debug, Clone, PartialEq)]
pub enum Park {
    /// A foreign runtime, at the latest until then.
    Completion {
        /// The instant at which the wait expires.
        until: DateTime<Utc>,
    },
    /// People; it is looked at then.
    Approval {
        /// The instant of the next look at the questions.
        wake_at: DateTime<Utc>,
        /// Questions that are to be put, with those that they replace.
        asks: Vec<(Approval, Option<Uuid>)>,
        /// Questions that were open, or whose call was held, when the loop stopped: one that is not any more means that
        /// the run goes on at once.
        open: Vec<Uuid>,
    },
}

impl Park {
    pub(in crate::store) fn why(&self) -> &'static str {
        match self {
            Park::Completion { .. } => "completion",
            Park::Approval { .. } => "approval",
        }
    }

    pub(in crate::store) fn wake_at(&self) -> DateTime<Utc> {
        match self {
            Park::Completion { until } => *until,
            Park::Approval { wake_at, .. } => *wake_at,
        }
    }
}

/// A run that goes back to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequeuedRun {
    /// The instant from which it is ready.
    pub run_at: DateTime<Utc>,
    /// A hand-back is no attempt.
    pub uses_attempt: bool,
}

impl Finish {
    /// An end of which nothing else is known.
    pub fn of(lease: Lease, task_id: Option<Uuid>, state: RunState) -> Finish {
        Finish {
            lease,
            task_id,
            state,
            reason: None,
            output: None,
            error: None,
            usage: Usage::default(),
            ran_ms: 0,
            again: None,
            deliveries: Vec::new(),
            tells: None,
            crashed: false,
            infra_retry: false,
            park: None,
            waiting_counts: false,
        }
    }

    /// When it ended, if it did.
    pub(in crate::store) fn finished_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        (self.again.is_none() && self.park.is_none()).then_some(now)
    }

    /// Whether the slot stays with it, unless its end was asked for.
    pub(in crate::store) fn keeps_slot(&self) -> bool {
        self.park.is_some() && self.waiting_counts
    }

    /// How many attempts are given back.
    pub(in crate::store) fn attempts_back(&self) -> i32 {
        i32::from(self.again.is_some_and(|again| !again.uses_attempt))
    }
}

impl Store {
    /// Renews these leases in one statement. A lease that is not in the answer is lost.
    pub async fn heartbeat(&self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut write = self.db.write_hot(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let held = tx.beat(leases, lease_until).await?;
        write.commit().await?;
        self.counts.fenced("heartbeat", leases.len() - held.len());
        Ok(held)
    }

    /// Runs of this worker whose end was asked for. A narrow index makes it cost nothing while there are none.
    pub async fn cancels_asked(&self, worker: Uuid) -> Result<Vec<Beat>, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select run_id, cancel_reason from queue where worker = $1 and cancel_reason is not null")
            .bind(worker)
            .all()
            .await?)
    }

    /// Records ends in one batch; answers the runs whose lease was lost, of which nothing was written.
    pub async fn finish_runs(&self, ends: &[Finish]) -> Result<Vec<Uuid>, StoreError> {
        let mut write = self.db.write_hot(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        // asked once there is a connection: an end is not older than what others recorded while it waited for one
        let now = self.clock.now();
        let taken = tx.finish(ends, now).await?;
        let by_run: HashMap<Uuid, &FinishedRow> = taken.iter().map(|taken| (taken.run_id, taken)).collect();
        let ended: Vec<(&Finish, &FinishedRow)> =
            ends.iter().filter_map(|end| Some((end, *by_run.get(&end.lease.run_id)?))).collect();
        let mut tasks: Vec<Uuid> =
            ended.iter().filter(|(end, _)| end.again.is_none()).filter_map(|(end, _)| end.task_id).collect();
        tasks.sort();
        tasks.dedup();
        // asked after the slots were freed: who was just being parked behind one is seen
        let mut queued = ends.iter().any(|end| end.again.is_some());
        for task_id in tx.waited_for(&tasks).await? {
            queued |= hand_over(tx, task_id, now).await?;
        }
        for (end, taken) in &ended {
            queued |= settle_park(self, tx, end, taken, now).await?;
        }
        let told: Vec<&Finish> =
            ended.iter().filter(|(end, taken)| !taken.ends_instead(end)).map(|(end, _)| *end).collect();
        let measured = measured(self, tx, told.iter().filter_map(|end| end.tells.as_ref()).collect(), now).await?;
        let deliveries: Vec<&NewDelivery> = told.iter().flat_map(|end| &end.deliveries).chain(&measured).collect();
        if !deliveries.is_empty() {
            tx.post(&deliveries, now).await?;
        }
        write.commit().await?;
        if queued {
            self.hint(Topic::Queue);
        }
        if ends.iter().any(|end| !end.deliveries.is_empty() || end.tells.is_some()) {
            self.hint(Topic::Outbox);
        }
        let written: HashSet<Uuid> = taken.iter().map(|taken| taken.run_id).collect();
        let ids = ends.iter().map(|end| end.lease.run_id);
        let lost: Vec<Uuid> = ids.filter(|id| !written.contains(id)).collect();
        self.counts.fenced("end", lost.len());
        Ok(lost)
    }

    /// Gives back what this worker has claimed and not started; answers how many.
    pub async fn release_claims(&self, worker: Uuid) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let released = write.query(RELEASE).bind(worker).execute().await?;
        write.commit().await?;
        if released > 0 {
            self.hint(Topic::Queue);
        }
        Ok(released)
    }
}

const RELEASE: Split = split!("release");
