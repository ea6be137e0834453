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
    let slots: Vec<(Uuid, Uuid)> =
        gives_back.filter_map(|(end, held)| Some((held.task_id?, end.lease.run_id))).collect();
    let over: Vec<Uuid> = over.iter().map(|(end, _)| end.lease.run_id).collect();
    let ends: Vec<&Finish> = mine.iter().map(|(end, _)| *end).collect();
    let asked = settle_and_record(conn, &slots, &over, &ends, now).await?;
    let taken = mine.into_iter().map(|(end, held)| {
        let cancel_reason = held.cancel_reason.filter(|_| end.again.is_none());
        let has_questions = asked.contains(&end.lease.run_id);
        // it is asked behind this
        FinishedRow { lease: end.lease, cancel_reason, has_questions, is_waited_for: true }
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
        .bind(optional_document(park.turns().as_ref())?)
        .execute(conn)
        .await?;
    Ok(())
}

/// Frees slots, takes runs that are over out of the queue, and records ends, on one way to the connection's thread;
/// answers of which of these runs people are asked something still.
async fn settle_and_record(
    conn: &mut SqliteConnection,
    slots: &[(Uuid, Uuid)],
    over: &[Uuid],
    ends: &[&Finish],
    now: DateTime<Utc>,
) -> Result<HashSet<Uuid>, StoreError> {
    if ends.is_empty() {
        return Ok(HashSet::new());
    }
    let mut text = QueryBuilder::new("");
    chunks(slots).for_each(|slots| free_slots(&mut text, slots));
    chunks(over).for_each(|over| leave_queue(&mut text, over));
    for ends in chunks(ends) {
        record(&mut text, ends, now)?;
        with_questions(&mut text, ends, now);
    }
    let comes_again = [slots.len(), over.len(), ends.len()].into_iter().all(|rows| rows == 0 || is_reusable(rows));
    let asked: Vec<Uuid> = text.build_query_scalar().persistent(comes_again).fetch_all(conn).await?;
    Ok(asked.into_iter().collect())
}

/// Frees the slots of these tasks where these runs have them; a run has none but its own task's.
fn free_slots(text: &mut QueryBuilder<Sqlite>, slots: &[(Uuid, Uuid)]) {
    text.push("delete from slots where task_id in ");
    list(text, slots.iter().map(|(task, _)| *task));
    text.push(" and run_id in ");
    list(text, slots.iter().map(|(_, run)| *run));
    text.push(";");
}

fn leave_queue(text: &mut QueryBuilder<Sqlite>, runs: &[Uuid]) {
    text.push("delete from queue where run_id in ");
    list(text, runs.iter().copied());
    text.push(";");
}

/// Adds the statement that records ends, in the runs' own rows.
pub(super) fn record(text: &mut QueryBuilder<Sqlite>, ends: &[&Finish], now: DateTime<Utc>) -> Result<(), StoreError> {
    let mut errors = Vec::with_capacity(ends.len());
    for end in ends {
        errors.push(optional_document(end.error.as_ref())?);
    }
    text.push(
        "with ends (id, state, reason, output, error, turns, tool_calls, input_tokens, output_tokens, cost_micros, execution_ms,
                    attempts_back, finished_at, crashes, infra_retries, finish) as (",
    );
    text.push_values(ends.iter().zip(errors), |mut row, (end, error)| {
        row.push_bind(end.lease.run_id).push_bind(end.state.as_str()).push_bind(optional(end.reason.as_deref()));
        row.push_bind(optional(end.output.as_deref())).push_bind(error);
        row.push_bind(end.usage.turns).push_bind(end.usage.tool_calls).push_bind(end.usage.input_tokens);
        row.push_bind(end.usage.output_tokens).push_bind(end.usage.cost_micros).push_bind(end.execution_ms);
        row.push_bind(end.attempts_back()).push_bind(end.finished_at(now)).push_bind(i32::from(end.crashed));
        row.push_bind(i32::from(end.infra_retry)).push_bind(end.finish.map(RunFinish::as_str));
    });
    text.push(
        ") update runs
              set state = e.state, reason = e.reason, output = e.output, error = e.error, turns = e.turns,
                  tool_calls = e.tool_calls, input_tokens = e.input_tokens, output_tokens = e.output_tokens,
                  cost_micros = e.cost_micros, execution_ms = runs.execution_ms + e.execution_ms,
                  attempt = runs.attempt - e.attempts_back, finished_at = e.finished_at,
                  crashes = runs.crashes + e.crashes, infra_retries = runs.infra_retries + e.infra_retries,
                  finish = e.finish
             from ends e where runs.id = e.id;",
    );
    Ok(())
}

/// Adds a statement that answers those of these runs of which people are asked something still.
fn with_questions(text: &mut QueryBuilder<Sqlite>, ends: &[&Finish], now: DateTime<Utc>) {
    text.push("select run_id from approvals where run_id in ");
    list(text, ends.iter().map(|end| end.lease.run_id));
    text.push(
        " and (status = 'pending'
               or (status in ('approved', 'edited') and replaced_by is null and execution_started_at is null and hold_until > ",
    );
    text.push_bind(now).push("));");
}
