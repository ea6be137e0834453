//! A database and a bus for one measurement, and their end.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, ensure};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, SqlitePool};
use uuid::Uuid;

use crate::base::clock::{Clock, pause};
use crate::base::id::new_id;
use crate::base::invalid::hinted::HintedError;
use crate::base::secret::SecretUrl;
use crate::bench::BenchSite;
use crate::config::Config;
use crate::domain::quota::{MOST, Quotas};
use crate::ports::bus;

/// Connections for bare work: as many as the clients of the widest limit.
pub const CONNECTIONS: u32 = 16;
/// Runs that an instance executes at once here: the no-op is done before the next batch is started.
pub const AT_ONCE: usize = 16 * 1024;
/// A key that guards nothing: nothing secret is stored.
pub const KEY: &str = "bench:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// All addresses of this machine's own network, on every port.
const LOOPBACK: &str = "127.0.0.0/8:*";
/// Quotas so large that no tenant meets them.
const OPEN: Quotas = Quotas {
    tasks: MOST,
    event_tasks_per_source: MOST,
    events_per_minute: MOST,
    fires_per_minute: MOST,
    polls: MOST,
    stored_bytes: MOST,
    streams: MOST,
    concurrent_runs: None,
    data_file_bytes: MOST,
    suspended_agents: MOST,
};
/// How often it is tried to remove a schema in which statements that were cut off are still at work.
const REMOVALS: usize = 5;

/// Everything that a measurement may use, and nothing that was there before.
pub struct BenchEnv {
    pub config: Config,
    /// Connections without anything of ours between, for scratch tables.
    pub bare: DirectPool,
    /// Such connections to the tables of the service.
    pub inside: DirectPool,
    pub dir: PathBuf,
    schema: Option<(SecretUrl, String)>,
    redis: Option<(SecretUrl, String)>,
}

/// Connections without anything of ours between.
pub enum DirectPool {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// The body with the pool of whichever database it is.
macro_rules! on_bare {
    ($bare:expr, |$pool:ident| $body:expr) => {
        match $bare {
            $crate::bench::env::DirectPool::Postgres($pool) => $body,
            $crate::bench::env::DirectPool::Sqlite($pool) => $body,
        }
    };
}
pub(super) use on_bare;

impl DirectPool {
    /// One statement, committed. Its text is made here, of nothing that comes from outside.
    pub async fn execute(&self, statement: impl Into<String>) -> anyhow::Result<()> {
        let statement = AssertSqlSafe(statement.into());
        on_bare!(self, |pool| sqlx::query(statement).execute(pool).await.map(|_| ())?);
        Ok(())
    }

    /// One number.
    pub async fn count(&self, query: &'static str) -> anyhow::Result<i64> {
        Ok(on_bare!(self, |pool| sqlx::query_scalar(query).fetch_one(pool).await?))
    }

    async fn close(&self) {
        on_bare!(self, |pool| pool.close().await);
    }
}

/// A service as it is without configuration, but for where its data is, and that its tools, polls and webhooks reach
/// the measurement's own addresses.
pub fn default_config(database_url: SecretUrl, dir: &Path) -> Config {
    let mut config = Config::default();
    set_place(&mut config, database_url, dir);
    config
}

/// Lets a service have its data there, and reach the measurement's own addresses.
pub fn set_place(config: &mut Config, database_url: SecretUrl, dir: &Path) {
    config.database.url = database_url;
    config.server.data_dir = dir.display().to_string();
    config.server.listen = "127.0.0.1:0".into();
    config.vault.master_keys = vec![crate::ports::vault::KeySource::value(KEY)];
    config.egress.allow = vec![LOOPBACK.into()];
}

/// A service that is measured: on this database, with this directory, and room for as many runs at once as there are.
pub fn config(database_url: SecretUrl, dir: &Path) -> Config {
    let mut config = default_config(database_url, dir);
    // for callers as many as there are clients, and the engine's two
    config.database.max_connections = CONNECTIONS + 2;
    config.engine.max_concurrent_runs = AT_ONCE;
    config.engine.prefetch = AT_ONCE;
    // one tenant does here what many do elsewhere; the page says so
    config.quotas = OPEN;
    config
}

impl BenchEnv {
    /// Does something in a place of its own, which is removed whatever came of it, an interruption included.
    pub async fn with<T>(at: &BenchSite, work: impl AsyncFnOnce(&BenchEnv) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let place = BenchEnv::make(at).await?;
        let done = at.run_until_stopped(work(&place)).await;
        let left = place.teardown().await;
        let done = done?;
        left?;
        Ok(done)
    }

    /// Makes a schema of its own in the database, or a file of its own.
    async fn make(at: &BenchSite) -> anyhow::Result<BenchEnv> {
        let id = new_id(Clock::system().now()).simple().to_string();
        let dir = std::env::temp_dir().join(format!("reveille-bench-{id}"));
        let (config, schema) = match &at.database_url {
            None => (config(SecretUrl::new(format!("sqlite://{}", dir.join("bench.db").display())), &dir), None),
            Some(url) => {
                ensure!(
                    url.expose().starts_with("postgres"),
                    "give a postgres:// address, or none for SQLite in a temporary file"
                );
                let name = format!("reveille_bench_{id}");
                let joint = if url.expose().contains('?') { '&' } else { '?' };
                let inside = format!("{}{joint}options=-csearch_path%3D{name}", url.expose());
                (config(SecretUrl::new(inside), &dir), Some((url.clone(), name)))
            }
        };
        let mut place = BenchEnv {
            bare: unopened(&config, &dir.join("bare.db"))?,
            inside: unopened(&config, &dir.join("bench.db"))?,
            config,
            dir,
            schema,
            redis: None,
        };
        if let Some(url) = &at.redis_url {
            let prefix = format!("reveille-bench-{id}");
            place.config.bus =
                bus::Settings { url: url.clone(), stream_prefix: prefix.clone(), ..bus::Settings::default() };
            place.redis = Some((url.clone(), prefix));
        }
        // last, and in this order: whatever fails leaves nothing
        if let Some((url, schema)) = &place.schema {
            make_schema(url, schema).await?;
        }
        if let Err(error) = std::fs::create_dir_all(&place.dir) {
            let dir = place.dir.display().to_string();
            place.teardown().await?;
            return Err(error).context(format!("{dir} can't be made"));
        }
        Ok(place)
    }

    /// Settings of a service in this place, as they are without configuration.
    pub fn default_config(&self) -> Config {
        let bus = self.config.bus.clone();
        Config { bus, ..default_config(self.config.database.url.clone(), &self.dir) }
    }

    /// The Redis that was given, and the prefix of all keys here.
    pub fn redis(&self) -> Option<(&str, &str)> {
        self.redis.as_ref().map(|(url, prefix)| (url.expose(), prefix.as_str()))
    }

    /// The scratch pool of what is measured on Postgres alone.
    pub fn postgres(&self) -> anyhow::Result<&PgPool> {
        match &self.bare {
            DirectPool::Postgres(pool) => Ok(pool),
            DirectPool::Sqlite(_) => anyhow::bail!("this is measured on Postgres; give --database-url"),
        }
    }

    pub fn is_postgres(&self) -> bool {
        self.schema.is_some()
    }

    /// Removes everything.
    async fn teardown(self) -> anyhow::Result<()> {
        self.bare.close().await;
        self.inside.close().await;
        if let Some((url, schema)) = &self.schema {
            remove_schema(url, schema).await.with_context(|| format!("the schema {schema} could not be removed"))?;
        }
        if let Some((url, prefix)) = &self.redis {
            let mut connection = redis::Client::open(url.expose())?.get_multiplexed_async_connection().await?;
            let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(&mut connection).await?;
            if !keys.is_empty() {
                let _: i64 = redis::cmd("DEL").arg(keys).query_async(&mut connection).await?;
            }
        }
        match std::fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Opens nothing yet: the tables of the service are made by the service.
fn unopened(config: &Config, file: &Path) -> anyhow::Result<DirectPool> {
    let url = config.database.url.expose();
    if url.starts_with("postgres") {
        // row-level security lets the engine see every tenant's rows, and so us
        let options = PgConnectOptions::from_str(url)?.options([("reveille.tenant", "*")]);
        return Ok(DirectPool::Postgres(
            PgPoolOptions::new().max_connections(CONNECTIONS + 2).connect_lazy_with(options),
        ));
    }
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    Ok(DirectPool::Sqlite(SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options)))
}

async fn make_schema(url: &SecretUrl, schema: &str) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url.expose()).await.context("the database can't be reached")?;
    sqlx::query(AssertSqlSafe(format!("create schema {schema}"))).execute(&mut connection).await.map_err(|error| {
        HintedError::new("no schema can be made", "grant create on the database to this role").caused_by(error)
    })?;
    Ok(connection.close().await?)
}

async fn remove_schema(url: &SecretUrl, schema: &str) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url.expose()).await?;
    for left in (0..REMOVALS).rev() {
        let drop = AssertSqlSafe(format!("drop schema if exists {schema} cascade"));
        match sqlx::query(drop).execute(&mut connection).await {
            Ok(_) => break,
            Err(error) if left == 0 => return Err(error.into()),
            Err(_) => pause(Duration::from_millis(500)).await,
        }
    }
    connection.close().await?;
    Ok(())
}

/// An id for something that is only counted.
pub fn random_id() -> Uuid {
    new_id(Clock::system().now())
}
