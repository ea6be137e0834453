//! Connections to Postgres that are kept open, for whoever needs one next.
//!
//! One that is given back is there for the next at once, unless something is under way on it: the end of a statement
//! that was broken off, or of a transaction that was left. That is waited for first, but not for ever: where the wire
//! has gone silent the connection is thrown away, and another takes its place; the system would give it up a quarter of
//! an hour later. Thrown away is also one whose transaction was broken off as it began: the next would write into it,
//! and nobody commit it.

use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use futures::FutureExt;
use sqlx::postgres::{PgConnectOptions, PgTransactionManager};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::store::db::flow::QueueFlow;
use crate::store::db::row_security::begin_confined;

/// A connection is waited for no longer, nor is its beginning.
const WAIT: Duration = Duration::from_secs(5);
/// Connections of which one is not had in turn, for what the engine asks.
const ONE_FOR_THE_ENGINE: usize = 3;
/// Between two tries to connect to a server that is not up.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// One that was not used for longer is asked whether it is still there, and each after the end of another; a question
/// before each use would cost as much as the use itself.
const UNASKED: Duration = Duration::from_secs(1);
/// The answer to that is waited for no longer.
const ASKED: Duration = Duration::from_secs(2);
/// One that was not used for longer is closed: a burst leaves many.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// One that is older is replaced: what a server remembers for it only grows.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Between two looks for those that nobody uses.
const TIDY: Duration = Duration::from_secs(60);
/// Time after which work under way is waited for no longer when a connection is given back: the server itself ends a
/// statement after five seconds, and closing the store waits for ten.
const ENDS: Duration = Duration::from_secs(6);
const TAKEN: &str = "it is taken when it is dropped";
/// Between two looks whether all are closed.
const CLOSING: Duration = Duration::from_millis(2);

/// When a connection to the server was last lost, or given back before its statement had come to its end: the pools of
/// one store share it. The others are asked before their next use whether they are still there: a server that crashed
/// or was cut off ended them, too, and each would fail what it is used for. A question too many does no harm.
#[derive(Clone, Default)]
pub(in crate::store) struct LastLoss(Arc<Mutex<Option<Instant>>>);

impl LastLoss {
    fn note(&self) {
        *self.0.lock().expect("last loss lock") = Some(Instant::now());
    }

    fn note_error(&self, error: &sqlx::Error) {
        if is_end(error) {
            self.note();
        }
    }

    /// Whether it was after this instant.
    fn is_after(&self, used: Instant) -> bool {
        self.0.lock().expect("last loss lock").is_some_and(|lost| used <= lost)
    }
}

/// A few connections of one kind. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Connections {
    pool: Pool<PostgresConnector, PooledConnection>,
    turns: FairQueue<QueueFlow>,
}

/// Opens the connections of a pool.
pub(in crate::store) struct PostgresConnector {
    options: PgConnectOptions,
    /// Connections belong to the runtime that opened the store, whoever needs one first.
    runtime: Handle,
    last_loss: LastLoss,
}

/// A connection that nobody else has until it is dropped.
pub(in crate::store) struct PooledConnection {
    object: Option<Object<PostgresConnector>>,
    /// Of one that was had in turn.
    turn: Option<QueuePermit<QueueFlow>>,
    /// A transaction has been asked for, and whether it has begun is not known.
    begins: bool,
    /// A transaction was left: its rollback is under way.
    rolls_back: bool,
}

/// A transaction, with its connection. Writes that are not committed are rolled back.
pub(in crate::store) struct PostgresTransaction {
    held: PooledConnection,
    is_open: bool,
}

impl Connections {
    /// At most so many; one of them is there when this returns.
    pub(in crate::store) async fn open(
        options: PgConnectOptions,
        most: u32,
        last_loss: LastLoss,
    ) -> Result<Connections, sqlx::Error> {
        let pool = Pool::builder(PostgresConnector { options, runtime: Handle::current(), last_loss })
            .max_size(most as usize)
            .queue_mode(QueueMode::Lifo)
            .recycle_timeout(Some(ASKED))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| sqlx::Error::Configuration(error.into()))?;
        let connections = Connections { pool, turns: turns(most) };
        drop(connections.acquire().await?);
        let unused = connections.pool.weak();
        tokio::spawn(async move {
            while let Some(pool) = unused.upgrade().filter(|pool| !pool.is_closed()) {
                pool.retain(|_, about| about.last_used() < IDLE);
                drop(pool);
                pause(TIDY).await;
            }
        });
        Ok(connections)
    }

    /// These, for kinds of work that write one batch after the other: whichever has used them less has the next that is
    /// free, and none is kept from a kind that is alone.
    pub(in crate::store) fn for_batches(self) -> Connections {
        let places = self.pool.status().max_size;
        Connections { turns: FairQueue::new(places), ..self }
    }

    pub(in crate::store) async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        match timeout(WAIT, self.pool.get()).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(PoolError::Backend(error))) => {
                self.note_error(&error);
                Err(error)
            }
            Ok(Err(PoolError::Closed)) => Err(sqlx::Error::PoolClosed),
            Ok(Err(_)) | Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    /// One as soon as it is this flow's turn: where several want more than there are, each has its part.
    pub(in crate::store) async fn acquire_fair(&self, flow: QueueFlow) -> Result<PooledConnection, sqlx::Error> {
        let turn = timeout(WAIT, flow.acquire(&self.turns)).await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let mut held = self.acquire().await?;
        held.turn = Some(turn);
        Ok(held)
    }

    /// Where this is the end of a connection to the server, those here are asked before they are used again.
    pub(in crate::store) fn note_error(&self, error: &sqlx::Error) {
        self.pool.manager().last_loss.note_error(error);
    }

    /// The queue of those who want one in turn, to be measured.
    pub(in crate::store) fn queue(&self) -> FairQueue<QueueFlow> {
        self.turns.clone()
    }

    /// Whether somebody waits for one in turn.
    pub(in crate::store) fn is_wanted(&self) -> bool {
        self.turns.waiting() > 0
    }

    /// Closes them, each after what it does now.
    pub(in crate::store) async fn close(&self) {
        self.pool.close();
        while self.counted().0 > 0 {
            pause(CLOSING).await;
        }
    }

    /// How many are open, how many of them nobody has, and how many there may be.
    pub(in crate::store) fn counted(&self) -> (u32, u32, u32) {
        let status = self.pool.status();
        (status.size as u32, status.available as u32, status.max_size as u32)
    }
}

/// The turns of so many connections. A flow that has one takes no other while half of them are taken: statements that
/// run at once share the server's processors, and each that is long makes the short ones of others as much longer.
fn turns(connections: u32) -> FairQueue<QueueFlow> {
    let connections = connections as usize;
    let places = if connections < ONE_FOR_THE_ENGINE { connections } else { connections - 1 };
    FairQueue::with_reserve(places, places / 2)
}

impl Manager for PostgresConnector {
    type Type = PgConnection;
    type Error = sqlx::Error;

    /// A server that starts again is waited for as long as a connection is.
    async fn create(&self) -> Result<PgConnection, sqlx::Error> {
        let options = self.options.clone();
        let connected = async move {
            loop {
                match options.connect().await {
                    Err(error) if is_starting(&error) => pause(TRY_AGAIN).await,
                    done => return done,
                }
            }
        };
        self.runtime.spawn(connected).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }

    async fn recycle(&self, connection: &mut PgConnection, about: &Metrics) -> RecycleResult<sqlx::Error> {
        if about.age() > LIFETIME {
            return Err(RecycleError::message("it is old"));
        }
        let used = about.recycled.unwrap_or(about.created);
        if self.last_loss.is_after(used) || used.elapsed() > UNASKED {
            connection.ping().await.inspect_err(|error| self.last_loss.note_error(error))?;
        }
        Ok(())
    }
}

/// Nobody listens, or the server starts or stops.
fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        other => is_shutdown(other),
    }
}

fn is_end(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_)) || is_shutdown(error)
}

/// 57P01 to 57P03: the server ends the session, crashes, or is not up yet.
fn is_shutdown(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(database.code().as_deref(), Some("57P01" | "57P02" | "57P03"))
}

impl From<Object<PostgresConnector>> for PooledConnection {
    fn from(object: Object<PostgresConnector>) -> PooledConnection {
        PooledConnection { object: Some(object), turn: None, begins: false, rolls_back: false }
    }
}

impl PooledConnection {
    /// A transaction, which is rolled back unless it is committed; it sees only what belongs to the tenant, if there is
    /// one.
    pub(in crate::store) async fn begin(mut self, tenant: Option<&str>) -> Result<PostgresTransaction, sqlx::Error> {
        self.begins = true;
        let mut begun = PostgresTransaction { held: self, is_open: true };
        let confined = tenant.map(|tenant| AssertSqlSafe(begin_confined(tenant)).into_sql_str());
        PgTransactionManager::begin(&mut begun.held, confined).await?;
        begun.held.begins = false;
        Ok(begun)
    }

    /// Notes a loss where a statement has not come to its end: the server may have ended the connection.
    fn note_unless_ready(&mut self) {
        let Some(object) = self.object.as_mut() else { return };
        if !matches!(object.flush().now_or_never(), Some(Ok(()))) {
            note_loss(object);
        }
    }
}

fn note_loss(object: &Object<PostgresConnector>) {
    if let Some(pool) = Object::pool(object) {
        pool.manager().last_loss.note();
    }
}

impl PostgresTransaction {
    pub(in crate::store) async fn commit(mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(&mut self.held).await?;
        self.is_open = false;
        Ok(())
    }

    /// Commits behind the caller, who has read what it wanted. The connection, and its turn, are given back once that
    /// is done: whoever is next on it is in no transaction of this one's tenant. Where it can't be done, the connection
    /// is thrown away.
    pub(in crate::store) fn commit_behind(self) {
        let mut commit = Box::pin(timeout(ENDS, self.commit()));
        // it is sent at once, and its answer is heard by a task of its own
        if (&mut commit).now_or_never().is_none() {
            tokio::spawn(commit);
        }
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        if self.is_open {
            self.held.note_unless_ready();
            PgTransactionManager::start_rollback(&mut self.held);
            self.held.rolls_back = true;
        }
    }
}

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.held
    }
}

impl DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.held
    }
}

impl Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.object.as_ref().expect(TAKEN)
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.object.as_mut().expect(TAKEN)
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if !self.rolls_back {
            self.note_unless_ready();
        }
        let Some(mut object) = self.object.take() else { return };
        if self.begins {
            note_loss(&object);
            return drop(Object::take(object));
        }
        match (object.flush().now_or_never(), Handle::try_current()) {
            // nothing is under way
            (Some(Ok(())), _) => {}
            (None, Ok(runtime)) => drop(runtime.spawn(async move {
                if !matches!(timeout(ENDS, object.flush()).await, Ok(Ok(()))) {
                    tracing::debug!("a connection to the database is thrown away");
                    note_loss(&object);
                    drop(Object::take(object));
                }
            })),
            _ => {
                note_loss(&object);
                drop(Object::take(object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn tenants_that_want_all_connections_leave_some_for_others_and_one_for_the_engine() {
        let turns = turns(5);
        let tenant = |name: &str| QueueFlow::of(Some(name));
        let taken = async |name: &str| turns.acquire(&tenant(name)).now_or_never();
        let loud = [taken("loud").await, taken("loud").await];
        assert!(loud.iter().all(Option::is_some) && taken("loud").await.is_none(), "half of them are taken");
        let others = [taken("loud too").await, taken("quiet").await];
        assert!(others.iter().all(Option::is_some) && taken("late").await.is_none(), "the engine has one");
        drop(others);
        assert!(taken("loud too").await.is_some());
    }

    /// Without a server: once its pool is closed, a call ends as soon as it has its turn.
    fn without_server(most: u32) -> Connections {
        let (options, last_loss) = (PgConnectOptions::new(), LastLoss::default());
        let connector = PostgresConnector { options, runtime: Handle::current(), last_loss };
        let pool = Pool::builder(connector).max_size(most as usize).build().expect("a pool");
        Connections { pool, turns: turns(most) }
    }

    #[tokio::test]
    async fn kind_of_work_with_little_to_write_stands_behind_one_batch_and_takes_what_nobody_wants() {
        let engine = without_server(2).for_batches();
        engine.pool.close();
        let (many, few) = (QueueFlow::Engine("many"), QueueFlow::Engine("few"));
        let held = [engine.turns.acquire(&many).await, engine.turns.acquire(&many).await];
        assert!(!engine.is_wanted(), "one kind has both while no other wants any");
        let order = Mutex::new(Vec::new());
        let batch = async |flow: &QueueFlow, name: &'static str| {
            assert!(matches!(engine.acquire_fair(flow.clone()).await, Err(sqlx::Error::PoolClosed)));
            order.lock().expect("order lock").push(name);
        };
        let mut batches = Box::pin(async {
            tokio::join!(batch(&many, "many"), batch(&many, "many"), batch(&few, "few"));
        });
        assert!((&mut batches).now_or_never().is_none());
        assert!(engine.is_wanted() && order.lock().expect("order lock").is_empty());
        let [first, second] = held;
        drop(first);
        batches.await;
        assert_eq!(*order.lock().expect("order lock"), ["few", "many", "many"]);
        drop(second);
    }

    #[tokio::test]
    async fn tenant_that_comes_seldom_has_its_connection_before_the_backlog_of_another() {
        let connections = without_server(1);
        connections.pool.close();
        let tenant = |name: &str| QueueFlow::of(Some(name));
        let present = connections.turns.acquire(&tenant("loud")).await;
        let order = Mutex::new(Vec::new());
        let call = async |name: &'static str| {
            assert!(matches!(connections.acquire_fair(tenant(name)).await, Err(sqlx::Error::PoolClosed)));
            order.lock().expect("order lock").push(name);
        };
        let mut calls = Box::pin(join_all(["loud", "loud", "loud", "quiet"].map(call)));
        assert!((&mut calls).now_or_never().is_none());
        assert_eq!((connections.queue().waiting(), order.lock().expect("order lock").len()), (4, 0));
        drop(present);
        calls.await;
        assert_eq!(*order.lock().expect("order lock"), ["quiet", "loud", "loud", "loud"]);
    }
}
