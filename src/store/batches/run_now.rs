//! A run that somebody asks for, recorded and put into the queue on one way to the database.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::store::db::text::optional_document;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError, split};

/// A request for a run: by whom, and of which task.
pub(in crate::store) struct RunNowRows<'a> {
    /// Of whose tasks; `None`: anybody's.
    pub tenant: Option<&'a str>,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub input: Option<&'a Value>,
    /// By whom it is asked for, as the record names them.
    pub requested_by: Option<&'a str>,
    pub now: DateTime<Utc>,
    /// Payload for other instances, sent with the commit; on Postgres alone.
    pub notification: Option<&'a str>,
}

const RUN_NOW: Split = split!("run_now");

/// Records a run of the task, which is ready then; answers whether there is such a task.
pub(in crate::store) async fn run_now(tx: &mut Tx<'_>, ask: &RunNowRows<'_>) -> Result<bool, StoreError> {
    run_by(tx, RUN_NOW, ask).await
}

/// The statement of either database is read to its end: what is left of a text that nobody reads on is not executed.
async fn run_by(tx: &mut Tx<'_>, statement: Split, ask: &RunNowRows<'_>) -> Result<bool, StoreError> {
    let notifies = matches!(tx, Tx::Postgres(_));
    let mut query = tx
        .query(statement)
        .bind(ask.task_id)
        .bind(ask.tenant)
        .bind(ask.run_id)
        .bind(format!("m:{}", ask.run_id))
        .bind(ask.now)
        .bind(optional_document(ask.input)?)
        .bind(ask.requested_by);
    if notifies {
        query = query.bind(ask.notification);
    }
    let tasks: Vec<i64> = query.scalars().await?;
    Ok(tasks.first().is_some_and(|tasks| *tasks > 0))
}

/// Records a run with the transaction around it, all of it on one way to the connection's thread: no transaction may be
/// open, and it has to be awaited to its end.
pub(in crate::store) async fn run_now_committed(
    conn: &mut SqliteConnection,
    ask: &RunNowRows<'_>,
) -> Result<bool, StoreError> {
    let whole = concat!("begin immediate;", include_str!("../sql/run_now.sqlite.sql"), "; commit");
    let asked = run_by(&mut Tx::Sqlite(conn), whole.into(), ask).await;
    if asked.is_err() {
        // some faults have ended it already
        let _ = sqlx::query("rollback").execute(conn).await;
    }
    asked
}
