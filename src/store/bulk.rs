//! Large writes of callers, one at a time where there is one writer.
//!
//! SQLite has one writer, for which writes wait in the order in which they come. Where several callers write hundreds of
//! rows each, a write of one row would wait for all of them. So of the large ones one waits for the writer, and the others
//! for that: a short write stands behind one large one of a caller at most. Postgres has a connection for each.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::Store;
use crate::store::db::Db;

/// Rows that are a short write.
const SHORT: usize = 10;

/// The turn of the large write that may wait for the writer.
#[derive(Clone)]
pub(super) struct Bulk(Arc<Semaphore>);

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk(Arc::new(Semaphore::new(1)))
    }
}

impl Store {
    /// Waits for the turn of a caller's write of so many rows, which lasts until the answer is dropped. A short one has none.
    pub(super) async fn in_bulk(&self, rows: usize) -> Option<OwnedSemaphorePermit> {
        match &self.db {
            Db::Sqlite { .. } if rows > SHORT => Arc::clone(&self.bulk.0).acquire_owned().await.ok(),
            _ => None,
        }
    }
}
