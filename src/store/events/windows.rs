//! Open windows, held events, `dedup` keys, `throttle` rates: the store of rules about events.
//!
//! Everything is written under the lock of the task's `due` row, so two batches never decide about one key at once. The
//! functions are steps inside a transaction that its caller opened and commits.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::task::change::REASON_MAX_RUNS;
use crate::domain::trigger::event::{Arrival, EventWindow, HELD_EVENTS, WINDOW_BYTES, WindowKind};
use crate::store::StoreError;
use crate::store::db::text::{document, text};
use crate::store::tx::Tx;

/// Outcome of an event that was put into a window.
#[derive(Debug)]
pub(in crate::store) enum WindowOutcome {
    /// It waits. `before`: the window that had no room for it closed, with these events.
    Waits { before: Option<(Uuid, Vec<Value>)> },
    /// It was the last that its window waited for.
    Full { id: Uuid, events: Vec<Value> },
}

#[derive(sqlx_macros::FromRow)]
struct OpenWindowRow {
    id: Uuid,
    opened_at: DateTime<Utc>,
    events: i32,
    bytes: i64,
}

/// Whether this event has its record, or its place in a window, already.
pub(in crate::store) async fn seen(tx: &mut Tx<'_>, task_id: Uuid, event_key: &str) -> Result<bool, StoreError> {
    let found: Option<i32> = tx
        .query(
            "select 1 from window_events where task_id = $1 and event_key = $2
             union all
             select 1 from runs where task_id = $1 and fire_key = $3
             limit 1",
        )
        .bind(task_id)
        .bind(event_key)
        .bind(format!("e:{event_key}"))
        .optional_scalar()
        .await?;
    Ok(found.is_some())
}

/// Whether the key is new, or was forgotten by now; it is remembered until `until` then.
pub(in crate::store) async fn is_first(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    key: &str,
    event_key: &str,
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let remembered = tx
        .query(
            "insert into dedups (task_id, key, event_key, expires_at) values ($1, $2, $3, $4)
             on conflict (task_id, key) do update
                set event_key = excluded.event_key, expires_at = excluded.expires_at
              where dedups.expires_at <= $5",
        )
        .bind(task_id)
        .bind(text(key))
        .bind(event_key)
        .bind(until)
        .bind(now)
        .execute()
        .await?;
    Ok(remembered == 1)
}

/// Whether the rate of the key lets one more through; counted then (GCRA: a burst of `limit`, then one each
/// `per / limit`).
pub(in crate::store) async fn try_throttle(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    key: &str,
    limit: u64,
    per: TimeDelta,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let key = text(key);
    let arrival: Option<DateTime<Utc>> = tx
        .query("select arrival_at from throttles where task_id = $1 and key = $2")
        .bind(task_id)
        .bind(&key)
        .optional_scalar()
        .await?;
    let each = TimeDelta::milliseconds((per.num_milliseconds() / limit.max(1) as i64).max(1));
    let next = arrival.map_or(now, |arrival| arrival.max(now)) + each;
    if next > now + per {
        return Ok(false);
    }
    tx.query(
        "insert into throttles (task_id, key, arrival_at) values ($1, $2, $3)
         on conflict (task_id, key) do update set arrival_at = excluded.arrival_at",
    )
    .bind(task_id)
    .bind(&key)
    .bind(next)
    .execute()
    .await?;
    Ok(true)
}

/// Puts an event into its window.
pub(in crate::store) async fn collect(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    tenant: &str,
    window: &EventWindow,
    arrival: &Arrival,
    now: DateTime<Utc>,
) -> Result<WindowOutcome, StoreError> {
    let key = text(&window.key);
    let bytes = arrival.value().to_string().len() as i64;
    let mut open: Option<OpenWindowRow> = tx
        .query("select id, opened_at, events, bytes from event_windows where task_id = $1 and kind = $2 and key = $3")
        .bind(task_id)
        .bind(window.kind.as_str())
        .bind(&key)
        .optional()
        .await?;
    let mut before = None;
    if let Some(full) = open.take_if(|open| open.bytes + bytes > WINDOW_BYTES as i64) {
        before = Some((full.id, close(tx, full.id).await?));
    }
    let (id, events, opened_at) = match &open {
        Some(open) => (open.id, open.events + 1, open.opened_at),
        None => (new_id(now), 1, now),
    };
    let last = opened_at + window.longest;
    let closes_at = window.quiet.map_or(last, |quiet| last.min(now + quiet));
    tx.query(
        "insert into event_windows (id, task_id, tenant_id, kind, key, opened_at, closes_at, events, bytes)
         values ($1, $2, $3, $4, $5, $6, $7, 1, $8)
         on conflict (task_id, kind, key) do update
            set closes_at = excluded.closes_at, events = event_windows.events + 1,
                bytes = event_windows.bytes + excluded.bytes",
    )
    .bind(id)
    .bind(task_id)
    .bind(tenant)
    .bind(window.kind.as_str())
    .bind(&key)
    .bind(opened_at)
    .bind(closes_at)
    .bind(bytes)
    .execute()
    .await?;
    append_event(tx, task_id, arrival, id, now).await?;
    if events as u64 >= window.size {
        return Ok(WindowOutcome::Full { id, events: close(tx, id).await? });
    }
    Ok(WindowOutcome::Waits { before })
}

/// Keeps an event for the resume of its task; false where it keeps as many as it may.
pub(in crate::store) async fn buffer_while_paused(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    tenant: &str,
    arrival: &Arrival,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let held: Option<Uuid> = tx
        .query(
            "insert into event_windows (id, task_id, tenant_id, kind, key, opened_at, events)
             values ($1, $2, $3, $4, '', $5, 1)
             on conflict (task_id, kind, key) do update set events = event_windows.events + 1
              where event_windows.events < $6
             returning id",
        )
        .bind(new_id(now))
        .bind(task_id)
        .bind(tenant)
        .bind(WindowKind::Buffer.as_str())
        .bind(now)
        .bind(HELD_EVENTS as i32)
        .optional_scalar()
        .await?;
    if let Some(id) = held {
        append_event(tx, task_id, arrival, id, now).await?;
    }
    Ok(held.is_some())
}

/// Writes an event down as the last of a window.
pub(in crate::store) async fn append_event(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    arrival: &Arrival,
    window_id: Uuid,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tx.query(
        "insert into window_events (task_id, event_key, window_id, seq, body, created_at)
         select $1, $2, $3, coalesce(max(seq), 0) + 1, $4, $5 from window_events where window_id = $3",
    )
    .bind(task_id)
    .bind(arrival.key())
    .bind(window_id)
    .bind(document(arrival.value())?)
    .bind(now)
    .execute()
    .await?;
    Ok(())
}

/// Closes a window: its events, in the order in which they came.
pub(in crate::store) async fn close(tx: &mut Tx<'_>, id: Uuid) -> Result<Vec<Value>, StoreError> {
    let bodies: Vec<Json<Value>> = tx
        .query("select body from window_events where window_id = $1 and body is not null order by seq")
        .bind(id)
        .scalars()
        .await?;
    for statement in
        ["update window_events set body = null where window_id = $1", "delete from event_windows where id = $1"]
    {
        tx.query(statement).bind(id).execute().await?;
    }
    Ok(bodies.into_iter().map(|body| body.0).collect())
}

/// Records that a task has had all its runs.
pub(in crate::store) async fn complete(tx: &mut Tx<'_>, task_id: Uuid, now: DateTime<Utc>) -> Result<(), StoreError> {
    tx.query(
        "update tasks set status = 'completed', status_reason = $2, version = version + 1, updated_at = $3
          where id = $1 and status = 'active'",
    )
    .bind(task_id)
    .bind(REASON_MAX_RUNS)
    .bind(now)
    .execute()
    .await?;
    Ok(())
}
