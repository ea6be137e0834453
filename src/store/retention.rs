//! Forgetting: finished runs with their transcripts and deliveries, in small batches by age.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::{Store, StoreError};

impl Store {
    /// Deletes up to `limit` finished runs that were recorded before `before`, with what belongs to them, and links whose
    /// time was over by then; answers how many runs. Ids carry their time (UUIDv7), so the primary key finds the oldest.
    pub async fn forget_runs(&self, before: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        let bound = oldest_id(before.timestamp_millis());
        Ok(on_write!(self.db, |conn| {
            let old: Vec<Uuid> = sqlx::query_scalar(
                "select id from runs
                  where id < $1 and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped')
                  order by id limit $2",
            )
            .bind(bound)
            .bind(limit)
            .fetch_all(&mut *conn)
            .await?;
            for id in &old {
                for statement in [
                    "delete from turns where run_id = $1",
                    "delete from approval_votes where approval_id in (select id from approvals where run_id = $1)",
                    "delete from approval_links where batch_id in (select batch_id from approvals where run_id = $1)",
                    "delete from approvals where run_id = $1",
                    "delete from grant_uses where run_id = $1",
                    "delete from deliveries where run_id = $1 and state <> 'pending'",
                    "delete from runs where id = $1",
                ] {
                    sqlx::query(statement).bind(id).execute(&mut *conn).await?;
                }
            }
            sqlx::query(
                "delete from approval_links where token_hash in (
                    select token_hash from approval_links where expires_at <= $1 order by expires_at limit $2)",
            )
            .bind(before)
            .bind(limit)
            .execute(&mut *conn)
            .await?;
            old.len()
        }))
    }

    /// Deletes up to `limit` deliveries that were made before `before`, have ended, and belong to no run that is kept;
    /// answers how many.
    pub async fn forget_deliveries(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        Ok(on_write!(self.db, |conn| {
            sqlx::query(
                "delete from deliveries where id in (
                    select d.id from deliveries d
                     where d.id < $1 and d.state in ('delivered', 'failed', 'unknown', 'sent')
                       and not exists (select 1 from runs r where r.id = d.run_id)
                     order by d.id limit $2)",
            )
            .bind(oldest_id(before.timestamp_millis()))
            .bind(limit)
            .execute(conn)
            .await?
            .rows_affected()
        }))
    }
}

/// The least UUIDv7 of a millisecond since 1970; an instant that no id can carry counts as the nearest that one can.
pub(super) fn oldest_id(millis: i64) -> Uuid {
    let millis = millis.clamp(0, (1 << 48) - 1) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
