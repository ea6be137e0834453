//! Pending work, in one statement that idle services share: so they find work of which no wake-up told.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError};

/// How old shared counts may be.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// How long it is waited for, in real time. Past that a service does better to look by itself.
const LIMIT: Duration = Duration::from_secs(2);

/// The earliest of all that services look for; a past one is due. `None`: there is none at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct PendingWork {
    /// A schedule fires.
    pub fire: Option<DateTime<Utc>>,
    /// A condition is polled. Stays past while somebody is at it.
    pub poll: Option<DateTime<Utc>>,
    /// A run is ready, now or for later.
    pub ready: bool,
    /// A lease ends unless it is renewed.
    pub lease: Option<DateTime<Utc>>,
    /// The time limit of a run is over.
    pub deadline: Option<DateTime<Utc>>,
    /// A parked run is to be looked at, whatever it waits for.
    pub parked: Option<DateTime<Utc>>,
    /// A delivery is due.
    pub delivery: Option<DateTime<Utc>>,
    /// When the message was sent that has waited longest for its provider's word.
    pub sent: Option<DateTime<Utc>>,
    /// A window closes.
    pub window: Option<DateTime<Utc>>,
    /// An event is in the database's queue, leased or not.
    pub event: bool,
    /// An entry of the audit log has no place in the chain yet.
    pub unsealed: bool,
    /// Bytes were stored or deleted that are not counted for their tenants yet, lately or before there was a count.
    pub uncounted: bool,
    /// A task is to be resumed whose credential was saved.
    pub resumption: bool,
    /// Facts are to be noted from a run that has ended.
    pub extraction: Option<DateTime<Utc>>,
}

/// Each is the first entry of an index: on Postgres the connections for quick statements read no other way. Where an
/// order matters it is said: `min()` may read a whole index where a table was small when it was analysed last.
const PENDING_WORK: &str = "select (select next_at from due where kind = 'schedule' and next_at is not null
                      order by next_at limit 1) as fire,
                    (select next_at from due where kind = 'condition' and next_at is not null
                      order by next_at limit 1) as poll,
                    exists (select 1 from queue where state = 'ready') as ready,
                    (select lease_until from queue where state <> 'ready' and lease_until is not null
                      order by lease_until limit 1) as lease,
                    (select deadline_at from queue where deadline_at is not null
                      order by deadline_at limit 1) as deadline,
                    (select wake_at from parked order by wake_at limit 1) as parked,
                    (select next_at from deliveries {pending} where state = 'pending' and next_at is not null order by next_at limit 1) as delivery,
                    (select sent_at from deliveries {sent} where state = 'sent' and sent_at is not null order by sent_at limit 1) as sent,
                    (select closes_at from event_windows where closes_at is not null
                      order by closes_at limit 1) as \"window\",
                    exists (select 1 from event_queue) as event,
                    exists (select 1 from audit where position is null) as unsealed,
                    exists (select 1 from stored_byte_changes)
                        or exists (select 1 from stored_byte_scans) as uncounted,
                    exists (select 1 from resumptions) as resumption,
                    (select due_at from extractions order by due_at limit 1) as extraction";

/// SQLite, which has no statistics, would take the index of all that is in a state.
const PENDING_COUNTS: Split = Split {
    postgres: sql!(PENDING_WORK; "{pending}" = ""; "{sent}" = ""),
    sqlite: sql!(PENDING_WORK; "{pending}" = "indexed by deliveries_next"; "{sent}" = "indexed by deliveries_sent"),
};

/// The counts that were read last, and when, by the clock's running time; `None`: the database did not tell.
pub(in crate::store) type LastPendingWork = Arc<Mutex<Option<(Duration, Option<PendingWork>)>>>;

impl Store {
    /// Reads the pending work as of now.
    pub async fn pending_work(&self) -> Result<PendingWork, StoreError> {
        let now = self.clock.elapsed();
        let pending = self.read_pending_work().await?;
        if let Ok(mut seen) = self.last_pending_work.try_lock() {
            *seen = Some((now, Some(pending)));
        }
        Ok(pending)
    }

    /// The counts as of some moment within the last second: concurrent callers share the answer, also that there is
    /// none. It is waited for two seconds.
    pub async fn shared_pending_work(&self) -> Option<PendingWork> {
        let asked = self.clock.elapsed();
        let mut seen = self.last_pending_work.lock().await;
        // who waited while another one asked has its answer, however long that took
        if let Some((at, pending)) = *seen
            && asked.saturating_sub(at) < SHARED_FOR
        {
            return pending;
        }
        let begun = self.clock.elapsed();
        let late = |_| Err(StoreError::Unavailable(format!("no answer within {LIMIT:?}")));
        let looked = timeout(LIMIT, self.read_pending_work()).await.unwrap_or_else(late);
        if let Err(error) = &looked {
            tracing::warn!(%error, "idle services can't share the pending work, each polls by itself");
        }
        let pending = looked.ok();
        *seen = Some((begun, pending));
        pending
    }

    async fn read_pending_work(&self) -> Result<PendingWork, StoreError> {
        self.past_unreadable(|| self.read_first_entries()).await
    }

    async fn read_first_entries(&self) -> Result<PendingWork, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read.query(PENDING_COUNTS).one().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_each_is_the_first_entry_of_an_index() {
        for step in sqlite_plan(PENDING_COUNTS.sqlite).await {
            // whether there is any row is told by the first
            let by_an_index = !step.starts_with("SCAN") || step.contains("INDEX");
            let first_row = [
                "SCAN CONSTANT ROW",
                "SCAN event_queue",
                "SCAN stored_byte_changes",
                "SCAN stored_byte_scans",
                "SCAN resumptions",
            ]
            .contains(&step.as_str());
            assert!((by_an_index || first_row) && !step.contains("TEMP B-TREE"), "{step}");
            assert!(!step.contains("deliveries_of_state"), "all that is in a state: {step}");
        }
    }
}
