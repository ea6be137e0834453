//! Events on Postgres: looking, locking and writing, all of it in one statement where no rule has a memory.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::db::text::{StoredJson, optional, optional_document};
use crate::store::events::matches::{EventBatch, LockedTask, MatchGuard};
use crate::store::runs::lease::{CLAIM_MARGIN, Lease, RunClaim, StartedRow};
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::starting::immediate_start::{LeaseTerms, WrittenRows, started_with_record};
use crate::store::runs::{NewRun, event_ids};
use crate::store::{Match, StoreError};

pub(in crate::store::batches) async fn versions(
    conn: &mut PgConnection,
    shards: &[(i32, i64)],
) -> Result<Vec<(i32, i64)>, StoreError> {
    let asked: Vec<i32> = shards.iter().map(|(shard, _)| *shard).collect();
    let known: Vec<(i32, i64)> = sqlx::query_as("select shard, version from event_index where shard = any($1)")
        .bind(&asked)
        .fetch_all(conn)
        .await?;
    let version = |shard: &i32| known.iter().find(|(found, _)| found == shard).map_or(0, |(_, version)| *version);
    Ok(asked.iter().map(|shard| (*shard, version(shard))).collect())
}

pub(in crate::store::batches) async fn lock_tasks(
    conn: &mut PgConnection,
    tasks: &[Uuid],
) -> Result<Vec<LockedTask>, StoreError> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let lock = "select d.task_id, d.epoch, d.fire_count
                  from unnest($1::uuid[]) as t (task_id)
                  join due d on d.task_id = any (array[t.task_id])
                 order by t.task_id
                   for update of d";
    Ok(sqlx::query_as(lock).bind(tasks).fetch_all(conn).await?)
}

pub(in crate::store::batches) async fn in_windows(
    conn: &mut PgConnection,
    matches: &[&Match],
) -> Result<Vec<(Uuid, String)>, StoreError> {
    if matches.is_empty() {
        return Ok(Vec::new());
    }
    let known = "select m.task_id, m.event_key
                   from unnest($1::uuid[], $2::text[]) as m (task_id, event_key)
                  where (select true from window_events w
                          where w.task_id = m.task_id and w.event_key = m.event_key)";
    Ok(sqlx::query_as(known)
        .bind(matches.iter().map(|matched| matched.task_id).collect::<Vec<_>>())
        .bind(matches.iter().map(|matched| matched.arrival.key()).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?)
}

pub(in crate::store::batches) async fn record_events(
    conn: &mut PgConnection,
    batch: &EventBatch,
    terms: &LeaseTerms,
) -> Result<WrittenRows, StoreError> {
    let none = MatchGuard::default();
    let written = record_guarded(conn, batch, &none, terms).await?;
    written.ok_or_else(|| StoreError::Corrupt("a batch without a guard was refused".into()))
}

/// A row that the statement answers: a run that is leased, with its token, and with a time limit if it has started; or,
/// without a run, a number of runs, or the recipient of a tenant whose runs have started.
#[derive(sqlx_macros::FromRow)]
struct RecordedRow {
    run_id: Option<Uuid>,
    number: i64,
    state: String,
    deadline_at: Option<DateTime<Utc>>,
    task_version: Option<i64>,
    tenant_id: Option<String>,
    recipient: Option<String>,
}

/// Records and queues runs of events if the guard holds, and starts those that may and get the slot that they may need;
/// `None`, and nothing written, where it does not hold. Events that windows have had are left out.
///
/// # Errors
/// `Conflict`, and nothing written: a run of the batch that had its task's slot is recorded by somebody else just now.
/// It does not come where none may start.
pub(in crate::store) async fn record_guarded(
    conn: &mut PgConnection,
    batch: &EventBatch,
    guard: &MatchGuard<'_>,
    terms: &LeaseTerms,
) -> Result<Option<WrittenRows>, StoreError> {
    let all: Vec<&NewRun> = batch.runs.iter().map(|ready| &ready.run).chain(&batch.skipped).collect();
    if all.is_empty() {
        return Ok(Some(WrittenRows::default()));
    }
    let events = all.iter().map(|run| optional_document(event_ids(run))).collect::<Result<Vec<_>, _>>()?;
    let causes: Vec<_> = all.iter().map(|run| run.cause.as_ref().map(StoredJson::json)).collect();
    let keys = batch.runs.iter().map(|ready| ready.arrival.as_ref().map(|arrival| arrival.key()));
    let event_keys: Vec<Option<&str>> = keys.chain(batch.skipped.iter().map(|_| None)).collect();
    let claimed_until = terms.now + CLAIM_MARGIN;
    let text = include_str!("../../sql/fire_events.postgres.sql");
    let rows: Vec<RecordedRow> = sqlx::query_as(
        failpoint_text!("no_slot", text, "a.overlap = 'allow' or a.id in (select run_id from slotted)" => "true"),
    )
    .bind(terms.now)
    .bind(all.iter().map(|run| run.id).collect::<Vec<_>>())
    .bind(all.iter().map(|run| run.task_id).collect::<Vec<_>>())
    .bind(all.iter().map(|run| run.tenant_id.as_str()).collect::<Vec<_>>())
    .bind(all.iter().map(|run| run.fire_key.as_str()).collect::<Vec<_>>())
    .bind(all.iter().map(|run| run.state.as_str()).collect::<Vec<_>>())
    .bind(all.iter().map(|run| optional(run.reason.as_deref())).collect::<Vec<_>>())
    .bind(events)
    .bind(causes)
    .bind(event_keys)
    .bind(batch.runs.iter().map(|ready| ready.epoch).collect::<Vec<_>>())
    .bind(batch.runs.iter().map(|ready| ready.claimed).collect::<Vec<_>>())
    .bind(batch.runs.iter().map(|ready| ready.may_start).collect::<Vec<_>>())
    .bind(claimed_until)
    .bind(terms.worker)
    .bind(terms.started_until)
    .bind(guard.tasks.iter().map(|(task_id, _)| *task_id).collect::<Vec<_>>())
    .bind(guard.tasks.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
    .bind(guard.shards.iter().map(|(shard, _)| *shard).collect::<Vec<_>>())
    .bind(guard.shards.iter().map(|(_, version)| *version).collect::<Vec<_>>())
    .fetch_all(conn)
    .await?;
    let leased = batch.runs.iter().filter(|ready| ready.claimed);
    let leased: HashMap<Uuid, &NewRun> = leased.map(|ready| (ready.run.id, &ready.run)).collect();
    let (mut written, mut recipients) = (WrittenRows::default(), Vec::new());
    // leased runs one by one with their tokens, of all else how many
    for row in rows {
        match (row.run_id, row.state.as_str()) {
            (Some(run_id), _) => {
                let (run, lease) = (leased[&run_id], Lease { run_id, token: row.number });
                written.recorded += 1;
                match row.deadline_at {
                    Some(deadline_at) => written.started.rows.push(StartedRow {
                        task_version: row.task_version,
                        ..started_with_record(run, lease, terms.now, deadline_at)
                    }),
                    None => written.claims.push(RunClaim {
                        lease,
                        run_at: terms.now,
                        until: claimed_until,
                        tenant_hash: tenant_hash(&run.tenant_id),
                    }),
                }
            }
            (None, "stale") => return Ok(None),
            (None, "skipped") => written.skipped += row.number as usize,
            (None, "recipient") => recipients.extend(row.tenant_id.zip(row.recipient)),
            (None, _) => written.recorded += row.number as usize,
        }
    }
    written.started.recipients = Some(recipients);
    Ok(Some(written))
}
