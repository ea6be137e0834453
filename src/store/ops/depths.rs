//! How much there is to do, counted for operators as far as it costs next to nothing: each count is by an index and
//! stops at [`COUNTED_TO`], which then means "that many, or more".

use chrono::TimeDelta;

use crate::store::{Store, StoreError};

/// Where counting stops.
pub const COUNTED_TO: i64 = 10_000;
/// A task that was due this long ago, and has not fired, is late: the engine records fires ahead of their instant.
const LATE_AFTER: TimeDelta = TimeDelta::seconds(5);

/// Numbers of waiting rows, each at most [`COUNTED_TO`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depths {
    /// Runs in the queue that nobody has; leased, and not started; being executed; and out of the queue, waiting for
    /// people, a completion or a slot.
    pub ready: i64,
    /// Runs that are claimed ahead.
    pub claimed: i64,
    /// Runs that are executed.
    pub started: i64,
    /// Runs that wait for an answer or another run.
    pub parked: i64,
    /// Scheduled tasks whose instant came a while ago, and that have not fired.
    pub due_late: i64,
    /// Questions that people have not answered.
    pub approvals_open: i64,
    /// Messages that are still to be sent.
    pub deliveries_pending: i64,
}

impl Store {
    /// Counts what waits.
    pub async fn depths(&self) -> Result<Depths, StoreError> {
        let late = self.clock.now() - LATE_AFTER;
        let counts: (i64, i64, i64, i64, i64, i64, i64) = self
            .db
            .read()
            .await?
            .query(
                "select (select count(*) from (select 1 from queue where state = 'ready' limit $2) q),
                        (select count(*) from (select 1 from queue
                                                where state <> 'ready' and state = 'claimed' limit $2) q),
                        (select count(*) from (select 1 from queue
                                                where state <> 'ready' and state = 'started' limit $2) q),
                        (select count(*) from (select 1 from parked limit $2) p),
                        (select count(*) from (select 1 from due where kind = 'schedule' and next_at <= $1 limit $2) d),
                        (select count(*) from (select 1 from approvals where status = 'pending' limit $2) a),
                        (select count(*) from (select 1 from deliveries where state = 'pending' limit $2) d)",
            )
            .bind(late)
            .bind(COUNTED_TO)
            .one()
            .await?;
        let (ready, claimed, started, parked, due_late, approvals_open, deliveries_pending) = counts;
        Ok(Depths { ready, claimed, started, parked, due_late, approvals_open, deliveries_pending })
    }
}
