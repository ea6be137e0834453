//! Open windows, held events, `dedup` keys, `throttle` rates: the store of rules about events.
//!
//! Everything is written under the lock of the task's `due` row, so two batches never decide about one key at once. The
//! functions are steps inside a transaction that its caller opened and commits.

use std::borrow::Cow;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::trigger::event::{Arrival, EventWindow, HELD_EVENTS, WINDOW_BYTES, WindowKind};
use crate::store::StoreError;
use crate::store::db::text::{document, text};
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::tx::Tx;

/// Outcome of an event that was put into a window.
#[derive(Debug)]
pub(in crate::store) enum WindowOutcome {
    /// It waits. `before`: the window that had no room for it closed, with these events.
    Waits { before: Option<(Uuid, Vec<CollectedEvent>)> },
    /// It was the last that its window waited for.
    Full { id: Uuid, events: Vec<CollectedEvent> },
}

/// An event of a window as it is kept: a text, for nobody looks into it before its run does.
#[derive(Debug)]
pub(in crate::store) struct CollectedEvent {
    /// Empty where it has none.
    pub id: String,
    pub body: Box<RawValue>,
}

/// Of an event, what its window's record names.
#[derive(Deserialize)]
struct CollectedId<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// A [`Cause::Event`](crate::domain::run::cause::Cause::Event) of texts.
#[derive(Serialize)]
pub(in crate::store) struct CollectedCause<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    event: &'a RawValue,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<&'a RawValue>,
}

/// The events of a window with their places, and where it is read on.
pub(in crate::store) struct CollectedEvents {
    pub events: Vec<CollectedEvent>,
    /// Place of the last event, also of one that can't be read; 0: there was none.
    pub last: i64,
}

/// Behind the place `$2`, in the order in which they came.
pub(in crate::store) const EVENTS: &str = "
    select seq, cast(body as text) from window_events
     where window_id = $1 and body is not null and seq > $2 order by seq";

#[derive(sqlx_macros::FromRow)]
struct OpenWindowRow {
    id: Uuid,
    opened_at: DateTime<Utc>,
    events: i32,
    bytes: i64,
}

/// Whether this event has its record, or its place in a window, already.
pub(in crate::store) async fn is_recorded(tx: &mut Tx<'_>, task_id: Uuid, event_key: &str) -> Result<bool, StoreError> {
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
/// `per / limit`). One that can't be read begins anew.
pub(in crate::store) async fn try_throttle(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    key: &str,
    limit: u64,
    per: TimeDelta,
    now: DateTime<Utc>,
    unreadable: &UnreadableRow,
) -> Result<bool, StoreError> {
    let key = text(key);
    let counted = tx
        .query("select task_id, arrival_at from throttles where task_id = $1 and key = $2")
        .bind(task_id)
        .bind(&key)
        .rows()
        .await?;
    let (counted, _) = unreadable.partition_readable::<(Uuid, DateTime<Utc>), _, Uuid>("throttles", &counted, Ok);
    let arrival = counted.first().map(|(_, arrival)| *arrival);
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

/// Puts an event into its window. One that can't be read closes with the events that it has, and the next begins.
pub(in crate::store) async fn collect(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    tenant: &str,
    window: &EventWindow,
    arrival: &Arrival,
    now: DateTime<Utc>,
    unreadable: &UnreadableRow,
) -> Result<WindowOutcome, StoreError> {
    let key = text(&window.key);
    let bytes = arrival.document().get().len() as i64;
    let found = tx
        .query("select id, opened_at, events, bytes from event_windows where task_id = $1 and kind = $2 and key = $3")
        .bind(task_id)
        .bind(window.kind.as_str())
        .bind(&key)
        .rows()
        .await?;
    let (found, lost) = unreadable.partition_readable::<OpenWindowRow, _, Uuid>("event_windows", &found, Ok);
    let mut open = found.into_iter().next();
    let full = open.take_if(|open| open.bytes + bytes > WINDOW_BYTES as i64).map(|full| full.id);
    let mut before = None;
    if let Some(id) = lost.first().copied().or(full) {
        let events = close(tx, id, unreadable).await?;
        before = (!events.is_empty()).then_some((id, events));
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
        return Ok(WindowOutcome::Full { id, events: close(tx, id, unreadable).await? });
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
    .bind(document(arrival.document())?)
    .bind(now)
    .execute()
    .await?;
    Ok(())
}

/// Closes a window: its events, in the order in which they came.
async fn close(tx: &mut Tx<'_>, id: Uuid, unreadable: &UnreadableRow) -> Result<Vec<CollectedEvent>, StoreError> {
    let collected = events_behind(tx, id, 0, unreadable).await?;
    forget(tx, id).await?;
    Ok(collected.events)
}

/// The events of a window behind a place.
pub(in crate::store) async fn events_behind(
    tx: &mut Tx<'_>,
    id: Uuid,
    place: i64,
    unreadable: &UnreadableRow,
) -> Result<CollectedEvents, StoreError> {
    let rows: Vec<(i64, String)> = tx.query(EVENTS).bind(id).bind(place).all().await?;
    Ok(CollectedEvents::read(id, rows, unreadable))
}

impl CollectedEvents {
    /// Reads what [`EVENTS`] answers. An event that can't be read is told of, and left out.
    pub fn read(window_id: Uuid, rows: Vec<(i64, String)>, unreadable: &UnreadableRow) -> CollectedEvents {
        let last = rows.last().map_or(0, |(place, _)| *place);
        let read = |(_, body): (i64, String)| {
            let event = CollectedEvent::read(body);
            event.inspect_err(|error| unreadable.report("window_events", window_id, error)).ok()
        };
        CollectedEvents { events: rows.into_iter().filter_map(read).collect(), last }
    }
}

impl CollectedEvent {
    fn read(body: String) -> Result<CollectedEvent, serde_json::Error> {
        let body = RawValue::from_string(body)?;
        let id = serde_json::from_str::<CollectedId<'_>>(body.get()).map(|named| named.id.into_owned());
        Ok(CollectedEvent { id: id.unwrap_or_default(), body })
    }
}

impl<'a> CollectedCause<'a> {
    /// Of one event, or of many with the last as the one that fires; `None` without any.
    pub fn of(events: &'a [CollectedEvent]) -> Option<CollectedCause<'a>> {
        let event = &*events.last()?.body;
        let all = if events.len() > 1 { events } else { &[] };
        Some(CollectedCause { kind: "event", event, events: all.iter().map(|event| &*event.body).collect() })
    }
}

/// Forgets a window whose events are recorded; that it had them is remembered.
pub(in crate::store) async fn forget(tx: &mut Tx<'_>, id: Uuid) -> Result<(), StoreError> {
    for statement in
        ["update window_events set body = null where window_id = $1", "delete from event_windows where id = $1"]
    {
        tx.query(statement).bind(id).execute().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::cause::Cause;

    #[test]
    fn cause_of_texts_is_read_as_the_cause_of_their_values() {
        let bodies = [json!({ "id": "1", "data": ["\u{1}", 1.5] }), json!({ "data": null }), json!({ "id": "a\"b" })];
        let rows: Vec<(i64, String)> = bodies.iter().map(|body| (7, body.to_string())).collect();
        let collected = CollectedEvents::read(Uuid::nil(), rows, &UnreadableRow::default());
        let ids: Vec<&str> = collected.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!((ids, collected.last), (vec!["1", "", "a\"b"], 7));
        let read = |events: &[CollectedEvent]| {
            let cause = serde_json::to_string(&CollectedCause::of(events).expect("an event")).expect("a text");
            serde_json::from_str::<Cause>(&cause).expect("a cause")
        };
        let all = Cause::Event { event: bodies[2].clone(), events: bodies.to_vec() };
        assert_eq!(read(&collected.events), all);
        assert_eq!(read(&collected.events[..1]), Cause::Event { event: bodies[0].clone(), events: Vec::new() });
        assert!(CollectedCause::of(&[]).is_none());
    }

    #[test]
    fn event_that_is_no_json_is_left_out() {
        let rows = vec![(1, "{".to_owned()), (2, "[7]".to_owned()), (3, "{".to_owned())];
        let collected = CollectedEvents::read(Uuid::nil(), rows, &UnreadableRow::default());
        assert_eq!((collected.events.len(), collected.last), (1, 3));
    }
}
