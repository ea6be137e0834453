//! The matcher: events from the bus become runs of the tasks that they fire.
//!
//! An entry is acknowledged after what follows from it is committed, never before; one that comes again changes nothing.
//! What can't be read, or fails each time, goes among the dead letters. What was read and not committed is kept here
//! while the store is away, and comes again from the bus when the process dies.

pub mod index;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::bus::{Bus, Entry};
use crate::engine::held::Held;
use crate::engine::matcher::index::{Index, Indexed};
use crate::engine::service::{Next, Service, TickError};
use crate::metrics::Metrics;
use crate::store::{EventsFired, EventsRecorded, FireEvents, Match, Store, StoreError};
use crate::trigger::event::{Arrival, Verdict};

/// Entries that are read, and events that are recorded, at once.
const BATCH: usize = 500;
/// How long a tick waits for an entry.
const WAIT: Duration = Duration::from_millis(500);
/// How often one batch is matched anew because tasks change meanwhile.
const TRIES: usize = 20;

/// Turns events into runs.
pub struct Matcher {
    store: Store,
    bus: Arc<dyn Bus>,
    held: Arc<Held>,
    worker: Uuid,
    /// An entry that failed this often is buried.
    max_deliveries: u32,
    work: Mutex<Work>,
    began: AtomicBool,
    events: Counter,
    matched: Counter,
    skipped: Counter,
    buried: Counter,
}

/// What outlives a tick.
#[derive(Default)]
struct Work {
    index: Index,
    /// Read, and not committed yet.
    taken: Vec<Taken>,
    /// Can't be handled, and why; to be put among the dead letters.
    hopeless: Vec<(Entry, String)>,
    /// Committed, and not acknowledged yet.
    done: Vec<String>,
}

impl Work {
    /// How many entries are to be handled.
    fn waiting(&self) -> usize {
        self.taken.len() + self.hopeless.len()
    }
}

/// An entry that is an event.
struct Taken {
    id: String,
    deliveries: u32,
    arrival: Arc<Arrival>,
}

impl Taken {
    fn entry(&self) -> Entry {
        Entry { id: self.id.clone(), event: Ok(self.arrival.event.clone()), deliveries: self.deliveries }
    }
}

impl Matcher {
    pub fn new(
        store: Store,
        bus: Arc<dyn Bus>,
        held: Arc<Held>,
        worker: Uuid,
        max_deliveries: u32,
        metrics: &Metrics,
    ) -> Matcher {
        let matcher = Matcher {
            store,
            bus,
            held,
            worker,
            max_deliveries,
            work: Mutex::default(),
            began: AtomicBool::new(false),
            events: Counter::default(),
            matched: Counter::default(),
            skipped: Counter::default(),
            buried: Counter::default(),
        };
        metrics.register("events_matched", "Events that were judged, and acknowledged", matcher.events.clone());
        metrics.register("event_fires", "Runs that events became", matcher.matched.clone());
        metrics.register("event_skips", "Matches that were recorded as skipped", matcher.skipped.clone());
        metrics.register("events_buried", "Entries of the bus put among the dead letters", matcher.buried.clone());
        matcher
    }

    /// Handles what the bus has, one batch; waits up to `wait` for it. Answers how many entries.
    pub async fn work(&self, wait: Duration) -> Result<usize, TickError> {
        let mut work = self.work.lock().await;
        self.acknowledge(&mut work).await?;
        if work.waiting() == 0 {
            let entries = self.bus.read(BATCH, wait).await?;
            self.take(&mut work, entries);
        }
        let count = work.waiting();
        self.bury_hopeless(&mut work).await?;
        // where many wait, the next ones are read while the database commits these
        let many = (BATCH / 2..=BATCH).contains(&count);
        let ahead = async { if many { self.bus.read(BATCH, Duration::ZERO).await } else { Ok(Vec::new()) } };
        let (handled, ahead) = tokio::join!(self.handle(&mut work), ahead);
        let acknowledged = self.acknowledge(&mut work).await;
        self.take(&mut work, ahead?);
        handled?;
        acknowledged?;
        Ok(count)
    }

    /// Takes entries on. What can't be handled at all is set apart.
    fn take(&self, work: &mut Work, entries: Vec<Entry>) {
        for Entry { id, event, deliveries } in entries {
            match event {
                // whoever tried has died over it
                Ok(event) if deliveries > 2 * self.max_deliveries => {
                    let why = format!("was taken on {deliveries} times, and nobody came to its end");
                    work.hopeless.push((Entry { id, event: Ok(event), deliveries }, why));
                }
                Ok(event) => work.taken.push(Taken { id, deliveries, arrival: Arc::new(Arrival::new(event)) }),
                Err(unreadable) => {
                    let why = unreadable.why.clone();
                    work.hopeless.push((Entry { id, event: Err(unreadable), deliveries }, why));
                }
            }
        }
    }

    async fn handle(&self, work: &mut Work) -> Result<(), TickError> {
        if work.taken.is_empty() {
            return Ok(());
        }
        match self.record(&mut work.index, &work.taken).await {
            Ok(()) => {
                work.done.extend(work.taken.drain(..).map(|taken| taken.id));
                return Ok(());
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::LeaseLost)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a batch of events can't be recorded, they are tried one by one"),
        }
        // one entry that fails must not hold up the others
        work.taken.reverse();
        while let Some(taken) = work.taken.pop() {
            match self.record(&mut work.index, std::slice::from_ref(&taken)).await {
                Ok(()) => work.done.push(taken.id),
                Err(error @ StoreError::Unavailable(_)) => {
                    work.taken.push(taken);
                    work.taken.reverse();
                    return Err(error.into());
                }
                Err(error) if taken.deliveries >= self.max_deliveries => {
                    work.hopeless.push((taken.entry(), error.to_string()));
                }
                Err(error) => tracing::warn!(entry = taken.id, %error, "an event can't be recorded, it comes again"),
            }
        }
        self.bury_hopeless(work).await
    }

    /// Matches and records events; they are to be acknowledged then.
    async fn record(&self, index: &mut Index, events: &[Taken]) -> Result<(), StoreError> {
        let now = self.store.clock().now();
        let tenants = || events.iter().map(|taken| taken.arrival.event.tenant.as_str());
        for shard in index.unknown(tenants()) {
            index.refresh(&self.store, shard).await?;
        }
        for _ in 0..TRIES {
            let mut matches = Vec::new();
            for Taken { arrival, .. } in events {
                matches.extend(index.candidates(&arrival.event).filter_map(|task| matched(task, arrival, now)));
            }
            let shards = index.versions(tenants());
            let ask =
                FireEvents { now, shards: &shards, matches: &matches, worker: self.worker, room: self.held.room() };
            match self.store.fire_events(&ask).await? {
                EventsFired::Done(recorded) => {
                    self.account(events.len(), recorded);
                    return Ok(());
                }
                EventsFired::Stale => {
                    for (shard, _) in shards {
                        index.refresh(&self.store, shard).await?;
                    }
                }
            }
        }
        Err(StoreError::Unavailable("event tasks change faster than they can be read".into()))
    }

    fn account(&self, events: usize, recorded: EventsRecorded) {
        self.events.inc_by(events as u64);
        self.matched.inc_by(recorded.recorded as u64);
        self.skipped.inc_by(recorded.skipped as u64);
        self.held.add(recorded.claims);
    }

    async fn bury_hopeless(&self, work: &mut Work) -> Result<(), TickError> {
        while let Some((entry, why)) = work.hopeless.last() {
            tracing::warn!(entry = entry.id, why, "an entry of the event bus goes among the dead letters");
            self.bus.bury(entry, why).await?;
            self.buried.inc();
            work.hopeless.pop();
        }
        Ok(())
    }

    async fn acknowledge(&self, work: &mut Work) -> Result<(), TickError> {
        if !work.done.is_empty() {
            self.bus.acknowledge(&work.done).await?;
            work.done.clear();
        }
        Ok(())
    }
}

/// What one task makes of an event; `None` where it is none of its events. A fault of one task, even a panic of its
/// expression, stays its own.
pub fn matched(task: &Indexed, arrival: &Arc<Arrival>, now: DateTime<Utc>) -> Option<Match> {
    let judged = catch_unwind(AssertUnwindSafe(|| task.matcher.judge(arrival, now)));
    let verdict = judged.unwrap_or_else(|_| Verdict::Skipped("filter_error: it panicked".into()));
    (verdict != Verdict::No).then(|| Match {
        task_id: task.task_id,
        epoch: task.epoch,
        status: task.status,
        hold: task.hold,
        max_runs: task.max_runs,
        arrival: Arc::clone(arrival),
        verdict,
    })
}

impl Service for Matcher {
    const NAME: &'static str = "matcher";
    const LOOK_AGAIN: Duration = Duration::from_millis(50);

    async fn tick(&self) -> Result<Next, TickError> {
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        // reading is the wait, what is published ends it; the first tick says that all is well, and does not wait
        let wait = if self.began.swap(true, Ordering::Relaxed) { WAIT } else { Duration::ZERO };
        self.work(wait).await?;
        Ok(Next::Now)
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
