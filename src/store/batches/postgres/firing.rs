//! Firing on Postgres: what is skipped, the slots, and one statement for all that runs.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::runs::NewRun;
use crate::store::runs::lease::{Lease, RunClaim};
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::starting::immediate_start::{PlannedRun, WrittenRows};
use crate::store::tasks::fires::{FireBatch, FireDue, all_moved};

/// A row that `fire` answers: a run with its token; or, without a run, how many tasks moved on and runs were recorded.
type Row = (Option<Uuid>, i64, i64);

/// Moves tasks on, records runs that are to be executed, and puts them into the queue; what has its record already is
/// left out.
pub(super) async fn record(
    conn: &mut PgConnection,
    batch: &FireBatch,
    ask: &FireDue,
    written: &mut WrittenRows,
) -> Result<(), StoreError> {
    let (moves, runs) = (&batch.moves, &batch.runs);
    let slotted = take_slots(conn, runs.iter().filter(|ready| ready.starts && ready.needs_slot)).await?;
    let goes = |ready: &PlannedRun| ready.starts && (!ready.needs_slot || slotted.contains(&ready.run.id));
    let rows: Vec<Row> = sqlx::query_as(include_str!("../../sql/fire.postgres.sql"))
        .bind(moves.iter().map(|m| m.task_id).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.epoch).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.next_at).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.nominal_at).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.fires).collect::<Vec<_>>())
        .bind(ask.now)
        .bind(ask.worker)
        .bind(ask.start.as_ref().map(|start| start.lease_until))
        .bind(runs.iter().map(|r| r.run.id).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.task_id).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.fire_key.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.trigger_type.as_str()).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.scheduled_for).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run.missed.as_ref().map(Json)).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.epoch).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.run_at).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.lease_until).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| r.overlap).collect::<Vec<_>>())
        .bind(runs.iter().map(goes).collect::<Vec<_>>())
        .bind(runs.iter().map(|r| goes(r).then(|| r.deadline(ask.now))).collect::<Vec<_>>())
        .fetch_all(&mut *conn)
        .await?;
    let mut tokens = HashMap::with_capacity(rows.len());
    let (mut moved, mut made) = (0, 0);
    for row in rows {
        match row {
            (Some(run_id), token, _) => drop(tokens.insert(run_id, token)),
            (None, tasks, runs) => (moved, made) = (tasks, runs),
        }
    }
    all_moved(moved as u64, batch)?;
    let known = match made < runs.len() as i64 {
        true => take_back_known(conn, runs).await?,
        false => HashSet::new(),
    };
    for ready in runs.iter().filter(|ready| !known.contains(&ready.run.id)) {
        let lease = Lease { run_id: ready.run.id, token: tokens[&ready.run.id] };
        written.recorded += 1;
        if goes(ready) {
            written.started.rows.push(ready.started_row(lease, ask.now));
        } else if let Some(until) = ready.lease_until {
            written.claims.push(RunClaim {
                lease,
                run_at: ready.run_at,
                until,
                tenant_hash: tenant_hash(&ready.run.tenant_id),
            });
        }
    }
    Ok(())
}

/// Records instants that do not run; answers how many had no record yet.
pub(super) async fn record_skipped(
    conn: &mut PgConnection,
    skipped: &[NewRun],
    now: DateTime<Utc>,
) -> Result<usize, StoreError> {
    if skipped.is_empty() {
        return Ok(0);
    }
    let recorded = sqlx::query(
        "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, created_at,
                           finished_at)
         select id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, $10, $10
           from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::text[],
                       $9::jsonb[])
                as s (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed)
         on conflict (task_id, fire_key) do nothing",
    )
    .bind(skipped.iter().map(|run| run.id).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.task_id).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.tenant_id.as_str()).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.fire_key.as_str()).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.trigger_type.as_str()).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.scheduled_for).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.state.as_str()).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.reason.as_deref()).collect::<Vec<_>>())
    .bind(skipped.iter().map(|run| run.missed.as_ref().map(Json)).collect::<Vec<_>>())
    .bind(now)
    .execute(conn)
    .await?;
    Ok(recorded.rows_affected() as usize)
}

/// Takes the slots of these runs' tasks, of several of one task for the first; answers the runs that have one now.
async fn take_slots(
    conn: &mut PgConnection,
    runs: impl Iterator<Item = &PlannedRun>,
) -> Result<HashSet<Uuid>, StoreError> {
    let (tasks, runs): (Vec<Uuid>, Vec<Uuid>) = runs.map(|ready| (ready.run.task_id, ready.run.id)).unzip();
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    let taken: Vec<Uuid> = sqlx::query_scalar(
        "insert into slots (task_id, run_id)
         select task_id, run_id from unnest($1::uuid[], $2::uuid[]) with ordinality as w (task_id, run_id, place)
          order by task_id, place
         on conflict (task_id) do nothing
         returning run_id",
    )
    .bind(tasks)
    .bind(runs)
    .fetch_all(conn)
    .await?;
    Ok(taken.into_iter().collect())
}

/// Takes those of these runs back whose fire had its record before, with the slots that they took; answers them.
async fn take_back_known(conn: &mut PgConnection, runs: &[PlannedRun]) -> Result<HashSet<Uuid>, StoreError> {
    let ids: Vec<Uuid> = runs.iter().map(|ready| ready.run.id).collect();
    let made: Vec<Uuid> =
        sqlx::query_scalar("select id from runs where id = any($1)").bind(&ids).fetch_all(&mut *conn).await?;
    let made: HashSet<Uuid> = made.into_iter().collect();
    let known: Vec<Uuid> = ids.into_iter().filter(|id| !made.contains(id)).collect();
    for statement in ["delete from queue where run_id = any($1)", "delete from slots where run_id = any($1)"] {
        sqlx::query(statement).bind(&known).execute(&mut *conn).await?;
    }
    Ok(known.into_iter().collect())
}
