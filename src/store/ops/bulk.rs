//! Large writes of callers, one at a time where there is one writer.
//!
//! Of the large writes one waits for the writer of SQLite, and the others for that, tenants in turn: so a short write
//! stands behind one large one of a caller at most, however many callers write hundreds of rows. Postgres has a
//! connection for each.

use crate::base::fair_queue::{FairQueue, QueuePermit};
use crate::store::Store;
use crate::store::db::Db;

/// Rows that are a short write.
const SHORT: usize = 10;

/// The turn of the large write that may wait for the writer, by tenant.
#[derive(Clone)]
pub(in crate::store) struct Bulk(FairQueue<String>);

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk(FairQueue::new(1))
    }
}

impl Bulk {
    /// The queue of large writes, to be measured.
    pub(in crate::store) fn queue(&self) -> FairQueue<String> {
        self.0.clone()
    }
}

impl Store {
    /// Waits for the turn of a caller's write of so many rows, which lasts until the answer is dropped. A short one has
    /// none.
    pub(in crate::store) async fn acquire_bulk(&self, tenant: &str, rows: usize) -> Option<QueuePermit<String>> {
        match &self.db {
            Db::Sqlite { .. } if rows > SHORT => Some(self.bulk.0.acquire(tenant).await),
            _ => None,
        }
    }
}
