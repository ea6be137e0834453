//! A request to fire what is due, and the rows that the database took of it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::runs::lease::{RunClaim, StartedRow};
use crate::store::runs::shares::Shares;

/// The request to fire due tasks.
#[derive(Debug, Clone, Default)]
pub struct FireDue {
    /// The present.
    pub now: DateTime<Utc>,
    /// How far ahead of their instant fires are recorded.
    pub horizon: Duration,
    /// Tasks at most; where more are due, a tenth as many more of those that are due last, and as many of tenants in turn.
    pub limit: i64,
    /// The new runs are leased to this worker as far as it has room, so that recording a fire costs one commit.
    pub worker: Uuid,
    /// Most runs to claim ahead.
    pub room: usize,
    /// Of those, as many as there are places start at once if they are due, with leases until then.
    pub start: Option<ImmediateStart>,
}

/// How due runs start with the commit that records them.
#[derive(Debug, Clone)]
pub struct ImmediateStart {
    /// Free places for runs that start at once.
    pub places: usize,
    /// The end of their leases.
    pub lease_until: DateTime<Utc>,
    /// The tenants that may have these places; `None`: every tenant.
    pub shares: Option<Shares>,
}

/// Rows that the database took: claims with their tokens, and the number of new runs.
#[derive(Default)]
pub(in crate::store) struct WrittenRows {
    pub claims: Vec<RunClaim>,
    pub started: Vec<StartedRow>,
    pub recorded: usize,
    pub skipped: usize,
}
