//! A database and a bus for one measurement, and their end.

use std::path::PathBuf;

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, SqlitePool};
use uuid::Uuid;

use crate::bench::Where;
use crate::bus;
use crate::clock::Clock;
use crate::config::Config;
use crate::id::new_id;
use crate::secret::SecretUrl;

/// Everything that a measurement may use, and nothing that was there before.
pub struct Place {
    pub config: Config,
    pub bare: Bare,
    dir: PathBuf,
    schema: Option<(SecretUrl, String)>,
    redis: Option<(SecretUrl, String)>,
}

/// Connections without anything of ours between.
pub enum Bare {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Bare {
    /// One statement, committed.
    pub async fn execute(&self, statement: &'static str) -> anyhow::Result<()> {
        match self {
            Bare::Postgres(pool) => sqlx::query(statement).execute(pool).await.map(|_| ())?,
            Bare::Sqlite(pool) => sqlx::query(statement).execute(pool).await.map(|_| ())?,
        }
        Ok(())
    }
}

impl Place {
    /// Makes a schema of its own in the database, or a file of its own.
    pub async fn make(at: &Where) -> anyhow::Result<Place> {
        let id = new_id(Clock::system().now()).simple().to_string();
        let dir = std::env::temp_dir().join(format!("reveille-bench-{id}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("{} can't be made", dir.display()))?;
        let mut config = Config::default();
        config.server.data_dir = dir.display().to_string();
        // a key that seals nothing: nothing secret is stored
        config.vault.master_keys =
            vec![crate::vault::KeySource::value("bench:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")];
        config.engine.max_concurrent_runs = 256;
        let mut schema = None;
        if let Some(url) = at.database_url.as_ref().filter(|url| url.expose().starts_with("postgres")) {
            let name = format!("reveille_bench_{id}");
            let mut connection = PgConnection::connect(url.expose()).await.context("the database can't be reached")?;
            sqlx::query(AssertSqlSafe(format!("create schema {name}"))).execute(&mut connection).await?;
            connection.close().await?;
            let joint = if url.expose().contains('?') { '&' } else { '?' };
            config.database.url = SecretUrl::new(format!("{}{joint}options=-csearch_path%3D{name}", url.expose()));
            schema = Some((url.clone(), name));
        } else {
            anyhow::ensure!(
                at.database_url.is_none(),
                "give a postgres:// address, or none for SQLite in a temporary file"
            );
            config.database.url = SecretUrl::new(format!("sqlite://{}", dir.join("bench.db").display()));
        }
        let mut redis = None;
        if let Some(url) = &at.redis_url {
            let prefix = format!("reveille-bench-{id}");
            config.bus = bus::Settings { url: url.clone(), stream_prefix: prefix.clone(), ..bus::Settings::default() };
            redis = Some((url.clone(), prefix));
        }
        let bare = match &schema {
            Some(_) => Bare::Postgres(PgPool::connect(config.database.url.expose()).await?),
            None => {
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(dir.join("bare.db"))
                    .create_if_missing(true)
                    .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                    .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
                Bare::Sqlite(sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await?)
            }
        };
        Ok(Place { config, bare, dir, schema, redis })
    }

    /// The Redis that was given, and the prefix of all keys here.
    pub fn redis(&self) -> Option<(&str, &str)> {
        self.redis.as_ref().map(|(url, prefix)| (url.expose(), prefix.as_str()))
    }

    /// Removes everything.
    pub async fn leave(self) -> anyhow::Result<()> {
        match &self.bare {
            Bare::Postgres(pool) => pool.close().await,
            Bare::Sqlite(pool) => pool.close().await,
        }
        if let Some((url, schema)) = &self.schema {
            let mut connection = PgConnection::connect(url.expose()).await?;
            sqlx::query(AssertSqlSafe(format!("drop schema {schema} cascade"))).execute(&mut connection).await?;
            connection.close().await?;
        }
        if let Some((url, prefix)) = &self.redis {
            let mut connection = redis::Client::open(url.expose())?.get_multiplexed_async_connection().await?;
            let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(&mut connection).await?;
            if !keys.is_empty() {
                let _: i64 = redis::cmd("DEL").arg(keys).query_async(&mut connection).await?;
            }
        }
        std::fs::remove_dir_all(&self.dir)?;
        Ok(())
    }
}

/// An id for something that is only counted.
pub fn any_id() -> Uuid {
    new_id(Clock::system().now())
}
