//! Forgetting: finished runs with their transcripts and deliveries, in small batches by age.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::{Store, StoreError};

impl Store {
    /// Deletes up to `limit` finished runs that were recorded before `before`, with what belongs to them; answers how
    /// many. Ids carry their time (UUIDv7), so the primary key finds the oldest.
    pub async fn forget_runs(&self, before: DateTime<Utc>, limit: i64) -> Result<usize, StoreError> {
        let bound = oldest_id(before);
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
                    "delete from deliveries where run_id = $1 and state <> 'pending'",
                    "delete from runs where id = $1",
                ] {
                    sqlx::query(statement).bind(id).execute(&mut *conn).await?;
                }
            }
            old.len()
        }))
    }
}

/// The least UUIDv7 of an instant.
fn oldest_id(instant: DateTime<Utc>) -> Uuid {
    let millis = instant.timestamp_millis().max(0) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
