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
use crate::store::{Store, StoreError};

/// Rows that one batch deletes of transcripts, deliveries and runs together; a single run that has more goes alone.
pub const ROWS_AT_ONCE: i64 = 2_000;

const ENDED: &str = "
    select id, place = 1 or weight <= $3 from (
        select id, row_number() over (order by id) as place,
               sum(1 + (select count(*) from turns t where t.run_id = ended.id)
                     + (select count(*) from deliveries d where d.run_id = ended.id)) over (order by id) as weight
          from (select id from runs
                 where id < $1 and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped')
                 order by id limit $2) ended)
     order by id";

impl Store {
    /// Deletes up to `limit` finished runs that were recorded before `before`, with what belongs to them, as far as that
    /// is not more than `ROWS_AT_ONCE`; answers how many runs. None: nothing is left to be forgotten. Ids carry their
    /// time (UUIDv7), so the primary key finds the oldest.
    pub async fn forget_runs(&self, before: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        let bound = oldest_id(before.timestamp_millis());
        Ok(match &self.db {
            Db::Postgres { pool, .. } => {
                let forgotten: i64 = sqlx::query_scalar(include_str!("../sql/forget_runs.postgres.sql"))
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
                let forgotten = forget(&mut write, bound, limit).await?;
                write.commit().await?;
                fault()?;
                forgotten
            }
        })
    }

    /// Deletes the rows that a statement picks by a bound ($1), and no more than a number of them ($2); answers how many.
    pub(in crate::store) async fn forget_by<'v>(
        &self,
        statement: &'static str,
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

/// The one writer: what is chosen stays so until the runs themselves go, which is last. All that has ended up to the
/// youngest chosen one is chosen.
async fn forget(conn: &mut SqliteConnection, bound: Uuid, limit: i64) -> Result<usize, StoreError> {
    let ended: Vec<(Uuid, bool)> =
        sqlx::query_as(ENDED).bind(bound).bind(limit).bind(ROWS_AT_ONCE).fetch_all(&mut *conn).await?;
    let old: Vec<Uuid> = ended.into_iter().take_while(|(_, fits)| *fits).map(|(id, _)| id).collect();
    let (Some(first), Some(last)) = (old.first(), old.last()) else { return Ok(0) };
    for statement in FORGET {
        sqlx::query(statement).bind(first).bind(last).execute(&mut *conn).await?;
    }
    Ok(old.len())
}

/// Follows the column by which rows belong to a run.
const OF_OLD_RUNS: &str = " in (select id from runs where id >= $1 and id <= $2
                                 and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped'))";

const FORGET: [&str; 7] = [
    sql!("delete from turns where run_id", OF_OLD_RUNS),
    sql!("delete from approval_votes where approval_id in (select id from approvals where run_id", OF_OLD_RUNS, ")"),
    sql!("delete from approval_links where batch_id in (select batch_id from approvals where run_id", OF_OLD_RUNS, ")"),
    sql!("delete from approvals where run_id", OF_OLD_RUNS),
    sql!("delete from grant_uses where run_id", OF_OLD_RUNS),
    sql!("delete from deliveries where state <> 'pending' and run_id", OF_OLD_RUNS),
    sql!("delete from runs where id", OF_OLD_RUNS),
];

/// The least UUIDv7 of a millisecond since 1970; an instant that no id can carry counts as the nearest that one can.
pub(in crate::store) fn oldest_id(millis: i64) -> Uuid {
    let millis = millis.clamp(0, (1 << 48) - 1) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
