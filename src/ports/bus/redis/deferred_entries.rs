//! Entries that a consumer leaves for later, because it has enough of their tenant: the stream is read on behind them.
//!
//! Such an entry stays pending in Redis, uncounted, and is due again a moment later for any consumer of the group.

use redis::{RedisError, pipe};

use crate::ports::bus::BusEntry;
use crate::ports::bus::redis::reading::{LEFT_FOR, StreamReader};
use crate::ports::bus::redis::servers::RedisConnection;
use crate::ports::bus::redis::streams::read_entry_name;

impl StreamReader {
    /// Leaves entries that were just read. Answers whether there were any.
    pub(super) async fn release_entries(
        &self,
        connection: &mut RedisConnection,
        entries: Vec<BusEntry>,
    ) -> Result<bool, RedisError> {
        if entries.is_empty() {
            return Ok(false);
        }
        let idle = self.stalled_after.saturating_sub(LEFT_FOR).as_millis() as u64;
        let mut left = pipe();
        for entry in &entries {
            let Ok((partition, id)) = read_entry_name(&entry.id) else { continue };
            left.cmd("XCLAIM")
                .arg(self.names.stream(partition))
                .arg(&self.group)
                .arg(&self.consumer)
                .arg(0)
                .arg(id.to_string())
                .arg("IDLE")
                .arg(idle)
                .arg("RETRYCOUNT")
                .arg(entry.deliveries.saturating_sub(1))
                .arg("JUSTID")
                .ignore();
        }
        let () = left.query_async(connection).await?;
        Ok(true)
    }
}
