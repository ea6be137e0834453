//! A run that somebody asks for, recorded and started in as few statements as can be.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::hot::Going;
use crate::store::tasks::TaskRow;
use crate::store::text::optional_document;

/// A request for a run: by whom, of which task, and on which instance.
pub(in crate::store) struct RunNow<'a> {
    /// Of whose tasks; `None`: anybody's.
    pub tenant: Option<&'a str>,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub fire_key: &'a str,
    pub input: Option<&'a Value>,
    /// By whom it is asked for, as the record names them.
    pub requested_by: Option<&'a str>,
    pub now: DateTime<Utc>,
    pub priority: i32,
    /// The worker that could start it now, and until when it would have its lease.
    pub worker: Option<(Uuid, DateTime<Utc>)>,
}

/// The task as it is, the run if it has started, and who is told of it then, as it is stored.
pub(in crate::store) struct Requested {
    pub task: TaskRow,
    pub going: Option<Going>,
    pub recipient: Option<Value>,
}

pub(in crate::store) trait HotNow {
    /// Records a run of the task and starts it if it may; `None` where there is no such task.
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError>;
}

#[derive(sqlx::FromRow)]
struct RequestedRow {
    #[sqlx(flatten)]
    task: TaskRow,
    lease_token: Option<i64>,
    deadline_at: Option<DateTime<Utc>>,
    recipient: Option<Json<Value>>,
}

/// The statement of either database, which has the same places and answers the same row. It is read to its end: what
/// is left of a text that nobody reads on is not executed.
macro_rules! run_now {
    ($conn:expr, $statement:expr, $ask:expr) => {{
        let (ask, worker): (&RunNow<'_>, _) = ($ask, $ask.worker);
        let rows: Vec<RequestedRow> = sqlx::query_as($statement)
            .bind(ask.task_id)
            .bind(ask.tenant)
            .bind(ask.run_id)
            .bind(ask.fire_key)
            .bind(ask.now)
            .bind(optional_document(ask.input)?)
            .bind(worker.map(|(worker, _)| worker))
            .bind(worker.map(|(_, lease_until)| lease_until))
            .bind(ask.priority)
            .bind(ask.requested_by)
            .fetch_all($conn)
            .await?;
        Ok(rows.into_iter().next().map(|row| row.requested(ask)))
    }};
}

impl HotNow for PgConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError> {
        run_now!(self, include_str!("../sql/run_now.postgres.sql"), ask)
    }
}

impl HotNow for SqliteConnection {
    async fn run_now(&mut self, ask: &RunNow<'_>) -> Result<Option<Requested>, StoreError> {
        run_now!(self, include_str!("../sql/run_now.sqlite.sql"), ask)
    }
}

/// Records a run with the transaction around it, all of it on one way to the connection's thread: no transaction may be
/// open, and it has to be awaited to its end.
pub(in crate::store) async fn run_now_committed(
    conn: &mut SqliteConnection,
    ask: &RunNow<'_>,
) -> Result<Option<Requested>, StoreError> {
    let whole = concat!("begin immediate;", include_str!("../sql/run_now.sqlite.sql"), "; commit");
    let asked: Result<_, StoreError> = async { run_now!(&mut *conn, whole, ask) }.await;
    if asked.is_err() {
        // some faults have ended it already
        let _ = sqlx::query("rollback").execute(conn).await;
    }
    asked
}

impl RequestedRow {
    fn requested(self, ask: &RunNow<'_>) -> Requested {
        let going = self.lease_token.zip(self.deadline_at).map(|(lease_token, deadline_at)| Going {
            run_id: ask.run_id,
            task_id: Some(ask.task_id),
            tenant_id: self.task.tenant_id.clone(),
            lease_token,
            deadline_at,
        });
        Requested { task: self.task, going, recipient: self.recipient.map(|body| body.0) }
    }
}
