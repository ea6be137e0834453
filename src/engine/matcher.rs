//! The matcher: events from the bus become runs of the tasks that they fire.
//!
//! An entry is acknowledged after what follows from it is committed, never before; one that comes again changes nothing.
//! What can't be read, or fails each time, goes among the dead letters. What was read and not committed is kept here
//! while the store is away, and comes again from the bus when the process dies.

pub mod index;
mod intake;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::bus::Bus;
use crate::engine::held::Held;
use crate::engine::matcher::intake::{Batch, Intake, Judged, Taken};
use crate::engine::service::{Next, Service, TickError};
use crate::metrics::Metrics;
use crate::store::{EventsFired, FireEvents, Store, StoreError};

pub use intake::matched;

/// Entries that are read, and events that are recorded, at once.
const BATCH: usize = 500;
/// How often a read that is to end is told.
const BETWEEN_ENDS: Duration = Duration::from_millis(100);
/// How often one batch is matched anew because tasks change meanwhile.
const TRIES: usize = 20;

/// Turns events into runs.
pub struct Matcher {
    store: Store,
    bus: Arc<dyn Bus>,
    intake: Arc<Intake>,
    held: Arc<Held>,
    worker: Uuid,
    /// An entry that failed this often is buried.
    max_deliveries: u32,
    work: Mutex<Work>,
    /// Whether the last tick came to its end.
    well: AtomicBool,
    events: Counter,
    matched: Counter,
    skipped: Counter,
    buried: Counter,
}

/// What outlives a tick.
#[derive(Default)]
struct Work {
    /// Read, and not committed yet.
    batch: Batch,
    /// Committed, and not acknowledged yet.
    done: Vec<String>,
    /// Of no use any more; to be forgotten where there is time for it.
    spent: Option<Judged>,
}

/// Whether what was judged still held.
#[derive(PartialEq)]
enum Fired {
    Done,
    Stale,
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
            intake: Arc::new(Intake::new(store.clone(), Arc::clone(&bus), max_deliveries)),
            store,
            bus,
            held,
            worker,
            max_deliveries,
            work: Mutex::default(),
            well: AtomicBool::new(false),
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
        let Work { batch, done, spent } = &mut *work;
        if batch.waiting() == 0 {
            self.acknowledge(done).await?;
            *batch = self.intake.read(BATCH, wait).await?;
        }
        let count = batch.waiting();
        if count == 0 {
            *spent = None;
            return Ok(0);
        }
        // the wait may have been long
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        self.bury_hopeless(batch).await?;
        let judged = match batch.judged.take() {
            Some(judged) => Ok(judged),
            None => self.intake.judge(&batch.taken).await,
        };
        let judged = match judged {
            Ok(judged) => judged,
            // tasks that can't be read hold up the events of their tenants, and no others
            Err(error) => return self.settle(Err(error), batch, done).await.map(|()| count),
        };
        if planted!("acknowledge_before_commit") {
            self.bus.acknowledge(&batch.taken.iter().map(|taken| taken.id.clone()).collect::<Vec<_>>()).await?;
            crate::clock::pause(Duration::from_millis(300)).await;
        }
        // where many wait, the next ones are read and judged while the database commits these
        let many = (BATCH / 2..=BATCH).contains(&count);
        let (fired, ahead, acknowledged) = tokio::join!(
            self.fire(&judged, batch.taken.len()),
            self.look_ahead(many, spent.take()),
            self.acknowledge(done)
        );
        let recorded = match fired {
            Ok(Fired::Stale) => self.record(&batch.taken).await,
            fired => fired.map(drop),
        };
        let handled = self.settle(recorded, batch, done).await;
        *spent = Some(judged);
        batch.append(ahead?);
        acknowledged?;
        handled?;
        if !many {
            self.acknowledge(done).await?;
        }
        Ok(count)
    }

    /// Takes in what comes next, on another thread. Ends with the tick that asked.
    async fn look_ahead(&self, many: bool, spent: Option<Judged>) -> Result<Batch, TickError> {
        if !many {
            return Ok(Batch::default());
        }
        let intake = Arc::clone(&self.intake);
        let mut other = JoinSet::new();
        other.spawn(async move {
            drop(spent);
            intake.read_ahead(BATCH).await
        });
        match other.join_next().await {
            Some(Ok(batch)) => Ok(batch?),
            // it panicked: what it had taken comes again when its lease has run out
            _ => Ok(Batch::default()),
        }
    }

    /// Goes by how the recording of a batch ended. One entry that fails must not hold up the others.
    async fn settle(
        &self,
        recorded: Result<(), StoreError>,
        batch: &mut Batch,
        done: &mut Vec<String>,
    ) -> Result<(), TickError> {
        match recorded {
            Ok(()) => {
                done.extend(batch.taken.drain(..).map(|taken| taken.id));
                return Ok(());
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::LeaseLost)) => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a batch of events can't be recorded, they are tried one by one"),
        }
        batch.taken.reverse();
        while let Some(taken) = batch.taken.pop() {
            match self.record(std::slice::from_ref(&taken)).await {
                Ok(()) => done.push(taken.id),
                Err(error @ StoreError::Unavailable(_)) => {
                    batch.taken.push(taken);
                    batch.taken.reverse();
                    return Err(error.into());
                }
                Err(error) if taken.deliveries >= self.max_deliveries => {
                    batch.hopeless.push((taken.entry(), error.to_string()));
                }
                Err(error) => tracing::warn!(entry = taken.id, %error, "an event can't be recorded, it comes again"),
            }
        }
        self.bury_hopeless(batch).await
    }

    /// Matches and records events by the tasks as they are now; they are to be acknowledged then.
    async fn record(&self, events: &[Taken]) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let judged = self.intake.judge_anew(events).await?;
            if self.fire(&judged, events.len()).await? == Fired::Done {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable("event tasks change faster than they can be read".into()))
    }

    /// Records what so many events lead to.
    async fn fire(&self, Judged { straight, by_rules, shards }: &Judged, events: usize) -> Result<Fired, StoreError> {
        // where nothing matched at all, it is still to be seen whether the tasks are as they were
        let parts = [straight, by_rules].into_iter().filter(|part| !part.is_empty());
        let nothing = straight.is_empty() && by_rules.is_empty();
        for matches in parts.chain(nothing.then_some(straight)) {
            let now = self.store.clock().now();
            let share = self.held.share_ahead(matches.len());
            let ask = FireEvents { now, shards, matches, worker: self.worker, room: share.room };
            let EventsFired::Done(recorded) = self.store.fire_events(&ask).await? else { return Ok(Fired::Stale) };
            self.matched.inc_by(recorded.recorded as u64);
            self.skipped.inc_by(recorded.skipped as u64);
            self.held.add(recorded.claims);
        }
        self.events.inc_by(events as u64);
        Ok(Fired::Done)
    }

    async fn bury_hopeless(&self, batch: &mut Batch) -> Result<(), TickError> {
        while let Some((entry, why)) = batch.hopeless.last() {
            tracing::warn!(entry = entry.id, why, "an entry of the event bus goes among the dead letters");
            self.bus.bury(entry, why).await?;
            self.buried.inc();
            batch.hopeless.pop();
        }
        Ok(())
    }

    /// Once nobody is to wait for events any more, ends the wait of the present read.
    async fn end_waits(&self) -> Infallible {
        self.store.reads_ended().await;
        loop {
            self.bus.end_waits().await;
            crate::clock::pause(BETWEEN_ENDS).await;
        }
    }

    async fn acknowledge(&self, done: &mut Vec<String>) -> Result<(), TickError> {
        if !done.is_empty() {
            self.bus.acknowledge(done).await?;
            done.clear();
        }
        Ok(())
    }
}

impl Service for Matcher {
    const NAME: &'static str = "matcher";
    const LOOK_AGAIN: Duration = Duration::from_millis(50);

    async fn tick(&self) -> Result<Next, TickError> {
        // reading is the wait, what is published ends it; the first tick, and the first after one that failed, does not
        // wait: it says that all is well
        let wait = if self.well.swap(false, Ordering::Relaxed) { self.bus.longest_read() } else { Duration::ZERO };
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        tokio::select! {
            worked = self.work(wait) => drop(worked?),
            never = self.end_waits() => match never {},
        }
        self.well.store(true, Ordering::Relaxed);
        Ok(Next::Now)
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
