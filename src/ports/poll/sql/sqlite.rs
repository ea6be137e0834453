//! Queries of an SQLite file: each on a connection of its own, which is opened read-only, broken off when it takes too
//! long, and makes no value beyond a bound.

use std::str::FromStr;
use std::time::{Duration, Instant};

use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement};
use serde_json::{Map, Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::spawn_blocking;

use crate::domain::trigger::condition::PollFault;
use crate::ports::poll::sql::{SqlRows, unreadable};

/// Steps of SQLite's machine between two looks at the time.
const STEPS: i32 = 10_000;
/// How long a writer is waited for.
const BUSY: Duration = Duration::from_secs(2);
/// The most bytes of a value, read or made. SQLite's own bound is 1 GB.
const LONGEST: i32 = 1024 * 1024;
/// The most columns of a row.
const COLUMNS: i32 = 100;

/// A database that is opened for each query: that takes less than a millisecond, and queries are seconds apart.
#[derive(Clone)]
pub struct File {
    uri: String,
}

impl File {
    pub fn of(url: &str) -> Result<File, String> {
        let unfit = || "must be an address such as `sqlite:///path/to/file.db`".to_owned();
        SqliteConnectOptions::from_str(url).map_err(|_| unfit())?;
        let (_, rest) = url.split_once("://").ok_or_else(unfit)?;
        let (path, asked) = rest.split_once('?').unwrap_or((rest, ""));
        let root = if path.starts_with('/') { "//" } else { "" };
        let mut uri = format!("file:{root}{}?mode=ro", path.replace('#', "%23"));
        for part in asked.split('&').filter(|part| !part.is_empty() && !part.starts_with("mode=")) {
            uri = format!("{uri}&{part}");
        }
        Ok(File { uri })
    }

    fn open(&self, deadline: Instant) -> Result<Connection, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.uri, flags)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
        connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, COLUMNS)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "query_only", "on")?;
        connection.pragma_update(None, "trusted_schema", "off")?;
        // a future that is dropped does not stop the thread that runs its query; this does
        connection.progress_handler(STEPS, Some(move || Instant::now() >= deadline))?;
        Ok(connection)
    }
}

pub async fn rows(file: &File, query: &str, time_limit: Duration) -> Result<SqlRows, PollFault> {
    let (file, query, deadline) = (file.clone(), query.to_owned(), Instant::now() + time_limit);
    let read = spawn_blocking(move || {
        let connection = file.open(deadline).map_err(failed)?;
        let mut statement = connection.prepare(&query).map_err(failed)?;
        read(&mut statement)
    });
    read.await.unwrap_or_else(|_| Err(PollFault::new("sql", "the query broke off")))
}

fn read(statement: &mut Statement<'_>) -> Result<SqlRows, PollFault> {
    let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let (mut rows, mut found) = (SqlRows::default(), statement.query([]).map_err(failed)?);
    while let Some(row) = found.next().map_err(failed)? {
        let mut fields = Map::new();
        for (at, name) in names.iter().enumerate() {
            fields.insert(name.clone(), field(row.get_ref(at).map_err(failed)?)?);
        }
        rows.add(fields)?;
    }
    Ok(rows)
}

/// By the type of the value, not of the column: SQLite keeps what it is given.
fn field(value: ValueRef<'_>) -> Result<Value, PollFault> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => json!(std::str::from_utf8(text).map_err(|_| unreadable())?),
        ValueRef::Blob(bytes) => json!(hex::encode(bytes)),
    })
}

/// The fault of a query as SQLite says it, without its address.
fn failed(error: rusqlite::Error) -> PollFault {
    match (error.sqlite_error_code(), error) {
        (Some(ErrorCode::OperationInterrupted), _) => PollFault::new("timeout", "the query took too long"),
        (Some(ErrorCode::TooBig), _) => {
            PollFault::new("too_large", format!("a value of the query has more than {LONGEST} bytes"))
        }
        (_, rusqlite::Error::SqliteFailure(_, Some(message))) => PollFault::new("sql", message),
        (Some(code), _) => PollFault::new("sql", format!("{code:?}")),
        _ => PollFault::new("sql", "the query can't be run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    struct SourceDir(std::path::PathBuf);

    impl Drop for SourceDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A file with a value at the bound, and one that is a byte longer.
    fn file() -> (SourceDir, File) {
        let dir = SourceDir(std::env::temp_dir().join(format!("reveille-poll-{:016x}", fastrand::u64(..))));
        std::fs::create_dir(&dir.0).unwrap();
        let path = dir.0.join("large #1.db");
        let owner = Connection::open(&path).unwrap();
        owner.execute_batch("create table bodies (id integer primary key, body blob)").unwrap();
        for bytes in [LONGEST, LONGEST + 1] {
            owner.execute("insert into bodies (body) values (zeroblob(?1))", [bytes]).unwrap();
        }
        let file = File::of(&format!("sqlite://{}", path.display())).unwrap();
        (dir, file)
    }

    async fn kind(file: &File, query: &str) -> Result<Value, String> {
        rows(file, query, LIMIT)
            .await
            .map(SqlRows::value)
            .map(|value| value["scalar"].clone())
            .map_err(|fault| fault.kind)
    }

    #[tokio::test]
    async fn value_that_is_read_or_made_is_taken_at_the_bound_and_refused_one_byte_beyond_it() {
        let (_dir, file) = file();
        let read = |id: i32| format!("select instr(body, x'01') from bodies where id = {id}");
        assert_eq!(kind(&file, &read(1)).await, Ok(json!(0)));
        assert_eq!(kind(&file, &read(2)).await, Err("too_large".into()));
        let made = |bytes: i32| format!("select length(zeroblob({bytes}) || '')");
        assert_eq!(kind(&file, &made(LONGEST)).await, Ok(json!(0)), "a text ends at a NUL");
        assert_eq!(kind(&file, &made(LONGEST + 1)).await, Err("too_large".into()));
        let from_little = "select replace(hex(zeroblob(1000)), '0', hex(zeroblob(1000)))";
        assert_eq!(kind(&file, from_little).await, Err("too_large".into()));
    }

    #[tokio::test]
    async fn row_has_as_many_columns_as_it_may_and_no_more() {
        let (_dir, file) = file();
        let columns = |count: i32| (0..count).map(|n| format!("{n} as c{n}")).collect::<Vec<_>>().join(", ");
        let read = async |count: i32| rows(&file, &format!("select {}", columns(count)), LIMIT).await;
        assert_eq!(read(COLUMNS).await.unwrap().value()["rows"][0].as_object().unwrap().len(), COLUMNS as usize);
        let fault = read(COLUMNS + 1).await.err().unwrap();
        assert_eq!((fault.kind.as_str(), fault.message.as_str()), ("sql", "too many columns in result set"));
    }

    #[test]
    fn address_is_opened_to_be_read_whatever_it_asks_for() {
        let uri = |url: &str| File::of(url).map(|file| file.uri);
        assert_eq!(uri("sqlite:///data/a.db?mode=rwc&immutable=1").unwrap(), "file:///data/a.db?mode=ro&immutable=1");
        assert_eq!(uri("sqlite://a%20b.db").unwrap(), "file:a%20b.db?mode=ro");
        assert!(uri("sqlite:///a.db?colour=red").unwrap_err().starts_with("must be an address"));
    }
}
