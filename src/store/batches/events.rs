//! The hot path of events, written once for each database like the rest of [`super`].

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::store::batches::sqlite::recording;
use crate::store::db::text::{StoredJson, optional, optional_document};
use crate::store::events::matches::EventBatch;
use crate::store::events::matches::EventsWritten;
use crate::store::events::matches::Locked;
use crate::store::events::matches::MatchGuard;
use crate::store::runs::lease::Lease;
use crate::store::runs::lease::RunClaim;
use crate::store::runs::shares::tenant_hash;
use crate::store::runs::{NewRun, event_ids};
use crate::store::tx::Tx;
use crate::store::{Match, StoreError};

pub(in crate::store) trait EventStatements {
    /// The versions of these shards of the index of event tasks, in the order asked for; 0 where nothing was written.
    async fn versions(&mut self, shards: &[(i32, i64)]) -> Result<Vec<(i32, i64)>, StoreError>;

    /// Locks the `due` rows of tasks, given in the order of their ids.
    async fn lock_tasks(&mut self, tasks: &[Uuid]) -> Result<Vec<Locked>, StoreError>;

    /// Those of these matches whose event has, or had, a place in a window of its task.
    async fn in_windows(&mut self, matches: &[&Match]) -> Result<Vec<(Uuid, String)>, StoreError>;

    /// Records runs of events and queues them; their tasks are locked.
    async fn record_events(
        &mut self,
        batch: &EventBatch,
        now: DateTime<Utc>,
        worker: Uuid,
    ) -> Result<EventsWritten, StoreError>;
}

/// Looking, locking and writing in one statement.
pub(in crate::store) trait GuardedEvents {
    /// Records and queues runs of events if the guard holds; `None`, and nothing written, where it does not. Events that
    /// windows have had are left out.
    async fn record_guarded(
        &mut self,
        batch: &EventBatch,
        guard: &MatchGuard<'_>,
        now: DateTime<Utc>,
        worker: Uuid,
    ) -> Result<Option<EventsWritten>, StoreError>;
}

impl EventStatements for PgConnection {
    async fn versions(&mut self, shards: &[(i32, i64)]) -> Result<Vec<(i32, i64)>, StoreError> {
        let asked: Vec<i32> = shards.iter().map(|(shard, _)| *shard).collect();
        let known: Vec<(i32, i64)> = sqlx::query_as("select shard, version from event_index where shard = any($1)")
            .bind(&asked)
            .fetch_all(self)
            .await?;
        let version = |shard: &i32| known.iter().find(|(found, _)| found == shard).map_or(0, |(_, version)| *version);
        Ok(asked.iter().map(|shard| (*shard, version(shard))).collect())
    }

    async fn lock_tasks(&mut self, tasks: &[Uuid]) -> Result<Vec<Locked>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let lock = "select d.task_id, d.epoch, d.fire_count
                      from unnest($1::uuid[]) as t (task_id)
                      join due d on d.task_id = any (array[t.task_id])
                     order by t.task_id
                       for update of d";
        Ok(sqlx::query_as(lock).bind(tasks).fetch_all(self).await?)
    }

    async fn in_windows(&mut self, matches: &[&Match]) -> Result<Vec<(Uuid, String)>, StoreError> {
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
            .fetch_all(self)
            .await?)
    }

    async fn record_events(
        &mut self,
        batch: &EventBatch,
        now: DateTime<Utc>,
        worker: Uuid,
    ) -> Result<EventsWritten, StoreError> {
        let none = MatchGuard::default();
        let written = self.record_guarded(batch, &none, now, worker).await?;
        written.ok_or_else(|| StoreError::Corrupt("a batch without a guard was refused".into()))
    }
}

impl GuardedEvents for PgConnection {
    async fn record_guarded(
        &mut self,
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
        let made: Vec<(Option<Uuid>, i64, String)> = sqlx::query_as(include_str!("../sql/fire_events.postgres.sql"))
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
            .fetch_all(self)
            .await?;
        let claimed = batch.runs.iter().filter(|ready| ready.claimed);
        let hashes: HashMap<Uuid, u32> =
            claimed.map(|ready| (ready.run.id, tenant_hash(&ready.run.tenant_id))).collect();
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
}

impl EventStatements for SqliteConnection {
    async fn versions(&mut self, shards: &[(i32, i64)]) -> Result<Vec<(i32, i64)>, StoreError> {
        let mut found = Vec::with_capacity(shards.len());
        for (shard, _) in shards {
            let version: Option<i64> = sqlx::query_scalar("select version from event_index where shard = $1")
                .bind(shard)
                .fetch_optional(&mut *self)
                .await?;
            found.push((*shard, version.unwrap_or(0)));
        }
        Ok(found)
    }

    async fn lock_tasks(&mut self, tasks: &[Uuid]) -> Result<Vec<Locked>, StoreError> {
        recording::lock_tasks(self, tasks).await
    }

    async fn in_windows(&mut self, matches: &[&Match]) -> Result<Vec<(Uuid, String)>, StoreError> {
        let keys: Vec<(Uuid, &str)> = matches.iter().map(|matched| (matched.task_id, matched.arrival.key())).collect();
        recording::in_windows(self, &keys).await
    }

    async fn record_events(
        &mut self,
        batch: &EventBatch,
        now: DateTime<Utc>,
        worker: Uuid,
    ) -> Result<EventsWritten, StoreError> {
        recording::record(self, batch, now, worker).await
    }
}

impl EventStatements for Tx<'_> {
    async fn versions(&mut self, shards: &[(i32, i64)]) -> Result<Vec<(i32, i64)>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.versions(shards).await,
            Tx::Sqlite(conn) => conn.versions(shards).await,
        }
    }

    async fn lock_tasks(&mut self, tasks: &[Uuid]) -> Result<Vec<Locked>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.lock_tasks(tasks).await,
            Tx::Sqlite(conn) => conn.lock_tasks(tasks).await,
        }
    }

    async fn in_windows(&mut self, matches: &[&Match]) -> Result<Vec<(Uuid, String)>, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.in_windows(matches).await,
            Tx::Sqlite(conn) => conn.in_windows(matches).await,
        }
    }

    async fn record_events(
        &mut self,
        batch: &EventBatch,
        now: DateTime<Utc>,
        worker: Uuid,
    ) -> Result<EventsWritten, StoreError> {
        match self {
            Tx::Postgres(conn) => conn.record_events(batch, now, worker).await,
            Tx::Sqlite(conn) => conn.record_events(batch, now, worker).await,
        }
    }
}
