//! The hot path, written once for each database: arrays through `unnest` on Postgres, so that a batch is one
//! statement; prepared single-row statements in one transaction on SQLite.
//!
//! Each method is a step inside a transaction that its caller opened and commits.

mod events;
mod postgres;
mod sqlite;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::notification::NewDelivery;
use crate::store::StoreError;
use crate::store::fires::{Batch, FireDue, Written};
use crate::store::lease::{Beat, Claim, Finish, Lease};

pub(super) use events::{GuardedEvents, HotEvents};

/// A run that may start, and until when it may run.
#[derive(Debug, Clone, Copy, PartialEq, sqlx::FromRow)]
pub(super) struct Going {
    pub run_id: Uuid,
    pub lease_token: i64,
    pub deadline_at: DateTime<Utc>,
}

/// A run whose end was written.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub(super) struct Taken {
    pub run_id: Uuid,
    /// Its end was asked for before.
    pub cancel_reason: Option<String>,
    /// People are asked something about it still.
    pub has_questions: bool,
}

pub(super) trait Hot {
    /// Moves due rows on, records runs, queues them.
    async fn fire(&mut self, batch: &Batch, ask: &FireDue) -> Result<Written, StoreError>;

    /// Leases ready runs up to `until_run_at`, the most urgent first.
    async fn claim(
        &mut self,
        worker: Uuid,
        until_run_at: DateTime<Utc>,
        lease_until: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Claim>, StoreError>;

    /// Starts those claims that still stand and have, or get, their slot. What was started with the same token before
    /// is answered again, so that a lost answer costs nothing.
    async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<Going>, StoreError>;

    /// Renews leases that are still held; answers those, with what was asked of them.
    async fn beat(&mut self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError>;

    /// Writes ends, frees slots; answers the runs whose lease was still held.
    async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<Taken>, StoreError>;

    /// Those of these tasks that have runs waiting for their slot, in the order of their ids.
    async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError>;

    /// Puts messages into the outbox, each once.
    async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError>;
}
