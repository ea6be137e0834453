//! Requests for runs as they are recorded, and started where they may: on Postgres those of one scope in one statement,
//! on SQLite one after the other, each with one way to the writer's thread.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::domain::run::RunOrigin;
use crate::store::StoreError;
use crate::store::batches::sqlite::{TASK_OVERLAP, TASK_TIMEOUT};
use crate::store::db::text::optional_document;
use crate::store::runs::NewRun;
use crate::store::runs::lease::{Lease, StartedRow};
use crate::store::runs::starting::immediate_start::{LeaseTerms, started_with_record};
use crate::store::sql::sql;
use crate::store::tx::Tx;

/// A request for a run: by whom, and of which task.
pub(in crate::store) struct RequestedRun {
    /// Of whose tasks; `None`: anybody's.
    pub scope: Option<String>,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub input: Option<Value>,
    /// By whom it is asked for, as the record names them.
    pub requested_by: Option<String>,
    pub now: DateTime<Utc>,
    /// It may start with its record, on these terms. Those of a batch are the same.
    pub start: Option<LeaseTerms>,
}

/// The outcome of a request.
pub(in crate::store) enum RecordedRequest {
    /// There is no such task in the scope.
    NoTask,
    /// Its task is locked by somebody else; nothing was written.
    Locked,
    /// The run is recorded: ready, or recorded before.
    Recorded,
    /// The run is recorded as started.
    Started(Box<RequestedStart>),
}

/// A run that has started with its record, and the recipient of its tenant, as it is stored.
pub(in crate::store) struct RequestedStart {
    pub row: StartedRow,
    pub recipient: Option<String>,
}

impl RequestedRun {
    fn fire_key(&self) -> String {
        format!("m:{}", self.run_id)
    }

    /// The outcome, by the row that is answered of it.
    fn outcome(&self, row: Option<&RequestRow>) -> RecordedRequest {
        match row {
            None => RecordedRequest::NoTask,
            Some(row) if row.is_locked => RecordedRequest::Locked,
            Some(row) => {
                self.started(row).map_or(RecordedRequest::Recorded, |run| RecordedRequest::Started(Box::new(run)))
            }
        }
    }

    /// The run as the statement answers that it has started; `None` where it has not.
    fn started(&self, row: &RequestRow) -> Option<RequestedStart> {
        let ((Some(token), Some(deadline_at)), terms) = ((row.lease_token, row.deadline_at), self.start?) else {
            return None;
        };
        let tenant = row.tenant_id.as_deref().unwrap_or_default();
        let run = NewRun {
            id: self.run_id,
            origin: RunOrigin::Request,
            input: self.input.clone(),
            ..NewRun::of(self.task_id, tenant, &row.trigger_type, self.fire_key(), self.now, self.now)
        };
        let lease = Lease { run_id: self.run_id, token };
        let started = started_with_record(&run, lease, terms.now, deadline_at);
        let row_of_run = StartedRow { task_version: row.task_version, ..started };
        Some(RequestedStart { row: row_of_run, recipient: row.recipient.clone() })
    }
}

/// A row that is answered: a run whose task is there, with a lease if it has started; or one whose task is locked.
#[derive(sqlx_macros::FromRow)]
struct RequestRow {
    run_id: Option<Uuid>,
    tenant_id: Option<String>,
    trigger_type: String,
    lease_token: Option<i64>,
    deadline_at: Option<DateTime<Utc>>,
    task_version: Option<i64>,
    recipient: Option<String>,
    is_locked: bool,
}

const POSTGRES: &str = include_str!("../sql/run_now.postgres.sql");
const POSTGRES_TOGETHER: &str = sql!(POSTGRES; "{wait}" = "skip locked");
const POSTGRES_ALONE: &str = sql!(POSTGRES; "{wait}" = "");
const SQLITE_READY: &str = include_str!("../sql/run_now.sqlite.sql");
const SQLITE: &str = include_str!("../sql/start_now.sqlite.sql");
const SQLITE_START: &str = sql!(SQLITE; "{overlap}" = TASK_OVERLAP; "{seconds}" = TASK_TIMEOUT);
/// Texts of SQLite: for a run that is ready, and for one that may start.
const IN_TRANSACTION: [&str; 2] = [SQLITE_READY, SQLITE_START];
const COMMITTED: [&str; 2] =
    [sql!("begin immediate;", SQLITE_READY, "; commit"), sql!("begin immediate;", SQLITE_START, "; commit")];

/// Records runs that are asked for in one scope, and answers what became of each, in their order. A task that somebody
/// else has locked keeps none of the others waiting. Other instances are told with the commit, where there is a
/// `notification`. For Postgres alone.
///
/// # Errors
/// `Conflict`, and nothing written: a run that had its task's slot was recorded by somebody else just now. It does not
/// come where none may start.
pub(in crate::store) async fn record_requests(
    conn: &mut PgConnection,
    requests: &[RequestedRun],
    notification: Option<&str>,
) -> Result<Vec<RecordedRequest>, StoreError> {
    record_on_postgres(conn, POSTGRES_TOGETHER, requests, notification).await
}

/// Records one run, once its task is not locked any more. It never answers that the task is locked. On Postgres other
/// instances are told with the commit, where there is a `notification`.
pub(in crate::store) async fn record_request(
    tx: &mut Tx<'_>,
    request: &RequestedRun,
    notification: Option<&str>,
) -> Result<RecordedRequest, StoreError> {
    match tx {
        Tx::Postgres(conn) => {
            let request = std::slice::from_ref(request);
            let recorded = record_on_postgres(conn, POSTGRES_ALONE, request, notification).await?;
            // a task whose row was waited for and is not there was deleted meanwhile
            let recorded = recorded.into_iter().next().filter(|recorded| !matches!(recorded, RecordedRequest::Locked));
            Ok(recorded.unwrap_or(RecordedRequest::NoTask))
        }
        Tx::Sqlite(_) => record_on_sqlite(tx, IN_TRANSACTION, request).await,
    }
}

async fn record_on_postgres(
    conn: &mut PgConnection,
    text: &'static str,
    requests: &[RequestedRun],
    notification: Option<&str>,
) -> Result<Vec<RecordedRequest>, StoreError> {
    let inputs = requests.iter().map(|request| optional_document(request.input.as_ref()));
    let terms = requests.iter().find_map(|request| request.start);
    let rows: Vec<RequestRow> = sqlx::query_as(text)
        .bind(requests.first().and_then(|request| request.scope.as_deref()))
        .bind(requests.iter().map(|request| request.task_id).collect::<Vec<_>>())
        .bind(requests.iter().map(|request| request.run_id).collect::<Vec<_>>())
        .bind(inputs.collect::<Result<Vec<_>, _>>()?)
        .bind(requests.iter().map(|request| request.requested_by.as_deref()).collect::<Vec<_>>())
        .bind(requests.iter().map(|request| request.start.is_some()).collect::<Vec<_>>())
        .bind(requests.iter().map(|request| request.now).collect::<Vec<_>>())
        .bind(terms.map(|terms| terms.now))
        .bind(terms.and_then(|terms| terms.started_until))
        .bind(terms.map(|terms| terms.worker))
        .bind(notification)
        .fetch_all(conn)
        .await?;
    let rows: HashMap<Uuid, RequestRow> = rows.into_iter().filter_map(|row| Some((row.run_id?, row))).collect();
    Ok(requests.iter().map(|request| request.outcome(rows.get(&request.run_id))).collect())
}

/// The text of SQLite is read to its end: the rest of one that nobody reads on is not executed.
async fn record_on_sqlite(
    tx: &mut Tx<'_>,
    [ready, start]: [&'static str; 2],
    request: &RequestedRun,
) -> Result<RecordedRequest, StoreError> {
    let rows: Vec<RequestRow> = tx
        .query(if request.start.is_some() { start } else { ready })
        .bind(request.task_id)
        .bind(request.scope.as_deref())
        .bind(request.run_id)
        .bind(request.fire_key())
        .bind(request.now)
        .bind(optional_document(request.input.as_ref())?)
        .bind(request.requested_by.as_deref())
        .bind(request.start.map(|terms| terms.now))
        .bind(request.start.and_then(|terms| terms.started_until))
        .bind(request.start.map(|terms| terms.worker))
        .all()
        .await?;
    Ok(request.outcome(rows.first()))
}

/// Records a run with the transaction around it, all of it on one way to the connection's thread: no transaction may be
/// open, and it has to be awaited to its end.
pub(in crate::store) async fn record_committed(
    conn: &mut SqliteConnection,
    request: &RequestedRun,
) -> Result<RecordedRequest, StoreError> {
    let recorded = record_on_sqlite(&mut Tx::Sqlite(conn), COMMITTED, request).await;
    if recorded.is_err() {
        // some faults have ended it already
        let _ = sqlx::query("rollback").execute(conn).await;
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn rows_that_a_request_concerns_are_found_by_an_index_on_sqlite() {
        for statement in IN_TRANSACTION.into_iter().flat_map(|text| text.split(';')) {
            let plan = sqlite_plan(statement).await;
            assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{statement}: {plan:?}");
            // the only row of its table
            let is_scan = |step: &String| step.starts_with("SCAN") && step != "SCAN lease_tokens";
            assert!(!plan.iter().any(is_scan), "{statement}: {plan:?}");
        }
    }
}
