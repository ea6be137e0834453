//! Runs as they are recorded and as people see them: inserting, reading, listing, counting.

pub(super) mod alerts;
pub(super) mod completions;
mod counts;
pub(super) mod due_parked;
pub(super) mod finishing;
pub(super) mod global_limits;
pub(super) mod lease;
pub(super) mod new_entry;
mod new_run;
pub(super) mod overlap;
pub(super) mod pages;
pub(super) mod recorded;
pub(super) mod requests;
pub(super) mod rescue;
pub(super) mod run_location;
pub(super) mod settle_park;
pub(super) mod shares;
pub(super) mod slots;
pub(super) mod starting;
pub(super) mod transcript;

use std::collections::HashMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::{Run, RunFinish, RunOrigin, RunState, Usage};
use crate::store::columns::Columns;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::{StoredJson, optional_document};
use crate::store::db::{Db, connection, sqlite_batch};
use crate::store::sql::sql;
use crate::store::tx::{Rows, Tx};
use crate::store::{Store, StoreError};
pub(super) use new_run::{NewRun, SkipTallies, SkipTally, enqueue, key_instant, missed_key, tally_hour_key};

/// Records one run, off the hot path; answers how many rows that made: none where the fire has its record already.
pub(super) async fn insert_run(tx: &mut Tx<'_>, run: &NewRun) -> Result<u64, StoreError> {
    Ok(tx
        .query(INSERT_RUN)
        .bind(run.id)
        .bind(run.task_id)
        .bind(&run.tenant_id)
        .bind(&run.fire_key)
        .bind(&run.trigger_type)
        .bind(run.scheduled_for)
        .bind(run.state.as_str())
        .bind(&run.reason)
        .bind(optional_document(run.missed.as_ref())?)
        .bind(run.retry_of)
        .bind(optional_document(run.input.as_ref())?)
        .bind(run.created_at)
        .bind(run.finished_at())
        .bind(optional_document(event_ids(run))?)
        .bind(run.cause.as_ref().map(StoredJson::json))
        .bind(run.origin.as_str())
        .bind(i32::from(run.started_at().is_some()))
        .bind(run.started_at())
        .execute()
        .await?)
}

/// The events behind a run, as they are stored; `None` where there are none.
pub(super) fn event_ids(run: &NewRun) -> Option<&Vec<String>> {
    (!run.event_ids.is_empty()).then_some(&run.event_ids)
}

/// The beginning of a statement that records runs.
pub(super) const INTO_RUNS: &str =
    "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, retry_of,
                  input, created_at, finished_at, event_ids, cause, origin, attempt, started_at) ";

pub(super) const INSERT_RUN: &str = sql!(
    INTO_RUNS,
    "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
     on conflict (task_id, fire_key) do nothing"
);

impl<'r, R: Columns> FromRow<'r, R> for Run {
    fn from_row(row: &'r R) -> Result<Run, sqlx::Error> {
        Ok(Run {
            id: row.value("id")?,
            task_id: row.value("task_id")?,
            tenant_id: row.value("tenant_id")?,
            fire_key: row.value("fire_key")?,
            trigger_type: row.value("trigger_type")?,
            origin: row.word("origin", RunOrigin::parse)?,
            scheduled_for: row.value("scheduled_for")?,
            state: row.word("state", RunState::parse)?,
            reason: row.value("reason")?,
            blocked_by: row.value("blocked_by")?,
            attempt: row.value("attempt")?,
            crashes: row.value("crashes")?,
            infra_retries: row.value("infra_retries")?,
            missed: row.optional_document("missed")?,
            retry_of: row.value("retry_of")?,
            event_ids: row.optional_document("event_ids")?.unwrap_or_default(),
            // lists have neither: a cause holds whole events
            cause: row.document_if_read("cause")?,
            input: row.document_if_read("input")?,
            created_at: row.value("created_at")?,
            started_at: row.value("started_at")?,
            finished_at: row.value("finished_at")?,
            output: row.value("output")?,
            finish: row.optional_word("finish", RunFinish::parse)?,
            error: row.optional_document("error")?,
            usage: Usage::from_row(row)?,
        })
    }
}

impl<'r, R: Columns> FromRow<'r, R> for Usage {
    fn from_row(row: &'r R) -> Result<Usage, sqlx::Error> {
        Ok(Usage {
            turns: row.value("turns")?,
            tool_calls: row.value("tool_calls")?,
            input_tokens: row.value("input_tokens")?,
            output_tokens: row.value("output_tokens")?,
            cost_micros: row.value("cost_micros")?,
        })
    }
}

/// The run that a row holds with all its columns; `None` where it can't be read, which is said when it is read by
/// itself.
pub(super) fn run_in<R: Columns>(row: &R) -> Option<Run> {
    Run::from_row(row).ok()
}

const COLUMNS: &str =
    "select r.id, r.task_id, r.tenant_id, r.fire_key, r.trigger_type, r.origin, r.scheduled_for, r.state, r.reason,
            r.blocked_by, r.attempt, r.crashes, r.infra_retries, r.missed, r.retry_of, r.event_ids,
            r.created_at, r.started_at, r.finished_at, r.finish, r.error, r.turns, r.tool_calls,
            r.input_tokens, r.output_tokens, r.cost_micros";
const FROM_RUNS: &str = " from runs r ";
pub(super) const SELECT_RUN: &str = sql!(COLUMNS, ", r.input, r.output", FROM_RUNS);
/// With what made the task fire.
const SELECT_WHOLE: &str = sql!(COLUMNS, ", r.input, r.output, r.cause", FROM_RUNS);
/// One run in a scope.
const ONE: &str = sql!(
    COLUMNS,
    ", r.input, r.output, r.cause, cast(r.stored_bytes as bigint) as wide",
    FROM_RUNS,
    "where r.id = $1 and ($2 is null or r.tenant_id = $2)"
);
/// The columns that a list shows.
const SELECT_BRIEF: &str = sql!(
    COLUMNS,
    ", substr(r.output, 1, 1000) as output, cast(octet_length(r.output) as bigint) as output_bytes,
     cast(octet_length(cast(r.input as text)) as bigint) as input_bytes",
    FROM_RUNS
);

/// The beginning of a read by listed keys.
pub(super) const LISTED: &str = sql!(SELECT_WHOLE, "where r.id in ");

impl Store {
    /// One run.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_run(&self, scope: &Scope, id: Uuid) -> Result<Run, StoreError> {
        self.find_run(scope, id).await?.ok_or(StoreError::NotFound)
    }

    /// One run, if it is there.
    pub async fn find_run(&self, scope: &Scope, id: Uuid) -> Result<Option<Run>, StoreError> {
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let rows = read.query(ONE).bind(id).bind(scope.tenant()).rows().await?;
        read.end().await?;
        self.decode_first_row(scope, rows).await
    }

    /// Runs by their ids; those that are gone or can't be read are left out: one must not keep the others from
    /// starting.
    pub(super) async fn runs_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Run>, StoreError> {
        self.readable_by_id("runs", ids, |ids| self.all_runs_by_id(ids)).await
    }

    async fn all_runs_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Run>, StoreError> {
        let rows: Vec<Run> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = connection("quick", quick, waits).await?;
                sqlx::query_as(sql!(SELECT_WHOLE, "where r.id = any($1)")).bind(ids).fetch_all(&mut *held).await?
            }
            Db::Sqlite { readers, .. } => sqlite_batch::read(readers, LISTED, ids).await?,
        };
        Ok(rows.into_iter().map(|run| (run.id, run)).collect())
    }

    /// The newest run of each of these tasks, as far as the scope goes, in any order; without input, and with the
    /// beginning of the output. One that can't be read is left out.
    pub async fn last_runs(&self, scope: &Scope, tasks: &[Uuid]) -> Result<Vec<Run>, StoreError> {
        Ok(match &self.db {
            Db::Postgres { pool, waits, .. } => {
                waits.record_acquire("shared", pool);
                let mut held = pool.acquire_fair(QueueFlow::of(scope.tenant())).await?;
                let rows = sqlx::query(sql!(
                    SELECT_BRIEF,
                    "where ($2 is null or r.tenant_id = $2) and r.id = any (array(
                  select newest.id
                    from unnest($1) as asked (task_id)
                   cross join lateral (select n.id from runs n where n.task_id = any (array[asked.task_id])
                                        order by n.task_id desc, n.id desc limit 1) newest))"
                ))
                .bind(tasks)
                .bind(scope.tenant())
                .fetch_all(&mut *held)
                .await?;
                self.unreadable.partition_readable::<_, _, Uuid>("runs", &Rows::Postgres(rows), Ok).0
            }
            // no round trip to save: the database is in this process
            Db::Sqlite { readers, tenant_readers, waits, .. } => {
                let mut held = tenant_readers.acquire(scope.tenant(), readers, waits).await?;
                let mut rows = Vec::with_capacity(tasks.len());
                for task in tasks {
                    let last = sqlx::query(sql!(
                        SELECT_BRIEF,
                        "where r.task_id = $1 and ($2 is null or r.tenant_id = $2) order by r.id desc limit 1"
                    ))
                    .bind(task)
                    .bind(scope.tenant())
                    .fetch_optional(&mut *held)
                    .await?;
                    rows.extend(last);
                }
                self.unreadable.partition_readable::<_, _, Uuid>("runs", &Rows::Sqlite(rows), Ok).0
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_and_start_answer_every_column_that_a_run_is_read_with() {
        let (columns, _) = LISTED.split_once(" from runs").expect("a select");
        let columns: Vec<&str> = columns.trim_start_matches("select").split(',').map(str::trim).collect();
        assert_eq!(columns.len(), 29);
        for statement in [include_str!("sql/take.postgres.sql"), include_str!("sql/start.postgres.sql")] {
            let (_, answer) = statement.split_once("\nselect id").expect("its answer");
            let (answer, _) = answer.split_once("  from started").expect("runs that started");
            let answered: Vec<&str> = answer.split(',').map(str::trim).chain(["id"]).collect();
            for column in &columns {
                let column = column.trim_start_matches("r.");
                assert!(answered.contains(&column), "{column} is not in {answered:?}");
            }
        }
    }
}
