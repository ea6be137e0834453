//! Windows of events that come to their close, and events that a resumed task has held: both become runs here.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use crate::base::compute::Compute;
use crate::base::expr::Language;
use crate::base::id::Scope;
use crate::domain::event::Event;
use crate::domain::task::Task;
use crate::domain::trigger::Trigger;
use crate::domain::trigger::event::{Arrival, EventVerdict, reason};
use crate::engine::events::matcher::index::indexed;
use crate::engine::events::matcher::matched;
use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::store::{
    DueRelease, DueWindow, EventRelease, EventTask, EventsFired, FireEvents, HeldEvents, Match, Store, StoreError,
    Topic,
};

/// Windows that are closed in one transaction.
const BATCH: i64 = 100;
/// Tasks whose held events are released in one look.
const RELEASED_TASKS: i64 = 10;
/// Events of each of them.
const RELEASED_EVENTS: usize = 100;
/// Of them so many are judged before another tenant has its turn.
const JUDGED: usize = 10;

/// Closes due windows of events.
pub struct WindowCloser {
    store: Store,
    prefetch: Arc<PrefetchBuffer>,
    compute: Compute,
    worker: Uuid,
}

impl WindowCloser {
    /// The service over this store.
    pub fn new(store: Store, buffered: Arc<PrefetchBuffer>, compute: Compute, worker: Uuid) -> WindowCloser {
        WindowCloser { store, prefetch: buffered, compute, worker }
    }

    /// Closes what is due, a part of it; answers whether there may be more.
    async fn close(&self) -> Result<bool, TickError> {
        let now = self.store.clock().now();
        let due = self.store.due_windows(now, BATCH).await?;
        let permit = self.prefetch.acquire_ahead(due.len());
        match self.store.close_windows(&due, now, self.worker, permit.prefetch).await {
            Ok(recorded) => self.prefetch.add(recorded.claims),
            Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "windows of events can't be closed together, they are closed one by one");
                drop(permit);
                for window in &due {
                    self.close_one(window, now).await?;
                }
            }
        }
        Ok(!due.is_empty())
    }

    async fn close_one(&self, window: &DueWindow, now: DateTime<Utc>) -> Result<(), TickError> {
        let permit = self.prefetch.acquire_ahead(1);
        match self.store.close_windows(std::slice::from_ref(window), now, self.worker, permit.prefetch).await {
            Ok(recorded) => self.prefetch.add(recorded.claims),
            Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
            Err(error) => {
                self.store.set_aside_window(window.id, &error).await?;
            }
        }
        Ok(())
    }

    /// Releases what resumed tasks have held, a part of it; answers whether there may be more.
    async fn release(&self) -> Result<bool, TickError> {
        let now = self.store.clock().now();
        let due = self.store.due_releases(now, RELEASED_TASKS).await?;
        for released in &due {
            match self.release_one(released, now).await {
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) => self.store.set_aside_window(released.window_id, &error).await?,
                Ok(()) => {}
            }
        }
        Ok(!due.is_empty())
    }

    /// Only the events of one task are read at a time: parsed they are large.
    async fn release_one(&self, released: &DueRelease, now: DateTime<Utc>) -> Result<(), StoreError> {
        let Some(buffered) = self.store.held_events(released, RELEASED_EVENTS).await? else { return Ok(()) };
        let task = self.store.find_task(&Scope::Every, released.task_id).await?;
        let matches = self.judge(buffered, task).await?;
        let permit = self.prefetch.acquire_ahead(matches.len());
        let (worker, room) = (self.worker, permit.prefetch);
        let ask = FireEvents { now, shards: &[], matches: &matches, worker, room, start: None, few: false };
        // a task that changes meanwhile is read anew at the next tick
        if let EventsFired::Done(recorded) =
            self.store.release_events(released.window_id, released.task_id, &ask).await?
        {
            self.prefetch.add(recorded.claims);
        }
        Ok(())
    }

    /// Judges the events that a task has held, a few at a time in its tenant's turns.
    async fn judge(&self, buffered: HeldEvents, task: Option<Task>) -> Result<Vec<Match>, StoreError> {
        let Some(task) = task.map(Arc::new) else { return Ok(Vec::new()) };
        let (runs, now) = (buffered.release == EventRelease::Run, self.store.clock().now());
        let mut matches = Vec::with_capacity(buffered.events.len());
        let mut left = buffered.events.into_iter();
        while left.len() > 0 {
            let (events, of): (Vec<Event>, _) = (left.by_ref().take(JUDGED).collect(), Arc::clone(&task));
            let judged = self.compute.run(&task.tenant_id, move || released(events, &of, runs, now)).await;
            matches.extend(judged.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))?);
        }
        Ok(matches)
    }
}

/// The matches of a task with events that it has held; `runs`: they are not to be dropped.
fn released(events: Vec<Event>, task: &Task, runs: bool, now: DateTime<Utc>) -> Vec<Match> {
    let facts = EventTask {
        task_id: task.id,
        tenant_id: task.tenant_id.clone(),
        name: task.name.clone(),
        metadata: task.spec.metadata.clone(),
        epoch: task.epoch,
        status: task.status,
        trigger: Value::Null,
        max_runs: task.spec.max_runs.map(|most| most as i64),
    };
    let compiled = match &task.spec.trigger {
        Trigger::Event(trigger) if runs => indexed(&facts, trigger, &Language::default()).ok(),
        _ => None,
    };
    let each = events.into_iter().map(|event| {
        let arrival = Arc::new(Arrival::new(event));
        compiled.as_ref().and_then(|task| matched(task, &arrival, now)).unwrap_or_else(|| Match {
            task_id: task.id,
            epoch: task.epoch,
            status: task.status,
            buffer_while_paused: true,
            max_runs: facts.max_runs,
            arrival: Arc::clone(&arrival),
            verdict: EventVerdict::Skipped(reason::DROPPED.into()),
        })
    });
    each.collect()
}

impl ServiceLoop for WindowCloser {
    const NAME: &'static str = "windows";
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.window });

    async fn tick(&self) -> Result<NextTick, TickError> {
        let clock = self.store.clock();
        if !clock.is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        // neither may keep the other from its work
        let (closed, released) = (self.close().await, self.release().await);
        if closed? || released? {
            return Ok(NextTick::Now);
        }
        Ok(self.store.next_window().await?.into())
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut hints = self.store.listen(Topic::Windows);
        Box::pin(async move {
            // the store outlives its services
            let _ = hints.changed().await;
        })
    }
}
