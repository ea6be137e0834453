//! Facts about a database for a reader who changes nothing: nothing is made, migrated, locked for long or waited for.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use crate::store::db::connect;
use crate::store::db::connect::postgres::{check_postgres, open_error};
use crate::store::db::connect::{OpenError, Settings};

/// How long a database may take to answer someone who looks.
const PATIENCE: Duration = Duration::from_secs(5);

/// Facts about a database that could be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseFacts {
    /// A SQLite database.
    Sqlite {
        /// Version of the library.
        version: String,
        /// Path of the file.
        file: PathBuf,
        /// State of the file.
        state: SqliteFile,
    },
    /// A PostgreSQL database.
    Postgres {
        /// Version of the server.
        version: String,
        /// Role of the connection.
        role: String,
        /// May the role see through row-level security? It should not.
        above_row_security: bool,
        /// Migrations that `reveille migrate` or the next start would run.
        pending: usize,
    },
}

/// How a SQLite file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqliteFile {
    /// The first start makes it.
    Absent,
    /// Nobody uses it.
    Free,
    /// A service is running on it.
    InUse,
}

/// Looks at the database of `settings` as it is now.
///
/// # Errors
/// It can't be reached within five seconds, refuses us, or can't keep the promises.
pub async fn examine(settings: &Settings, data_dir: &Path) -> Result<DatabaseFacts, OpenError> {
    let url = connect::address(settings, data_dir);
    let looked = async {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => examine_sqlite(&url).await,
            Some("postgres" | "postgresql") => examine_postgres(&url).await,
            _ => Err(OpenError::Url("it must begin with `sqlite://` or `postgres://`".into())),
        }
    };
    let late = |_| Err(OpenError::Away(format!("no answer within {} s", PATIENCE.as_secs())));
    tokio::time::timeout(PATIENCE, looked).await.unwrap_or_else(late)
}

/// The version of the SQLite that is compiled in.
pub async fn sqlite_version() -> Result<String, OpenError> {
    let refused = |error: sqlx::Error| OpenError::Refused(error.to_string());
    let mut memory = SqliteConnection::connect("sqlite::memory:").await.map_err(refused)?;
    sqlx::query_scalar("select sqlite_version()").fetch_one(&mut memory).await.map_err(refused)
}

async fn examine_sqlite(url: &str) -> Result<DatabaseFacts, OpenError> {
    let options = SqliteConnectOptions::from_str(url).map_err(|error| OpenError::Url(error.to_string()))?;
    let file = options.get_filename().to_owned();
    let version = sqlite_version().await?;
    connect::check_sqlite_version(&version)?;
    let state = match file.exists() {
        false => SqliteFile::Absent,
        // the lock is free again when it is dropped here
        true => match connect::lock_file(&file) {
            Ok(_lock) => SqliteFile::Free,
            Err(OpenError::InUse(_)) => SqliteFile::InUse,
            Err(error) => return Err(error),
        },
    };
    Ok(DatabaseFacts::Sqlite { version, file, state })
}

async fn examine_postgres(url: &str) -> Result<DatabaseFacts, OpenError> {
    let options = PgConnectOptions::from_str(url).map_err(|error| OpenError::Url(error.to_string()))?;
    let mut connection = options.application_name("reveille check").connect().await.map_err(open_error)?;
    check_postgres(&mut connection).await?;
    let (version, role, above_row_security) = sqlx::query_as(
        "select current_setting('server_version'), rolname::text, rolsuper or rolbypassrls
         from pg_roles where rolname = current_user",
    )
    .fetch_one(&mut connection)
    .await
    .map_err(open_error)?;
    let migrated: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut connection)
        .await
        .map_err(open_error)?;
    let applied: Vec<i64> = match migrated {
        true => sqlx::query_scalar("select version from _sqlx_migrations where success order by version limit 10000")
            .fetch_all(&mut connection)
            .await
            .map_err(open_error)?,
        false => Vec::new(),
    };
    let _ = connection.close().await;
    let known = sqlx_macros::migrate!("migrations/postgres");
    let pending = known.iter().filter(|migration| !applied.contains(&migration.version)).count();
    Ok(DatabaseFacts::Postgres { version, role, above_row_security, pending })
}
