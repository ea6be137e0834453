//! Entries that a consumer leaves for later, because it has enough of their tenant: the stream is read on behind them.
//!
//! They stay pending in Redis under this consumer, which keeps their ids and asks for them once it has room for their
//! tenant. Entries that are kept are renewed, so that no other consumer takes them for stalled; they come to the others
//! when this one dies. Entries beyond the bound are given up instead: they come again, to any consumer, as what has
//! stalled does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, cmd};

use crate::ports::bus::redis::left_entries::{LeftEntries, LeftEntry};
use crate::ports::bus::redis::reading::{AT_ONCE, READ_BYTES, StreamReader};
use crate::ports::bus::redis::servers::RedisConnection;
use crate::ports::bus::redis::streams::{FoundEntry, RawEntry, StreamId, entry_bytes};

/// Ids that are renewed, or given up, by one command.
const RENEWED_AT_ONCE: usize = 500;
/// How long ids are renewed before the streams are read on.
const RENEWED_FOR: Duration = Duration::from_millis(10);

impl StreamReader {
    /// Keeps other consumers from taking what was left here for stalled: a part of it, where it is much and there is
    /// time.
    pub(super) async fn renew_left(
        &self,
        connection: &mut RedisConnection,
        left: &mut LeftEntries,
    ) -> Result<(), RedisError> {
        let begun = Instant::now();
        while let Some((partition, ids)) = left.take_due(self.stalled_after / 4, RENEWED_AT_ONCE) {
            let () = self.claim_command(partition, &ids).arg("JUSTID").query_async(connection).await?;
            let goes_on = left.is_late(self.stalled_after / 8) && !self.ended();
            if begun.elapsed() >= RENEWED_FOR && !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Reads entries that were left, in order, until there are [`READ_BYTES`], and answers how many of the ids were
    /// asked for; those that are gone, or handled elsewhere, are not among the entries.
    pub(super) async fn read_left(
        &self,
        connection: &mut RedisConnection,
        left: &[LeftEntry],
    ) -> Result<(Vec<FoundEntry>, usize), RedisError> {
        let (mut entries, mut asked, mut bytes) = (Vec::new(), 0, 0);
        let is_alike = |a: &LeftEntry, b: &LeftEntry| (a.partition, a.deliveries) == (b.partition, b.deliveries);
        for alike in left.chunk_by(is_alike).flat_map(|alike| alike.chunks(AT_ONCE)) {
            if bytes >= READ_BYTES {
                break;
            }
            let LeftEntry { partition, deliveries, .. } = alike[0];
            let ids: Vec<StreamId> = alike.iter().map(|left| left.id).collect();
            let mut claim = self.claim_command(partition, &ids);
            let raws: Vec<Option<RawEntry>> = claim.arg("RETRYCOUNT").arg(deliveries).query_async(connection).await?;
            asked += alike.len();
            bytes += raws.iter().flatten().map(entry_bytes).sum::<usize>();
            entries.extend(raws.into_iter().flatten().map(|raw| (partition, raw, deliveries)));
        }
        Ok((entries, asked))
    }

    /// Claims pending entries, however long they were idle.
    fn claim_command(&self, partition: u32, ids: &[StreamId]) -> Cmd {
        let ids: Vec<String> = ids.iter().map(StreamId::to_string).collect();
        let mut claim = cmd("XCLAIM");
        claim.arg(self.names.stream(partition)).arg(&self.group).arg(&self.consumer).arg(0).arg(ids);
        claim
    }

    /// Takes back that entries were handed out which were just read and are left.
    pub(super) async fn uncount(
        &self,
        connection: &mut RedisConnection,
        entries: &[LeftEntry],
    ) -> Result<(), RedisError> {
        let mut alike: BTreeMap<(u32, u32), Vec<StreamId>> = BTreeMap::new();
        for LeftEntry { partition, id, deliveries } in entries {
            alike.entry((*partition, deliveries.saturating_sub(1))).or_default().push(*id);
        }
        for ((partition, deliveries), ids) in &alike {
            for ids in ids.chunks(RENEWED_AT_ONCE) {
                let mut claim = self.claim_command(*partition, ids);
                let () = claim.arg("RETRYCOUNT").arg(deliveries).arg("JUSTID").query_async(connection).await?;
            }
        }
        Ok(())
    }
}
