//! Reading as one consumer of the group: what is new, and what other consumers have left.
//!
//! Entries that were taken are pending in Redis until they are acknowledged; what a dead instance has taken is claimed
//! once it has been idle for long enough. Nothing of this is kept here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use redis::{RedisError, cmd};
use tokio::sync::{Mutex, Notify};

use crate::base::id::Tenant;
use crate::ports::bus::redis::left_entries::{LeftEntries, SortedEntries};
use crate::ports::bus::redis::servers::{RedisConnection, RedisLink, is_lost};
use crate::ports::bus::redis::streams::{FoundEntry, StreamNames};
use crate::ports::bus::{BusEntry, BusError};

/// The longest block of one read; answers are waited for longer than that, or a read would fail and take all the same.
pub(super) const BLOCK: Duration = Duration::from_secs(5);
/// The longest block of a read that nobody can end.
const BLOCK_TO_THE_END: Duration = Duration::from_secs(2);
/// Entries that are looked through at once for those of tenants that are not full, however few of them are wanted.
const LOOKED_THROUGH: usize = 500;
/// Bytes of entries after which one look ends; it takes in [`AT_ONCE`] more at most.
pub(super) const READ_BYTES: usize = 4 * 1024 * 1024;
/// Entries that are answered at once: of the longest that are events these are 8 MiB.
pub(super) const AT_ONCE: usize = 32;
/// From one look for stalled entries to the next, where some of the last had to be given up again.
const GAVE_UP: Duration = Duration::from_millis(200);
/// How often it is read on in one read, where all that is found is left.
const READ_ON: usize = 5;
/// The longest wait while ids are to be renewed.
const BETWEEN_RENEWALS: Duration = Duration::from_millis(20);
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// One consumer of the group.
pub(super) struct StreamReader {
    pub(super) names: StreamNames,
    pub(super) group: String,
    pub(super) consumer: String,
    pub(super) stalled_after: Duration,
    state: Mutex<ReaderState>,
    /// Rung when something was published in this process: a cluster can't be waited for in one read.
    pub published: Notify,
    /// Whether the present read is not to wait any more.
    ended: AtomicBool,
    /// The server's number of the connection that reads, by which a block is ended; 0: it is not known.
    number: AtomicI64,
}

/// The bounds of one read.
struct ReadBounds<'a> {
    /// Tenants of which nothing is wanted now.
    full: &'a [Tenant],
    limit: usize,
    wait: Duration,
}

#[derive(Default)]
struct ReaderState {
    connection: Option<RedisConnection>,
    /// How many streams there are, the old ones included; 0: the groups are not known to be there.
    streams: u32,
    /// Entries that were read beyond the number asked for.
    rest: VecDeque<BusEntry>,
    /// When stalled ones are looked for next; `None`: at once.
    look_for_stalled_at: Option<Instant>,
    /// Whether the last read was of stalled ones, and the stream that is looked through first for the next of them.
    had_stalled: bool,
    first_for_stalled: u32,
    left: LeftEntries,
    /// Whether the last look found some, and none that is wanted.
    passed_over: bool,
    /// Whether the last read was of those that were left.
    had_left: bool,
}

impl StreamReader {
    /// A reader of all streams for one consumer. It takes over the entries of one that is silent for `stalled_after`.
    pub fn new(names: StreamNames, group: &str, consumer: String, stalled_after: Duration) -> StreamReader {
        StreamReader {
            names,
            group: group.to_owned(),
            consumer,
            stalled_after,
            state: Mutex::default(),
            published: Notify::new(),
            ended: AtomicBool::new(false),
            number: AtomicI64::new(0),
        }
    }

    /// Entries of tenants that are not `full`; those of the others are left until they are not.
    pub async fn read(
        &self,
        link: &RedisLink,
        full: &[Tenant],
        limit: usize,
        wait: Duration,
    ) -> Result<Vec<BusEntry>, BusError> {
        let (begun, mut looks) = (Instant::now(), 0);
        let mut state = self.state.lock().await;
        self.ended.store(false, Ordering::Release);
        loop {
            if !state.rest.is_empty() {
                let ReaderState { connection, left, .. } = &mut *state;
                if let Some(asked) = connection
                    && self.renew_left(asked, left).await.is_err_and(|error| is_lost(&error))
                {
                    *connection = None;
                }
                let count = state.rest.len().min(limit);
                return Ok(state.rest.drain(..count).collect());
            }
            // a connection is put back only after an answer: one whose read was dropped may still take entries
            let mut connection = match state.connection.take() {
                Some(connection) => connection,
                None => {
                    self.number.store(0, Ordering::Release);
                    self.connect(link).await?
                }
            };
            let look = if full.is_empty() { limit } else { limit.max(LOOKED_THROUGH) };
            let asked = ReadBounds { full, limit: look, wait: wait.saturating_sub(begun.elapsed()) };
            match self.once(link, &mut connection, &mut state, asked).await {
                Ok(()) => state.connection = Some(connection),
                Err(error) if error.code() == Some("NOGROUP") => {
                    state.streams = 0;
                    state.connection = Some(connection);
                    continue;
                }
                Err(error) => {
                    if !is_lost(&error) {
                        state.connection = Some(connection);
                    }
                    return Err(error.into());
                }
            }
            looks += 1;
            let reads_on = state.passed_over && looks < READ_ON;
            if state.rest.is_empty() && (self.ended() || begun.elapsed() >= wait && !reads_on) {
                return Ok(Vec::new());
            }
        }
    }

    /// Ends the present read if it waits.
    pub async fn interrupt_reads(&self, link: &RedisLink) {
        self.ended.store(true, Ordering::Release);
        let number = self.number.load(Ordering::Acquire);
        if number != 0 {
            // where it can't be ended it ends by itself
            let _: Result<i64, RedisError> = link.ask(cmd("CLIENT").arg("UNBLOCK").arg(number)).await;
        }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    async fn connect(&self, link: &RedisLink) -> Result<RedisConnection, RedisError> {
        let mut connection = link.servers.connect(PATIENCE).await?;
        let number = match link.servers.is_cluster() {
            true => 0,
            // who may not ask it reads by shorter blocks
            false => cmd("CLIENT").arg("ID").query_async(&mut connection).await.unwrap_or(0),
        };
        self.number.store(number, Ordering::Release);
        Ok(connection)
    }

    /// One look: at what was left here, or else at what others have left, or is new.
    async fn once(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        state: &mut ReaderState,
        mut asked: ReadBounds<'_>,
    ) -> Result<(), RedisError> {
        if state.streams == 0 {
            state.streams = self.make_groups(connection).await?;
        }
        state.passed_over = false;
        self.renew_left(connection, &mut state.left).await?;
        // where many were left, every second read is of the streams
        if !std::mem::take(&mut state.had_left)
            && let Some((tenant, taken)) = state.left.take(asked.full, asked.limit)
        {
            state.had_left = true;
            let read = self.read_left(connection, &taken).await;
            match &read {
                Ok((_, count)) => state.left.put_back(tenant, taken[*count..].to_vec()),
                // where the group is made anew they come again
                Err(error) if error.code() == Some("NOGROUP") => {}
                Err(_) => state.left.put_back(tenant, taken),
            }
            state.rest.extend(link.entries(read?.0).await?);
            return Ok(());
        }
        if state.left.is_renewing() {
            asked.wait = asked.wait.min(BETWEEN_RENEWALS);
        }
        let found = self.read_streams(link, connection, state, &asked).await?;
        let found = link.entries(found).await?;
        let SortedEntries { wanted, left, gave_up } = state.left.sort(found, asked.full);
        state.passed_over = !left.is_empty() && wanted.is_empty();
        if gave_up && state.had_stalled {
            state.look_for_stalled_at = Some(Instant::now() + GAVE_UP);
        }
        state.rest.extend(wanted);
        self.uncount(connection, &left).await
    }

    async fn read_streams(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        state: &mut ReaderState,
        asked: &ReadBounds<'_>,
    ) -> Result<Vec<FoundEntry>, RedisError> {
        let limit = asked.limit;
        let due = state.look_for_stalled_at.is_none_or(|at| Instant::now() >= at);
        // where many have stalled, every second read is of new ones
        let after_stalled = std::mem::take(&mut state.had_stalled);
        if due && !after_stalled {
            let first = state.first_for_stalled % state.streams;
            let stalled = self.claim_stalled(connection, state.streams, first, limit).await?;
            if !stalled.is_empty() {
                state.first_for_stalled = first + 1;
                state.had_stalled = true;
                return Ok(stalled);
            }
            state.look_for_stalled_at = Some(Instant::now() + self.stalled_after / 4);
        }
        let longest = if self.number.load(Ordering::Acquire) == 0 { BLOCK_TO_THE_END } else { BLOCK };
        let wait = asked.wait.min(longest).min(self.stalled_after / 4);
        self.read_new(link, connection, state.streams, limit, wait).await
    }

    /// Makes sure that every stream has the group, from its first entry on: what was published before is read, too.
    async fn make_groups(&self, connection: &mut RedisConnection) -> Result<u32, RedisError> {
        let most: Option<u32> = cmd("GET").arg(self.names.max_count()).query_async(connection).await?;
        let streams = most.unwrap_or(0).max(self.names.partitions);
        if most != Some(streams) {
            let () = cmd("SET").arg(self.names.max_count()).arg(streams).query_async(connection).await?;
        }
        for partition in 0..streams {
            let stream = self.names.stream(partition);
            let made: Result<(), RedisError> = cmd("XGROUP")
                .arg("CREATE")
                .arg(stream)
                .arg(&self.group)
                .arg("0")
                .arg("MKSTREAM")
                .query_async(connection)
                .await;
            if let Err(error) = made
                && error.code() != Some("BUSYGROUP")
            {
                return Err(error);
            }
        }
        Ok(streams)
    }
}
