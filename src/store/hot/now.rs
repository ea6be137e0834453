//! A run that somebody asks for, recorded and put into the queue on one way to the database.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::text::optional_document;

/// A request for a run: by whom, and of which task.
pub(in crate::store) struct RunNow<'a> {
    /// Of whose tasks; `None`: anybody's.
    pub tenant: Option<&'a str>,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub input: Option<&'a Value>,
    /// By whom it is asked for, as the record names them.
    pub requested_by: Option<&'a str>,
    pub now: DateTime<Utc>,
}

pub(in crate::store) trait HotNow {
    /// Records a run of the task, which is ready then; answers whether there is such a task.
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<bool, StoreError>;
}

/// The statement of either database, which has the same places and answers the same row. It is read to its end: what
/// is left of a text that nobody reads on is not executed.
macro_rules! run_now {
    ($conn:expr, $statement:expr, $ask:expr) => {{
        let ask: &RunNow<'_> = $ask;
        let tasks: Vec<i64> = sqlx::query_scalar($statement)
            .bind(ask.task_id)
            .bind(ask.tenant)
            .bind(ask.run_id)
            .bind(format!("m:{}", ask.run_id))
            .bind(ask.now)
            .bind(optional_document(ask.input)?)
            .bind(ask.requested_by)
            .fetch_all($conn)
            .await?;
        Ok(tasks.first().is_some_and(|tasks| *tasks > 0))
    }};
}

impl HotNow for PgConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<bool, StoreError> {
        run_now!(self, include_str!("../sql/run_now.postgres.sql"), ask)
    }
}

impl HotNow for SqliteConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<bool, StoreError> {
        run_now!(self, include_str!("../sql/run_now.sqlite.sql"), ask)
    }
}

/// Records a run with the transaction around it, all of it on one way to the connection's thread: no transaction may be
/// open, and it has to be awaited to its end.
pub(in crate::store) async fn run_now_committed(
    conn: &mut SqliteConnection,
    ask: &RunNow<'_>,
) -> Result<bool, StoreError> {
    let whole = concat!("begin immediate;", include_str!("../sql/run_now.sqlite.sql"), "; commit");
    let asked: Result<_, StoreError> = async { run_now!(&mut *conn, whole, ask) }.await;
    if asked.is_err() {
        // some faults have ended it already
        let _ = sqlx::query("rollback").execute(conn).await;
    }
    asked
}
