//! Queries of an SQLite file: each on a connection of its own, which is opened read-only, broken off when it takes too
//! long, and makes no value beyond a bound.
//!
//! A query is work of this machine's processors, and a tenant says how much of it. So queries run on threads that give
//! way to the engine's, and a file has as many of them as polls and trials may query it at once.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement};
use serde_json::{Map, Value, json};
use sqlx::sqlite::SqliteConnectOptions;

use crate::base::threads::LowPool;
use crate::domain::trigger::condition::PollFault;
use crate::ports::poll::sql::{CONNECTIONS, SqlRows, unreadable};

/// Name of the threads.
const THREADS: &str = "polled-file";

/// Steps of SQLite's machine between two looks at the time.
const STEPS: i32 = 10_000;
/// How long a writer is waited for.
const BUSY: Duration = Duration::from_secs(2);
/// The most bytes of a value, read or made. SQLite's own bound is 1 GB.
const LONGEST: i32 = 1024 * 1024;
/// The most columns of a row.
const COLUMNS: i32 = 100;

/// A database that is opened for each query: that takes less than a millisecond, and queries are seconds apart.
pub struct File {
    uri: String,
    threads: LowPool,
}

impl File {
    /// The file of an address `sqlite://…`.
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
        Ok(File { uri, threads: LowPool::start(THREADS, CONNECTIONS as usize) })
    }

    /// The result of `work` with a connection to the file, on a thread that gives way. Its statements are broken off at
    /// the deadline, and once the future is dropped.
    async fn with_connection<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&Connection) -> Result<T, PollFault> + Send + 'static,
    ) -> Result<T, PollFault> {
        let (uri, asker) = (self.uri.clone(), Arc::new(()));
        let asked = Arc::downgrade(&asker);
        // a future that is dropped does not stop the thread that runs its query; this does
        let is_over = move || Instant::now() >= deadline || asked.strong_count() == 0;
        let computed = self.threads.compute(move || work(&open(&uri, is_over).map_err(failed)?)).await;
        drop(asker);
        computed.unwrap_or_else(|| Err(PollFault::new("sql", "the query broke off")))
    }
}

/// A connection that may only read, whose statements are broken off once `is_over` says so.
fn open(uri: &str, is_over: impl FnMut() -> bool + Send + 'static) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, COLUMNS)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "query_only", "on")?;
    connection.pragma_update(None, "trusted_schema", "off")?;
    connection.progress_handler(STEPS, Some(is_over))?;
    Ok(connection)
}

/// The rows that a query gives, within its time.
pub async fn rows(file: &File, query: &str, time_limit: Duration) -> Result<SqlRows, PollFault> {
    let query = query.to_owned();
    let read = move |connection: &Connection| {
        let mut statement = connection.prepare(&query).map_err(failed)?;
        read(&mut statement)
    };
    file.with_connection(Instant::now() + time_limit, read).await
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
    use futures::FutureExt;
    use rustix::process::getpriority_process;

    use super::*;
    use crate::base::threads::lower_priority;

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
    async fn query_runs_on_a_thread_that_gives_way() {
        let (_dir, file) = file();
        let priority = || getpriority_process(None).unwrap();
        let seen = move |_: &Connection| Ok((priority(), std::thread::current().name().map(str::to_owned)));
        let found = file.with_connection(Instant::now() + LIMIT, seen).await.unwrap();
        let low = std::thread::spawn(move || {
            lower_priority();
            priority()
        });
        assert_eq!(found, (low.join().unwrap(), Some(THREADS.to_owned())));
    }

    #[tokio::test]
    async fn query_that_nobody_waits_for_any_more_gives_its_thread_back() {
        let (_dir, file) = file();
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
        for _ in 0..2 * CONNECTIONS {
            let mut dropped = Box::pin(rows(&file, endless, 600 * LIMIT));
            assert!((&mut dropped).now_or_never().is_none());
        }
        assert_eq!(kind(&file, "select 7").await, Ok(json!(7)));
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
