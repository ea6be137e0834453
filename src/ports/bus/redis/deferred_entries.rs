//! Entries that a consumer leaves for later, because it has enough of their tenant: the stream is read on behind them.
//!
//! They stay pending in Redis under this consumer, which keeps their ids and asks for them once it has room for their
//! tenant. What is kept is renewed, so that no other consumer takes it for stalled; it comes to the others when this
//! one dies. Entries beyond the bound are given up instead: they are due again a moment later for any consumer.

use redis::{Cmd, RedisError, cmd, pipe};

use crate::ports::bus::BusEntry;
use crate::ports::bus::redis::left_entries::{LeftEntries, LeftEntry};
use crate::ports::bus::redis::reading::{LEFT_FOR, StreamReader};
use crate::ports::bus::redis::servers::RedisConnection;
use crate::ports::bus::redis::streams::{Raw, StreamId, entry_name, event_of, read_entry_name};

/// Ids that are renewed by one command.
const RENEWED: usize = 1_000;

impl StreamReader {
    /// Keeps other consumers from taking what was left here for stalled.
    pub(super) async fn renew_left(
        &self,
        connection: &mut RedisConnection,
        left: &mut LeftEntries,
    ) -> Result<(), RedisError> {
        for (partition, ids) in left.take_due(self.stalled_after / 4) {
            for ids in ids.chunks(RENEWED) {
                let () = self.claim_command(partition, ids).arg("JUSTID").query_async(connection).await?;
            }
        }
        Ok(())
    }

    /// Reads entries that were left, in order; those that are gone, or handled elsewhere, are not among them.
    pub(super) async fn read_left(
        &self,
        connection: &mut RedisConnection,
        left: &[LeftEntry],
    ) -> Result<Vec<BusEntry>, RedisError> {
        let mut entries = Vec::with_capacity(left.len());
        let is_alike = |a: &LeftEntry, b: &LeftEntry| (a.partition, a.deliveries) == (b.partition, b.deliveries);
        for alike in left.chunk_by(is_alike) {
            let LeftEntry { partition, deliveries, .. } = alike[0];
            let ids: Vec<StreamId> = alike.iter().map(|left| left.id).collect();
            let mut claim = self.claim_command(partition, &ids);
            let raws: Vec<Option<Raw>> = claim.arg("RETRYCOUNT").arg(deliveries).query_async(connection).await?;
            entries.extend(raws.into_iter().flatten().map(|(id, fields)| BusEntry {
                id: entry_name(partition, &id),
                event: event_of(&fields),
                deliveries,
            }));
        }
        Ok(entries)
    }

    /// Claims pending entries, however long they were idle.
    fn claim_command(&self, partition: u32, ids: &[StreamId]) -> Cmd {
        let ids: Vec<String> = ids.iter().map(StreamId::to_string).collect();
        let mut claim = cmd("XCLAIM");
        claim.arg(self.names.stream(partition)).arg(&self.group).arg(&self.consumer).arg(0).arg(ids);
        claim
    }

    /// Gives entries up that were just read: each is due again a moment later, uncounted, for any consumer. Answers whether
    /// there were any.
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
