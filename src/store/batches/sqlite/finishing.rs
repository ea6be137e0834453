//! Ends on SQLite: out of the queue, slots free, the runs' record.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::domain::run::RunFinish;
use crate::store::StoreError;
use crate::store::db::sqlite_batch::{chunks, is_reusable, list};
use crate::store::db::text::{optional, optional_document};
use crate::store::runs::completions::PARK;
use crate::store::runs::lease::{Finish, FinishedRow, Lease};

/// The queue row of a run whose lease still stands: run, token, task, reason to cancel, its own overlap.
type FinishingColumns = (Uuid, i64, Option<Uuid>, Option<String>, Option<String>);

/// The queue row, without what it is found by.
struct FinishingRow {
    task_id: Option<Uuid>,
    cancel_reason: Option<String>,
    overlap: Option<String>,
}

/// Writes ends; answers those whose lease was still held.
pub(in crate::store::batches) async fn finish(
    conn: &mut SqliteConnection,
    ends: &[Finish],
    now: DateTime<Utc>,
) -> Result<Vec<FinishedRow>, StoreError> {
    let mut held = leased_rows(conn, ends).await?;
    let mine = ends.iter().filter_map(|end| Some((end, held.remove(&end.lease)?)));
    let mine: Vec<(&Finish, FinishingRow)> = mine.collect();
    let (again, over): (Vec<_>, Vec<_>) = mine.iter().partition(|(end, _)| end.again.is_some());
    for (end, _) in again {
        requeue(conn, end).await?;
    }
    for (end, held) in over.iter().filter(|(end, _)| end.park.is_some()) {
        park(conn, end, held).await?;
    }
    let gives_back = over.iter().filter(|(end, held)| !(end.keeps_slot() && held.cancel_reason.is_none()));
    let slots = gives_back.filter_map(|(end, held)| Some((held.task_id?, end.lease.run_id)));
    free_slots(conn, &slots.collect::<Vec<_>>()).await?;
    leave_queue(conn, &over.iter().map(|(end, _)| end.lease.run_id).collect::<Vec<_>>()).await?;
    record(conn, &mine.iter().map(|(end, _)| *end).collect::<Vec<_>>(), now).await?;
    let asked = with_questions(conn, &mine.iter().map(|(end, _)| end.lease.run_id).collect::<Vec<_>>(), now).await?;
    let taken = mine.into_iter().map(|(end, held)| {
        let run_id = end.lease.run_id;
        let cancel_reason = held.cancel_reason.filter(|_| end.again.is_none());
        FinishedRow { run_id, cancel_reason, has_questions: asked.contains(&run_id) }
    });
    Ok(taken.collect())
}

async fn leased_rows(conn: &mut SqliteConnection, ends: &[Finish]) -> Result<HashMap<Lease, FinishingRow>, StoreError> {
    let mut held = HashMap::with_capacity(ends.len());
    for ends in chunks(ends) {
        let mut select = QueryBuilder::new("with ends (run_id, lease_token) as (");
        select.push_values(ends, |mut row, end| {
            row.push_bind(end.lease.run_id).push_bind(end.lease.token);
        });
        select.push(
            // one row for them all: each that is handed over may wake a thread
            ") select json_group_array(json_array(hex(q.run_id), q.lease_token, iif(q.task_id is null, null, hex(q.task_id)),
                                                  q.cancel_reason, q.overlap))
                 from ends e cross join queue q
                   on q.run_id = e.run_id and q.lease_token = e.lease_token and q.state = 'started'",
        );
        let rows: Json<Vec<FinishingColumns>> =
            select.build_query_scalar().persistent(is_reusable(ends.len())).fetch_one(&mut *conn).await?;
        held.extend(rows.0.into_iter().map(|(run_id, token, task_id, cancel_reason, overlap)| {
            (Lease { run_id, token }, FinishingRow { task_id, cancel_reason, overlap })
        }));
    }
    Ok(held)
}

async fn requeue(conn: &mut SqliteConnection, end: &Finish) -> Result<(), StoreError> {
    sqlx::query(
        "update queue set state = 'ready', run_at = $2, lease_token = 0, lease_until = null, worker = null,
                deadline_at = null
          where run_id = $1",
    )
    .bind(end.lease.run_id)
    .bind(end.again.map(|again| again.run_at))
    .execute(conn)
    .await?;
    Ok(())
}

async fn park(conn: &mut SqliteConnection, end: &Finish, held: &FinishingRow) -> Result<(), StoreError> {
    let Some(park) = &end.park else { return Ok(()) };
    sqlx::query(PARK)
        .bind(end.lease.run_id)
        .bind(park.wake_at())
        .bind(park.reason())
        .bind(&held.overlap)
        .execute(conn)
        .await?;
    Ok(())
}

/// Frees the slots of these tasks where these runs have them; a run has none but its own task's.
async fn free_slots(conn: &mut SqliteConnection, slots: &[(Uuid, Uuid)]) -> Result<(), StoreError> {
    for slots in chunks(slots) {
        let mut delete = QueryBuilder::new("delete from slots where task_id in ");
        list(&mut delete, slots.iter().map(|(task, _)| *task));
        delete.push(" and run_id in ");
        list(&mut delete, slots.iter().map(|(_, run)| *run));
        delete.build().persistent(is_reusable(slots.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

async fn leave_queue(conn: &mut SqliteConnection, runs: &[Uuid]) -> Result<(), StoreError> {
    for runs in chunks(runs) {
        let mut delete = QueryBuilder::new("delete from queue where run_id in ");
        list(&mut delete, runs.iter().copied());
        delete.build().persistent(is_reusable(runs.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// The runs' own rows.
async fn record(conn: &mut SqliteConnection, ends: &[&Finish], now: DateTime<Utc>) -> Result<(), StoreError> {
    for ends in chunks(ends) {
        recording(ends, now)?.build().persistent(is_reusable(ends.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// The statement that records ends.
pub(super) fn recording(ends: &[&Finish], now: DateTime<Utc>) -> Result<QueryBuilder<Sqlite>, StoreError> {
    let mut errors = Vec::with_capacity(ends.len());
    for end in ends {
        errors.push(optional_document(end.error.as_ref())?);
    }
    let mut update = QueryBuilder::new(
        "with ends (id, state, reason, output, error, turns, tool_calls, input_tokens, output_tokens, cost_micros, execution_ms,
                    attempts_back, finished_at, crashes, infra_retries, finish) as (",
    );
    update.push_values(ends.iter().zip(errors), |mut row, (end, error)| {
        row.push_bind(end.lease.run_id).push_bind(end.state.as_str()).push_bind(optional(end.reason.as_deref()));
        row.push_bind(optional(end.output.as_deref())).push_bind(error);
        row.push_bind(end.usage.turns).push_bind(end.usage.tool_calls).push_bind(end.usage.input_tokens);
        row.push_bind(end.usage.output_tokens).push_bind(end.usage.cost_micros).push_bind(end.execution_ms);
        row.push_bind(end.attempts_back()).push_bind(end.finished_at(now)).push_bind(i32::from(end.crashed));
        row.push_bind(i32::from(end.infra_retry)).push_bind(end.finish.map(RunFinish::as_str));
    });
    update.push(
        ") update runs
              set state = e.state, reason = e.reason, output = e.output, error = e.error, turns = e.turns,
                  tool_calls = e.tool_calls, input_tokens = e.input_tokens, output_tokens = e.output_tokens,
                  cost_micros = e.cost_micros, execution_ms = runs.execution_ms + e.execution_ms,
                  attempt = runs.attempt - e.attempts_back, finished_at = e.finished_at,
                  crashes = runs.crashes + e.crashes, infra_retries = runs.infra_retries + e.infra_retries,
                  finish = e.finish
             from ends e where runs.id = e.id",
    );
    Ok(update)
}

/// Those of which people are asked something still.
async fn with_questions(
    conn: &mut SqliteConnection,
    runs: &[Uuid],
    now: DateTime<Utc>,
) -> Result<HashSet<Uuid>, StoreError> {
    let mut asked = HashSet::new();
    for runs in chunks(runs) {
        let mut select = QueryBuilder::new("select run_id from approvals where run_id in ");
        list(&mut select, runs.iter().copied());
        select.push(
            " and (status = 'pending'
                   or (status in ('approved', 'edited') and replaced_by is null and execution_started_at is null and hold_until > ",
        );
        select.push_bind(now).push("))");
        let ids: Vec<Uuid> =
            select.build_query_scalar().persistent(is_reusable(runs.len())).fetch_all(&mut *conn).await?;
        asked.extend(ids);
    }
    Ok(asked)
}
