//! Windows that close and held events that are released: what was collected becomes runs.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::words::words;
use crate::domain::event::Event;
use crate::domain::halt::HaltKind;
use crate::domain::task::TaskStatus;
use crate::store::events::matches::{EventsRecorded, LockedTask, RecordedSubject};
use crate::store::events::matching::{EventsFired, FireEvents, not_halted};
use crate::store::events::recording::{BatchEffects, Recording, write_recording};
use crate::store::events::windows;
use crate::store::{Store, StoreError};

words! {
    /// The fate of the events that a paused task has held.
    pub enum EventRelease {
        /// Each goes the way that it would have gone.
        Run = "run",
        /// Each is recorded as skipped.
        Drop = "drop",
    }
}

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

/// A window whose time has come.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct DueWindow {
    /// Id of the window.
    pub id: Uuid,
    /// The task that it belongs to.
    pub task_id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
}

/// A task whose window closes.
#[derive(sqlx_macros::FromRow)]
struct Owner {
    status: String,
    epoch: i64,
    max_runs: Option<i64>,
}

const OWNER: &str = "select status, epoch, cast(spec ->> 'max_runs' as bigint) as max_runs from tasks where id = $1";

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
        let mut read = self.db.read().await?;
        Ok(read
            .query("select closes_at from event_windows where closes_at is not null order by closes_at limit 1")
            .optional_scalar()
            .await?)
    }

    /// Up to `limit` windows that are due at `now`, the earliest first.
    pub async fn due_windows(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueWindow>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query(
                "select id, task_id, tenant_id from event_windows
                  where closes_at <= $1 and kind <> 'buffer' order by closes_at limit $2",
            )
            .bind(now)
            .bind(limit)
            .all()
            .await?)
    }

    /// Closes windows that are due at `now`, all in one transaction: each becomes a run of all its events, or is
    /// recorded as skipped where its task does not fire any more, or its tenant is halted.
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
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let locked: HashMap<Uuid, LockedTask> =
            tx.lock_tasks(&tasks).await?.into_iter().map(|row| (row.task_id, row)).collect();
        let mut recording = Recording::new(now, room, locked);
        for window in due {
            // another event may have kept it open meanwhile, another instance may have closed it
            let still: Option<i32> = tx
                .query("select 1 from event_windows where id = $1 and closes_at <= $2")
                .bind(window.id)
                .bind(now)
                .optional_scalar()
                .await?;
            let owner: Option<Owner> = tx.query(OWNER).bind(window.task_id).optional().await?;
            let (Some(_), Some(owner)) = (still, owner) else { continue };
            let events = windows::close(tx, window.id).await?;
            let of = RecordedSubject {
                task_id: window.task_id,
                tenant: &window.tenant_id,
                epoch: owner.epoch,
                max_runs: owner.max_runs,
            };
            let inactive = (owner.status != TaskStatus::Active.as_str()).then_some(owner.status.as_str());
            let halted = halts.halt_of(&window.tenant_id).map(HaltKind::as_str);
            recording.close_window(of, window.id, events, inactive.or(halted))?;
        }
        let (recorded, opened) = write_recording(tx, recording, now, worker).await?;
        write.commit().await?;
        Ok(self.notify_recorded(recorded, opened))
    }

    /// Events that resumed tasks have held: of up to `tasks` tasks, `limit` events each.
    pub async fn released_events(
        &self,
        now: DateTime<Utc>,
        tasks: i64,
        limit: i64,
    ) -> Result<Vec<HeldEvents>, StoreError> {
        let due: Vec<(Uuid, Uuid, Option<String>)> = self
            .db
            .read()
            .await?
            .query(
                "select id, task_id, release from event_windows
                  where closes_at <= $1 and kind = 'buffer' order by closes_at limit $2",
            )
            .bind(now)
            .bind(tasks)
            .all()
            .await?;
        let mut held = Vec::with_capacity(due.len());
        for (window_id, task_id, release) in due {
            let bodies: Vec<String> = self
                .db
                .read()
                .await?
                .query(
                    "select cast(body as text) from window_events
                      where window_id = $1 and body is not null order by seq limit $2",
                )
                .bind(window_id)
                .bind(limit)
                .scalars()
                .await?;
            let release = if release.as_deref() == Some("drop") { EventRelease::Drop } else { EventRelease::Run };
            let mut events = Vec::with_capacity(bodies.len());
            for body in &bodies {
                match read_event(body) {
                    Ok(event) => events.push(event),
                    Err(why) => self.unreadable.report("window_events", window_id, &why),
                }
            }
            if events.is_empty() && !bodies.is_empty() {
                self.set_aside_window(window_id, &"none of its events can be read").await?;
                continue;
            }
            held.push(HeldEvents { window_id, task_id, release, events });
        }
        Ok(held)
    }

    /// Records what becomes of held events, as judged by `ask.matches` (`ask.shards` is not looked at), and forgets them
    /// in the same transaction. With none, the window has been emptied and goes. A task that is paused again keeps
    /// them.
    pub async fn release_events(
        &self,
        window_id: Uuid,
        task_id: Uuid,
        ask: &FireEvents<'_>,
    ) -> Result<EventsFired, StoreError> {
        let halts = self.halts().await?;
        let matches = not_halted(ask.matches, &halts);
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let locked: HashMap<Uuid, LockedTask> =
            tx.lock_tasks(&[task_id]).await?.into_iter().map(|row| (row.task_id, row)).collect();
        let owner: Option<Owner> = tx.query(OWNER).bind(task_id).optional().await?;
        let (recorded, opened) = if owner.as_ref().is_some_and(|owner| owner.status == TaskStatus::Paused.as_str()) {
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
            let mut recording = Recording::new(ask.now, ask.room, locked);
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
            write_recording(tx, recording, ask.now, ask.worker).await?
        };
        write.commit().await?;
        Ok(EventsFired::Done(self.notify_recorded(recorded, opened)))
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
