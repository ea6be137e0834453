//! The matcher: events from the bus become runs of the tasks that they fire.
//!
//! It works in rounds: read, judge, record a piece. Tenants of which few matches are to be recorded are read, judged
//! and recorded beside a piece of many. A tenant has a bounded part of each round, and tenants take turns, so that one
//! tenant's flood is worked off beside what others publish. Judging runs beside the rounds, and the slowest tenant's
//! holds up no other's.
//!
//! An entry is acknowledged after what follows from it is committed, never before; one that comes again changes
//! nothing. An entry that can't be read, or fails each time, goes among the dead letters. One that was read and not
//! committed is kept here while the store is away, and comes again from the bus when the process dies.

mod backlog;
pub mod index;
mod intake;
mod judging;
mod lanes;
mod missing;
mod received;
mod recording;
mod slice;
mod work;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::task::JoinError;

use crate::base::clock::pause;
use crate::base::compute::Compute;
use crate::base::id::Tenant;
use crate::base::metrics::Metrics;
use crate::engine::events::matcher::intake::{Intake, Judgement, ReadBatch, UnjudgedEvents};
use crate::engine::events::matcher::judging::JudgedEvents;
use crate::engine::events::matcher::received::EventLoad;
use crate::engine::events::matcher::work::MatcherWork;
use crate::engine::scheduling::run_starter::RunStarter;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::ports::bus::{Bus, BusEntry, BusError};
use crate::store::{Store, StoreError};

pub use judging::matched;

/// Entries that are read at once.
const BATCH: usize = 500;
/// Tenants whose events are judged at once.
const JUDGED_AT_ONCE: usize = 64;
/// While nothing is judged yet, the bus is looked at so often.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How often a read that is to end is told.
const BETWEEN_ENDS: Duration = Duration::from_millis(100);

/// How a task of a set ended.
type JoinResult<T> = Result<T, JoinError>;

/// Turns events into runs.
pub struct EventMatcher {
    store: Store,
    bus: Arc<dyn Bus>,
    intake: Arc<Intake>,
    starter: RunStarter,
    /// An entry that failed this often becomes a dead letter.
    max_deliveries: u32,
    work: Mutex<MatcherWork>,
    /// Whether the last tick came to its end.
    well: AtomicBool,
    events: Counter,
    matched: Counter,
    skipped: Counter,
    dead_lettered: Counter,
}

/// Result of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Entries that are handled to their end.
    pub finished: usize,
    /// Whether some were read and are not at their end.
    pub goes_on: bool,
}

impl EventMatcher {
    /// The service, with its metrics. `max_deliveries`: a failing entry becomes a dead letter after so many.
    pub fn new(
        store: Store,
        bus: Arc<dyn Bus>,
        starter: RunStarter,
        compute: Compute,
        max_deliveries: u32,
        metrics: &Metrics,
    ) -> EventMatcher {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        EventMatcher {
            intake: Arc::new(Intake::new(store.clone(), Arc::clone(&bus), compute, max_deliveries)),
            store,
            bus,
            starter,
            max_deliveries,
            work: Mutex::default(),
            well: AtomicBool::new(false),
            events: counted("events_matched", "Events that were judged, and acknowledged"),
            matched: counted("event_fires", "Runs that events became"),
            skipped: counted("event_fires_skipped", "Matches that were recorded as skipped"),
            dead_lettered: counted("events_dead_lettered", "Entries of the bus put among the dead letters"),
        }
    }

    /// Does rounds until entries are handled, or nothing is left; waits up to `wait` for the first entry. Answers how
    /// many.
    pub async fn process(&self, wait: Duration) -> Result<usize, TickError> {
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
            let read = work.reading.join_next().await;
            self.collect_read(work, read)?;
        }
        if idle && work.is_idle() {
            let wait = if work.misses.is_empty() { wait } else { Duration::ZERO };
            work.add(self.intake.read(&[], BATCH, wait).await?);
            if work.is_idle() {
                let goes_on = work.misses.notify_batch(&self.store).await;
                return Ok(Round { finished: 0, goes_on });
            }
        }
        // the wait may have been long
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let dead_lettered = self.dead_letter_hopeless(&mut work.hopeless).await?;
        let given_up = self.judge(work).await?;
        let recorded = self.record(work, idle).await?;
        let untold = work.misses.notify_next(&self.store).await;
        if work.is_idle() {
            self.acknowledge(&mut work.done).await?;
        }
        Ok(Round {
            finished: dead_lettered + given_up + recorded,
            goes_on: untold || !work.is_idle() || !work.reading.is_empty(),
        })
    }

    /// Has events judged, and takes in what is judged; waits for the first where nothing is to be recorded. Answers how
    /// many entries were given up.
    async fn judge(&self, work: &mut MatcherWork) -> Result<usize, TickError> {
        self.start_judging(work);
        let mut given_up = 0;
        if work.lanes.is_empty() && !(work.judging.is_empty() && work.reading.is_empty()) {
            let MatcherWork { reading, judging, .. } = &mut *work;
            tokio::select! {
                Some(judged) = judging.join_next() => given_up += self.collect_judged(work, judged)?,
                Some(read) = reading.join_next() => self.collect_read(work, Some(read))?,
                () = pause(BETWEEN_LOOKS) => {
                    self.start_reading(work, Duration::ZERO);
                }
            }
        }
        Ok(given_up + self.collect_finished(work)?)
    }

    /// Takes in what is read and judged by now.
    fn collect_finished(&self, work: &mut MatcherWork) -> Result<usize, TickError> {
        let read = work.reading.try_join_next();
        self.collect_read(work, read)?;
        let mut given_up = 0;
        while let Some(judged) = work.judging.try_join_next() {
            given_up += self.collect_judged(work, judged)?;
        }
        Ok(given_up)
    }

    /// Takes in what was read; nothing where the read panicked: what it had taken comes again when its lease has run
    /// out.
    fn collect_read(
        &self,
        work: &mut MatcherWork,
        read: Option<JoinResult<Result<ReadBatch, BusError>>>,
    ) -> Result<(), TickError> {
        match read {
            None => {}
            Some(Ok(batch)) => {
                work.add(batch?);
                self.start_judging(work);
            }
            Some(Err(panicked)) => tracing::error!(%panicked, "events can't be read, they come again"),
        }
        Ok(())
    }

    fn collect_judged(&self, work: &mut MatcherWork, judged: JoinResult<Judgement>) -> Result<usize, TickError> {
        match judged {
            Ok(judgement) => self.collect_judgement(work, judgement),
            // its tenant is not known any more: nobody's turn is held up for long
            Err(_) => {
                work.judged_now.clear();
                Ok(0)
            }
        }
    }

    /// Each tenant that waits has its turn, unless enough of it is judged already.
    fn start_judging(&self, work: &mut MatcherWork) {
        while work.judging.len() < JUDGED_AT_ONCE {
            let (lanes, now) = (&work.lanes, &work.judged_now);
            let may = |tenant: &Tenant| !now.contains_key(tenant) && lanes.has_room(tenant);
            let Some(share) = work.backlog.next(BATCH, now, may) else { return };
            work.judged_now.insert(share.tenant.clone(), EventLoad::of(&share.events));
            work.judging.spawn(Arc::clone(&self.intake).judge(share));
        }
    }

    fn collect_judgement(
        &self,
        work: &mut MatcherWork,
        Judgement { tenant, result }: Judgement,
    ) -> Result<usize, TickError> {
        work.judged_now.remove(&tenant);
        match result {
            Ok(JudgedEvents { slice, rest, misses }) => {
                work.misses.add(misses);
                work.lanes.push(slice);
                work.backlog.put_back(&tenant, rest, None);
                Ok(0)
            }
            Err(UnjudgedEvents { events, error: error @ StoreError::Unavailable(_) }) => {
                work.backlog.put_back(&tenant, events, None);
                work.away = true;
                Err(error.into())
            }
            // tasks that can't be read hold up the events of their tenants, and no others
            Err(UnjudgedEvents { events, error }) => {
                let count = events.len();
                events.into_iter().for_each(|taken| self.leave_unhandled(work, taken, &error));
                Ok(count)
            }
        }
    }

    async fn dead_letter_hopeless(&self, hopeless: &mut Vec<(BusEntry, String)>) -> Result<usize, TickError> {
        let count = hopeless.len();
        while let Some((entry, why)) = hopeless.last() {
            tracing::warn!(entry = entry.id, why, "an entry of the event bus goes among the dead letters");
            self.bus.dead_letter_entry(entry, why).await?;
            self.dead_lettered.inc();
            hopeless.pop();
        }
        Ok(count)
    }

    /// Once nobody is to wait for events any more, ends the wait of the present read.
    async fn interrupt_reads(&self) -> Infallible {
        self.store.event_reads_stopped().await;
        loop {
            self.bus.interrupt_reads().await;
            pause(BETWEEN_ENDS).await;
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

impl ServiceLoop for EventMatcher {
    const NAME: &'static str = "matcher";
    const POLL_INTERVAL: Duration = Duration::from_millis(50);

    async fn tick(&self) -> Result<NextTick, TickError> {
        // reading is the wait, what is published ends it; the first tick, and the first after one that failed, does not
        // wait: it says that all is well
        let wait = if self.well.swap(false, Ordering::Relaxed) { self.bus.longest_read() } else { Duration::ZERO };
        if !self.store.clock().is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        tokio::select! {
            round = self.round(wait) => drop(round?),
            never = self.interrupt_reads() => match never {},
        }
        self.well.store(true, Ordering::Relaxed);
        Ok(NextTick::Now)
    }
}
