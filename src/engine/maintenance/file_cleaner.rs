//! The file cleaner: gives data files up that are too old or too many, once an hour, a bounded number in a transaction.
//!
//! Each instance does it for all; one that finds nothing left has nothing to do. A crash loses nothing: the rest is
//! found again. Files of runs that are suspended or under way stay, however old or many they are.

use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::data_file::DataFileSettings;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::store::Store;

/// Files that are given up in one transaction, and bytes after which no other goes with them.
const BATCH: i64 = 100;
const BATCH_BYTES: u64 = 32 << 20;
/// From one round to the next.
const PAUSE: TimeDelta = TimeDelta::hours(1);
/// Rest between two transactions of a round.
const REST: TimeDelta = TimeDelta::milliseconds(100);

/// Gives data files up.
pub struct FileCleaner {
    store: Store,
    settings: DataFileSettings,
}

impl FileCleaner {
    /// The service over this store.
    pub fn new(store: Store, settings: DataFileSettings) -> FileCleaner {
        FileCleaner { store, settings }
    }

    /// Gives up a batch of what is too old, else of what is too many; answers whether there may be more.
    async fn clean(&self) -> Result<bool, TickError> {
        let before = self.store.clock().now() - self.settings.max_age();
        if self.store.forget_data_files(before, BATCH_BYTES, BATCH).await? > 0 {
            return Ok(true);
        }
        let excess = self.settings.excess(self.store.data_file_bytes().await?);
        if excess == 0 {
            return Ok(false);
        }
        Ok(self.store.evict_data_files(excess.min(BATCH_BYTES), BATCH).await? > 0)
    }
}

impl ServiceLoop for FileCleaner {
    const NAME: &'static str = "file_cleaner";
    const POLL_INTERVAL: Duration = Duration::from_secs(3600);

    async fn tick(&self) -> Result<NextTick, TickError> {
        let now = self.store.clock().now();
        Ok(NextTick::At(now + if self.clean().await? { REST } else { PAUSE }))
    }
}
