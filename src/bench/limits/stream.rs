//! Limits of events: entries through Redis streams, and runs of events inserted, by plain loops.

use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::bench::DirectPool;
use crate::bench::env::random_id;
use crate::bench::limits::rate;

/// A stream of entries like ours, read and acknowledged by a plain loop.
pub struct Stream {
    connection: MultiplexedConnection,
    key: String,
}

impl Stream {
    pub async fn new(url: &str, prefix: &str) -> anyhow::Result<Stream> {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Stream { connection, key: format!("{prefix}:bare") })
    }

    /// Entries per second by XADD, `batch` at once in a pipeline.
    pub async fn add(&mut self, bodies: &[String], batch: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        for part in bodies.chunks(batch) {
            let mut pipe = redis::pipe();
            for body in part {
                pipe.cmd("XADD").arg(&self.key).arg("*").arg("event").arg(body).ignore();
            }
            let () = pipe.query_async(&mut self.connection).await?;
        }
        Ok(rate(bodies.len(), began))
    }

    /// Entries per second by XREADGROUP and XACK, `batch` at once.
    pub async fn read(&mut self, entries: usize, batch: usize) -> anyhow::Result<f64> {
        let key = self.key.as_str();
        let () = redis::cmd("XGROUP").arg(&["CREATE", key, "bare", "0"]).query_async(&mut self.connection).await?;
        let began = Instant::now();
        let mut seen = 0;
        while seen < entries {
            let mut read = redis::cmd("XREADGROUP");
            read.arg(&["GROUP", "bare", "one", "COUNT"]).arg(batch).arg(&["STREAMS", key, ">"]);
            let ids = ids(&read.query_async(&mut self.connection).await?);
            anyhow::ensure!(!ids.is_empty(), "the plain reader found {seen} of {entries} entries");
            seen += ids.len();
            let _: i64 = redis::cmd("XACK").arg(key).arg("bare").arg(&ids).query_async(&mut self.connection).await?;
        }
        Ok(rate(entries, began))
    }
}

/// The ids in an answer of XREADGROUP for one stream.
fn ids(answer: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_sequence().map(<[Value]>::to_vec).unwrap_or_default();
    let streams = list(answer);
    let entries = streams.first().map(list).and_then(|stream| stream.get(1).map(list)).unwrap_or_default();
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    entries.iter().filter_map(|entry| list(entry).first().map(text)).collect()
}

/// Fields of an event's run that differ from run to run.
pub struct StreamRow {
    pub task_id: Uuid,
    pub tenant: String,
    pub fire_key: String,
    /// JSON.
    pub event_ids: String,
    pub cause: String,
}

/// Runs per second by bare inserts of the rows that events become, their records and their places in the queue, `batch`
/// in a transaction.
pub async fn insert_runs(bare: &DirectPool, rows: &[StreamRow], batch: usize) -> anyhow::Result<f64> {
    match bare {
        DirectPool::Postgres(pool) => {
            for table in ["runs", "queue"] {
                let copy = format!("create table bare_{table} (like {table} including all)");
                sqlx::query(sqlx::AssertSqlSafe(copy)).execute(pool).await?;
            }
            let began = Instant::now();
            for part in rows.chunks(batch) {
                let ids: Vec<_> = part.iter().map(|_| random_id()).collect();
                let tasks: Vec<_> = part.iter().map(|row| row.task_id).collect();
                let tenants: Vec<_> = part.iter().map(|row| row.tenant.as_str()).collect();
                let mut transaction = pool.begin().await?;
                sqlx::query(
                    "insert into bare_runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state,
                                            created_at, event_ids, cause)
                     select id, task_id, tenant, key, 'event', now(), 'queued', now(), event_ids::jsonb, cause::jsonb
                       from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
                            as r (id, task_id, tenant, key, event_ids, cause)",
                )
                .bind(&ids)
                .bind(&tasks)
                .bind(&tenants)
                .bind(part.iter().map(|row| row.fire_key.as_str()).collect::<Vec<_>>())
                .bind(part.iter().map(|row| row.event_ids.as_str()).collect::<Vec<_>>())
                .bind(part.iter().map(|row| row.cause.as_str()).collect::<Vec<_>>())
                .execute(&mut *transaction)
                .await?;
                sqlx::query(
                    "insert into bare_queue (run_id, task_id, tenant_id, epoch, run_at, state)
                     select id, task_id, tenant, 1, now(), 'ready'
                       from unnest($1::uuid[], $2::uuid[], $3::text[]) as q (id, task_id, tenant)",
                )
                .bind(&ids)
                .bind(&tasks)
                .bind(&tenants)
                .execute(&mut *transaction)
                .await?;
                transaction.commit().await?;
            }
            Ok(rate(rows.len(), began))
        }
        DirectPool::Sqlite(pool) => {
            for table in [
                "create table bare_runs (id blob primary key, task_id blob, tenant_id text, fire_key text,
                    trigger_type text, state text, created_at text, event_ids text, cause text, unique (task_id, fire_key))",
                "create index bare_runs_of_tenant on bare_runs (tenant_id, id)",
                "create index bare_runs_of_task on bare_runs (task_id, id)",
                "create table bare_queue (run_id blob primary key, task_id blob, tenant_id text, run_at text, state text)",
                "create index bare_queue_ready on bare_queue (run_at)",
                "create index bare_queue_of_task on bare_queue (task_id)",
            ] {
                sqlx::query(table).execute(pool).await?;
            }
            let began = Instant::now();
            for part in rows.chunks(batch) {
                let mut transaction = pool.begin().await?;
                for row in part {
                    let id = random_id();
                    sqlx::query(
                        "insert into bare_runs (id, task_id, tenant_id, fire_key, trigger_type, state, created_at,
                                                event_ids, cause)
                         values ($1, $2, $3, $4, 'event', 'queued', '2027-03-01T08:00:00.000+00:00', $5, $6)",
                    )
                    .bind(id)
                    .bind(row.task_id)
                    .bind(&row.tenant)
                    .bind(&row.fire_key)
                    .bind(&row.event_ids)
                    .bind(&row.cause)
                    .execute(&mut *transaction)
                    .await?;
                    sqlx::query(
                        "insert into bare_queue (run_id, task_id, tenant_id, run_at, state)
                         values ($1, $2, $3, '2027-03-01T08:00:00.000+00:00', 'ready')",
                    )
                    .bind(id)
                    .bind(row.task_id)
                    .bind(&row.tenant)
                    .execute(&mut *transaction)
                    .await?;
                }
                transaction.commit().await?;
            }
            Ok(rate(rows.len(), began))
        }
    }
}
