//! Opening the store: where it is, whether it can keep our promises, and bringing its tables up to date.

mod open_error;
pub(in crate::store) mod postgres;

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqlitePool};
use tokio::runtime::Handle;

use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::invalid::ValidationErrors;
use crate::base::invalid::hinted::HintedError;
use crate::base::secret::SecretUrl;
use crate::store::db::sqlite_pool::sqlite_pool;
use crate::store::db::store_metrics::{StoreMetrics, Waits};
use crate::store::db::tenant_readers::TenantReaders;
use crate::store::db::wakeup::Wakeups;
use crate::store::db::write_batcher::WriteBatcher;
use crate::store::db::writer::SqliteWriter;
use crate::store::db::{Db, with_timeout};
use crate::store::memory::revisions;
use crate::store::ops::budgets::{KnownBudgets, reserving};
use crate::store::ops::bulk::Bulk;
use crate::store::ops::halts::KnownHalts;
use crate::store::ops::pending_work::LastPendingWork;
use crate::store::ops::quotas::KnownAllowances;
use crate::store::ops::rates::RateCounters;
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::runs::requests::run_now;
use crate::store::runs::starting::local_starter::LocalStarts;
use crate::store::runs::transcript;
use crate::store::tasks::creating;
use crate::store::tasks::fires::BatchOffsets;
use crate::store::tasks::task_cache::TaskCache;
use crate::store::tenants_without::TenantsWithout;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, deliveries};

pub use open_error::OpenError;

/// Earlier ones can corrupt a WAL database that has several connections.
const OLDEST_SQLITE: (u32, u32, u32) = (3, 51, 3);

const DATABASE_NOW: Split =
    Split { postgres: "select clock_timestamp() where $1::timestamptz is not null", sqlite: "select $1" };

/// Connections that one instance may have.
const MOST_CONNECTIONS: u32 = 10_000;

/// `[database]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `sqlite://PATH` or `postgres://…`; `{data_dir}` stands for the data directory.
    pub url: SecretUrl,
    /// Connections to Postgres, at least 6; SQLite has one writer, this many readers of the engine at most (8 in any
    /// case), and beside them a reader for each processor and one more, by which tenants
    /// read.
    pub max_connections: u32,
}

impl Settings {
    /// Where the database is, for people: without a password.
    pub fn shown(&self, data_dir: &str) -> String {
        self.url.shown().replace("{data_dir}", data_dir)
    }

    /// Adds the numbers that make no sense; pointers begin with `/database`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if !(1..=MOST_CONNECTIONS).contains(&self.max_connections) {
            faults.add("/database/max_connections", format!("must be from 1 to {MOST_CONNECTIONS}"));
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { url: SecretUrl::new("sqlite://{data_dir}/reveille.db"), max_connections: 10 }
    }
}

/// Facts about the database; `reveille check` shows them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerFacts {
    /// `postgres` or `sqlite`.
    pub kind: &'static str,
    /// Version of the server or library.
    pub version: String,
    /// Postgres: may the role see through row-level security? It should not.
    pub above_row_security: bool,
}

impl Store {
    /// Connects, waits for a database that is down (each look is told to `waiting`), refuses one that can't keep the
    /// promises or that another process uses, brings the tables up to date, and measures the database's clock.
    pub async fn open(
        settings: &Settings,
        data_dir: &Path,
        clock: Clock,
        waiting: impl Fn(&str),
    ) -> Result<Store, OpenError> {
        let url = address(settings, data_dir);
        let db = match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => open_sqlite(&url, settings, &clock).await?,
            Some("postgres" | "postgresql") => postgres::open(&url, settings, waiting).await?,
            _ => return Err(OpenError::Url("it must begin with `sqlite://` or `postgres://`".into())),
        };
        Store::of(db, clock).await
    }

    /// Opens the store to look at what is in it, which a service on the same SQLite file does not hinder: it is made,
    /// locked and brought up to date by nobody, and what would write fails. Postgres is opened as ever.
    pub async fn open_read_only(
        settings: &Settings,
        data_dir: &Path,
        clock: Clock,
        waiting: impl Fn(&str),
    ) -> Result<Store, OpenError> {
        let url = address(settings, data_dir);
        if !url.starts_with("sqlite:") {
            return Store::open(settings, data_dir, clock, waiting).await;
        }
        let (options, file) = sqlite_options(&url)?;
        let tenant_readers = TenantReaders::open(options.clone().read_only(true)).await;
        let tenant_readers = tenant_readers.map_err(|error| unusable(&file, &error))?;
        let readers = sqlite_readers(options, settings).await.map_err(|error| unusable(&file, &error))?;
        Store::of(
            Db::Sqlite {
                writer: SqliteWriter::new(readers.clone()),
                readers,
                tenant_readers,
                waits: Waits::default(),
                _lock: None,
            },
            clock,
        )
        .await
    }

    async fn of(db: Db, clock: Clock) -> Result<Store, OpenError> {
        let wakeups = Wakeups::new();
        if let Db::Postgres { quick, listener, .. } = &db {
            wakeups.connect_instances(quick, listener).await;
        }
        let (creating, marks) = (WriteBatcher::new(creating::TOGETHER), WriteBatcher::new(deliveries::TOGETHER));
        let recorded = match &db {
            Db::Postgres { .. } => run_now::RECORDED_TOGETHER,
            Db::Sqlite { .. } => run_now::RECORDED_IN_TURN,
        };
        let store = Store {
            db,
            clock,
            halts: KnownHalts::shared(&wakeups),
            wakeups,
            counts: StoreMetrics::default(),
            unreadable: UnreadableRow::default(),
            creating,
            marks,
            appends: WriteBatcher::limited(transcript::TOGETHER),
            requests: WriteBatcher::limited(recorded),
            reservations: WriteBatcher::new(reserving::TOGETHER),
            fact_revisions: WriteBatcher::new(revisions::TOGETHER),
            last_pending_work: LastPendingWork::default(),
            runtime: Handle::current(),
            computing: Compute::of_machine(),
            batch_offsets: Arc::<BatchOffsets>::default(),
            parked_cursors: Arc::default(),
            outbox_cursor: Arc::default(),
            window_cursors: Arc::default(),
            resumption_cursor: Arc::default(),
            quotas: KnownAllowances::default(),
            budgets: KnownBudgets::default(),
            local_starts: LocalStarts::default(),
            rates: RateCounters::default(),
            bulk: Bulk::default(),
            paces: Arc::default(),
            task_cache: TaskCache::default(),
            without_overrides: TenantsWithout::default(),
            without_facts: TenantsWithout::default(),
            own_instance: Arc::default(),
        };
        store.measure_clock().await.map_err(|error| OpenError::Refused(error.to_string()))?;
        Ok(store)
    }

    /// The clock that this store keeps true.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// In a transaction, after its locks: the database's own time, by which answers and their time limits are judged.
    /// SQLite's clock is the machine's, which is ours.
    pub(in crate::store) async fn settled_at(&self, tx: &mut Tx<'_>) -> Result<DateTime<Utc>, StoreError> {
        let database_now = tx.query(DATABASE_NOW).bind(self.clock.now()).scalar().await?;
        Ok(self.clock.settled_at(database_now))
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.db.read().await?.query("select 1").execute().await.map(drop)?;
        Ok(())
    }

    /// Reads the facts about the database.
    pub async fn facts(&self) -> Result<ServerFacts, StoreError> {
        Ok(match &self.db {
            Db::Sqlite { readers, .. } => ServerFacts {
                kind: "sqlite",
                version: sqlx::query_scalar("select sqlite_version()").fetch_one(readers).await?,
                above_row_security: false,
            },
            Db::Postgres { pool, .. } => {
                let (version, above_row_security) = sqlx::query_as(
                    "select current_setting('server_version'), rolsuper or rolbypassrls
                     from pg_roles where rolname = current_user",
                )
                .fetch_one(&mut *pool.acquire().await?)
                .await?;
                ServerFacts { kind: "postgres", version, above_row_security }
            }
        })
    }

    /// Closes every connection after what it does now; of one that does not come to an end nobody waits for more than
    /// ten seconds.
    pub async fn close(&self) {
        let closed = async {
            match &self.db {
                Db::Postgres { pool, engine, quick, listener, .. } => {
                    listener.close().await;
                    tokio::join!(engine.close(), quick.close(), pool.close());
                }
                Db::Sqlite { readers, tenant_readers, writer, .. } => {
                    tenant_readers.close().await;
                    readers.close().await;
                    writer.close().await;
                }
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = with_timeout(closed).await {
            tracing::warn!(%error, "a connection to the database does not end, it is left to itself");
        }
    }

    /// Only one process may use a SQLite file, so whatever is leased when it opens is held by the dead.
    pub(in crate::store) async fn expire_dead_leases(
        writer: &sqlx::SqlitePool,
        now: DateTime<Utc>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query("update queue set lease_until = $1 where state <> 'ready' and lease_until > $1")
            .bind(now)
            .execute(writer)
            .await?;
        sqlx::query("update event_queue set lease_until = null where lease_until is not null")
            .execute(writer)
            .await
            .map(drop)
    }
}

/// Where the database is. A path is put into a URL, so what means something there is written as `%XX`.
pub(in crate::store) fn address(settings: &Settings, data_dir: &Path) -> String {
    let escaped = data_dir.to_string_lossy().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    settings.url.expose().replace("{data_dir}", &escaped)
}

async fn open_sqlite(url: &str, settings: &Settings, clock: &Clock) -> Result<Db, OpenError> {
    let (options, file) = sqlite_options(url)?;
    if let Some(folder) = file.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| OpenError::File { path: folder.to_owned(), source })?;
    }
    // nobody else may read its content; SQLite gives the files beside it the same mode
    private_file(&file)?;
    let lock = lock_file(&file)?;
    let unusable = |error: sqlx::Error| unusable(&file, &error);
    let writer = sqlite_pool(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options.clone().create_if_missing(true).thread_name(|_| "sqlite-writer".into()))
        .await
        .map_err(unusable)?;
    let version: String = sqlx::query_scalar("select sqlite_version()").fetch_one(&writer).await.map_err(unusable)?;
    check_sqlite_version(&version)?;
    sqlx_macros::migrate!("migrations/sqlite")
        .run(&writer)
        .await
        .map_err(|error| OpenError::Migration(error.to_string()))?;
    Store::expire_dead_leases(&writer, clock.now()).await.map_err(unusable)?;
    let tenant_readers = TenantReaders::open(options.clone().read_only(true)).await.map_err(unusable)?;
    let readers = sqlite_readers(options, settings).await.map_err(unusable)?;
    Ok(Db::Sqlite {
        readers,
        tenant_readers,
        writer: SqliteWriter::new(writer),
        waits: Waits::default(),
        _lock: Some(lock),
    })
}

/// How a file is opened, and which.
fn sqlite_options(url: &str) -> Result<(SqliteConnectOptions, PathBuf), OpenError> {
    let base = SqliteConnectOptions::from_str(url).map_err(|error| OpenError::Url(error.to_string()))?;
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Err(OpenError::Url("a database in memory is lost with the process; it must name a file".into()));
    }
    let file = base.get_filename().to_owned();
    let options = base
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
        .log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1));
    #[cfg(feature = "failpoints")]
    let options = crate::base::failpoint::max_sqlite_pages()
        .into_iter()
        .fold(options, |to, most| to.pragma("max_page_count", most));
    Ok((options, file))
}

async fn sqlite_readers(options: SqliteConnectOptions, settings: &Settings) -> Result<SqlitePool, sqlx::Error> {
    let most = settings.max_connections.clamp(1, 8);
    sqlite_pool(most).connect_with(options.read_only(true).thread_name(|_| "sqlite-reader".into())).await
}

fn unusable(file: &Path, error: &sqlx::Error) -> OpenError {
    OpenError::Refused(format!("{}: {error}", file.display()))
}

/// Opens a file that, if it is made now, only we may read and write.
fn private_file(path: &Path) -> Result<File, OpenError> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|source| OpenError::File { path: path.to_owned(), source })
}

/// Takes the operating system's lock beside a database that is there; it goes with the process, however that ends.
/// By whatever link the database is reached, its lock is the same.
pub(in crate::store) fn lock_file(database: &Path) -> Result<Arc<File>, OpenError> {
    let real = database.canonicalize().map_err(|source| OpenError::File { path: database.to_owned(), source })?;
    let mut name = real.into_os_string();
    name.push(".lock");
    let path = PathBuf::from(name);
    let file = private_file(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(Arc::new(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(HintedError::new(
            format!("another process uses {}", database.display()),
            "stop it, or give this one a data directory of its own",
        ))),
        Err(TryLockError::Error(source)) => Err(OpenError::File { path, source }),
    }
}

pub(in crate::store) fn check_sqlite_version(version: &str) -> Result<(), OpenError> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0_u32));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < OLDEST_SQLITE {
        let (a, b, c) = OLDEST_SQLITE;
        return Err(OpenError::Unfit(HintedError::new(
            format!("SQLite {version} can corrupt a database"),
            format!("build with SQLite {a}.{b}.{c} or later"),
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_that_can_corrupt_a_database_is_refused_with_a_hint() {
        for fit in ["3.51.3", "3.52.0", "4.0"] {
            assert!(check_sqlite_version(fit).is_ok(), "{fit}");
        }
        for unfit in ["3.51.2", "3.9.99", "2.60.0", "unknown"] {
            assert!(
                matches!(check_sqlite_version(unfit), Err(OpenError::Unfit(why)) if why.hint().contains("3.51.3")),
                "{unfit}"
            );
        }
    }
}
