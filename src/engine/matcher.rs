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

use crate::bus::{Bus, BusError, Entry};
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
    entries: Vec<Entry>,
    /// Committed, and not acknowledged yet.
    done: Vec<String>,
}

/// What is matched with one event.
struct Judged {
    entry: Entry,
    matches: Vec<Match>,
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
        if work.entries.is_empty() {
            work.entries = self.bus.read(BATCH, wait).await.map_err(told)?;
        }
        let count = work.entries.len();
        self.handle(&mut work).await?;
        self.acknowledge(&mut work).await?;
        Ok(count)
    }

    async fn handle(&self, work: &mut Work) -> Result<(), TickError> {
        self.bury_unreadable(work).await?;
        if work.entries.is_empty() {
            return Ok(());
        }
        match self.record(work).await {
            Ok(()) => return Ok(()),
            Err(error @ (StoreError::Unavailable(_) | StoreError::LeaseLost)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a batch of events can't be recorded, they are tried one by one"),
        }
        // one entry that fails must not hold up the others
        for entry in std::mem::take(&mut work.entries) {
            let mut alone = Work { index: std::mem::take(&mut work.index), entries: vec![entry.clone()], done: vec![] };
            let recorded = self.record(&mut alone).await;
            work.index = alone.index;
            work.done.extend(alone.done);
            match recorded {
                Ok(()) => {}
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) if entry.deliveries >= self.max_deliveries => {
                    self.bury(&entry, &error.to_string()).await?;
                }
                Err(error) => {
                    tracing::warn!(entry = entry.id, %error, "an event can't be recorded, it comes again");
                }
            }
        }
        Ok(())
    }

    /// Matches and records all entries; they are to be acknowledged then.
    async fn record(&self, work: &mut Work) -> Result<(), StoreError> {
        let now = self.store.clock().now();
        let arrivals: Vec<(Entry, Arc<Arrival>)> = work
            .entries
            .iter()
            .filter_map(|entry| Some((entry.clone(), Arc::new(Arrival::new(entry.event.clone().ok()?)))))
            .collect();
        let tenants = || arrivals.iter().map(|(_, arrival)| arrival.event.tenant.as_str());
        for shard in work.index.unknown(tenants()) {
            work.index.refresh(&self.store, shard).await?;
        }
        for _ in 0..TRIES {
            let judged: Vec<Judged> =
                arrivals.iter().map(|(entry, arrival)| judge(&work.index, entry, arrival, now)).collect();
            let matches: Vec<Match> = judged.iter().flat_map(|judged| judged.matches.iter().cloned()).collect();
            let shards = work.index.versions(tenants());
            let ask =
                FireEvents { now, shards: &shards, matches: &matches, worker: self.worker, room: self.held.room() };
            match self.store.fire_events(&ask).await? {
                EventsFired::Done(recorded) => {
                    self.account(judged.len(), recorded);
                    work.done.extend(judged.into_iter().map(|judged| judged.entry.id));
                    work.entries.clear();
                    return Ok(());
                }
                EventsFired::Stale => {
                    for (shard, _) in shards {
                        work.index.refresh(&self.store, shard).await?;
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

    /// Entries that are no events, and those that nobody ever came to the end of: whoever tried has died.
    async fn bury_unreadable(&self, work: &mut Work) -> Result<(), TickError> {
        let hopeless = |entry: &Entry| entry.event.is_err() || entry.deliveries > 2 * self.max_deliveries;
        let (bad, good) = std::mem::take(&mut work.entries).into_iter().partition(hopeless);
        work.entries = good;
        let mut bad: Vec<Entry> = bad;
        while let Some(entry) = bad.pop() {
            let why = match &entry.event {
                Err(unreadable) => unreadable.why.clone(),
                Ok(_) => format!("was taken on {} times, and nobody came to its end", entry.deliveries),
            };
            if let Err(error) = self.bury(&entry, &why).await {
                work.entries.push(entry);
                work.entries.extend(bad);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn bury(&self, entry: &Entry, error: &str) -> Result<(), TickError> {
        tracing::warn!(entry = entry.id, error, "an entry of the event bus goes among the dead letters");
        self.bus.bury(entry, error).await.map_err(told)?;
        self.buried.inc();
        Ok(())
    }

    async fn acknowledge(&self, work: &mut Work) -> Result<(), TickError> {
        if !work.done.is_empty() {
            self.bus.acknowledge(&work.done).await.map_err(told)?;
            work.done.clear();
        }
        Ok(())
    }
}

fn told(error: BusError) -> TickError {
    TickError::Bus(error)
}

/// Asks every task that the event may concern. A fault of one task, even a panic of its expression, stays its own.
fn judge(index: &Index, entry: &Entry, arrival: &Arc<Arrival>, now: DateTime<Utc>) -> Judged {
    let matches = index.candidates(&arrival.event).filter_map(|task| matched(task, arrival, now)).collect();
    Judged { entry: entry.clone(), matches }
}

/// What one task makes of an event; `None` where it is none of its events.
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
