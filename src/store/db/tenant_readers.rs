//! Connections by which SQLite is read for tenants. Tenants share them fairly.
//!
//! A read of SQLite is work of this machine's processors. So a tenant reads no more at once than there are processors;
//! one more connection is for a tenant that reads nothing else. A tenant that reads seldom comes before one that reads
//! page after page. They read by threads that give way to the engine's, which has connections of its own and waits for
//! nobody.

use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::thread;

use futures::future::try_join_all;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Sqlite, SqliteConnection, SqlitePool};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::base::threads::lower_priority;
use crate::store::db::sqlite_pool::sqlite_pool;
use crate::store::db::store_metrics::Waits;

/// Connections that one tenant may have where a machine has fewer processors.
const LEAST: usize = 2;

/// The connections that tenants read by, one tenant in turn with the others.
#[derive(Clone)]
pub(in crate::store) struct TenantReaders {
    pool: SqlitePool,
    turns: FairQueue<String>,
}

/// A connection to read by, until this is dropped.
pub(in crate::store) struct TenantReader {
    // dropped first: it is there for the next one
    connection: PoolConnection<Sqlite>,
    _turn: Option<QueuePermit<String>>,
}

impl TenantReaders {
    pub(in crate::store) async fn open(options: SqliteConnectOptions) -> Result<TenantReaders, sqlx::Error> {
        let count = thread::available_parallelism().map_or(LEAST, NonZero::get).max(LEAST) + 1;
        let options = options.thread_name(|_| "tenant-reader".into());
        let pool = sqlite_pool(count as u32).idle_timeout(None).max_lifetime(None).connect_lazy_with(options);
        open_by_low_threads(pool.clone(), count).await?;
        Ok(TenantReaders { pool, turns: FairQueue::with_reserve(count, 1) })
    }

    /// A connection in the tenant's turn; what concerns every tenant is read by the engine's `readers`, and in no turn.
    pub(in crate::store) async fn acquire(
        &self,
        tenant: Option<&str>,
        readers: &SqlitePool,
        waits: &Waits,
    ) -> Result<TenantReader, sqlx::Error> {
        let Some(tenant) = tenant else {
            waits.record_acquire("readers", readers);
            return Ok(TenantReader { connection: readers.acquire().await?, _turn: None });
        };
        waits.record_acquire("tenant_readers", &self.pool);
        let turn = self.turns.acquire(tenant).await;
        Ok(TenantReader { connection: self.pool.acquire().await?, _turn: Some(turn) })
    }

    /// The queue of tenants that want to read, to be measured.
    pub(in crate::store) fn queue(&self) -> FairQueue<String> {
        self.turns.clone()
    }

    pub(in crate::store) fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    pub(in crate::store) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Opens all connections. Each has a thread, which inherits its priority from the thread that opens it.
async fn open_by_low_threads(pool: SqlitePool, count: usize) -> Result<(), sqlx::Error> {
    let (sender, opened) = oneshot::channel();
    let runtime = Handle::current();
    thread::spawn(move || {
        lower_priority();
        // they are given back on the runtime, too
        let all = runtime.block_on(async { try_join_all((0..count).map(|_| pool.acquire())).await.map(drop) });
        let _ = sender.send(all);
    });
    opened.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

impl Deref for TenantReader {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for TenantReader {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::{BoxFuture, join_all};
    use futures::{FutureExt, join};
    use uuid::Uuid;

    use super::*;
    use crate::base::id::Scope;
    use crate::domain::event::Event;
    use crate::store::db::scratch::{START, Scratch, asked, only};
    use crate::store::{RunFilter, StoreError};

    /// All places, each in the name of another tenant.
    async fn places(readers: &TenantReaders) -> Vec<QueuePermit<String>> {
        let tenants: Vec<String> = (0..readers.turns.slots()).map(|place| format!("holder of {place}")).collect();
        join_all(tenants.iter().map(|tenant| readers.turns.acquire(tenant.as_str()))).await
    }

    #[tokio::test]
    async fn each_read_of_runs_waits_for_the_turn_of_its_tenant_and_none_of_the_engine_does() {
        let scratch = Scratch::open().await;
        let (store, readers, task) =
            (&scratch.store, scratch.tenant_readers(), scratch.task("quiet", interval()).await);
        let event =
            serde_json::json!({ "specversion": "1.0", "id": "1", "source": "s", "type": "t", "tenantid": "quiet" });
        let event = Event::try_from(event).expect("an event");
        let (event, ids) = (&event, &[task.id]);
        let filter = &RunFilter { limit: 9, ..RunFilter::default() };
        type Calls<'a> = Vec<(&'static str, BoxFuture<'a, Result<(), StoreError>>)>;
        fn calls<'a>(
            store: &'a crate::store::Store,
            scope: &'a Scope,
            (filter, event, ids): (&'a RunFilter, &'a Event, &'a [Uuid]),
        ) -> Calls<'a> {
            vec![
                ("get_run", store.get_run(scope, Uuid::nil()).map(missing).boxed()),
                ("last_runs", store.last_runs(scope, ids).map(|read| read.map(drop)).boxed()),
                ("recorded_around", store.recorded_around(scope, ids[0], START).map(|read| read.map(drop)).boxed()),
                ("runs_of_event", store.runs_of_event(scope, event, ids).map(|read| read.map(drop)).boxed()),
                (
                    "skip_tallies_of_event",
                    store.skip_tallies_of_event(scope, event, ids).map(|read| read.map(drop)).boxed(),
                ),
                ("list_runs", store.list_runs(scope, filter).map(|read| read.map(drop)).boxed()),
                ("run_summaries", store.run_summaries(scope, filter).map(|read| read.map(drop)).boxed()),
                ("count_runs", store.count_runs(scope).map(|read| read.map(drop)).boxed()),
                ("get_task", store.get_task(scope, ids[0]).map(|read| read.map(drop)).boxed()),
            ]
        }
        let held = places(readers).await;
        let quiet = only("quiet");
        for (name, mut call) in calls(store, &quiet, (filter, event, ids)) {
            assert!((&mut call).now_or_never().is_none(), "{name} takes no turn");
            assert_eq!(readers.turns.waiting(), 1, "{name} takes no turn");
            drop(call);
        }
        for (name, call) in calls(store, &Scope::Every, (filter, event, ids)) {
            call.await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        drop(held);
        for (name, call) in calls(store, &quiet, (filter, event, ids)) {
            call.await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[tokio::test]
    async fn read_of_a_quiet_tenant_is_before_the_backlog_of_another() {
        let scratch = Scratch::open().await;
        let (store, readers) = (&scratch.store, scratch.tenant_readers());
        // it has read before, and the other tenant has not
        store.count_runs(&only("loud")).await.expect("a count");
        let mut held = places(readers).await;
        let order = Mutex::new(Vec::new());
        let read = async |tenant: &'static str| {
            store.count_runs(&only(tenant)).await.expect("a count");
            order.lock().expect("order lock").push(tenant);
        };
        let calls = asked(join_all(["loud", "loud", "loud", "quiet"].map(read)));
        // one place is free again, so they read one after the other
        held.pop();
        join!(calls);
        assert_eq!(*order.lock().expect("order lock"), ["quiet", "loud", "loud", "loud"]);
    }

    fn interval() -> serde_json::Value {
        serde_json::json!({ "interval": "1h" })
    }

    fn missing(read: Result<crate::domain::run::Run, StoreError>) -> Result<(), StoreError> {
        match read {
            Err(StoreError::NotFound) => Ok(()),
            read => read.map(drop),
        }
    }
}
