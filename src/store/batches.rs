//! Statements over batches, which each fire goes by, written once for each database: arrays through `unnest` on Postgres,
//! so that a batch is one statement, or few; lists of values in one transaction on SQLite.
//!
//! Each method is a step inside a transaction that its caller opened and commits.

mod events;
mod postgres;
mod run_now;
mod sqlite;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::notification::NewDelivery;
use crate::store::StoreError;
use crate::store::runs::lease::Beat;
use crate::store::runs::lease::Finish;
use crate::store::runs::lease::FinishedRow;
use crate::store::runs::lease::Lease;
use crate::store::runs::lease::StartedRow;
use crate::store::runs::lease::Take;
use crate::store::runs::lease::TakenRuns;
use crate::store::runs::new_entry::TranscriptAppend;
use crate::store::runs::overlap::rule::BlockedRow;
use crate::store::tasks::fires::{AsRead, FireBatch, FireDue, WrittenRows};
use crate::store::tx::Tx;

pub(super) use events::{EventStatements, GuardedEvents};
pub(super) use run_now::{RunNowRows, run_now, run_now_committed};

pub(super) trait BatchStatements {
    /// Locks the due rows of these tasks, but for those that somebody else holds, and answers how they are now.
    async fn due_as_read(&mut self, tasks: &[Uuid]) -> Result<Vec<AsRead>, StoreError>;

    /// Moves due rows on, records runs, queues them.
    async fn fire(&mut self, batch: &FireBatch, ask: &FireDue) -> Result<WrittenRows, StoreError>;

    /// Leases ready runs, and starts those that are due and have, or get, their slot.
    async fn take(&mut self, take: &Take) -> Result<TakenRuns, StoreError>;

    /// Starts those claims that still stand and have, or get, their slot. What was started with the same token before
    /// is answered again, so that a lost answer costs nothing.
    async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRow>, StoreError>;

    /// Locks the claims among these, given in the order of their ids, that still stand: whoever took one may have done
    /// so in a transaction before this one.
    async fn standing(&mut self, leases: &[Lease]) -> Result<Vec<BlockedRow>, StoreError>;

    /// Locks the slots of these tasks, given in the order of their ids; answers who has them.
    async fn lock_slots(&mut self, tasks: &[Uuid]) -> Result<HashMap<Uuid, Uuid>, StoreError>;

    /// Ends claims that are locked as skipped, each because of the other run, which has its task's slot.
    async fn skip_blocked(&mut self, skipped: &[(Uuid, Uuid)], now: DateTime<Utc>) -> Result<(), StoreError>;

    /// Renews leases that are still held; answers those, with what was asked of them.
    async fn beat(&mut self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError>;

    /// Appends to the transcripts of runs, given in the order of their ids, whose lease is still held; answers these
    /// leases. What is there already stays as it is. On Postgres one statement, without a transaction.
    async fn append(&mut self, appends: &[&TranscriptAppend]) -> Result<HashSet<Lease>, StoreError>;

    /// Appends to the transcripts of runs whose end this transaction has written: nobody else writes to them. What is
    /// there already stays as it is.
    async fn append_ended(&mut self, appends: &[TranscriptAppend]) -> Result<(), StoreError>;

    /// Writes ends, frees slots; answers the runs whose lease was still held.
    async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<FinishedRow>, StoreError>;

    /// Those of these tasks that have runs waiting for their slot, in the order of their ids.
    async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError>;

    /// Puts messages into the outbox, each once.
    async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError>;
}

/// Each step goes to the database that the connection is of.
impl BatchStatements for Tx<'_> {
    async fn due_as_read(&mut self, tasks: &[Uuid]) -> Result<Vec<AsRead>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.due_as_read(tasks).await,
            Tx::Sqlite(conn) => conn.due_as_read(tasks).await,
        }
    }

    async fn fire(&mut self, batch: &FireBatch, ask: &FireDue) -> Result<WrittenRows, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.fire(batch, ask).await,
            Tx::Sqlite(conn) => conn.fire(batch, ask).await,
        }
    }

    async fn take(&mut self, take: &Take) -> Result<TakenRuns, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.take(take).await,
            Tx::Sqlite(conn) => conn.take(take).await,
        }
    }

    async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<StartedRow>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.start(leases, now, lease_until).await,
            Tx::Sqlite(conn) => conn.start(leases, now, lease_until).await,
        }
    }

    async fn standing(&mut self, leases: &[Lease]) -> Result<Vec<BlockedRow>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.standing(leases).await,
            Tx::Sqlite(conn) => conn.standing(leases).await,
        }
    }

    async fn lock_slots(&mut self, tasks: &[Uuid]) -> Result<HashMap<Uuid, Uuid>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.lock_slots(tasks).await,
            Tx::Sqlite(conn) => conn.lock_slots(tasks).await,
        }
    }

    async fn skip_blocked(&mut self, skipped: &[(Uuid, Uuid)], now: DateTime<Utc>) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => conn.skip_blocked(skipped, now).await,
            Tx::Sqlite(conn) => conn.skip_blocked(skipped, now).await,
        }
    }

    async fn beat(&mut self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.beat(leases, lease_until).await,
            Tx::Sqlite(conn) => conn.beat(leases, lease_until).await,
        }
    }

    async fn append(&mut self, appends: &[&TranscriptAppend]) -> Result<HashSet<Lease>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.append(appends).await,
            Tx::Sqlite(conn) => conn.append(appends).await,
        }
    }

    async fn append_ended(&mut self, appends: &[TranscriptAppend]) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => conn.append_ended(appends).await,
            Tx::Sqlite(conn) => conn.append_ended(appends).await,
        }
    }

    async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<FinishedRow>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.finish(ends, now).await,
            Tx::Sqlite(conn) => conn.finish(ends, now).await,
        }
    }

    async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.waited_for(tasks).await,
            Tx::Sqlite(conn) => conn.waited_for(tasks).await,
        }
    }

    async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => conn.post(deliveries, now).await,
            Tx::Sqlite(conn) => conn.post(deliveries, now).await,
        }
    }
}
