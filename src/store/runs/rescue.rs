//! Runs and claims of workers that died, hang, or lost a hand-over: found by narrow indexes, a page at a time.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::Run;
use crate::domain::task::Task;
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::runs::lease::{Lease, time_limit};
use crate::store::runs::slots::{RECHECK_AFTER, hand_over};
use crate::store::sql::sql;
use crate::store::{NEXT_TOKEN, Split, Store, StoreError, Topic, split};

/// A started run whose worker is gone, or that has outlived its time limit.
#[derive(Debug, Clone, PartialEq)]
pub struct StrandedRun {
    /// Taken over by the rescuer: the old holder's is void.
    pub lease: Lease,
    /// The run whose worker is gone.
    pub run: Run,
    /// The run's task; `None` for a chat run.
    pub task: Option<Task>,
    /// The lease was not renewed; otherwise its time limit is over and its worker does not end it.
    pub crashed: bool,
    /// How long the lost execution took, as far as its lease tells.
    pub ran: Duration,
    /// Someone asked for its end.
    pub cancel_reason: Option<String>,
}

#[derive(sqlx_macros::FromRow)]
struct StrandedRow {
    run_id: Uuid,
    lease_token: i64,
    lease_until: DateTime<Utc>,
    deadline_at: DateTime<Utc>,
    cancel_reason: Option<String>,
    execution_ms: i64,
}

impl StrandedRow {
    /// Its time limit, less what it had used before and what was left when its lease ended.
    fn execution_time(&self, task: Option<&Task>) -> Duration {
        let left = self.deadline_at - self.lease_until.min(self.deadline_at);
        let execution_ms = (time_limit(task).as_millis() as i64 - self.execution_ms - left.num_milliseconds()).max(0);
        Duration::from_millis(execution_ms as u64)
    }
}

impl Store {
    /// Makes claims ready again whose holder did not start them in time; answers how many.
    pub async fn requeue_expired_claims(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let reclaimed = write.query(RECLAIM).bind(now).execute().await?;
        write.commit().await?;
        self.notify_ready(reclaimed > 0);
        Ok(reclaimed)
    }

    /// Takes over started runs whose lease has ended, or whose time limit passed `grace` ago, the longest overdue
    /// first. Each gets a lease of its own until `lease_until` and is not found again before that; so one that can't be
    /// rescued starves no other. One that can't be read is left out; where it is its lease or its time limit, it gets
    /// another one, and is found again when that has ended.
    pub async fn take_over_expired(
        &self,
        now: DateTime<Utc>,
        grace: TimeDelta,
        lease_until: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<StrandedRun>, StoreError> {
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let ended = tx.query(LEASE_ENDED).bind(now).bind(limit).rows().await?;
        let left = limit - ended.len() as i64;
        let hung = tx.query(HUNG).bind(now).bind(now - grace).bind(left).rows().await?;
        read.end().await?;
        let (mut rows, ended) = self.unreadable.partition_readable::<StrandedRow, _, Uuid>("queue", &ended, Ok);
        let (more, hung) = self.unreadable.partition_readable::<StrandedRow, _, Uuid>("queue", &hung, Ok);
        rows.extend(more);
        self.mend_leases((ended.as_slice(), hung.as_slice()), now, lease_until).await?;
        // read before anything is taken: what can't be read now is found again at once
        let ids: Vec<Uuid> = rows.iter().map(|row| row.run_id).collect();
        let mut runs = self.runs_by_id(&ids).await?;
        let task_ids: Vec<Uuid> = runs.values().filter_map(|run| run.task_id).collect();
        let tasks = self.tasks_by_id(&task_ids).await?;
        let leases = self.take_over(&rows, lease_until).await?;
        let taken = rows.into_iter().filter_map(|row| {
            let lease = *leases.get(&row.run_id)?;
            let run = runs.remove(&row.run_id)?;
            let task = run.task_id.and_then(|id| tasks.get(&id).cloned());
            Some(StrandedRun {
                lease,
                run,
                crashed: row.lease_until < now,
                ran: row.execution_time(task.as_ref()),
                task,
                cancel_reason: row.cancel_reason,
            })
        });
        Ok(taken.collect())
    }

    /// Gives each run a new token, if its lease is still the one that was seen: of two rescuers one wins, and a holder
    /// that renewed it meanwhile keeps it. One commit for all: where others write much, each commit waits for its turn.
    async fn take_over(
        &self,
        rows: &[StrandedRow],
        lease_until: DateTime<Utc>,
    ) -> Result<HashMap<Uuid, Lease>, StoreError> {
        if rows.is_empty() {
            return Ok(HashMap::new());
        }
        #[cfg(feature = "failpoints")]
        if failpoint!("rescue_without_token") {
            self.wait_until_started_elsewhere(&rows[0]).await?;
        }
        let take_over =
            failpoint_text!("rescue_without_token", TAKE_OVER, "and lease_token = $2 and lease_until = $3" => "");
        // rows are locked in the order of their ids, as everywhere
        let mut by_id: Vec<&StrandedRow> = rows.iter().collect();
        by_id.sort_by_key(|row| row.run_id);
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let mut leases = HashMap::with_capacity(by_id.len());
        for row in &by_id {
            let token: i64 = tx.query(NEXT_TOKEN).scalar().await?;
            let taken: Option<i64> = tx
                .query(take_over)
                .bind(row.run_id)
                .bind(row.lease_token)
                .bind(row.lease_until)
                .bind(lease_until)
                .bind(token)
                .optional_scalar()
                .await?;
            leases.extend(taken.map(|token| (row.run_id, Lease { run_id: row.run_id, token })));
        }
        write.commit().await?;
        Ok(leases)
    }

    /// Gives started runs a lease and a time limit in the place of those that can't be read, and to those whose lease
    /// has `ended` another one in any case. A worker that is alive renews it as its own.
    async fn mend_leases(
        &self,
        (ended, hung): (&[Uuid], &[Uuid]),
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        if ended.is_empty() && hung.is_empty() {
            return Ok(());
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        for (run_id, has_ended) in ended.iter().map(|id| (id, true)).chain(hung.iter().map(|id| (id, false))) {
            let held = tx.query(LEASE_OF).bind(run_id).rows().await?;
            let is_lost = |column| held.first_column::<Option<DateTime<Utc>>>(column).is_err();
            tx.query(MEND_LEASE)
                .bind(run_id)
                .bind((has_ended || is_lost("lease_until")).then_some(lease_until))
                .bind(is_lost("deadline_at").then_some(now + RETRY_AFTER))
                .execute()
                .await?;
        }
        write.commit().await?;
        Ok(())
    }

    /// Part of the planted bug: this rescuer is so slow that another one was first and the run has begun again.
    #[cfg(feature = "failpoints")]
    async fn wait_until_started_elsewhere(&self, row: &StrandedRow) -> Result<(), StoreError> {
        tracing::warn!(run_id = %row.run_id, "a planted fault: the rescuer waits until its runs have begun again");
        for _ in 0..400 {
            let started: Option<i64> =
                self.db.read().await?.query(STARTED_AGAIN).bind(row.run_id).optional_scalar().await?;
            if started.is_some_and(|token| token != row.lease_token) {
                break;
            }
            crate::base::clock::pause(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Looks at tasks whose runs have long waited for a slot, and hands it on where it is free: the hand-over was
    /// lost, or the task's policy was changed meanwhile. Answers how many runs entered the queue.
    pub async fn wake_parked(&self, now: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        // found by their instants before they are grouped: the index of tasks has all that wait
        let tasks: Vec<Uuid> = self
            .db
            .read()
            .await?
            .query(
                "with waiting as materialized (
                     select task_id, wake_at from parked where wake_at <= $1 and reason = 'overlap')
                 select task_id from waiting where task_id is not null
                  group by task_id order by min(wake_at) limit $2",
            )
            .bind(now)
            .bind(limit)
            .scalars()
            .await?;
        let mut woken = 0;
        // a transaction for each, so that the order of locks holds: slots, then parked
        for task_id in tasks {
            let mut write = self.db.write(&Scope::Every).await?;
            let tx = &mut write.tx();
            let handed = hand_over(tx, task_id, now).await?;
            tx.query("update parked set wake_at = $2 where task_id = $1 and reason = 'overlap' and wake_at <= $3")
                .bind(task_id)
                .bind(now + RECHECK_AFTER)
                .bind(now)
                .execute()
                .await?;
            write.commit().await?;
            woken += usize::from(handed);
        }
        self.notify_ready(woken > 0);
        Ok(woken)
    }

    /// Wakes those who start runs, where some are ready again.
    fn notify_ready(&self, any: bool) {
        if any {
            self.notify(Topic::Queue);
        }
    }

    /// Frees slots whose run is neither queued nor parked any more, and hands them on; answers how many.
    pub async fn free_lost_slots(&self, now: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let lost: Vec<Uuid> = tx
            .query(
                "delete from slots where task_id in (
                    select s.task_id from slots s
                     where not exists (select 1 from queue q where q.run_id = s.run_id)
                       and not exists (select 1 from parked p where p.run_id = s.run_id)
                     order by s.task_id limit $1)
                 returning task_id",
            )
            .bind(limit)
            .scalars()
            .await?;
        for task_id in &lost {
            hand_over(tx, *task_id, now).await?;
        }
        let freed = lost.len();
        write.commit().await?;
        self.notify_ready(freed > 0);
        Ok(freed)
    }
}

/// Claims whose lease has ended. The state stands twice, so that SQLite sees that its index can be used.
const LEASE_ENDED: Split = Split {
    postgres: sql!(ENDED_LEASES; "{its}" = "= any (array[q.run_id])"; "{ms}" = "r.execution_ms"),
    sqlite: sql!(ENDED_LEASES; "{its}" = "= q.run_id"; "{ms}" = READABLE_MS),
};
const ENDED_LEASES: &str = "
    select q.run_id, q.lease_token, q.lease_until, q.deadline_at, q.cancel_reason, {ms} as execution_ms
      from queue q join runs r on r.id {its}
     where q.lease_until < $1 and q.state <> 'ready' and q.state = 'started'
     order by q.lease_until limit $2";

/// One that a rescuer has taken over has no worker; it is found by its lease. The lease is asked in words that fit no
/// index, which has everybody's.
const HUNG: Split = Split {
    postgres: sql!(HUNG_RUNS; "{its}" = "= any (array[q.run_id])"; "{ms}" = "r.execution_ms"),
    sqlite: sql!(HUNG_RUNS; "{its}" = "= q.run_id"; "{ms}" = READABLE_MS),
};
const HUNG_RUNS: &str = "
    select q.run_id, q.lease_token, q.lease_until, q.deadline_at, q.cancel_reason, {ms} as execution_ms
      from queue q join runs r on r.id {its}
     where q.deadline_at < $2 and q.state = 'started' and q.worker is not null and coalesce(q.lease_until >= $1, false)
     order by q.deadline_at limit $3";

/// The running time before this execution, as far as it can be read.
const READABLE_MS: &str = "case when typeof(r.execution_ms) = 'integer' then r.execution_ms else 0 end";

const LEASE_OF: &str = "select lease_until, deadline_at from queue where run_id = $1";
/// The state is asked in words that fit no index, as by [`TAKE_OVER`].
const MEND_LEASE: &str = "
    update queue set lease_until = coalesce($2, lease_until), deadline_at = coalesce($3, deadline_at)
     where run_id = $1 and state || '' = 'started'";

/// The state is asked in words that fit no index: the index of leases has all that an instance has renewed at once.
const TAKE_OVER: &str = "
    update queue set lease_token = $5, lease_until = $4, worker = null
     where run_id = $1 and lease_token = $2 and lease_until = $3 and state || '' = 'started' returning lease_token";

#[cfg(feature = "failpoints")]
const STARTED_AGAIN: &str =
    "select lease_token from queue where run_id = $1 and state = 'started' and worker is not null";

const RECLAIM: Split = split!("reclaim");
