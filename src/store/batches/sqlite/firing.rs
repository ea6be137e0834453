//! Firing on SQLite: due rows move on, runs are recorded and queued.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::store::StoreError;
use crate::store::batches::sqlite::next_tokens;
use crate::store::batches::sqlite::starting::take_slots;
use crate::store::db::sqlite_batch::{chunks, is_reusable, list};
use crate::store::db::text::optional_document;
use crate::store::runs::lease::{Lease, RunClaim};
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::slots::free;
use crate::store::runs::starting::immediate_start::{LeaseTerms, PlannedRun, WrittenRows};
use crate::store::tasks::fires::{DueUpdate, FireDue};
use crate::store::tx::Tx;

/// Answers how many moved.
pub(super) async fn update_due(conn: &mut SqliteConnection, moves: &[DueUpdate]) -> Result<u64, StoreError> {
    let mut moved = 0;
    for moves in chunks(moves) {
        let mut update = due_statement(moves);
        moved += update.build().persistent(is_reusable(moves.len())).execute(&mut *conn).await?.rows_affected();
    }
    Ok(moved)
}

/// The statement that moves due rows on.
pub(super) fn due_statement(moves: &[DueUpdate]) -> QueryBuilder<Sqlite> {
    let mut update = QueryBuilder::new("with moved (task_id, epoch, next_at, nominal_at, fires) as (");
    update.push_values(moves, |mut row, m| {
        row.push_bind(m.task_id).push_bind(m.epoch).push_bind(m.next_at).push_bind(m.nominal_at).push_bind(m.fires);
    });
    update.push(
        ") update due set next_at = m.next_at, nominal_at = m.nominal_at, fire_count = due.fire_count + m.fires,
                  run_count = due.run_count + m.fires
             from moved m where due.task_id = m.task_id and due.epoch = m.epoch",
    );
    update
}

/// Records runs that are to be executed, and puts them into the queue; what has its record already is left out.
pub(super) async fn record(
    conn: &mut SqliteConnection,
    runs: &[PlannedRun],
    ask: &FireDue,
    written: &mut WrittenRows,
) -> Result<(), StoreError> {
    let going = going_now(conn, runs).await?;
    let made = insert_runs(conn, runs, &going, ask.now).await?;
    enter_queue(conn, runs, (&made, &going), &ask.terms(), written).await
}

/// Those of these runs that start now: each that needs its task's slot has it from here on.
pub(super) async fn going_now(conn: &mut SqliteConnection, runs: &[PlannedRun]) -> Result<HashSet<Uuid>, StoreError> {
    let wanted = runs.iter().filter(|ready| ready.starts && ready.needs_slot);
    let wanted: Vec<(Uuid, Uuid)> = wanted.map(|ready| (ready.run.task_id, ready.run.id)).collect();
    let holders = take_slots(conn, &wanted).await?;
    let going = runs
        .iter()
        .filter(|ready| ready.starts && (!ready.needs_slot || holders.get(&ready.run.task_id) == Some(&ready.run.id)));
    Ok(going.map(|ready| ready.run.id).collect())
}

/// Those that had no record yet.
async fn insert_runs(
    conn: &mut SqliteConnection,
    runs: &[PlannedRun],
    going: &HashSet<Uuid>,
    now: DateTime<Utc>,
) -> Result<HashSet<Uuid>, StoreError> {
    let mut made = HashSet::with_capacity(runs.len());
    for runs in chunks(runs) {
        let mut missed = Vec::with_capacity(runs.len());
        for ready in runs {
            missed.push(optional_document(ready.run.missed.as_ref())?);
        }
        let mut insert = QueryBuilder::new(
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, missed, created_at,
                               attempt, started_at) ",
        );
        insert.push_values(runs.iter().zip(missed), |mut row, (ready, missed)| {
            let (run, started) = (&ready.run, going.contains(&ready.run.id));
            row.push_bind(run.id).push_bind(run.task_id).push_bind(&run.tenant_id).push_bind(&run.fire_key);
            row.push_bind(&run.trigger_type).push_bind(run.scheduled_for);
            row.push_bind(if started { "running" } else { "queued" }).push_bind(missed).push_bind(run.created_at);
            row.push_bind(i32::from(started)).push_bind(started.then_some(now));
        });
        insert.push(" on conflict (task_id, fire_key) do nothing");
        let inserted = insert.build().persistent(is_reusable(runs.len())).execute(&mut *conn).await?.rows_affected();
        if inserted == runs.len() as u64 {
            made.extend(runs.iter().map(|ready| ready.run.id));
            continue;
        }
        let mut select = QueryBuilder::new("select id from runs where id in ");
        list(&mut select, runs.iter().map(|ready| ready.run.id));
        let ids: Vec<Uuid> = select.build_query_scalar().fetch_all(&mut *conn).await?;
        made.extend(ids);
    }
    Ok(made)
}

/// Puts those of these runs into the queue that had no record yet (`made`): as started those that start (`going`), as
/// claimed others with a lease, and the rest as ready. The others give back the slots that they have taken.
pub(super) async fn enter_queue(
    conn: &mut SqliteConnection,
    runs: &[PlannedRun],
    (made, going): (&HashSet<Uuid>, &HashSet<Uuid>),
    terms: &LeaseTerms,
    written: &mut WrittenRows,
) -> Result<(), StoreError> {
    let has_taken_slot = |ready: &&PlannedRun| ready.needs_slot && going.contains(&ready.run.id);
    for known in runs.iter().filter(|ready| !made.contains(&ready.run.id)).filter(has_taken_slot) {
        free(&mut Tx::Sqlite(conn), known.run.task_id, known.run.id).await?;
    }
    let runs: Vec<&PlannedRun> = runs.iter().filter(|ready| made.contains(&ready.run.id)).collect();
    let mut token = next_tokens(conn, runs.iter().filter(|ready| ready.lease_until.is_some()).count()).await?;
    let entries = runs.into_iter().map(|ready| {
        let claim = ready.lease_until.map(|until| {
            token += 1;
            let lease = Lease { run_id: ready.run.id, token };
            RunClaim { lease, run_at: ready.run_at, until, tenant_hash: tenant_hash(&ready.run.tenant_id) }
        });
        (ready, claim)
    });
    let entries: Vec<(&PlannedRun, Option<RunClaim>)> = entries.collect();
    insert_entries(conn, &entries, going, terms).await?;
    written.recorded += entries.len();
    for (ready, claim) in entries {
        match claim {
            Some(claim) if going.contains(&ready.run.id) => {
                written.started.rows.push(ready.started_row(claim.lease, terms.now));
            }
            claim => written.claims.extend(claim),
        }
    }
    Ok(())
}

async fn insert_entries(
    conn: &mut SqliteConnection,
    entries: &[(&PlannedRun, Option<RunClaim>)],
    going: &HashSet<Uuid>,
    terms: &LeaseTerms,
) -> Result<(), StoreError> {
    for entries in chunks(entries) {
        let mut insert = QueryBuilder::new(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                                overlap, deadline_at) ",
        );
        insert.push_values(entries, |mut row, (ready, claim)| {
            let started_until = terms.started_until.filter(|_| going.contains(&ready.run.id));
            let state = match (claim, started_until) {
                (_, Some(_)) => "started",
                (Some(_), None) => "claimed",
                (None, None) => "ready",
            };
            row.push_bind(ready.run.id).push_bind(ready.run.task_id).push_bind(&ready.run.tenant_id);
            row.push_bind(ready.epoch).push_bind(ready.run_at).push("0").push_bind(state);
            row.push_bind(claim.map_or(0, |claim| claim.lease.token));
            row.push_bind(started_until.or(ready.lease_until));
            row.push_bind(claim.map(|_| terms.worker)).push_bind(ready.overlap);
            row.push_bind(started_until.map(|_| ready.deadline(terms.now)));
        });
        insert.build().persistent(is_reusable(entries.len())).execute(&mut *conn).await?;
    }
    Ok(())
}
