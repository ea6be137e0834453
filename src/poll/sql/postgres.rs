//! Queries of Postgres: in a read-only transaction with a time limit of its own, the rows made JSON by the server.

use std::str::FromStr;
use std::time::Duration;

use futures::TryStreamExt;
use serde_json::{Map, Value};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Executor, PgPool};

use crate::poll::sql::{CONNECTIONS, ROWS, Rows, failed};
use crate::trigger::condition::PollFault;

/// How long a connection that nobody needs is kept.
const IDLE: Duration = Duration::from_secs(60);

pub fn pool(url: &str) -> Result<PgPool, String> {
    // the error may quote the address, and with it the password
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| "must be an address such as `postgres://user:password@host/name`".to_owned())?
        .application_name("reveille-poll");
    Ok(PgPoolOptions::new().max_connections(CONNECTIONS).idle_timeout(IDLE).connect_lazy_with(options))
}

pub async fn rows(pool: &PgPool, query: &str, time_limit: Duration) -> Result<Rows, PollFault> {
    let mut transaction = pool.begin_with("begin read only").await.map_err(failed)?;
    let limit = format!("set local statement_timeout = {}", time_limit.as_millis().max(1));
    (&mut *transaction).execute(AssertSqlSafe(limit)).await.map_err(failed)?;
    // a line break ends a comment at the end of the query; one row more than allowed tells that there are too many
    let wrapped = format!("select to_jsonb(polled) from (\n{}\n) polled limit {}", query, ROWS + 1);
    let mut rows = Rows::default();
    {
        // prepared, so that the server takes one statement and no second one
        let mut found = sqlx::query_scalar::<_, Json<Map<String, Value>>>(AssertSqlSafe(wrapped))
            .persistent(false)
            .fetch(&mut *transaction);
        while let Some(Json(row)) = found.try_next().await.map_err(failed)? {
            rows.add(row)?;
        }
    }
    transaction.rollback().await.map_err(failed)?;
    Ok(rows)
}
