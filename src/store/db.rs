//! Two databases, one text: the pools, and the macros through which every statement goes.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlitePool;
use tokio::time::timeout;

use crate::id::Scope;
use crate::store::connections::Connections;
use crate::store::counts::Waits;
use crate::store::ears::Ears;
use crate::store::tenant_readers::TenantReaders;
use crate::store::writer::Writer;
use crate::store::{Split, StoreError};

/// A database that says nothing for this long counts as away; it gives up a statement itself after half of that.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The answer, or that the database is away: a wire can go silent without an end. What was asked may have taken effect.
pub async fn answered<T, E: From<sqlx::Error>>(asked: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let silent = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {ANSWER_LIMIT:?}"));
    timeout(ANSWER_LIMIT, asked).await.unwrap_or_else(|_| Err(sqlx::Error::Io(silent()).into()))
}

/// The database behind a store.
#[derive(Clone)]
pub(super) enum Db {
    Postgres {
        pool: Connections,
        /// A few connections to the database that only the engine's batches go by: warm, and never waited for behind
        /// what callers ask.
        hot: Connections,
        /// Connections for single statements that find their rows by a key, whoever asks: planned once, and not again.
        quick: Connections,
        /// Hears what other instances say, by a connection of its own.
        ears: Ears,
        waits: Waits,
    },
    /// One writer, because a pool of writers waits for each other's locks; and a few readers.
    /// The lock keeps other processes out for as long as the store is open; who only looks has none.
    Sqlite {
        readers: SqlitePool,
        tenant_readers: TenantReaders,
        writer: Writer,
        waits: Waits,
        _lock: Option<Arc<File>>,
    },
}

impl Db {
    /// The text for this database.
    pub(super) fn text(&self, split: Split) -> &'static str {
        match self {
            Db::Postgres { .. } => split.postgres,
            Db::Sqlite { .. } => split.sqlite,
        }
    }
}

/// Where a call may be told that it failed, if faults are planted: before it took effect, or after.
macro_rules! fault {
    () => {
        #[cfg(feature = "planted")]
        $crate::store::db::fault()?;
    };
}

/// The failure of a connection, as often as the environment asks for.
#[cfg(feature = "planted")]
pub(super) fn fault() -> Result<(), sqlx::Error> {
    match crate::planted::store_fails() {
        true => Err(sqlx::Error::Io(std::io::Error::other("a planted fault"))),
        false => Ok(()),
    }
}

/// Runs the body with a connection to read from. The body is typed once for each database.
/// With a scope, Postgres is told the tenant, so that its row-level security is the second wall.
macro_rules! on_read {
    ($db:expr, |$conn:ident| $body:expr) => {
        on_read!($db, pool, "shared", |$conn| $body)
    };
    // by a single statement that finds its rows by an index
    (quick $db:expr, |$conn:ident| $body:expr) => {
        on_read!($db, quick, "quick", |$conn| $body)
    };
    // by a statement that confines itself, in the turn of a tenant
    (of $tenant:expr, $db:expr, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { pool, waits, .. } => {
                waits.look("shared", pool);
                let mut held = pool.in_turn($crate::store::flow::Flow::of($tenant, module_path!())).await?;
                fault!();
                let $conn = &mut *held;
                $body
            }
            $crate::store::db::Db::Sqlite { readers, tenant_readers, waits, .. } => {
                let mut held = tenant_readers.acquire($tenant, readers, waits).await?;
                fault!();
                let $conn = &mut *held;
                $body
            }
        }
    };
    ($db:expr, $pool:ident, $name:literal, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { $pool, waits, .. } => {
                waits.look($name, $pool);
                let mut held = $pool.acquire().await?;
                fault!();
                let $conn = &mut *held;
                $body
            }
            $crate::store::db::Db::Sqlite { readers, waits, .. } => {
                waits.look("readers", readers);
                let mut held = readers.acquire().await?;
                fault!();
                let $conn = &mut *held;
                $body
            }
        }
    };
    ($db:expr, $scope:expr, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { pool, waits, .. } => {
                waits.look("shared", pool);
                let mut connection =
                    pool.in_turn($crate::store::flow::Flow::of($scope.tenant(), module_path!())).await?;
                let mut held = connection.begin().await?;
                $crate::store::db::confine(&mut held, $scope).await?;
                fault!();
                let $conn = &mut *held;
                let read = $body;
                held.commit().await?;
                read
            }
            $crate::store::db::Db::Sqlite { readers, tenant_readers, waits, .. } => {
                let mut held = tenant_readers.acquire($scope.tenant(), readers, waits).await?;
                fault!();
                let $conn = &mut *held;
                $body
            }
        }
    };
}

/// Runs the body in a transaction that has begun; commits after it, rolls back when it returns early.
macro_rules! committed {
    (by $held:expr, |$conn:ident| $body:expr) => {{
        let mut connection = $held;
        committed!(connection.begin().await?, |$conn| $body)
    }};
    ($begun:expr, |$conn:ident| $body:expr) => {{
        let mut held = $begun;
        fault!();
        let $conn = &mut *held;
        let written = $body;
        held.commit().await?;
        fault!();
        written
    }};
}

/// Runs the body in one transaction that writes.
macro_rules! on_write {
    ($db:expr, |$conn:ident| $body:expr) => {
        on_write!($db, &$crate::id::Scope::Every, |$conn| $body)
    };
    // what the engine writes of one tenant's, in that tenant's turn
    (of $tenant:expr, $db:expr, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { pool, waits, .. } => committed!(
                by {
                    waits.look("shared", pool);
                    pool.in_turn($crate::store::flow::Flow::of(Some($tenant), module_path!())).await?
                },
                |$conn| $body
            ),
            $crate::store::db::Db::Sqlite { writer, waits, .. } => {
                waits.look("writer", writer);
                let flow = $crate::store::flow::Flow::of(Some($tenant), module_path!());
                committed!(writer.begin(flow).await?, |$conn| $body)
            }
        }
    };
    // what the engine writes first, and then what belongs to one tenant (`None`: to nobody), confined to it
    ($db:expr, |$conn:ident| $first:expr, then $tenant:expr, $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { pool, waits, .. } => committed!(
                by {
                    waits.look("shared", pool);
                    pool.in_turn($crate::store::flow::Flow::of($tenant, module_path!())).await?
                },
                |$conn| {
                    let () = $first;
                    $crate::store::db::confine_to(&mut *$conn, $tenant).await?;
                    $body
                }
            ),
            $crate::store::db::Db::Sqlite { writer, waits, .. } => {
                waits.look("writer", writer);
                committed!(writer.begin($crate::store::flow::Flow::of($tenant, module_path!())).await?, |$conn| {
                    let () = $first;
                    $body
                })
            }
        }
    };
    ($db:expr, $scope:expr, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { pool, waits, .. } => committed!(
                by {
                    waits.look("shared", pool);
                    pool.in_turn($crate::store::flow::Flow::of($scope.tenant(), module_path!())).await?
                },
                |$conn| {
                    $crate::store::db::confine(&mut *$conn, $scope).await?;
                    $body
                }
            ),
            $crate::store::db::Db::Sqlite { writer, waits, .. } => {
                waits.look("writer", writer);
                committed!(
                    writer.begin($crate::store::flow::Flow::of($scope.tenant(), module_path!())).await?,
                    |$conn| $body
                )
            }
        }
    };
}

/// [`on_write`] for the engine's batches.
macro_rules! on_hot_write {
    ($db:expr, |$conn:ident| $body:expr) => {
        on_hot_write!(by $crate::store::flow::Flow::Engine(module_path!()), $db, |$conn| $body)
    };
    // with a turn of its own on SQLite
    (by $flow:expr, $db:expr, |$conn:ident| $body:expr) => {
        match &$db {
            $crate::store::db::Db::Postgres { hot, waits, .. } => committed!(
                by {
                    waits.look("hot", hot);
                    hot.acquire().await?
                },
                |$conn| $body
            ),
            $crate::store::db::Db::Sqlite { writer, waits, .. } => {
                waits.look("writer", writer);
                committed!(writer.begin($flow).await?, |$conn| $body)
            }
        }
    };
}

/// A connection for a single statement, which is its own transaction: one that finds its rows by a key, or a batch.
macro_rules! quickly {
    ($quick:ident, $waits:ident) => {
        quickly!("quick", $quick, $waits)
    };
    ($name:literal, $pool:ident, $waits:ident) => {{
        $waits.look($name, $pool);
        let held = $pool.acquire().await?;
        fault!();
        held
    }};
}

/// Tells Postgres for the rest of this transaction whose rows may be seen. Sessions start as the engine's: `*`.
pub(super) async fn confine(conn: &mut sqlx::PgConnection, scope: &Scope) -> Result<(), StoreError> {
    confine_to(conn, scope.tenant()).await
}

/// Confines the transaction to a tenant by its name; `None` confines to nothing.
pub(super) async fn confine_to(conn: &mut sqlx::PgConnection, tenant: Option<&str>) -> Result<(), StoreError> {
    if let Some(tenant) = tenant {
        sqlx::query("select set_config('reveille.tenant', $1, true)").bind(tenant).execute(conn).await?;
    }
    Ok(())
}

/// How SQLite goes about a statement where no statistics are, which is always: the steps of its plan.
#[cfg(test)]
pub(super) async fn sqlite_plan(statement: &str) -> Vec<String> {
    use sqlx::Connection;

    let mut conn = sqlx::SqliteConnection::connect("sqlite::memory:").await.expect("a database in memory");
    sqlx::migrate!("migrations/sqlite").run(&mut conn).await.expect("our tables");
    let explain = sqlx::AssertSqlSafe(format!("explain query plan {statement}"));
    let steps: Vec<(i32, i32, i32, String)> = sqlx::query_as(explain).fetch_all(&mut conn).await.expect("a plan");
    steps.into_iter().map(|(.., step)| step).collect()
}
