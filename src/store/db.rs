//! Two databases, one text: the pools, and the connections and transactions by which every statement goes.

pub(super) mod connect;
pub(super) mod connections;
pub(super) mod detached_writes;
pub(super) mod examine;
pub(super) mod flow;
pub(super) mod listener;
pub(super) mod listing;
pub(super) mod pace;
pub(super) mod query_time;
pub(super) mod queues;
mod row_security;
#[cfg(test)]
pub(super) mod scratch;
pub(super) mod sqlite_batch;
mod sqlite_pool;
pub(super) mod store_metrics;
pub(super) mod tenant_readers;
pub(super) mod text;
pub(super) mod wakeup;
pub(super) mod write_batcher;
pub(super) mod writer;

use std::fs::File;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool};
use tokio::time::timeout;

use crate::base::id::Scope;
use crate::store::Split;
use crate::store::db::connections::{Connections, PooledConnection, PostgresTransaction};
use crate::store::db::flow::QueueFlow;
use crate::store::db::listener::Listener;
use crate::store::db::store_metrics::Waits;
use crate::store::db::tenant_readers::TenantReaders;
use crate::store::db::writer::{SqliteWriter, WriteTransaction};
use crate::store::tx::{StatementBuilder, Tx, TxQuery};

/// A database that says nothing for this long counts as away; it gives up a statement itself after half of that.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The answer, or that the database is away: a wire can go silent without an end. The statement may have taken effect.
pub async fn with_timeout<T, E: From<sqlx::Error>>(asked: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let silent = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {ANSWER_LIMIT:?}"));
    timeout(ANSWER_LIMIT, asked).await.unwrap_or_else(|_| Err(sqlx::Error::Io(silent()).into()))
}

/// The database behind a store.
#[derive(Clone)]
pub(super) enum Db {
    Postgres {
        pool: Connections,
        /// A few connections to the database that only the engine's batches go by: warm, and never waited for behind
        /// what callers ask. Kinds of work have them in turn.
        engine: Connections,
        /// Connections for single statements that find their rows by a key, whoever asks: planned once, and not again.
        quick: Connections,
        /// Hears what other instances say, by a connection of its own.
        listener: Listener,
        waits: Waits,
    },
    /// One writer, because a pool of writers waits for each other's locks; and a few readers.
    /// The lock keeps other processes out for as long as the store is open; who only looks has none.
    Sqlite {
        readers: SqlitePool,
        tenant_readers: TenantReaders,
        writer: SqliteWriter,
        waits: Waits,
        _lock: Option<Arc<File>>,
    },
}

/// A connection to read by, which is given back when this is dropped.
pub(super) enum ReadConnection {
    Postgres(PooledConnection),
    /// In a transaction that sees the rows of one tenant.
    Confined(PostgresTransaction),
    Sqlite(PoolConnection<Sqlite>),
    Tenant(tenant_readers::TenantReader),
}

/// A transaction that writes. It is rolled back when this is dropped.
pub(super) enum Transaction {
    Postgres(PostgresTransaction),
    /// One statement, or several, each of which takes effect by itself.
    Statement(PooledConnection),
    Sqlite(WriteTransaction),
}

impl Db {
    /// A connection of the engine to read by, in no turn.
    pub(super) async fn read(&self) -> Result<ReadConnection, sqlx::Error> {
        match self {
            Db::Postgres { pool, waits, .. } => Ok(ReadConnection::Postgres(connection("shared", pool, waits).await?)),
            Db::Sqlite { readers, waits, .. } => Ok(ReadConnection::Sqlite(sqlite_reader(readers, waits).await?)),
        }
    }

    /// A connection for a single statement that finds its rows by an index.
    pub(super) async fn read_quick(&self) -> Result<ReadConnection, sqlx::Error> {
        match self {
            Db::Postgres { quick, waits, .. } => Ok(ReadConnection::Postgres(connection("quick", quick, waits).await?)),
            Db::Sqlite { readers, waits, .. } => Ok(ReadConnection::Sqlite(sqlite_reader(readers, waits).await?)),
        }
    }

    /// A connection for a statement that confines itself, in the turn of a tenant.
    #[track_caller]
    pub(super) fn read_unconfined(
        &self,
        tenant: Option<&str>,
    ) -> impl Future<Output = Result<ReadConnection, sqlx::Error>> {
        let flow = QueueFlow::of(tenant);
        async move {
            let reader = match self {
                Db::Postgres { pool, waits, .. } => {
                    ReadConnection::Postgres(in_turn("shared", pool, waits, flow).await?)
                }
                Db::Sqlite { readers, tenant_readers, waits, .. } => {
                    ReadConnection::Tenant(tenant_readers.acquire(tenant, readers, waits).await?)
                }
            };
            fault()?;
            Ok(reader)
        }
    }

    /// A connection for what belongs to a scope, in its turn. Postgres is told the tenant, so that its row-level
    /// security is the second wall; what belongs to all is read without a transaction, which would confine nothing.
    #[track_caller]
    pub(super) fn read_in(&self, scope: &Scope) -> impl Future<Output = Result<ReadConnection, sqlx::Error>> {
        let flow = QueueFlow::of(scope.tenant());
        async move {
            let reader = match self {
                Db::Postgres { pool, waits, .. } => {
                    let held = in_turn("shared", pool, waits, flow).await?;
                    match scope.tenant() {
                        Some(tenant) => ReadConnection::Confined(held.begin(Some(tenant)).await?),
                        None => ReadConnection::Postgres(held),
                    }
                }
                Db::Sqlite { readers, tenant_readers, waits, .. } => {
                    ReadConnection::Tenant(tenant_readers.acquire(scope.tenant(), readers, waits).await?)
                }
            };
            fault()?;
            Ok(reader)
        }
    }

    /// A transaction that writes what belongs to a scope, in its turn and confined to it.
    #[track_caller]
    pub(super) fn write(&self, scope: &Scope) -> impl Future<Output = Result<Transaction, sqlx::Error>> {
        self.write_in_turn(QueueFlow::of(scope.tenant()), scope.tenant())
    }

    /// A transaction that writes, in the turn of a tenant and confined to nobody.
    #[track_caller]
    pub(super) fn write_unconfined(
        &self,
        tenant: Option<&str>,
    ) -> impl Future<Output = Result<Transaction, sqlx::Error>> {
        self.write_in_turn(QueueFlow::of(tenant), None)
    }

    /// A transaction of a service that all tenants wait for, before all who wait for a turn.
    #[track_caller]
    pub(super) fn write_first(&self) -> impl Future<Output = Result<Transaction, sqlx::Error>> {
        let caller = Location::caller();
        self.write_in_turn(QueueFlow::First(caller.file(), caller.line()), None)
    }

    /// As [`Db::write_first`], for statements of which each stands by itself: on Postgres there is no transaction
    /// around them, whose beginning and end would be round trips.
    #[track_caller]
    pub(super) fn statements_first(&self) -> impl Future<Output = Result<Transaction, sqlx::Error>> {
        let caller = Location::caller();
        self.statements_in_turn(QueueFlow::First(caller.file(), caller.line()))
    }

    /// A write for a caller that is one statement and confines itself, in the turn of its tenant: on Postgres without a
    /// transaction around it.
    #[track_caller]
    pub(super) fn write_statement(
        &self,
        tenant: Option<&str>,
    ) -> impl Future<Output = Result<Transaction, sqlx::Error>> {
        self.statements_in_turn(QueueFlow::of(tenant))
    }

    async fn statements_in_turn(&self, flow: QueueFlow) -> Result<Transaction, sqlx::Error> {
        match self {
            Db::Postgres { pool, waits, .. } => {
                let held = in_turn("shared", pool, waits, flow).await?;
                fault()?;
                Ok(Transaction::Statement(held))
            }
            Db::Sqlite { writer, waits, .. } => Transaction::begin_sqlite(writer, waits, flow).await,
        }
    }

    async fn write_in_turn(&self, flow: QueueFlow, confined_to: Option<&str>) -> Result<Transaction, sqlx::Error> {
        match self {
            Db::Postgres { pool, waits, .. } => {
                Transaction::begin(in_turn("shared", pool, waits, flow).await?, confined_to).await
            }
            Db::Sqlite { writer, waits, .. } => Transaction::begin_sqlite(writer, waits, flow).await,
        }
    }

    /// A transaction that writes a batch of the engine, in this turn; on SQLite with a commit that it may share: what
    /// it answers is answered after that.
    pub(super) async fn write_for_engine(&self, flow: QueueFlow) -> Result<Transaction, sqlx::Error> {
        match self {
            Db::Postgres { engine, waits, .. } => {
                Transaction::begin(in_turn("engine", engine, waits, flow).await?, None).await
            }
            Db::Sqlite { writer, waits, .. } => Transaction::begin_shared(writer, waits, flow).await,
        }
    }

    /// A write that finds its rows by keys: on Postgres one statement without a transaction around it, whose plan is
    /// made once; on SQLite as [`Db::write_for_engine`].
    pub(super) async fn write_quick(&self, flow: QueueFlow) -> Result<Transaction, sqlx::Error> {
        match self {
            Db::Postgres { quick, waits, .. } => Ok(Transaction::Statement(connection("quick", quick, waits).await?)),
            Db::Sqlite { writer, waits, .. } => Transaction::begin_shared(writer, waits, flow).await,
        }
    }
}

impl ReadConnection {
    pub(super) fn tx(&mut self) -> Tx<'_> {
        match self {
            ReadConnection::Postgres(held) => Tx::Postgres(held),
            ReadConnection::Confined(begun) => Tx::Postgres(begun),
            ReadConnection::Sqlite(connection) => Tx::Sqlite(connection),
            ReadConnection::Tenant(reader) => Tx::Sqlite(reader),
        }
    }

    pub(super) fn query(&mut self, sql: impl Into<Split>) -> TxQuery<'_> {
        self.tx().into_query(sql)
    }

    pub(super) fn build(&mut self, text: impl Into<Split>) -> StatementBuilder<'_> {
        self.tx().into_builder(text)
    }

    /// Ends the transaction, if it is one, and gives the connection back. Nobody waits for that: what was read stands,
    /// however the transaction ends.
    pub(super) async fn end(self) -> Result<(), sqlx::Error> {
        match self {
            ReadConnection::Confined(begun) => begun.commit_behind(),
            ReadConnection::Postgres(_) | ReadConnection::Sqlite(_) | ReadConnection::Tenant(_) => {}
        }
        Ok(())
    }
}

impl Transaction {
    /// Sees only what belongs to the tenant, if there is one.
    pub(super) async fn begin(held: PooledConnection, tenant: Option<&str>) -> Result<Transaction, sqlx::Error> {
        let begun = held.begin(tenant).await?;
        fault()?;
        Ok(Transaction::Postgres(begun))
    }

    async fn begin_sqlite(writer: &SqliteWriter, waits: &Waits, flow: QueueFlow) -> Result<Transaction, sqlx::Error> {
        waits.record_acquire("writer", writer);
        let writing = writer.begin(flow).await?;
        fault()?;
        Ok(Transaction::Sqlite(writing))
    }

    async fn begin_shared(writer: &SqliteWriter, waits: &Waits, flow: QueueFlow) -> Result<Transaction, sqlx::Error> {
        waits.record_acquire("writer", writer);
        let writing = writer.begin_shared(flow).await?;
        fault()?;
        Ok(Transaction::Sqlite(writing))
    }

    pub(super) fn tx(&mut self) -> Tx<'_> {
        match self {
            Transaction::Postgres(begun) => Tx::Postgres(begun),
            Transaction::Statement(connection) => Tx::Postgres(connection),
            Transaction::Sqlite(writing) => Tx::Sqlite(writing),
        }
    }

    pub(super) fn query(&mut self, sql: impl Into<Split>) -> TxQuery<'_> {
        self.tx().into_query(sql)
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Transaction::Postgres(begun) => begun.commit().await?,
            Transaction::Statement(_) => {}
            Transaction::Sqlite(writing) => writing.commit().await?,
        }
        fault()
    }
}

/// A connection for a single statement, which is its own transaction: one that finds its rows by a key, or a batch.
pub(super) async fn connection(
    name: &'static str,
    pool: &Connections,
    waits: &Waits,
) -> Result<PooledConnection, sqlx::Error> {
    waits.record_acquire(name, pool);
    let held = pool.acquire().await?;
    fault()?;
    Ok(held)
}

/// As [`connection`], for a batch of the engine, as soon as it is the turn of this kind of work.
pub(super) async fn engine_connection(
    engine: &Connections,
    waits: &Waits,
    flow: QueueFlow,
) -> Result<PooledConnection, sqlx::Error> {
    let held = in_turn("engine", engine, waits, flow).await?;
    fault()?;
    Ok(held)
}

/// As [`connection`], to read SQLite by.
pub(super) async fn sqlite_reader(readers: &SqlitePool, waits: &Waits) -> Result<PoolConnection<Sqlite>, sqlx::Error> {
    waits.record_acquire("readers", readers);
    let held = readers.acquire().await?;
    fault()?;
    Ok(held)
}

async fn in_turn(
    name: &'static str,
    pool: &Connections,
    waits: &Waits,
    flow: QueueFlow,
) -> Result<PooledConnection, sqlx::Error> {
    waits.record_acquire(name, pool);
    pool.acquire_fair(flow).await
}

/// Where a call may be told that it failed, if faults are planted: before it took effect, or after. The failure of a
/// connection, as often as the environment asks for.
pub(super) fn fault() -> Result<(), sqlx::Error> {
    #[cfg(feature = "failpoints")]
    if crate::base::failpoint::store_fails() {
        return Err(sqlx::Error::Io(io::Error::other("a planted fault")));
    }
    Ok(())
}

/// How SQLite goes about a statement where no statistics are, which is always: the steps of its plan.
#[cfg(test)]
pub(super) async fn sqlite_plan(statement: &str) -> Vec<String> {
    use sqlx::Connection;

    let mut conn = sqlx::SqliteConnection::connect("sqlite::memory:").await.expect("a database in memory");
    sqlx_macros::migrate!("migrations/sqlite").run(&mut conn).await.expect("our tables");
    let explain = sqlx::AssertSqlSafe(format!("explain query plan {statement}"));
    let steps: Vec<(i32, i32, i32, String)> = sqlx::query_as(explain).fetch_all(&mut conn).await.expect("a plan");
    steps.into_iter().map(|(.., step)| step).collect()
}
