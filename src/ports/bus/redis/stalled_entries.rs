//! Entries that other consumers have held for too long: looked for on all streams at once, and claimed a few at a time.
//!
//! XPENDING passes over what has not stalled: 200,000 entries that others hold take about ten milliseconds and one
//! answer. XAUTOCLAIM bounds by one number how far it looks and how much it answers, so it would be asked once for each
//! 320 of them. XCLAIM takes only what is still stalled: of two consumers that look at once one gets an entry. It
//! forgets what was deleted meanwhile, for there is nothing to handle.

use futures::future::join_all;
use redis::{Cmd, RedisError, cmd};

use crate::ports::bus::redis::reading::{AT_ONCE, READ_BYTES, StreamReader};
use crate::ports::bus::redis::servers::RedisConnection;
use crate::ports::bus::redis::streams::{FoundEntry, RawEntry, entry_bytes};

/// An entry as XPENDING tells of it: its id, its consumer, for how long it was idle, and how often it was handed out.
type PendingEntry = (String, String, u64, u32);

/// A stream in which stalled entries are looked for, and where the look goes on: `-`, or `(` and the last id that was
/// found.
type LookPlace = (u32, String);

/// An entry that had stalled when it was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StalledEntry {
    partition: u32,
    id: String,
    /// How often it was handed out, the next time included.
    deliveries: u32,
}

impl StreamReader {
    /// Takes what others have held for too long, beginning with the stream `first`, until there are `limit`, or
    /// [`READ_BYTES`]. The streams are asked together, and again only where one has more.
    pub(super) async fn claim_stalled(
        &self,
        connection: &RedisConnection,
        streams: u32,
        first: u32,
        limit: usize,
    ) -> Result<Vec<FoundEntry>, RedisError> {
        let in_order = (first..streams).chain(0..first);
        let mut places: Vec<LookPlace> = in_order.map(|partition| (partition, "-".to_owned())).collect();
        let mut claimed: Vec<FoundEntry> = Vec::new();
        while !places.is_empty() && !is_enough(&claimed, limit) {
            match self.claim_found(connection, &mut places, &mut claimed, limit).await {
                // what was claimed must not be lost; the next look tells of the fault
                Err(_) if !claimed.is_empty() => break,
                round => round?,
            }
        }
        Ok(claimed)
    }

    /// Looks once at each place, and claims what is found there.
    async fn claim_found(
        &self,
        connection: &RedisConnection,
        places: &mut Vec<LookPlace>,
        claimed: &mut Vec<FoundEntry>,
        limit: usize,
    ) -> Result<(), RedisError> {
        let wanted = limit - claimed.len();
        let mut stalled = self.find_stalled(connection, places, wanted).await?;
        stalled.truncate(wanted);
        for piece in stalled.chunks(AT_ONCE) {
            if is_enough(claimed, limit) {
                break;
            }
            self.claim_each(connection, piece, claimed).await?;
        }
        Ok(())
    }

    /// The ids of stalled entries at these places, by one round trip. Places at which there is nothing more are taken
    /// away.
    async fn find_stalled(
        &self,
        connection: &RedisConnection,
        places: &mut Vec<LookPlace>,
        wanted: usize,
    ) -> Result<Vec<StalledEntry>, RedisError> {
        // an id is short: few round trips count for more than few ids
        let count = wanted.div_ceil(places.len()).max(AT_ONCE);
        let asked = places.iter().map(|(partition, from)| {
            let mut connection = connection.clone();
            let pending = self.pending_command(*partition, from, count);
            async move { pending.query_async::<Vec<PendingEntry>>(&mut connection).await }
        });
        let answers = join_all(asked).await;
        let (mut stalled, mut going_on) = (Vec::new(), Vec::new());
        for ((partition, _), answer) in places.drain(..).zip(answers) {
            let pending = answer?;
            if let Some((last, ..)) = pending.last().filter(|_| pending.len() >= count) {
                going_on.push((partition, format!("({last}")));
            }
            stalled.extend(pending.into_iter().map(|(id, _, _, before)| StalledEntry {
                partition,
                id,
                deliveries: before.saturating_add(1),
            }));
        }
        *places = going_on;
        Ok(stalled)
    }

    /// Claims those of these that are still stalled, by one round trip. Those of one stream stand together. On a fault
    /// in one stream what was claimed in the others is there all the same.
    async fn claim_each(
        &self,
        connection: &RedisConnection,
        stalled: &[StalledEntry],
        claimed: &mut Vec<FoundEntry>,
    ) -> Result<(), RedisError> {
        let by_stream: Vec<&[StalledEntry]> = stalled.chunk_by(|a, b| a.partition == b.partition).collect();
        let asked = by_stream.iter().map(|of_stream| {
            let mut connection = connection.clone();
            let claim = self.claim_stalled_command(of_stream);
            async move { claim.query_async::<Vec<Option<RawEntry>>>(&mut connection).await }
        });
        let mut outcome = Ok(());
        for (of_stream, answer) in by_stream.iter().zip(join_all(asked).await) {
            match answer {
                Ok(raws) => claimed.extend(raws.into_iter().flatten().filter_map(|raw| found_entry(of_stream, raw))),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Asks for the ids of entries of a stream that have been idle for too long.
    fn pending_command(&self, partition: u32, from: &str, count: usize) -> Cmd {
        let mut pending = cmd("XPENDING");
        pending.arg(self.names.stream(partition)).arg(&self.group);
        pending.arg("IDLE").arg(self.stalled_millis()).arg(from).arg("+").arg(count);
        pending
    }

    /// Claims entries of one stream, as far as they are still idle for too long.
    fn claim_stalled_command(&self, stalled: &[StalledEntry]) -> Cmd {
        let partition = stalled.first().map_or(0, |first| first.partition);
        let mut claim = cmd("XCLAIM");
        claim.arg(self.names.stream(partition)).arg(&self.group).arg(&self.consumer).arg(self.stalled_millis());
        for entry in stalled {
            claim.arg(&entry.id);
        }
        claim
    }

    fn stalled_millis(&self) -> u64 {
        self.stalled_after.as_millis() as u64
    }
}

/// Whether so many were claimed, or so many bytes of them.
fn is_enough(claimed: &[FoundEntry], limit: usize) -> bool {
    let bytes: usize = claimed.iter().map(|(_, raw, _)| entry_bytes(raw)).sum();
    claimed.len() >= limit || bytes >= READ_BYTES
}

/// An entry that was claimed as one of these.
fn found_entry(stalled: &[StalledEntry], raw: RawEntry) -> Option<FoundEntry> {
    let entry = stalled.iter().find(|entry| entry.id == raw.0)?;
    Some((entry.partition, raw, entry.deliveries))
}
