//! Rows that can't be read: each is left out and told of once, so that the work that the others stand for goes on.
//!
//! A service that works off a table reads its rows one by one by this. What can't be read it sets aside, by whatever
//! its table has for that (a later instant, a state, a mark), so that it is not read again at once and starves none
//! behind it.

mod instants;

use std::collections::HashMap;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, TimeDelta, Utc};
use lru::LruCache;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use sqlx::{ColumnIndex, Decode, FromRow, Postgres, Row, Sqlite, Type};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::metrics::Metrics;
use crate::store::tx::{Rows, SqlRecord};
use crate::store::{Store, StoreError};

/// When a row that can't be read is looked at again, where its table has an instant for that: a newer release may read
/// it.
pub const RETRY_AFTER: TimeDelta = TimeDelta::hours(1);
/// Rows that are remembered as told of. Beyond that those are forgotten that were not read for the longest time, and
/// may be told of once more.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// How long no row is searched for that could be the reason for a failure, after a search for it that has found none;
/// and the reasons that are remembered for that.
const SEARCHED_AGAIN: TimeDelta = TimeDelta::minutes(1);
const REASONS: NonZeroUsize = NonZeroUsize::new(100).unwrap();

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnreadableTable {
    table: &'static str,
}

/// The rows of this process's store that were found unreadable. Cheap to clone; all clones remember together.
#[derive(Debug, Clone)]
pub(in crate::store) struct UnreadableRow {
    known: Arc<Mutex<LruCache<(&'static str, String), ()>>>,
    found: Family<UnreadableTable, Counter>,
    /// The reasons for which rows were searched for, and not found, with the time of the search.
    searched: Arc<Mutex<LruCache<String, DateTime<Utc>>>>,
}

impl Default for UnreadableRow {
    fn default() -> UnreadableRow {
        UnreadableRow {
            known: Arc::new(Mutex::new(LruCache::new(REMEMBERED))),
            found: Family::default(),
            searched: Arc::new(Mutex::new(LruCache::new(REASONS))),
        }
    }
}

impl UnreadableRow {
    pub(in crate::store) fn register(&self, metrics: &Metrics) {
        metrics.register("unreadable_rows", "Stored rows that can't be read, set aside", self.found.clone());
    }

    /// The rows that can be read, and the ids of those that can't, which are reported. The first column is the id: a
    /// UUID, or a name.
    pub(in crate::store) fn partition_readable<S: SqlRecord, T, I>(
        &self,
        table: &'static str,
        rows: &Rows,
        read: impl Fn(S) -> Result<T, StoreError>,
    ) -> (Vec<T>, Vec<I>)
    where
        I: for<'r> Decode<'r, Postgres>
            + Type<Postgres>
            + for<'r> Decode<'r, Sqlite>
            + Type<Sqlite>
            + Default
            + Display,
    {
        match rows {
            Rows::Postgres(rows) => self.partition_rows(table, rows, read),
            Rows::Sqlite(rows) => self.partition_rows(table, rows, read),
        }
    }

    fn partition_rows<'r, R, S, T, I>(
        &self,
        table: &'static str,
        rows: &'r [R],
        read: impl Fn(S) -> Result<T, StoreError>,
    ) -> (Vec<T>, Vec<I>)
    where
        R: Row,
        S: FromRow<'r, R>,
        usize: ColumnIndex<R>,
        I: Decode<'r, R::Database> + Type<R::Database> + Default + Display,
    {
        let (mut readable, mut others) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            match S::from_row(row).map_err(StoreError::from).and_then(&read) {
                Ok(item) => readable.push(item),
                Err(error) => {
                    let id: I = row.try_get(0).unwrap_or_default();
                    self.report(table, &id, &error);
                    others.push(id);
                }
            }
        }
        (readable, others)
    }

    /// Whether the row may be searched for which is the reason for a failure: not where that was done in vain a moment
    /// ago. A search begins with it.
    fn may_search(&self, why: &str, now: DateTime<Utc>) -> bool {
        let mut searched = self.searched.lock().expect("searched lock");
        let is_known = searched.get(why).is_some_and(|at| now - *at < SEARCHED_AGAIN);
        if !is_known {
            searched.put(why.to_owned(), now);
        }
        !is_known
    }

    /// A search for this reason has found a row: the next one may follow at once.
    fn search_was_successful(&self, why: &str) {
        self.searched.lock().expect("searched lock").pop(why);
    }

    /// Says once that a row can't be read.
    pub(in crate::store) fn report(&self, table: &'static str, id: impl Display, why: &dyn Display) {
        let mut known = self.known.lock().expect("unreadable lock");
        if known.put((table, id.to_string()), ()).is_none() {
            self.found.get_or_create(&UnreadableTable { table }).inc();
            tracing::error!(table, %id, %why, "a stored row can't be read, it is set aside and the others go on");
        }
    }
}

impl Store {
    /// Says once that a run which waits can't be looked after, and looks at it again in an hour: it must not stand
    /// before the others. One that is not due any more has been parked anew meanwhile, and is left as it is.
    pub async fn set_aside_parked(&self, run_id: Uuid, why: &(dyn Display + Sync)) -> Result<(), StoreError> {
        self.unreadable.report("parked", run_id, why);
        self.postpone("update parked set wake_at = $2 where run_id = $1 and wake_at <= $3", run_id).await
    }

    /// Says once that a window of events can't be handled, and looks at it again in an hour. One that is not due any
    /// more is left as it is.
    pub async fn set_aside_window(&self, id: Uuid, why: &(dyn Display + Sync)) -> Result<(), StoreError> {
        self.unreadable.report("event_windows", id, why);
        self.postpone("update event_windows set closes_at = $2 where id = $1 and closes_at <= $3", id).await
    }

    /// The rows with these ids, as `read` answers them by their ids. Where `read` fails because a row can't be read,
    /// each row is read by itself, and those that can't be read are reported and left out.
    pub(in crate::store) async fn readable_by_id<'i, T, R>(
        &self,
        table: &'static str,
        ids: &'i [Uuid],
        read: impl Fn(&'i [Uuid]) -> R,
    ) -> Result<HashMap<Uuid, T>, StoreError>
    where
        R: Future<Output = Result<HashMap<Uuid, T>, StoreError>>,
    {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        match read(ids).await {
            Err(StoreError::Corrupt(_)) => {}
            found => return found,
        }
        let mut readable = HashMap::with_capacity(ids.len());
        for id in ids {
            match read(std::slice::from_ref(id)).await {
                Err(StoreError::Corrupt(why)) => self.unreadable.report(table, id, &why),
                found => readable.extend(found?),
            }
        }
        Ok(readable)
    }

    async fn postpone(&self, update: &'static str, id: Uuid) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        write.query(update).bind(id).bind(now + RETRY_AFTER).bind(now).execute().await?;
        write.commit().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_told_of_once_and_what_is_remembered_is_bounded() {
        let unreadable = UnreadableRow::default();
        let metrics = Metrics::new();
        unreadable.register(&metrics);
        for _ in 0..3 {
            unreadable.report("approvals", Uuid::from_u128(1), &"no such status");
        }
        let told = |count| format!(r#"reveille_unreadable_rows_total{{table="approvals"}} {count}"#);
        assert!(metrics.text().contains(&told(1)), "{}", metrics.text());
        for id in 0..2 * REMEMBERED.get() as u128 {
            unreadable.report("approvals", Uuid::from_u128(id), &"no such status");
        }
        assert!(unreadable.known.lock().unwrap().len() <= REMEMBERED.get());
    }
}
