//! Queries of an SQLite file: on connections that were opened read-only, and broken off when they take too long.

use std::str::FromStr;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use serde_json::{Map, Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Row, SqlitePool, TypeInfo, ValueRef};

use crate::poll::sql::{CONNECTIONS, Rows, failed};
use crate::trigger::condition::PollFault;

/// Steps of SQLite's machine between two looks at the time.
const STEPS: i32 = 10_000;
/// How long a writer is waited for.
const BUSY: Duration = Duration::from_secs(2);
/// How long a connection that nobody needs is kept.
const IDLE: Duration = Duration::from_secs(60);

pub fn pool(url: &str) -> Result<SqlitePool, String> {
    let options = SqliteConnectOptions::from_str(url)
        .map_err(|_| "must be an address such as `sqlite:///path/to/file.db`".to_owned())?
        .read_only(true)
        .create_if_missing(false)
        .busy_timeout(BUSY)
        .pragma("query_only", "on")
        .pragma("trusted_schema", "off");
    Ok(SqlitePoolOptions::new().max_connections(CONNECTIONS).idle_timeout(IDLE).connect_lazy_with(options))
}

pub async fn rows(pool: &SqlitePool, query: &str, time_limit: Duration) -> Result<Rows, PollFault> {
    let mut connection = pool.acquire().await.map_err(failed)?;
    let deadline = Instant::now() + time_limit;
    // dropping a query does not stop the thread that runs it; this does
    connection.lock_handle().await.map_err(failed)?.set_progress_handler(STEPS, move || Instant::now() < deadline);
    let mut rows = Rows::default();
    {
        let mut found = sqlx::query(AssertSqlSafe(query.to_owned())).persistent(false).fetch(&mut *connection);
        while let Some(row) = found.try_next().await.map_err(failed)? {
            rows.add(fields(&row).map_err(failed)?)?;
        }
    }
    connection.lock_handle().await.map_err(failed)?.remove_progress_handler();
    Ok(rows)
}

fn fields(row: &SqliteRow) -> Result<Map<String, Value>, sqlx::Error> {
    let mut fields = Map::new();
    for column in row.columns() {
        fields.insert(column.name().to_owned(), field(row, column.ordinal())?);
    }
    Ok(fields)
}

/// By the type of the value, not of the column: SQLite keeps what it is given.
fn field(row: &SqliteRow, at: usize) -> Result<Value, sqlx::Error> {
    let raw = row.try_get_raw(at)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info().name().to_owned();
    Ok(match kind.as_str() {
        "INTEGER" => json!(row.try_get_unchecked::<i64, _>(at)?),
        "REAL" => json!(row.try_get_unchecked::<f64, _>(at)?),
        "BLOB" => json!(hex::encode(row.try_get_unchecked::<Vec<u8>, _>(at)?)),
        _ => json!(row.try_get_unchecked::<String, _>(at)?),
    })
}
