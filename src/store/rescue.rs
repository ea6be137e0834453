//! What is left by workers that died, hang, or lost a hand-over: found by narrow indexes, a page at a time.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::run::Run;
use crate::store::lease::Lease;
use crate::store::slots::{LOOK_AGAIN, hand_over};
use crate::store::{NEXT_TOKEN, Split, Store, StoreError, split};
use crate::task::Task;

/// A started run whose worker is gone, or that has outlived its time limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Stranded {
    /// Taken over by the rescuer: the old holder's is void.
    pub lease: Lease,
    pub run: Run,
    pub task: Option<Task>,
    /// The lease was not renewed; otherwise its time limit is over and its worker does not end it.
    pub crashed: bool,
    /// How long the lost execution took, as far as its lease tells.
    pub ran: Duration,
    /// Someone asked for its end.
    pub cancel_reason: Option<String>,
}

#[derive(sqlx::FromRow)]
struct StrandedRow {
    run_id: Uuid,
    lease_token: i64,
    lease_until: DateTime<Utc>,
    deadline_at: DateTime<Utc>,
    cancel_reason: Option<String>,
    ran_ms: i64,
}

/// The running time that a run without a task may take.
const CHAT_LIMIT_SECONDS: u64 = 600;

impl StrandedRow {
    /// Its time limit, less what it had used before and what was left when its lease ended.
    fn ran(&self, task: Option<&Task>) -> Duration {
        let limit = task.map_or(CHAT_LIMIT_SECONDS, |task| task.spec.timeout_seconds);
        let left = self.deadline_at - self.lease_until.min(self.deadline_at);
        let ran_ms = (limit as i64 * 1000 - self.ran_ms - left.num_milliseconds()).max(0);
        Duration::from_millis(ran_ms as u64)
    }
}

impl Store {
    /// Makes claims ready again whose holder did not start them in time; answers how many.
    pub async fn reclaim(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        Ok(on_write!(self.db, |conn| {
            sqlx::query(self.db.text(RECLAIM)).bind(now).execute(conn).await?.rows_affected()
        }))
    }

    /// Takes over started runs whose lease has ended, or whose time limit passed `grace` ago; ordered by id and after
    /// `after`, so that no run can starve the others. Each gets a lease of its own until `lease_until`.
    pub async fn take_stranded(
        &self,
        now: DateTime<Utc>,
        grace: TimeDelta,
        after: Option<Uuid>,
        lease_until: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Stranded>, StoreError> {
        let rows: Vec<StrandedRow> = on_read!(self.db, |conn| {
            sqlx::query_as(
                "select q.run_id, q.lease_token, q.lease_until, q.deadline_at, q.cancel_reason, r.ran_ms
                   from queue q join runs r on r.id = q.run_id
                  where q.state = 'started' and (q.lease_until < $1 or q.deadline_at < $2) and q.run_id > $3
                  order by q.run_id limit $4",
            )
            .bind(now)
            .bind(now - grace)
            .bind(after.unwrap_or(Uuid::nil()))
            .bind(limit)
            .fetch_all(conn)
            .await?
        });
        let mut stranded = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(lease) = self.take_over(&row, lease_until).await? {
                let run = self.get_run(&crate::id::Scope::Every, row.run_id).await?;
                let task = match run.task_id {
                    Some(id) => self.tasks_by_id(&[id]).await?.remove(&id),
                    None => None,
                };
                stranded.push(Stranded {
                    lease,
                    run,
                    crashed: row.lease_until < now,
                    ran: row.ran(task.as_ref()),
                    task,
                    cancel_reason: row.cancel_reason,
                });
            }
        }
        Ok(stranded)
    }

    /// Gives the run a new token, if its lease is still the one that was seen: of two rescuers one wins, and a holder
    /// who renewed it meanwhile keeps it.
    async fn take_over(&self, row: &StrandedRow, lease_until: DateTime<Utc>) -> Result<Option<Lease>, StoreError> {
        let token: Option<i64> = on_write!(self.db, |conn| {
            let token: i64 = sqlx::query_scalar(self.db.text(NEXT_TOKEN)).fetch_one(&mut *conn).await?;
            sqlx::query_scalar(TAKE_OVER)
                .bind(row.run_id)
                .bind(row.lease_token)
                .bind(row.lease_until)
                .bind(lease_until)
                .bind(token)
                .fetch_optional(&mut *conn)
                .await?
        });
        Ok(token.map(|token| Lease { run_id: row.run_id, token }))
    }

    /// Counts a crash of a run that was taken over.
    pub async fn count_crash(&self, lease: Lease) -> Result<(), StoreError> {
        on_write!(self.db, |conn| {
            sqlx::query(
                "update runs set crashes = crashes + 1
                  where id = $1 and exists (select 1 from queue q where q.run_id = $1 and q.lease_token = $2)",
            )
            .bind(lease.run_id)
            .bind(lease.token)
            .execute(conn)
            .await?;
        });
        Ok(())
    }

    /// Looks at tasks whose runs have long waited for a slot, and hands it on where it is free: the hand-over was
    /// lost, or the task's policy was changed meanwhile. Answers how many runs entered the queue.
    pub async fn wake_parked(&self, now: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        let tasks: Vec<Uuid> = on_read!(self.db, |conn| {
            sqlx::query_scalar(
                "select task_id from parked
                  where wake_at <= $1 and why = 'overlap' and task_id is not null
                  group by task_id order by min(wake_at) limit $2",
            )
            .bind(now)
            .bind(limit)
            .fetch_all(conn)
            .await?
        });
        let mut woken = 0;
        // a transaction for each, so that the order of locks holds: slots, then parked
        for task_id in tasks {
            woken += on_write!(self.db, |conn| {
                let handed = hand_over!(conn, task_id, now);
                sqlx::query("update parked set wake_at = $2 where task_id = $1 and why = 'overlap' and wake_at <= $3")
                    .bind(task_id)
                    .bind(now + LOOK_AGAIN)
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                usize::from(handed)
            });
        }
        Ok(woken)
    }

    /// Frees slots whose run is neither queued nor parked any more, and hands them on; answers how many.
    pub async fn free_lost_slots(&self, now: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        Ok(on_write!(self.db, |conn| {
            let lost: Vec<Uuid> = sqlx::query_scalar(
                "delete from slots where task_id in (
                    select s.task_id from slots s
                     where not exists (select 1 from queue q where q.run_id = s.run_id)
                       and not exists (select 1 from parked p where p.run_id = s.run_id)
                     order by s.task_id limit $1)
                 returning task_id",
            )
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            for task_id in &lost {
                hand_over!(conn, *task_id, now);
            }
            lost.len()
        }))
    }
}

const TAKE_OVER: &str = "
    update queue set lease_token = $5, lease_until = $4, worker = null
     where run_id = $1 and lease_token = $2 and lease_until = $3 and state = 'started' returning lease_token";

const RECLAIM: Split = split!("reclaim");
