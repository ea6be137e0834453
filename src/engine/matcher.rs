//! The matcher: events from the bus become runs of the tasks that they fire.
//!
//! It works in rounds: read, judge, record a piece. A tenant has a bounded part of each round, and tenants take turns, so
//! that one tenant's flood is worked off beside what others publish. Judging runs beside the rounds, and the slowest
//! tenant's holds up no other's.
//!
//! An entry is acknowledged after what follows from it is committed, never before; one that comes again changes nothing.
//! What can't be read, or fails each time, goes among the dead letters. What was read and not committed is kept here
//! while the store is away, and comes again from the bus when the process dies.

mod backlog;
pub mod index;
mod intake;
mod judging;
mod missing;
mod slice;
mod work;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::bus::{Bus, Entry};
use crate::compute::Compute;
use crate::engine::held::Held;
use crate::engine::matcher::intake::{Batch, Intake, Judged, Judgement, Taken, Unjudged};
use crate::engine::matcher::slice::{Failed, Piece, WRITE_BY_RULES};
use crate::engine::matcher::work::Work;
use crate::engine::service::{Next, Service, TickError};
use crate::id::Tenant;
use crate::metrics::Metrics;
use crate::store::{EventsFired, FireEvents, Match, Store, StoreError};

pub use judging::matched;

/// Entries that are read at once.
const BATCH: usize = 500;
/// Tenants whose events are judged at once.
const JUDGED_AT_ONCE: usize = 64;
/// While nothing is judged yet, the bus is looked at so often.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How often a read that is to end is told.
const BETWEEN_ENDS: Duration = Duration::from_millis(100);

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

/// What came of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Entries that are handled to their end.
    pub finished: usize,
    /// Whether some were read and are not at their end.
    pub goes_on: bool,
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
        compute: Compute,
        worker: Uuid,
        max_deliveries: u32,
        metrics: &Metrics,
    ) -> Matcher {
        let matcher = Matcher {
            intake: Arc::new(Intake::new(store.clone(), Arc::clone(&bus), compute, max_deliveries)),
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

    /// Does rounds until entries are handled, or nothing is left; waits up to `wait` for the first entry. Answers how many.
    pub async fn work(&self, wait: Duration) -> Result<usize, TickError> {
        loop {
            let round = self.round(wait).await?;
            if round.finished > 0 || !round.goes_on {
                return Ok(round.finished);
            }
        }
    }

    /// Does one round: one read, one write. Waits up to `wait` for an entry where none is left from before.
    pub async fn round(&self, wait: Duration) -> Result<Round, TickError> {
        let mut work = self.work.lock().await;
        let work = &mut *work;
        let idle = work.is_idle();
        if idle {
            self.acknowledge(&mut work.done).await?;
            let wait = if work.misses.is_empty() { wait } else { Duration::ZERO };
            work.add(self.intake.read(&[], BATCH, wait).await?);
            if work.is_idle() {
                work.spent.clear();
                let goes_on = work.misses.tell_some(&self.store).await;
                return Ok(Round { finished: 0, goes_on });
            }
        }
        // the wait may have been long
        if !self.store.clock().trusted() {
            return Err(TickError::ClockUnknown);
        }
        let buried = self.bury_hopeless(&mut work.hopeless).await?;
        let given_up = self.judge(work).await?;
        let recorded = self.record(work, idle).await?;
        let untold = work.misses.tell_one(&self.store).await;
        if work.is_idle() {
            self.acknowledge(&mut work.done).await?;
        }
        Ok(Round { finished: buried + given_up + recorded, goes_on: untold || !work.is_idle() })
    }

    /// Has events judged, and takes in what is judged; waits for the first where nothing is to be recorded. Answers how many
    /// entries were given up.
    async fn judge(&self, work: &mut Work) -> Result<usize, TickError> {
        self.start_judging(work);
        if work.ready.is_empty() && !work.judging.is_empty() {
            let first = timeout(BETWEEN_LOOKS, work.judging.join_next()).await;
            match first {
                Ok(Some(Ok(judgement))) => return Ok(self.take_in(work, judgement)? + self.take_in_all(work)?),
                // its tenant is not known any more: nobody's turn is held up for long
                Ok(Some(Err(_))) => work.judged_now.clear(),
                Ok(None) | Err(_) if !work.away && work.backlog.has_room() => {
                    let full = work.backlog.full();
                    work.add(self.intake.read(&full, BATCH, Duration::ZERO).await?);
                    self.start_judging(work);
                }
                Ok(None) | Err(_) => {}
            }
        }
        self.take_in_all(work)
    }

    fn take_in_all(&self, work: &mut Work) -> Result<usize, TickError> {
        let mut given_up = 0;
        while let Some(Ok(judgement)) = work.judging.try_join_next() {
            given_up += self.take_in(work, judgement)?;
        }
        Ok(given_up)
    }

    /// Each tenant that waits has its turn, unless enough of it is judged already.
    fn start_judging(&self, work: &mut Work) {
        while work.judging.len() < JUDGED_AT_ONCE {
            let (ready, now) = (&work.ready, &work.judged_now);
            let may = |tenant: &Tenant| !now.contains(tenant) && ready.has_room(tenant);
            let Some(share) = work.backlog.next(BATCH, may) else { return };
            work.judged_now.insert(share.tenant.clone());
            work.judging.spawn(Arc::clone(&self.intake).judge(share));
        }
    }

    fn take_in(&self, work: &mut Work, Judgement { tenant, came }: Judgement) -> Result<usize, TickError> {
        work.judged_now.remove(&tenant);
        match came {
            Ok(Judged { slice, rest, misses }) => {
                work.misses.add(misses);
                work.ready.push(slice);
                work.backlog.put_back(&tenant, rest, None);
                Ok(0)
            }
            Err(Unjudged { events, error: error @ StoreError::Unavailable(_) }) => {
                work.backlog.put_back(&tenant, events, None);
                work.away = true;
                Err(error.into())
            }
            // tasks that can't be read hold up the events of their tenants, and no others
            Err(Unjudged { events, error }) => {
                let count = events.len();
                events.into_iter().for_each(|taken| self.give_up(work, taken, &error));
                Ok(count)
            }
        }
    }

    /// Records the next piece; meanwhile reads on, and has judged what comes. Answers how many entries are at their end.
    async fn record(&self, work: &mut Work, first: bool) -> Result<usize, TickError> {
        let Some(piece) = work.ready.next() else { return Ok(0) };
        if planted!("acknowledge_before_commit") {
            self.bus.acknowledge(&work.ready.ids_of(&piece)).await?;
            crate::clock::pause(Duration::from_millis(300)).await;
        }
        let goes_on = work.many || !first || !work.backlog.is_empty() || !work.judging.is_empty();
        let reads = goes_on && !work.away && work.backlog.has_room();
        let (full, spent) = (work.backlog.full(), std::mem::take(&mut work.spent));
        let ahead = async { if reads { self.read_ahead(full, spent).await } else { Ok(None) } };
        let (fired, ahead, acknowledged) = tokio::join!(self.fire(&piece), ahead, self.acknowledge(&mut work.done));
        let finished = self.settle(work, &piece, fired);
        if let Some(batch) = ahead? {
            work.add(batch);
            self.start_judging(work);
        }
        acknowledged?;
        finished
    }

    /// Reads without waiting, on another thread.
    async fn read_ahead(&self, full: Vec<Tenant>, spent: Vec<Taken>) -> Result<Option<Batch>, TickError> {
        let intake = Arc::clone(&self.intake);
        let mut other = JoinSet::new();
        other.spawn(async move {
            drop(spent);
            intake.read(&full, BATCH, Duration::ZERO).await
        });
        match other.join_next().await {
            Some(Ok(batch)) => Ok(Some(batch?)),
            // it panicked: what it had taken comes again when its lease has run out
            _ => Ok(None),
        }
    }

    /// Goes by how the recording of a piece ended. One event that fails must not hold up the others, nor one tenant another.
    fn settle(&self, work: &mut Work, piece: &Piece, fired: Result<Fired, StoreError>) -> Result<usize, TickError> {
        work.away = matches!(fired, Err(StoreError::Unavailable(_) | StoreError::LeaseLost));
        let error = match fired {
            Ok(Fired::Done) => {
                let whole = work.ready.recorded(piece);
                let count = whole.len();
                self.events.inc_by(count as u64);
                work.done.extend(whole.iter().map(|taken| taken.id.clone()));
                work.spent.extend(whole);
                return Ok(count);
            }
            Ok(Fired::Stale) => {
                for slice in work.ready.stale(piece) {
                    work.backlog.put_back(&slice.tenant, slice.events, Some(slice.version));
                }
                return Ok(0);
            }
            Err(error) if work.away => return Err(error.into()),
            Err(error) => error,
        };
        tracing::warn!(%error, matches = piece.matches.len(), "events can't be recorded together, fewer are tried");
        match work.ready.failed(piece) {
            Failed::Again => Ok(0),
            Failed::Event(taken) => {
                self.give_up(work, taken, &error);
                Ok(1)
            }
        }
    }

    /// Leaves an entry that can't be handled now: it comes again from the bus, and in the end is buried.
    fn give_up(&self, work: &mut Work, taken: Taken, error: &StoreError) {
        match taken.deliveries >= self.max_deliveries {
            true => work.hopeless.push((taken.entry(), error.to_string())),
            false => tracing::warn!(entry = taken.id, %error, "an event can't be recorded, it comes again"),
        }
    }

    /// Records a piece.
    async fn fire(&self, piece: &Piece) -> Result<Fired, StoreError> {
        let rules = piece.matches.iter().filter(|matched| !matched.goes_straight());
        let (straight, by_rules): (Vec<Match>, Vec<Match>) = match rules.count() {
            0 => return self.fire_some(&piece.shards, &piece.matches).await,
            _ => piece.matches.iter().cloned().partition(Match::goes_straight),
        };
        let straight = (!straight.is_empty()).then_some(straight.as_slice());
        for matches in straight.into_iter().chain(by_rules.chunks(WRITE_BY_RULES)) {
            if self.fire_some(&piece.shards, matches).await? == Fired::Stale {
                return Ok(Fired::Stale);
            }
        }
        Ok(Fired::Done)
    }

    async fn fire_some(&self, shards: &[(i32, i64)], matches: &[Match]) -> Result<Fired, StoreError> {
        let now = self.store.clock().now();
        let share = self.held.share_ahead(matches.len());
        let ask = FireEvents { now, shards, matches, worker: self.worker, room: share.room };
        let EventsFired::Done(recorded) = self.store.fire_events(&ask).await? else { return Ok(Fired::Stale) };
        self.matched.inc_by(recorded.recorded as u64);
        self.skipped.inc_by(recorded.skipped as u64);
        self.held.add(recorded.claims);
        Ok(Fired::Done)
    }

    async fn bury_hopeless(&self, hopeless: &mut Vec<(Entry, String)>) -> Result<usize, TickError> {
        let count = hopeless.len();
        while let Some((entry, why)) = hopeless.last() {
            tracing::warn!(entry = entry.id, why, "an entry of the event bus goes among the dead letters");
            self.bus.bury(entry, why).await?;
            self.buried.inc();
            hopeless.pop();
        }
        Ok(count)
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
            round = self.round(wait) => drop(round?),
            never = self.end_waits() => match never {},
        }
        self.well.store(true, Ordering::Relaxed);
        Ok(Next::Now)
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
