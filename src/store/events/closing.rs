//! Windows that close and held events that are released: what was collected becomes runs.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::compute::{ENGINE, steps_to_parse};
use crate::base::id::Scope;
use crate::domain::event::Event;
use crate::domain::halt::HaltKind;
use crate::domain::task::TaskStatus;
use crate::store::events::due_windows::{DueRelease, DueWindow, EventRelease};
use crate::store::events::matches::{EventsRecorded, LockedTask, RecordedSubject};
use crate::store::events::matching::{EventsFired, FireEvents, not_halted};
use crate::store::events::recording::{BatchEffects, Recording, write_recording};
use crate::store::events::windows::{self, CollectedEvents};
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::runs::starting::immediate_start::{LeaseTerms, RemainingCapacity};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// Events that a resumed task has held, some of them, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldEvents {
    /// Id of the window.
    pub window_id: Uuid,
    /// The task that has held the events.
    pub task_id: Uuid,
    /// The fate of the events.
    pub release: EventRelease,
    /// Events, oldest first.
    pub events: Vec<Event>,
}

/// A task whose window closes.
#[derive(sqlx_macros::FromRow)]
struct Owner {
    status: String,
    epoch: i64,
    max_runs: Option<Json<Option<i64>>>,
}

const OWNER: &str = "select status, epoch, spec -> 'max_runs' as max_runs from tasks where id = $1";
const PUT_OFF: &str = "update event_windows set closes_at = $2 where id = $1";

/// The first held events of a window, `$2` of them and `$3` bytes at most, or one more.
const HELD: Split = Split {
    postgres: sql!(HELD_TEXTS; "{is_one}" = "= any (array({measured}))"; "{measured}" = MEASURED),
    sqlite: sql!(HELD_TEXTS; "{is_one}" = "in ({measured})"; "{measured}" = MEASURED),
};
const HELD_TEXTS: &str = "
    select cast(e.body as text) from window_events e where e.window_id = $1 and e.seq {is_one} order by e.seq";
/// No text is read of what does not fit.
const MEASURED: &str = "
    select m.seq
      from (select d.seq, sum(d.stored_bytes) over (order by d.seq) - d.stored_bytes as bytes_before
              from (select w.seq, w.stored_bytes from window_events w
                     where w.window_id = $1 and w.body is not null order by w.seq limit $2) d) m
     where m.bytes_before < cast($3 as bigint)";

/// Why a window is looked at again later.
const NO_EVENT: &str = "none of its events can be read";
const NO_TASK: &str = "its task is not there";

/// Bytes of held events, as counted when they came, after which no further one is read: parsed they take several times
/// as many.
const RELEASED_BYTES: i64 = 1_048_576;

async fn owner_of(tx: &mut Tx<'_>, task_id: Uuid) -> Result<Option<Owner>, StoreError> {
    Ok(tx.query(OWNER).bind(task_id).optional().await?)
}

/// An event as it is kept.
fn read_event(body: &str) -> Result<Event, String> {
    let value: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
    Event::try_from(value).map_err(|faults| faults.to_string())
}

/// Released by the resume of its task: found like a window that is due.
pub(in crate::store) const RELEASE: &str =
    "update event_windows set release = $2, closes_at = $3 where task_id = $1 and kind = 'buffer'";

/// Everything that is kept of the events of a task, but what became runs.
pub(in crate::store) const FORGET_TASK: [&str; 4] = [
    "delete from window_events where task_id = $1",
    "delete from event_windows where task_id = $1",
    "delete from throttles where task_id = $1",
    "delete from dedups where task_id = $1",
];

impl Store {
    /// When the next window closes; `None` where none is open.
    pub async fn next_window(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_window()).await
    }

    async fn read_next_window(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query("select closes_at from event_windows where closes_at is not null order by closes_at limit 1")
            .optional_scalar()
            .await?)
    }

    /// Closes windows that are due at `now`, all in one transaction: each becomes a run of all its events, or is
    /// recorded as skipped where its task does not fire any more, or its tenant is halted. An event that can't be read
    /// is left out; a window without another one, or whose task can't be read, is looked at again in an hour.
    pub async fn close_windows(
        &self,
        due: &[DueWindow],
        now: DateTime<Utc>,
        worker: Uuid,
        room: usize,
    ) -> Result<EventsRecorded, StoreError> {
        if due.is_empty() {
            return Ok(EventsRecorded::default());
        }
        let mut tasks: Vec<Uuid> = due.iter().map(|window| window.task_id).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let halts = self.halts().await?;
        let tenants: BTreeSet<&str> = due.iter().map(|window| window.tenant_id.as_str()).collect();
        let full = self.full_tenants(tenants).await?;
        let collected = self.read_collected(due).await?;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let (began, mut closed) = (Instant::now(), 0);
        let locked: HashMap<Uuid, LockedTask> =
            tx.lock_tasks(&tasks).await?.into_iter().map(|row| (row.task_id, row)).collect();
        let mut recording = Recording::new(now, RemainingCapacity::new(room, None), locked, &self.unreadable);
        recording.set_full_tenants(full);
        for (window, CollectedEvents { mut events, last }) in due.iter().zip(collected) {
            // another event may have kept it open meanwhile, another instance may have closed it
            let still: Option<i32> = tx
                .query("select 1 from event_windows where id = $1 and closes_at <= $2")
                .bind(window.id)
                .bind(now)
                .optional_scalar()
                .await?;
            if still.is_none() {
                continue;
            }
            let owner = match owner_of(tx, window.task_id).await {
                Err(StoreError::Corrupt(why)) => {
                    self.put_off(tx, window.id, &why, now).await?;
                    continue;
                }
                owner => owner?,
            };
            let Some(owner) = owner else {
                self.put_off(tx, window.id, &NO_TASK, now).await?;
                continue;
            };
            // those that came since it was read
            events.extend(windows::events_behind(tx, window.id, last, &self.unreadable).await?.events);
            closed += events.len();
            if events.is_empty() {
                self.put_off(tx, window.id, &NO_EVENT, now).await?;
                continue;
            }
            windows::forget(tx, window.id).await?;
            let of = RecordedSubject {
                task_id: window.task_id,
                tenant: &window.tenant_id,
                epoch: owner.epoch,
                max_runs: owner.max_runs.and_then(|most| most.0),
            };
            let inactive = (owner.status != TaskStatus::Active.as_str()).then_some(owner.status.as_str());
            let halted = halts.halt_of(&window.tenant_id).map(HaltKind::as_str);
            recording.close_window(of, window.id, &events, inactive.or(halted))?;
        }
        let terms = LeaseTerms { now, worker, started_until: None };
        let (recorded, effects) = write_recording(tx, recording, &terms).await?;
        self.learn(&self.paces.windows, closed, began);
        write.commit().await?;
        self.notify_recorded(&recorded, &effects);
        Ok(recorded)
    }

    /// The events of windows, read before anybody waits for the transaction that closes them.
    async fn read_collected(&self, due: &[DueWindow]) -> Result<Vec<CollectedEvents>, StoreError> {
        let mut read = self.db.read().await?;
        let (mut rows, mut bytes) = (Vec::with_capacity(due.len()), 0);
        for window in due {
            let some: Vec<(i64, String)> = read.query(windows::EVENTS).bind(window.id).bind(0_i64).all().await?;
            bytes += some.iter().map(|(_, body)| body.len()).sum::<usize>();
            rows.push((window.id, some));
        }
        read.end().await?;
        let unreadable = self.unreadable.clone();
        let work = move || {
            let each = rows.into_iter().map(|(id, rows)| CollectedEvents::read(id, rows, &unreadable));
            each.collect::<Vec<_>>()
        };
        let computed = self.computing.run_if_costly(ENGINE, steps_to_parse(bytes), work).await;
        computed.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))
    }

    /// Says once why a window can't be closed, and looks at it again in an hour: a step of the transaction that closes
    /// others.
    async fn put_off(
        &self,
        tx: &mut Tx<'_>,
        id: Uuid,
        why: &(dyn Display + Sync),
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.unreadable.report("event_windows", id, why);
        tx.query(PUT_OFF).bind(id).bind(now + RETRY_AFTER).execute().await?;
        Ok(())
    }

    /// Events that a resumed task has held, the oldest `limit` of them at most and about 1 MiB of them, one at least.
    /// `None`: none of these can be read, and the window is looked at again in an hour.
    pub async fn held_events(&self, released: &DueRelease, limit: usize) -> Result<Option<HeldEvents>, StoreError> {
        let &DueRelease { window_id, task_id, release, .. } = released;
        let bodies = self.held_bodies(window_id, limit).await?;
        let (bytes, held) = (bodies.iter().map(String::len).sum::<usize>(), bodies.len());
        let unreadable = self.unreadable.clone();
        let read = move |body: String| {
            let event = read_event(&body);
            event.inspect_err(|why| unreadable.report("window_events", window_id, why)).ok()
        };
        let work = move || bodies.into_iter().filter_map(read).collect::<Vec<Event>>();
        let computed = self.computing.run_if_costly(&released.tenant_id, steps_to_parse(bytes), work).await;
        let events = computed.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))?;
        if events.is_empty() && held > 0 {
            self.set_aside_window(window_id, &NO_EVENT).await?;
            return Ok(None);
        }
        Ok(Some(HeldEvents { window_id, task_id, release, events }))
    }

    async fn held_bodies(&self, window_id: Uuid, limit: usize) -> Result<Vec<String>, StoreError> {
        let mut read = self.db.read().await?;
        let bodies = read.query(HELD).bind(window_id).bind(limit as i64).bind(RELEASED_BYTES).scalars().await?;
        read.end().await?;
        Ok(bodies)
    }

    /// Records what becomes of held events, as judged by `ask.matches` (`ask.shards` and `ask.start` are not looked
    /// at), and forgets them in the same transaction. With none, the window has been emptied and goes. A task that is
    /// paused again keeps them.
    pub async fn release_events(
        &self,
        window_id: Uuid,
        task_id: Uuid,
        ask: &FireEvents<'_>,
    ) -> Result<EventsFired, StoreError> {
        let halts = self.halts().await?;
        let matches = not_halted(ask.matches, &halts);
        let tenants: BTreeSet<&str> = matches.iter().map(|matched| matched.subject().tenant).collect();
        let full = self.full_tenants(tenants).await?;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let locked: HashMap<Uuid, LockedTask> =
            tx.lock_tasks(&[task_id]).await?.into_iter().map(|row| (row.task_id, row)).collect();
        let owner = owner_of(tx, task_id).await?;
        let (recorded, effects) = if owner.as_ref().is_some_and(|owner| owner.status == TaskStatus::Paused.as_str()) {
            tx.query("update event_windows set release = null, closes_at = null where id = $1")
                .bind(window_id)
                .execute()
                .await?;
            (EventsRecorded::default(), BatchEffects::default())
        } else if matches.iter().any(|m| locked.get(&task_id).is_none_or(|at| at.epoch != m.epoch)) {
            return Ok(EventsFired::Stale);
        } else {
            if matches.is_empty() {
                tx.query(
                    "delete from event_windows where id = $1 and not exists (
                        select 1 from window_events where window_id = $1 and body is not null)",
                )
                .bind(window_id)
                .execute()
                .await?;
            }
            let capacity = RemainingCapacity::new(ask.room, None);
            let mut recording = Recording::new(ask.now, capacity, locked, &self.unreadable);
            recording.set_full_tenants(full);
            let mut left = 0;
            for matched in matches.iter() {
                let taken = tx
                    .query("delete from window_events where task_id = $1 and event_key = $2 and window_id = $3")
                    .bind(task_id)
                    .bind(matched.arrival.key())
                    .bind(window_id)
                    .execute()
                    .await?;
                // another instance may have released it
                if taken == 1 {
                    left += 1;
                    recording.apply_match(tx, matched).await?;
                }
            }
            tx.query("update event_windows set events = events - $2 where id = $1")
                .bind(window_id)
                .bind(left)
                .execute()
                .await?;
            write_recording(tx, recording, &ask.terms()).await?
        };
        write.commit().await?;
        self.notify_recorded(&recorded, &effects);
        Ok(EventsFired::Done(recorded))
    }

    /// Forgets what rules about events need no more, up to `limit` rows of each kind: events of windows whose runs are
    /// older than `runs_before`, keys and rates whose time is over. Answers how many rows.
    pub async fn forget_event_rules(
        &self,
        now: DateTime<Utc>,
        runs_before: DateTime<Utc>,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let runs_before = runs_before - TimeDelta::days(1); // a window is older than its run
        let mut write = self.db.write(&Scope::Every).await?;
        let mut forgotten = 0;
        for (statement, before) in [
            (
                "delete from window_events where (task_id, event_key) in (
                    select task_id, event_key from window_events
                     where created_at < $1 and body is null order by created_at limit $2)",
                runs_before,
            ),
            (
                "delete from dedups where (task_id, key) in (
                    select task_id, key from dedups where expires_at <= $1 order by expires_at limit $2)",
                now,
            ),
            (
                "delete from throttles where (task_id, key) in (
                    select task_id, key from throttles where arrival_at <= $1 order by arrival_at limit $2)",
                now,
            ),
        ] {
            forgotten += write.query(statement).bind(before).bind(limit).execute().await?;
        }
        write.commit().await?;
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_held_events_are_found_by_their_window() {
        let plan = sqlite_plan(HELD.sqlite).await;
        let on_events: Vec<&String> = plan.iter().filter(|step| step.contains(" e ") || step.contains(" w ")).collect();
        let is_search = |step: &&String| step.contains("SEARCH") && step.contains("window_events_of_window");
        assert!(on_events.len() == 2 && on_events.iter().all(is_search), "{plan:?}");
    }
}
