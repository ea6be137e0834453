//! Events on Postgres: looking, locking and writing, all of it in one statement where no rule has a memory.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::db::text::{StoredJson, optional, optional_document};
use crate::store::events::matches::{EventBatch, EventsWritten, LockedTask, MatchGuard};
use crate::store::runs::lease::{Lease, RunClaim};
use crate::store::runs::shares::tenant_hash;
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
    now: DateTime<Utc>,
    worker: Uuid,
) -> Result<EventsWritten, StoreError> {
    let none = MatchGuard::default();
    let written = record_guarded(conn, batch, &none, now, worker).await?;
    written.ok_or_else(|| StoreError::Corrupt("a batch without a guard was refused".into()))
}

/// Records and queues runs of events if the guard holds; `None`, and nothing written, where it does not. Events that
/// windows have had are left out.
pub(in crate::store) async fn record_guarded(
    conn: &mut PgConnection,
    batch: &EventBatch,
    guard: &MatchGuard<'_>,
    now: DateTime<Utc>,
    worker: Uuid,
) -> Result<Option<EventsWritten>, StoreError> {
    let mut written = EventsWritten::default();
    let all: Vec<&NewRun> = batch.runs.iter().map(|ready| &ready.run).chain(&batch.skipped).collect();
    if all.is_empty() {
        return Ok(Some(written));
    }
    let events = all.iter().map(|run| optional_document(event_ids(run))).collect::<Result<Vec<_>, _>>()?;
    let causes: Vec<_> = all.iter().map(|run| run.cause.as_ref().map(StoredJson::json)).collect();
    let keys = batch.runs.iter().map(|ready| ready.arrival.as_ref().map(|arrival| arrival.key()));
    let event_keys: Vec<Option<&str>> = keys.chain(batch.skipped.iter().map(|_| None)).collect();
    let until = EventsWritten::claim_until(now);
    let made: Vec<(Option<Uuid>, i64, String)> = sqlx::query_as(include_str!("../../sql/fire_events.postgres.sql"))
        .bind(now)
        .bind(all.iter().map(|run| run.id).collect::<Vec<_>>())
        .bind(all.iter().map(|run| run.task_id).collect::<Vec<_>>())
        .bind(all.iter().map(|run| run.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(all.iter().map(|run| run.fire_key.as_str()).collect::<Vec<_>>())
        .bind(all.iter().map(|run| run.state.as_str()).collect::<Vec<_>>())
        .bind(all.iter().map(|run| optional(run.reason.as_deref())).collect::<Vec<_>>())
        .bind(events)
        .bind(causes)
        .bind(until)
        .bind(worker)
        .bind(batch.runs.iter().map(|ready| ready.run.id).collect::<Vec<_>>())
        .bind(batch.runs.iter().map(|ready| ready.epoch).collect::<Vec<_>>())
        .bind(batch.runs.iter().map(|ready| ready.claimed).collect::<Vec<_>>())
        .bind(guard.tasks.iter().map(|(task_id, _)| *task_id).collect::<Vec<_>>())
        .bind(guard.tasks.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
        .bind(guard.shards.iter().map(|(shard, _)| *shard).collect::<Vec<_>>())
        .bind(guard.shards.iter().map(|(_, version)| *version).collect::<Vec<_>>())
        .bind(batch.runs.iter().map(|ready| ready.run.task_id).collect::<Vec<_>>())
        .bind(batch.runs.iter().map(|ready| ready.run.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(event_keys)
        .fetch_all(conn)
        .await?;
    let claimed = batch.runs.iter().filter(|ready| ready.claimed);
    let hashes: HashMap<Uuid, u32> = claimed.map(|ready| (ready.run.id, tenant_hash(&ready.run.tenant_id))).collect();
    // claims one by one with their tokens, of all else how many
    for (run_id, number, state) in made {
        match (run_id, state.as_str()) {
            (Some(run_id), _) => {
                written.recorded += 1;
                let tenant_hash = hashes.get(&run_id).copied().unwrap_or_default();
                written.claims.push(RunClaim {
                    lease: Lease { run_id, token: number },
                    run_at: now,
                    until,
                    tenant_hash,
                });
            }
            (None, "stale") => return Ok(None),
            (None, "skipped") => written.skipped += number as usize,
            (None, _) => written.recorded += number as usize,
        }
    }
    Ok(Some(written))
}
