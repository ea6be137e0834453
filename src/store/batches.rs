//! Statements over batches, which each fire goes by, written once for each database: arrays through `unnest` on
//! Postgres, so that a batch is one statement, or few; lists of values in one transaction on SQLite.
//!
//! Each method is a step inside a transaction that its caller opened and commits.

mod postgres;
mod run_now;
mod skip_tally_rows;
mod sqlite;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::notification::NewDelivery;
use crate::store::events::matches::{EventBatch, LockedTask};
use crate::store::ops::budgets::ledger_batch::{LedgerOutcome, update_ledgers};
use crate::store::runs::lease::{Finish, FinishedRow, Lease, RenewedLease, StartedRows, TakeRequest, TakenRuns};
use crate::store::runs::new_entry::{TranscriptAppend, deferred_appends, ledger_batch};
use crate::store::runs::overlap::rule::BlockedRow;
use crate::store::runs::starting::immediate_start::{LeaseTerms, WrittenRows};
use crate::store::tasks::fires::{DueSnapshot, FireBatch, FireDue};
use crate::store::tx::Tx;
use crate::store::{Match, StoreError};

pub(super) use postgres::{finish_alone, record_guarded};
pub(super) use run_now::{RecordedRequest, RequestedRun, record_committed, record_request, record_requests};
pub(super) use sqlite::append_committed;

/// Each step goes to the database that the connection is of.
impl Tx<'_> {
    /// Locks the due rows of these tasks, but for those that somebody else holds, and answers how they are now.
    pub(super) async fn lock_due(&mut self, tasks: &[Uuid]) -> Result<Vec<DueSnapshot>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::lock_due(conn, tasks).await,
            Tx::Sqlite(conn) => sqlite::lock_due(conn, tasks).await,
        }
    }

    /// Moves due rows on, records runs, queues them.
    pub(super) async fn fire(&mut self, batch: &FireBatch, ask: &FireDue) -> Result<WrittenRows, StoreError> {
        let mut written = match self {
            Tx::Postgres(conn) => postgres::fire(conn, batch, ask).await,
            Tx::Sqlite(conn) => sqlite::fire(conn, batch, ask).await,
        }?;
        self.tally_skips(&batch.tallies).await?;
        written.skipped += batch.tallies.fires();
        Ok(written)
    }

    /// Leases ready runs, and starts those that are due and have, or get, their slot.
    pub(super) async fn take(&mut self, take: &TakeRequest) -> Result<TakenRuns, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::take(conn, take).await,
            Tx::Sqlite(conn) => sqlite::take(conn, take).await,
        }
    }

    /// Starts those claims that still stand and have, or get, their slot. What was started with the same token before
    /// is answered again, so that a lost answer costs nothing.
    pub(super) async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<StartedRows, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::start(conn, leases, now, lease_until).await,
            Tx::Sqlite(conn) => sqlite::start(conn, leases, now, lease_until).await,
        }
    }

    /// Locks the claims among these, given in the order of their ids, that still stand: whoever took one may have done
    /// so in a transaction before this one.
    pub(super) async fn lock_held_claims(&mut self, leases: &[Lease]) -> Result<Vec<BlockedRow>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::lock_held_claims(conn, leases).await,
            Tx::Sqlite(conn) => sqlite::lock_held_claims(conn, leases).await,
        }
    }

    /// Locks the slots of these tasks, given in the order of their ids; answers who has them.
    pub(super) async fn lock_slots(&mut self, tasks: &[Uuid]) -> Result<HashMap<Uuid, Uuid>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::lock_slots(conn, tasks).await,
            Tx::Sqlite(conn) => sqlite::lock_slots(conn, tasks).await,
        }
    }

    /// Ends claims that are locked as skipped, each because of the other run, which has its task's slot.
    pub(super) async fn skip_blocked(
        &mut self,
        skipped: &[(Uuid, Uuid)],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::skip_blocked(conn, skipped, now).await,
            Tx::Sqlite(conn) => sqlite::skip_blocked(conn, skipped, now).await,
        }
    }

    /// Renews leases that are still held; answers those, with what was asked of them.
    pub(super) async fn beat(
        &mut self,
        leases: &[Lease],
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<RenewedLease>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::beat(conn, leases, lease_until).await,
            Tx::Sqlite(conn) => sqlite::beat(conn, leases, lease_until).await,
        }
    }

    /// Appends to the transcripts of runs, given in the order of their ids, whose lease is still held; answers these
    /// leases. What is there already stays as it is. On Postgres one statement, without a transaction.
    pub(super) async fn append(&mut self, appends: &[&TranscriptAppend]) -> Result<HashSet<Lease>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::append(conn, appends).await,
            Tx::Sqlite(conn) => sqlite::append(conn, appends).await,
        }
    }

    /// As [`Tx::append`]; ledgers of budgets are changed by those whose lease is held.
    pub(super) async fn append_budgeted(
        &mut self,
        appends: &[&TranscriptAppend],
    ) -> Result<(HashSet<Lease>, LedgerOutcome), StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::append_budgeted(conn, appends).await,
            Tx::Sqlite(_) => {
                let held = self.append(appends).await?;
                let written = appends.iter().copied().filter(|append| held.contains(&append.lease));
                let updated = update_ledgers(self, &ledger_batch(written)).await?;
                Ok((held, updated))
            }
        }
    }

    /// Where a bug is planted: appends to transcripts of runs whose lease may be lost. What is there already stays as it
    /// is.
    pub(super) async fn append_ended(&mut self, appends: &[TranscriptAppend]) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::append_ended(conn, appends).await,
            Tx::Sqlite(conn) => sqlite::append_ended(conn, appends).await,
        }
    }

    /// Writes ends with the entries that waited for them, frees slots; answers the runs whose lease was still held.
    pub(super) async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<FinishedRow>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::finish(conn, ends, now).await,
            Tx::Sqlite(conn) => {
                let finished = sqlite::finish(conn, ends, now).await?;
                let held: HashSet<Lease> = finished.iter().map(|finished| finished.lease).collect();
                let appends = deferred_appends(ends.iter().filter(|end| held.contains(&end.lease)))?;
                sqlite::append_ended(conn, &appends).await?;
                Ok(finished)
            }
        }
    }

    /// Those of these tasks that have runs waiting for their slot, in the order of their ids.
    pub(super) async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::waited_for(conn, tasks).await,
            Tx::Sqlite(conn) => sqlite::waited_for(conn, tasks).await,
        }
    }

    /// Notes that conversations are used now. A row that is locked is left to its holder, a deletion or housekeeping: a
    /// deletion locks it before the rows of the runs, which are locked here.
    pub(super) async fn use_conversations(&mut self, ids: &[Uuid], now: DateTime<Utc>) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::use_conversations(conn, ids, now).await,
            Tx::Sqlite(conn) => sqlite::use_conversations(conn, ids, now).await,
        }
    }

    /// Puts messages into the outbox, each once.
    pub(super) async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::post(conn, deliveries, now).await,
            Tx::Sqlite(conn) => sqlite::post(conn, deliveries, now).await,
        }
    }

    /// The versions of these shards of the index of event tasks, in the order asked for; 0 where nothing was written.
    pub(super) async fn versions(&mut self, shards: &[(i32, i64)]) -> Result<Vec<(i32, i64)>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::versions(conn, shards).await,
            Tx::Sqlite(conn) => sqlite::versions(conn, shards).await,
        }
    }

    /// Locks the `due` rows of tasks, given in the order of their ids.
    pub(super) async fn lock_tasks(&mut self, tasks: &[Uuid]) -> Result<Vec<LockedTask>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::lock_tasks(conn, tasks).await,
            Tx::Sqlite(conn) => sqlite::lock_tasks(conn, tasks).await,
        }
    }

    /// Those of these matches whose event has, or had, a place in a window of its task.
    pub(super) async fn in_windows(&mut self, matches: &[&Match]) -> Result<Vec<(Uuid, String)>, StoreError> {
        match self {
            Tx::Postgres(conn) => postgres::in_windows(conn, matches).await,
            Tx::Sqlite(conn) => sqlite::in_windows(conn, matches).await,
        }
    }

    /// Records runs of events, starts those that may and have, or get, their slot, and queues them; their tasks are
    /// locked.
    pub(super) async fn record_events(
        &mut self,
        batch: &EventBatch,
        terms: &LeaseTerms,
    ) -> Result<WrittenRows, StoreError> {
        let mut written = match self {
            Tx::Postgres(conn) => postgres::record_events(conn, batch, terms).await,
            Tx::Sqlite(conn) => sqlite::record_events(conn, batch, terms).await,
        }?;
        self.tally_skips(&batch.tallies).await?;
        written.skipped += batch.tallies.fires();
        Ok(written)
    }
}
