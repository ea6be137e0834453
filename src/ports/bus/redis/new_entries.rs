//! Reading what is new on the streams, a few entries of each at once: Redis bounds an answer by the number of its
//! entries alone, and an entry has up to 256 KiB.

use std::time::{Duration, Instant};

use futures::future::join_all;
use redis::{Cmd, RedisError, cmd};

use crate::ports::bus::redis::reading::{AT_ONCE, READ_BYTES, StreamReader};
use crate::ports::bus::redis::servers::{RedisConnection, RedisLink};
use crate::ports::bus::redis::streams::{FoundEntry, RawEntry, entry_bytes};

/// How often the streams of a cluster are asked: first, and at last while nothing comes.
const CLUSTER_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

type StreamAnswer = Option<Vec<(String, Vec<RawEntry>)>>;

impl StreamReader {
    /// Reads new entries of all streams, in the order of each: waits for the first, and goes on with the streams that
    /// have more until there are `limit`, or [`READ_BYTES`].
    pub(super) async fn read_new(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        streams: u32,
        limit: usize,
        wait: Duration,
    ) -> Result<Vec<FoundEntry>, RedisError> {
        let (mut found, mut bytes, mut wait) = (Vec::new(), 0, wait);
        let mut busy: Vec<u32> = (0..streams).collect();
        while !busy.is_empty() && found.len() < limit && bytes < READ_BYTES {
            let count = (AT_ONCE.min(limit - found.len()) / busy.len()).max(1);
            let read = match link.servers.is_cluster() {
                true => self.read_each(connection, &busy, count, wait).await,
                false => self.read_all(connection, &busy, count, wait).await,
            };
            let read = match read {
                // what was read before must not be lost; the next look tells of the fault
                Err(_) if !found.is_empty() => break,
                read => read?,
            };
            busy = read.iter().filter(|(_, raws)| raws.len() >= count).map(|(partition, _)| *partition).collect();
            bytes += read.iter().flat_map(|(_, raws)| raws).map(entry_bytes).sum::<usize>();
            found.extend(read.into_iter().flat_map(|(p, raws)| raws.into_iter().map(move |raw| (p, raw, 1))));
            wait = Duration::ZERO;
        }
        Ok(found)
    }

    /// One blocking read over these streams.
    async fn read_all(
        &self,
        connection: &mut RedisConnection,
        streams: &[u32],
        count: usize,
        wait: Duration,
    ) -> Result<Vec<(u32, Vec<RawEntry>)>, RedisError> {
        let mut read = self.read_command(count);
        if !wait.is_zero() {
            read.arg("BLOCK").arg(wait.as_millis().max(1) as u64);
        }
        let names: Vec<String> = streams.iter().map(|partition| self.names.stream(*partition)).collect();
        read.arg("STREAMS").arg(names).arg(vec![">"; streams.len()]);
        let answer: StreamAnswer = read.query_async(connection).await?;
        Ok(by_partition(answer))
    }

    /// In a cluster one command names one slot: each stream is asked for itself, and again while nothing comes.
    async fn read_each(
        &self,
        connection: &RedisConnection,
        streams: &[u32],
        count: usize,
        wait: Duration,
    ) -> Result<Vec<(u32, Vec<RawEntry>)>, RedisError> {
        let begun = Instant::now();
        let mut pause = CLUSTER_WAIT.0;
        loop {
            let published = self.published.notified();
            let reads = streams.iter().map(|partition| {
                let mut connection = connection.clone();
                let mut read = self.read_command(count);
                read.arg("STREAMS").arg(self.names.stream(*partition)).arg(">");
                async move { read.query_async::<StreamAnswer>(&mut connection).await }
            });
            let mut found = Vec::new();
            for answer in join_all(reads).await {
                found.extend(by_partition(answer?));
            }
            let left = wait.saturating_sub(begun.elapsed());
            if !found.is_empty() || left.is_zero() || self.ended() {
                return Ok(found);
            }
            let _ = tokio::time::timeout(pause.min(left), published).await;
            pause = (pause * 2).min(CLUSTER_WAIT.1);
        }
    }

    fn read_command(&self, count: usize) -> Cmd {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(count);
        read
    }
}

fn by_partition(answer: StreamAnswer) -> Vec<(u32, Vec<RawEntry>)> {
    let partition = |stream: &str| stream.rsplit_once(':').and_then(|(_, number)| number.parse().ok());
    let streams = answer.unwrap_or_default().into_iter();
    streams.filter_map(|(stream, raws)| Some((partition(&stream)?, raws))).collect()
}
