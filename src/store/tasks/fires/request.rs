//! A request to fire what is due.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::runs::starting::immediate_start::{ImmediateStart, LeaseTerms};

/// The request to fire due tasks.
#[derive(Debug, Clone, Default)]
pub struct FireDue {
    /// The present.
    pub now: DateTime<Utc>,
    /// How far ahead of their instant fires are recorded.
    pub horizon: Duration,
    /// Tasks at most; where more are due, a tenth as many more of those that are due last, and as many of tenants in
    /// turn.
    pub limit: i64,
    /// The new runs are leased to this worker as far as it has room, so that recording a fire costs one commit.
    pub worker: Uuid,
    /// Most runs to claim ahead.
    pub room: usize,
    /// Of those, as many as there are slots start at once if they are due, with leases until then.
    pub start: Option<ImmediateStart>,
}

impl FireDue {
    pub(in crate::store) fn terms(&self) -> LeaseTerms {
        let started_until = self.start.as_ref().map(|start| start.lease_until);
        LeaseTerms { now: self.now, worker: self.worker, started_until }
    }
}
