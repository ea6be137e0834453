//! The bus on Redis Streams: partitions by tenant, one consumer group, a consumer name per instance.
//!
//! What XADD has answered is as durable as that Redis is (`concerns` says what is missing). Entries stay pending until
//! they are acknowledged; those of a dead instance are claimed by the others. Any service may publish by a plain XADD.

mod concerns;
mod dead;
mod deferred_entries;
mod event_head;
mod left_entries;
mod log;
mod look;
mod new_entries;
mod reading;
mod servers;
mod stalled_entries;
mod streams;
mod trimming;

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::{BoxFuture, try_join_all};
use redis::{ErrorKind, Pipeline, RedisError, cmd, pipe};

use crate::base::clock::{Clock, to_delta};
use crate::base::compute::{Compute, JSON_IN_PLACE};
use crate::base::id::{Scope, Tenant, new_id};
use crate::domain::event::Event;
use crate::ports::bus::entry_reader::EntryReader;
use crate::ports::bus::redis::reading::StreamReader;
use crate::ports::bus::redis::servers::{RedisLink, Servers};
use crate::ports::bus::redis::streams::{FIELD, StreamNames, read_entry_name};
use crate::ports::bus::{
    Bus, BusBacklog, BusDeadLetter, BusEntry, BusError, DeadLetterFilter, DeadLetterPage, Log, LogFilter, NewestFilter,
    Settings, UnreadableEntry, write_entry,
};

/// An answer that takes longer counts as none.
const PATIENCE: Duration = Duration::from_secs(3);

/// The bus on Redis Streams.
pub struct Redis {
    link: RedisLink,
    names: StreamNames,
    group: String,
    reader: StreamReader,
    retention: TimeDelta,
}

impl Redis {
    /// Reads the settings; nothing is connected before the first call.
    ///
    /// # Errors
    /// A sentence on what is wrong with `bus.url`.
    pub fn new(settings: &Settings, clock: &Clock) -> Result<Redis, String> {
        let names = StreamNames::new(&settings.stream_prefix, settings.partitions);
        let consumer = new_id(clock.now()).to_string();
        Ok(Redis {
            link: RedisLink::new(Servers::of(settings.url.expose())?, PATIENCE),
            reader: StreamReader::new(names.clone(), &settings.group, consumer, settings.stalled_after()),
            names,
            group: settings.group.clone(),
            retention: to_delta(settings.retention()),
        })
    }

    /// The bus, whose long entries are read on these threads.
    pub fn reading_by(mut self, compute: &Compute) -> Redis {
        self.link.reader = EntryReader::new(compute);
        self
    }

    async fn add(&self, events: &[Event]) -> Result<(), BusError> {
        let mut by_stream: BTreeMap<u32, Pipeline> = BTreeMap::new();
        for event in events {
            let partition = self.names.of_tenant(event.tenant.as_str());
            let stream = self.names.stream(partition);
            let commands =
                by_stream.entry(if self.link.servers.is_cluster() { partition } else { 0 }).or_insert_with(pipe);
            let entry = write_entry(event);
            commands.cmd("XADD").arg(stream).arg("*").arg(FIELD).arg(&entry);
            if entry.len() > JSON_IN_PLACE {
                // there may be many: what else this thread serves goes on between two of them
                tokio::task::yield_now().await;
            }
        }
        for commands in by_stream.values() {
            let _: Vec<String> = self.link.ask_all(commands).await.map_err(refused_for_good)?;
        }
        self.reader.published.notify_waiters();
        Ok(())
    }

    async fn acknowledge_all(&self, ids: &[String]) -> Result<(), BusError> {
        let mut by_partition: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for id in ids {
            let (partition, id) = read_entry_name(id)?;
            by_partition.entry(partition).or_default().push(id.to_string());
        }
        // all at once: a round trip per stream would be most of the work
        let acknowledged = by_partition.into_iter().map(|(partition, ids)| async move {
            let mut acknowledge = cmd("XACK");
            acknowledge.arg(self.names.stream(partition)).arg(&self.group).arg(ids);
            let _: u64 = self.link.ask(&acknowledge).await?;
            Ok::<(), BusError>(())
        });
        try_join_all(acknowledged).await.map(drop)
    }
}

impl Bus for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(self.add(events))
    }

    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>> {
        Box::pin(self.reader.read(&self.link, full, limit, wait))
    }

    fn longest_read(&self) -> Duration {
        reading::BLOCK
    }

    fn interrupt_reads(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.reader.interrupt_reads(&self.link))
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(self.acknowledge_all(ids))
    }

    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(dead::dead_letter_entry(&self.link, &self.names, &self.group, entry, error))
    }

    fn dead_letter_kept<'a>(
        &'a self,
        seq: i64,
        unreadable: &'a UnreadableEntry,
    ) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(dead::dead_letter_kept(&self.link, &self.names, seq, unreadable))
    }

    fn log<'a>(&'a self, scope: &'a Scope, filter: &'a LogFilter) -> BoxFuture<'a, Result<Log, BusError>> {
        Box::pin(log::read(&self.link, &self.names, scope, filter))
    }

    fn find<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Event>, BusError>> {
        Box::pin(log::find(&self.link, &self.names, tenant, source, id))
    }

    fn ids<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        beginning: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, BusError>> {
        Box::pin(log::ids(&self.link, &self.names, tenant, source, beginning))
    }

    fn newest<'a>(
        &'a self,
        tenant: &'a Tenant,
        filter: &'a NewestFilter,
    ) -> BoxFuture<'a, Result<Vec<Event>, BusError>> {
        Box::pin(log::newest(&self.link, &self.names, tenant, filter))
    }

    fn end<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<String, BusError>> {
        Box::pin(log::end(&self.link, &self.names, scope))
    }

    fn dead_letters<'a>(
        &'a self,
        scope: &'a Scope,
        filter: &'a DeadLetterFilter,
    ) -> BoxFuture<'a, Result<DeadLetterPage, BusError>> {
        Box::pin(dead::list(&self.link, &self.names, scope, filter))
    }

    fn dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<BusDeadLetter, BusError>> {
        Box::pin(dead::get(&self.link, &self.names, scope, id))
    }

    fn replay<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async {
            dead::replay(&self.link, &self.names, scope, id).await?;
            self.reader.published.notify_waiters();
            Ok(())
        })
    }

    fn drop_dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(dead::remove(&self.link, &self.names, scope, id))
    }

    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>> {
        Box::pin(trimming::trim(&self.link, &self.names, &self.group, now - self.retention))
    }

    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>> {
        Box::pin(trimming::backlog(&self.link, &self.names, &self.group))
    }

    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>> {
        Box::pin(concerns::find(&self.link))
    }
}

/// The error of a publication: a stream whose name something else has in Redis takes no entry, however often it is
/// asked.
fn refused_for_good(error: RedisError) -> BusError {
    let errors = error.clone().into_server_errors();
    match errors.is_some_and(|errors| errors.iter().all(|(_, error)| error.code() == "WRONGTYPE")) {
        true => BusError::Corrupt { why: error.to_string() },
        false => error.into(),
    }
}

impl From<RedisError> for BusError {
    fn from(error: RedisError) -> BusError {
        match error.kind() {
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => BusError::Corrupt { why: error.to_string() },
            _ => BusError::Unavailable { why: error.to_string() },
        }
    }
}
