//! Queries of Postgres: in a read-only transaction with a time limit of its own, the rows made JSON by the server.

use std::str::FromStr;
use std::time::Duration;

use futures::TryStreamExt;
use serde_json::{Map, Value};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgPool};

use crate::domain::trigger::condition::PollFault;
use crate::ports::poll::sql::{CONNECTIONS, ROWS, SENT_BYTES, SqlRows, failed, too_long};

/// How long a connection that nobody needs is kept.
const IDLE: Duration = Duration::from_secs(60);

/// Connections to this server, of which none is opened yet.
pub fn pool(url: &str) -> Result<PgPool, String> {
    // the error may quote the address, and with it the password
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| "must be an address such as `postgres://user:password@host/name`".to_owned())?
        .application_name("reveille-poll");
    Ok(PgPoolOptions::new().max_connections(CONNECTIONS).idle_timeout(IDLE).connect_lazy_with(options))
}

/// The rows that a query gives, within its time, in a transaction that writes nothing.
pub async fn rows(pool: &PgPool, query: &str, time_limit: Duration) -> Result<SqlRows, PollFault> {
    let mut transaction = pool.begin_with("begin read only").await.map_err(failed)?;
    // a transaction that nobody goes on with ends, too, and gives its connection back
    let limit = time_limit.as_millis().max(1);
    let limit = format!(
        "set local statement_timeout = {limit}; set local idle_in_transaction_session_timeout = {}",
        limit.saturating_mul(2)
    );
    (&mut *transaction).execute(AssertSqlSafe(limit)).await.map_err(failed)?;
    // a line break ends a comment at the end of the query; one row more than allowed tells that there are too many, and
    // a null that they are too long: then the server sends nothing of them
    let wrapped = format!(
        "select case when sum(octet_length(line)) over (rows unbounded preceding) <= {SENT_BYTES} then line end
           from (select to_jsonb(polled)::text as line from (\n{query}\n) polled limit {}) polled",
        ROWS + 1
    );
    let mut rows = SqlRows::default();
    {
        // prepared, so that the server takes one statement and no second one
        let mut found =
            sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(wrapped)).persistent(false).fetch(&mut *transaction);
        while let Some(line) = found.try_next().await.map_err(failed)? {
            rows.add(row(&line.ok_or_else(too_long)?)?)?;
        }
    }
    transaction.rollback().await.map_err(failed)?;
    Ok(rows)
}

fn row(line: &str) -> Result<Map<String, Value>, PollFault> {
    serde_json::from_str(line).map_err(|_| PollFault::new("sql", "a row can't be shown as JSON"))
}
