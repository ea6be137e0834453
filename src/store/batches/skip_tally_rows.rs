//! Skip tallies as rows. The first fire that is skipped in an hour makes the row of that hour, and each later one is
//! added to it.
//!
//! The row keeps the id and the `created_at` of its first fire. Lists, their cursors and retention go by the id, which
//! holds a time: a tally stands in lists where its first fire stood, and retention deletes it an hour too early at
//! most. `scheduled_for` and `finished_at` move on with the latest fire: no order and no index goes by them.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::types::Json;
use sqlx::{PgConnection, QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::domain::run::MissedInstants;
use crate::store::StoreError;
use crate::store::db::sqlite_batch::{chunks, is_reusable};
use crate::store::runs::{SkipTallies, SkipTally, key_instant};
use crate::store::tx::Tx;

/// The instants of a span are texts of one length, so their order as texts is that of the instants. A stored span that
/// can't be read stays as it is or is replaced. It keeps no other row of the batch from being written.
const POSTGRES: &str = "
    insert into runs as r (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, created_at,
                           finished_at)
    select id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, 'skipped', reason, missed, created_at,
           created_at
      from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::jsonb[],
                  $9::timestamptz[])
           as s (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, reason, missed, created_at)
    on conflict (task_id, fire_key) do update
       set scheduled_for = greatest(r.scheduled_for, excluded.scheduled_for),
           finished_at = greatest(r.finished_at, excluded.finished_at),
           missed = jsonb_build_object(
               'from', least(r.missed ->> 'from', excluded.missed ->> 'from'),
               'to', greatest(r.missed ->> 'to', excluded.missed ->> 'to'),
               'count', case when jsonb_typeof(r.missed -> 'count') = 'number'
                             then (r.missed ->> 'count')::numeric + (excluded.missed ->> 'count')::numeric end)
    returning r.id";

const INTO_RUNS: &str = "
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, created_at,
                      finished_at) ";
const ADDED: &str = "
    on conflict (task_id, fire_key) do update
       set scheduled_for = max(runs.scheduled_for, excluded.scheduled_for),
           finished_at = max(runs.finished_at, excluded.finished_at),
           missed = case when typeof(runs.missed) = 'text' and json_valid(runs.missed)
                         then json_object(
                             'from', coalesce(min(runs.missed ->> 'from', excluded.missed ->> 'from'),
                                              excluded.missed ->> 'from'),
                             'to', coalesce(max(runs.missed ->> 'to', excluded.missed ->> 'to'), excluded.missed ->> 'to'),
                             'count', (runs.missed ->> 'count') + (excluded.missed ->> 'count'))
                         else excluded.missed end
    returning id";

impl Tx<'_> {
    /// Writes tallies. A tally is added to the record of its hour if there is one, and becomes that record otherwise.
    /// The caller has locked the tasks. Answers the ids of the records.
    pub(in crate::store) async fn tally_skips(&mut self, tallies: &SkipTallies) -> Result<Vec<Uuid>, StoreError> {
        let rows = tallies.rows();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Tx::Postgres(conn) => on_postgres(conn, &rows).await,
            Tx::Sqlite(conn) => on_sqlite(conn, &rows).await,
        }
    }
}

async fn on_postgres(conn: &mut PgConnection, rows: &[&SkipTally]) -> Result<Vec<Uuid>, StoreError> {
    let records = || rows.iter().map(|tally| &tally.record);
    Ok(sqlx::query_scalar(POSTGRES)
        .bind(records().map(|record| record.id).collect::<Vec<_>>())
        .bind(records().map(|record| record.task_id).collect::<Vec<_>>())
        .bind(records().map(|record| record.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(records().map(|record| record.fire_key.as_str()).collect::<Vec<_>>())
        .bind(records().map(|record| record.trigger_type.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|tally| tally.span.to).collect::<Vec<DateTime<Utc>>>())
        .bind(records().map(|record| record.reason.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|tally| Json(span_document(&tally.span))).collect::<Vec<_>>())
        .bind(records().map(|record| record.created_at).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?)
}

async fn on_sqlite(conn: &mut SqliteConnection, rows: &[&SkipTally]) -> Result<Vec<Uuid>, StoreError> {
    let mut ids = Vec::with_capacity(rows.len());
    for rows in chunks(rows) {
        let written: Vec<Uuid> = sqlite_statement(rows)
            .build_query_scalar()
            .persistent(is_reusable(rows.len()))
            .fetch_all(&mut *conn)
            .await?;
        ids.extend(written);
    }
    Ok(ids)
}

fn sqlite_statement(rows: &[&SkipTally]) -> QueryBuilder<Sqlite> {
    let mut insert = QueryBuilder::new(INTO_RUNS);
    insert.push_values(rows, |mut row, tally| {
        let record = &tally.record;
        row.push_bind(record.id).push_bind(record.task_id).push_bind(record.tenant_id.clone());
        row.push_bind(record.fire_key.clone()).push_bind(record.trigger_type.clone()).push_bind(tally.span.to);
        row.push("'skipped'").push_bind(record.reason.clone());
        row.push_bind(Json(span_document(&tally.span))).push_bind(record.created_at).push_bind(record.created_at);
    });
    insert.push(ADDED);
    insert
}

/// The stored form of a span: its instants have milliseconds, like those in fire keys.
fn span_document(span: &MissedInstants) -> Value {
    json!({ "from": key_instant(span.from), "to": key_instant(span.to), "count": span.count })
}
