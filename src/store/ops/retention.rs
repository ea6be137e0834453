//! Forgetting: finished runs with their transcripts and deliveries, in small batches by age.
//!
//! A batch is one transaction over rows that nobody writes any more, bounded in what it deletes, so that it delays
//! nobody; who forgets a night's worth makes many of them, with a rest between two.

use chrono::{DateTime, Utc};
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, fault};
use crate::store::sql::sql;
use crate::store::tx::SqlValue;
use crate::store::{Split, Store, StoreError};

/// Rows that one batch deletes of transcripts, deliveries and runs together; a single run that has more goes alone.
pub const ROWS_AT_ONCE: i64 = 2_000;

/// The oldest of those that were recorded before an instant, by the least id ($1) that one can have.
const OLD: &str = "id < $1";
/// The oldest of a task ($1).
const OF_TASK: &str = "task_id = $1";
/// A message that is yet to be sent is sent first.
const UNLESS_PENDING: &str = " and state <> 'pending'";

const ENDED: &str = "
    select id, place = 1 or weight <= $3 from (
        select id, row_number() over (order by id) as place,
               sum(1 + (select count(*) from turns t where t.run_id = ended.id)
                     + (select count(*) from deliveries d where d.run_id = ended.id)) over (order by id) as weight
          from (select id from runs
                 where {which} and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped')
                 order by id limit $2) ended)
     order by id";

impl Store {
    /// Deletes up to `limit` finished runs that were recorded before `before`, with what belongs to them, as far as
    /// that is not more than `ROWS_AT_ONCE`; answers how many runs. None: nothing is left to be forgotten. Ids carry
    /// their time (UUIDv7), so the primary key finds the oldest.
    pub async fn forget_runs(&self, before: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        self.forget_ended(&FORGET_OLD, oldest_id(before.timestamp_millis()), limit).await
    }

    /// As [`Store::forget_runs`], of a task and whenever they were recorded; messages that are yet to be sent go with
    /// them.
    pub(in crate::store) async fn forget_runs_of(&self, task_id: Uuid, limit: i64) -> Result<usize, StoreError> {
        self.forget_ended(&FORGET_OF_TASK, task_id, limit).await
    }

    async fn forget_ended(&self, forget: &ForgetRuns, bound: Uuid, limit: i64) -> Result<usize, StoreError> {
        Ok(match &self.db {
            Db::Postgres { pool, .. } => {
                let forgotten: i64 = sqlx::query_scalar(forget.postgres)
                    .bind(bound)
                    .bind(limit)
                    .bind(ROWS_AT_ONCE)
                    .fetch_one(&mut *pool.acquire().await?)
                    .await?;
                forgotten as usize
            }
            Db::Sqlite { writer, .. } => {
                let mut write = writer.begin(QueueFlow::of(None)).await?;
                fault()?;
                let forgotten = forget_each(&mut write, forget, bound, limit).await?;
                write.commit().await?;
                fault()?;
                forgotten
            }
        })
    }

    /// Deletes the rows that a statement picks by a bound ($1), and no more than a number of them ($2); answers how
    /// many.
    pub(in crate::store) async fn forget_by<'v>(
        &self,
        statement: impl Into<Split> + Send,
        bound: impl SqlValue<'v> + Send,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let done = write.query(statement).bind(bound).bind(limit).execute().await?;
        write.commit().await?;
        Ok(done)
    }

    /// Deletes up to `limit` links whose time was over before `before`; answers how many.
    pub async fn forget_links(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from approval_links where token_hash in (
                select token_hash from approval_links where expires_at <= $1 order by expires_at limit $2)",
            before,
            limit,
        )
        .await
    }

    /// Deletes up to `limit` deliveries that were made before `before`, have ended, and belong to no run that is kept;
    /// answers how many.
    pub async fn forget_deliveries(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from deliveries where id in (
                select d.id from deliveries d
                 where d.id < $1 and d.state in ('delivered', 'failed', 'unknown', 'sent')
                   and not exists (select 1 from runs r where r.id = d.run_id)
                 order by d.id limit $2)",
            oldest_id(before.timestamp_millis()),
            limit,
        )
        .await
    }
}

/// The statements that forget some runs: the one of Postgres; those of SQLite, behind the one that chooses.
struct ForgetRuns {
    postgres: &'static str,
    ended: &'static str,
    sqlite: [&'static str; 7],
    /// Whether the runs are those of one task.
    is_of_task: bool,
}

const POSTGRES: &str = include_str!("../sql/forget_runs.postgres.sql");

/// Follows the column by which rows belong to a run.
const OF_ENDED_RUNS: &str = " in (select id from runs where {which} and id >= $1 and id <= $2
                                   and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped'))";

/// Parts of a statement, about the runs of a range.
macro_rules! statement {
    ($range:expr, $($part:expr),+ $(,)?) => {
        sql!(sql!($($part),+); "{which}" = $range)
    };
}

/// The statements by the bound that chooses the runs on Postgres, and by that within a range of ids on SQLite.
macro_rules! forgetting {
    ($is_of_task:literal, $bound:expr, $range:expr, $kept:expr) => {
        ForgetRuns {
            postgres: sql!(POSTGRES; "{which}" = $bound; "{kept}" = $kept),
            ended: sql!(ENDED; "{which}" = $bound),
            sqlite: [
                statement!($range, "delete from turns where run_id", OF_ENDED_RUNS),
                statement!(
                    $range,
                    "delete from approval_votes where approval_id in (select id from approvals where run_id",
                    OF_ENDED_RUNS,
                    ")",
                ),
                statement!(
                    $range,
                    "delete from approval_links where batch_id in (select batch_id from approvals where run_id",
                    OF_ENDED_RUNS,
                    ")",
                ),
                statement!($range, "delete from approvals where run_id", OF_ENDED_RUNS),
                statement!($range, "delete from grant_uses where run_id", OF_ENDED_RUNS),
                statement!($range, "delete from deliveries where run_id", OF_ENDED_RUNS, $kept),
                statement!($range, "delete from runs where id", OF_ENDED_RUNS),
            ],
            is_of_task: $is_of_task,
        }
    };
}

const FORGET_OLD: ForgetRuns = forgetting!(false, OLD, "true", UNLESS_PENDING);
const FORGET_OF_TASK: ForgetRuns = forgetting!(true, OF_TASK, "task_id = $3", "");

/// The one writer: chosen runs stay chosen until they themselves go, which is last. All that has ended up to the
/// youngest chosen one is chosen.
async fn forget_each(
    conn: &mut SqliteConnection,
    forget: &ForgetRuns,
    bound: Uuid,
    limit: i64,
) -> Result<usize, StoreError> {
    let ended: Vec<(Uuid, bool)> =
        sqlx::query_as(forget.ended).bind(bound).bind(limit).bind(ROWS_AT_ONCE).fetch_all(&mut *conn).await?;
    let chosen: Vec<Uuid> = ended.into_iter().take_while(|(_, fits)| *fits).map(|(id, _)| id).collect();
    let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else { return Ok(0) };
    for statement in forget.sqlite {
        let query = sqlx::query(statement).bind(first).bind(last);
        let query = if forget.is_of_task { query.bind(bound) } else { query };
        query.execute(&mut *conn).await?;
    }
    Ok(chosen.len())
}

/// The least UUIDv7 of a millisecond since 1970; an instant that no id can carry counts as the nearest that one can.
pub(in crate::store) fn oldest_id(millis: i64) -> Uuid {
    let millis = millis.clamp(0, (1 << 48) - 1) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
