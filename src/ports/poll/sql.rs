//! A poll by a query of a database that the operator has named: one statement, read only, bounded in time and rows.
//!
//! Three walls, each of them enough by itself for a writing statement: the text has to be one query ([`statement`]);
//! it is run in a read-only transaction (Postgres), or on a connection that was opened read-only (SQLite); and the
//! operator gives the source a role that may only read. The transaction is always rolled back, so that a session
//! setting of one poll is never another's.

mod postgres;
mod sqlite;
mod statement;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::secret::SecretUrl;
use crate::domain::trigger::condition::PollFault;
use crate::domain::trigger::condition::form::QUERY_BYTES;
use crate::ports::poll::VALUE_BYTES;
use crate::ports::poll::sql::statement::Dialect;

/// Most rows of an answer.
const ROWS: usize = 1_000;
/// Polls of one source at once, of which a tenant never has the last. Each has a connection: a poll is short, and the
/// source has other users.
pub const POLLED: usize = 3;
/// Trials of one source at once. Each has a connection.
pub const TRIED: usize = 1;
const CONNECTIONS: u32 = (POLLED + TRIED) as u32;
/// Most bytes of JSON that the server sends of all rows: more than are taken, because it writes them in another way.
const SENT_BYTES: usize = 2 * VALUE_BYTES;

/// `[poll.sql.<name>]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `postgres://user:password@host/name`, with a role that may only read; or `sqlite://` and a path.
    pub url: SecretUrl,
    /// Tenants that may query it, or `["*"]`; empty: nobody.
    #[serde(default)]
    pub tenants: Vec<String>,
}

/// A database, connected to when it is first asked.
pub struct SqlSource {
    database: SqlDatabase,
    pub tenants: Vec<String>,
}

enum SqlDatabase {
    Postgres(sqlx::PgPool),
    Sqlite(sqlite::File),
}

impl SqlSource {
    /// Connects to nothing yet.
    pub fn new(settings: &Settings, data_dir: &Path) -> Result<SqlSource, String> {
        let url = settings.url.expose();
        let database = match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => SqlDatabase::Postgres(postgres::pool(url)?),
            Some("sqlite") => {
                SqlDatabase::Sqlite(sqlite::File::of(&url.replace("{data_dir}", &data_dir.to_string_lossy()))?)
            }
            _ => return Err("must begin with postgres:// or sqlite://".into()),
        };
        Ok(SqlSource { database, tenants: settings.tenants.clone() })
    }

    /// Whether this is one query; a sentence where not.
    pub fn check(&self, query: &str) -> Result<(), String> {
        statement::check(query, self.dialect()).map(drop)
    }

    /// Runs the query. The value is `{"rows", "count", "scalar"}`.
    pub async fn poll(&self, query: &str, time_limit: Duration) -> Result<Value, PollFault> {
        if query.len() > QUERY_BYTES {
            return Err(PollFault::new("denied", format!("the query has more than {QUERY_BYTES} bytes")));
        }
        let query = statement::check(query, self.dialect()).map_err(|why| PollFault::new("denied", why))?;
        let rows = match &self.database {
            SqlDatabase::Postgres(pool) => postgres::rows(pool, query, time_limit).await?,
            SqlDatabase::Sqlite(file) => sqlite::rows(file, query, time_limit).await?,
        };
        Ok(rows.value())
    }

    fn dialect(&self) -> Dialect {
        match self.database {
            SqlDatabase::Postgres(_) => Dialect::Postgres,
            SqlDatabase::Sqlite(_) => Dialect::Sqlite,
        }
    }
}

/// Rows as they come in, counted.
#[derive(Default)]
struct SqlRows {
    rows: Vec<Map<String, Value>>,
    bytes: usize,
}

impl SqlRows {
    fn add(&mut self, row: Map<String, Value>) -> Result<(), PollFault> {
        if self.rows.len() == ROWS {
            return Err(PollFault::new("too_large", format!("the query has more than {ROWS} rows; count them there")));
        }
        self.bytes += row.iter().map(|(name, value)| name.len() + value.to_string().len()).sum::<usize>();
        if self.bytes > VALUE_BYTES {
            return Err(too_long());
        }
        self.rows.push(row);
        Ok(())
    }

    fn value(self) -> Value {
        let only = match self.rows.as_slice() {
            [row] if row.len() == 1 => row.values().next().cloned(),
            _ => None,
        };
        json!({ "count": self.rows.len(), "scalar": only, "rows": self.rows })
    }
}

fn too_long() -> PollFault {
    PollFault::new("too_large", format!("the rows have more than {VALUE_BYTES} bytes"))
}

fn unreadable() -> PollFault {
    PollFault::new("sql", "a column has a type that can't be shown as JSON; cast it to text")
}

/// The fault of a query as Postgres says it, without its address.
fn failed(error: sqlx::Error) -> PollFault {
    match error {
        sqlx::Error::Database(error) if error.code().as_deref() == Some("57014") => {
            PollFault::new("timeout", "the query took too long")
        }
        sqlx::Error::Database(error) => PollFault::new("sql", error.message().to_owned()),
        sqlx::Error::PoolTimedOut => PollFault::new("timeout", "no connection to the database in time"),
        sqlx::Error::Io(error) => PollFault::new("connect", format!("no connection to the database: {}", error.kind())),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => unreadable(),
        _ => PollFault::new("connect", "the database does not answer as it should"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fields: Value) -> Map<String, Value> {
        fields.as_object().unwrap().clone()
    }

    #[test]
    fn one_row_of_one_column_is_a_scalar_too() {
        let value = |rows: &[Value]| {
            let mut all = SqlRows::default();
            rows.iter().try_for_each(|fields| all.add(row(fields.clone()))).unwrap();
            all.value()
        };
        assert_eq!(value(&[json!({"n": 3})]), json!({"rows": [{"n": 3}], "count": 1, "scalar": 3}));
        assert_eq!(value(&[json!({"n": 3}), json!({"n": 4})])["scalar"], Value::Null);
        assert_eq!(value(&[json!({"n": 3, "m": 1})])["scalar"], Value::Null);
        assert_eq!(value(&[]), json!({"rows": [], "count": 0, "scalar": null}));
    }

    #[test]
    fn too_many_rows_and_too_long_ones_are_failing_polls() {
        let mut rows = SqlRows::default();
        for _ in 0..ROWS {
            rows.add(row(json!({"n": 1}))).unwrap();
        }
        assert_eq!(rows.add(row(json!({"n": 1}))).unwrap_err().kind, "too_large");
        let long = row(json!({"n": "x".repeat(VALUE_BYTES)}));
        assert_eq!(SqlRows::default().add(long).unwrap_err().kind, "too_large");
    }
}
