//! Opening a store on Postgres: whether the server is fit, its tables, and the connections to it, each kind for its
//! use.

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::{OpenError, Settings};
use crate::base::clock;
use crate::base::invalid::hinted::HintedError;
use crate::store::db::Db;
use crate::store::db::connections::{Connections, LastLoss};
use crate::store::db::listener::Listener;
use crate::store::db::store_metrics::Waits;

/// Of the connections to Postgres, how many the engine's batches have for themselves. More gain nothing: each kind of
/// work writes its batches one after the other, and what runs at once shares the server's processors.
const ENGINE_CONNECTIONS: u32 = 2;
/// Two for batches, one that hears, one for what is quick, and two for the rest.
const LEAST_CONNECTIONS: u32 = 6;
/// Row-level security, `on conflict` and the rest of our text work from here on.
const OLDEST_POSTGRES: i32 = 130_000;
/// A server that does not answer a connection at all for this long counts as down.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long is waited between two looks at a database that is down.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

pub(super) async fn open(url: &str, settings: &Settings, waiting: impl Fn(&str)) -> Result<Db, OpenError> {
    let base = PgConnectOptions::from_str(url)
        .map_err(|error| OpenError::Url(error.to_string()))?
        .application_name("reveille")
        .log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1));
    loop {
        match prepare_postgres(&base, settings).await {
            Err(OpenError::Away(why)) => {
                waiting(&format!(
                    "the database is not up yet, looking again every {} s: {why}",
                    POLL_INTERVAL.as_secs()
                ));
                clock::pause(POLL_INTERVAL).await;
            }
            done => return done,
        }
    }
}

/// One look at the database: is it fit, are its tables up to date, and the connections to it.
async fn prepare_postgres(base: &PgConnectOptions, settings: &Settings) -> Result<Db, OpenError> {
    let mut first = match tokio::time::timeout(CONNECT_LIMIT, base.connect()).await {
        Ok(connected) => connected.map_err(open_error)?,
        Err(_) => return Err(OpenError::Away(format!("no answer within {} s", CONNECT_LIMIT.as_secs()))),
    };
    check_postgres(&mut first).await?;
    migrate_postgres(&mut first).await?;
    let _ = first.close().await;
    // a vanished worker must not hide its locked rows, nor a lost statement hold a connection; and no statement of ours
    // is so long that to compile it, at each execution anew, would gain anything: that takes a quarter of a second
    let guarded = base.clone().options([
        ("statement_timeout", "5s"),
        ("lock_timeout", "3s"),
        ("idle_in_transaction_session_timeout", "5s"),
        ("jit", "off"),
        ("reveille.tenant", "*"),
        // a table that was all but empty when a statement was planned has a hundred thousand rows a minute later, and
        // no statistics of them: rows that are found by a key are found by its index, whatever the planner makes of the
        // table
        ("enable_seqscan", "off"),
        // one statement has one processor of the server at most
        ("max_parallel_workers_per_gather", "0"),
    ]);
    let most = settings.max_connections.max(LEAST_CONNECTIONS);
    // one shape of batch after the other: to plan each anew costs a third of its time, and gains nothing. What such a
    // statement looks for it finds by an index, and the first of an order is where its index begins, whatever the
    // planner makes of tables that nobody has analysed yet, or while nothing was going on
    let planned_once = guarded.clone().options([
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_bitmapscan", "off"),
        ("enable_sort", "off"),
    ]);
    let last_loss = LastLoss::default();
    let engine = Connections::open(planned_once.clone(), ENGINE_CONNECTIONS, last_loss.clone()).await;
    let engine = engine.map_err(open_error)?.for_batches();
    let rest = most - ENGINE_CONNECTIONS - 1;
    let quick = Connections::open(planned_once, (rest / 3).max(1), last_loss.clone()).await.map_err(open_error)?;
    let pool = Connections::open(guarded.clone(), rest - (rest / 3).max(1), last_loss).await.map_err(open_error)?;
    Ok(Db::Postgres { pool, engine, quick, listener: Listener::of(guarded), waits: Waits::default() })
}

/// Whether it is worth looking again.
pub(in crate::store) fn open_error(error: sqlx::Error) -> OpenError {
    if is_starting_up(&error) { OpenError::Away(error.to_string()) } else { OpenError::Refused(error.to_string()) }
}

/// Nobody listens, or the server starts or stops (57P01 to 57P03), or has no connection left (53300).
fn is_starting_up(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => true,
        sqlx::Error::Database(database) => {
            matches!(database.code().as_deref(), Some("57P01" | "57P02" | "57P03" | "53300"))
        }
        _ => false,
    }
}

/// The settings that the promises rest on.
pub(in crate::store) async fn check_postgres(connection: &mut PgConnection) -> Result<(), OpenError> {
    let (number, version, commit, fsync): (i32, String, String, String) = sqlx::query_as(
        "select current_setting('server_version_num')::int, current_setting('server_version'),
                current_setting('synchronous_commit'), current_setting('fsync')",
    )
    .fetch_one(connection)
    .await
    .map_err(open_error)?;
    if number < OLDEST_POSTGRES {
        let failure = HintedError::new(format!("PostgreSQL {version} is too old"), "use PostgreSQL 13 or later");
        return Err(OpenError::Unfit(failure));
    }
    if commit == "off" || fsync == "off" {
        let setting = if fsync == "off" { "fsync" } else { "synchronous_commit" };
        return Err(OpenError::Unfit(HintedError::new(
            format!("the database has {setting} = off, so a crash would lose fires that were recorded"),
            format!("set {setting} = on for this database or role"),
        )));
    }
    Ok(())
}

/// Brings the tables up to date, one instance at a time, on a connection without a statement time-out.
/// An instance that is older than the tables may go on: newer migrations are left alone.
async fn migrate_postgres(connection: &mut PgConnection) -> Result<(), OpenError> {
    let mut migrator = sqlx_macros::migrate!("migrations/postgres");
    migrator.set_ignore_missing(true);
    migrator.run(connection).await.map_err(|error| match error {
        MigrateError::Execute(error) if is_starting_up(&error) => open_error(error),
        error => OpenError::Migration(error.to_string()),
    })
}
