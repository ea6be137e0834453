//! Large writes of callers, one at a time.
//!
//! Of the large writes one waits for the writer of SQLite, and the others for that, tenants in turn: so a short write
//! stands behind one large one of a caller at most, however many callers write hundreds of rows. So it is on Postgres,
//! where events are published one transaction after the other, and where statements that run at the same time share the
//! server's processors.

use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::store::Store;

/// Rows that are a short write.
const SHORT: usize = 10;

/// The turn of the large write that may be under way, or wait for the writer, by tenant.
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
        if rows > SHORT { Some(self.bulk.0.acquire(tenant).await) } else { None }
    }
}
