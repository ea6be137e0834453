//! The byte counter: adds what was stored and deleted to the numbers of its tenants, soon after it was written, and
//! counts what was there before anything was counted, a little at a time.

use std::time::Duration;

use chrono::TimeDelta;

use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NOW, NextTick, ServiceLoop, TickError};
use crate::store::Store;

/// Differences that are added up in one transaction.
const BATCH: i64 = 10_000;
/// Between two looks, while something is written.
const PAUSE: TimeDelta = TimeDelta::seconds(2);
/// Rows from before bytes were counted that are gone through in one transaction, and the rest after it: it takes little
/// of the database, and a million rows half an hour or so.
const OLDER_ROWS: i64 = 500;
const OLDER_ROWS_PAUSE: TimeDelta = TimeDelta::seconds(1);

/// Counts the bytes of rows from before the quota of stored bytes.
pub struct ByteCounter {
    store: Store,
}

impl ByteCounter {
    /// The service over this store.
    pub fn new(store: Store) -> ByteCounter {
        ByteCounter { store }
    }
}

impl ServiceLoop for ByteCounter {
    const NAME: &'static str = "byte_counter";
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.uncounted.then_some(NOW) });

    async fn tick(&self) -> Result<NextTick, TickError> {
        // most of the time there is nothing, and then nothing is written
        if !self.store.has_uncounted_bytes().await? {
            return Ok(NextTick::OnWake);
        }
        let is_more_older = self.store.count_older_rows(OLDER_ROWS).await?;
        Ok(match self.store.count_stored_bytes(BATCH).await? {
            counted if counted as i64 >= BATCH => NextTick::Now,
            _ if is_more_older => NextTick::At(self.store.clock().now() + OLDER_ROWS_PAUSE),
            _ => NextTick::At(self.store.clock().now() + PAUSE),
        })
    }
}
