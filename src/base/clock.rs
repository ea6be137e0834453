//! The only source of time: whole milliseconds, judged by the database's clock.
//!
//! `Clock::now()` is a monotonic base (which counts suspend) plus an offset to the database's clock. The store
//! measures that offset when it connects and on every heartbeat, and pushes it in here. An instance whose
//! measurement is old or uncertain must claim nothing: [`Clock::is_trusted`].
//! Tests use [`Clock::manual`], which moves only by [`Clock::advance`].

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::watch;

/// A measurement older than this is not believed.
pub const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(30);
/// A measurement less certain than this is not believed.
pub const MEASUREMENT_ERROR: Duration = Duration::from_millis(250);
/// Sleeps re-read the clock at least this often, so that a step or a suspended laptop is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How far the database's clock is from ours, as measured by one question to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// The database's time at the middle of the question.
    pub database_now: DateTime<Utc>,
    /// [`Clock::elapsed`] at that same middle.
    pub at: Duration,
    /// Half of the round trip: the true offset lies within this.
    pub uncertainty: Duration,
}

impl Measurement {
    fn is_certain(&self) -> bool {
        self.uncertainty <= MEASUREMENT_ERROR
    }

    fn is_believable(&self, elapsed: Duration) -> bool {
        self.is_certain() && elapsed.saturating_sub(self.at) <= MEASUREMENT_LIFETIME
    }
}

/// Time as everything in the service sees it. Cheap to clone; all clones share one time.
#[derive(Debug, Clone)]
pub struct Clock(Arc<ClockKind>);

#[derive(Debug)]
enum ClockKind {
    System(SystemClock),
    Manual(watch::Sender<DateTime<Utc>>),
}

#[derive(Debug)]
struct SystemClock {
    measured: Mutex<Option<Measurement>>,
    /// The database's time less the time that has passed, in microseconds: all that is asked for at each look.
    offset: AtomicI64,
}

/// Before there is a measurement.
const NO_OFFSET: i64 = i64::MIN;

impl SystemClock {
    fn new() -> SystemClock {
        SystemClock { measured: Mutex::default(), offset: AtomicI64::new(NO_OFFSET) }
    }

    fn measured(&self) -> MutexGuard<'_, Option<Measurement>> {
        self.measured.lock().expect("clock lock")
    }

    /// A slow answer does not take the place of what can still be believed.
    fn update(&self, new: Measurement) {
        let mut measured = self.measured();
        if new.is_certain() || !measured.is_some_and(|m| m.is_believable(self.elapsed())) {
            *measured = Some(new);
            let offset = new.database_now.timestamp_micros().saturating_sub(new.at.as_micros() as i64);
            self.offset.store(offset, Ordering::Relaxed);
        }
    }

    /// Time since the machine was started.
    fn elapsed(&self) -> Duration {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    }

    /// Microseconds since the epoch.
    fn micros(&self) -> i64 {
        match self.offset.load(Ordering::Relaxed) {
            NO_OFFSET => machine_micros(),
            offset => offset.saturating_add(self.elapsed().as_micros() as i64),
        }
    }
}

impl Clock {
    /// The machine's clock until the store has measured the database's.
    pub fn system() -> Clock {
        Clock(Arc::new(ClockKind::System(SystemClock::new())))
    }

    /// A clock that stands still until it is told to move.
    pub fn manual(start: DateTime<Utc>) -> Clock {
        Clock(Arc::new(ClockKind::Manual(watch::channel(truncate_millis(start)).0)))
    }

    /// The present instant, cut to whole milliseconds.
    pub fn now(&self) -> DateTime<Utc> {
        match &*self.0 {
            ClockKind::Manual(time) => *time.borrow(),
            ClockKind::System(system) => millis(system.micros().div_euclid(1000)),
        }
    }

    /// Time since an arbitrary start, never stepped back, counting the time a machine was suspended.
    pub fn elapsed(&self) -> Duration {
        match &*self.0 {
            ClockKind::Manual(time) => (*time.borrow() - DateTime::UNIX_EPOCH).to_std().unwrap_or_default(),
            ClockKind::System(system) => system.elapsed(),
        }
    }

    /// Takes the store's newest measurement of the database's clock. One that is too uncertain does not take the place
    /// of one that can still be believed: a slow answer says nothing new. Ignored by a manual clock.
    pub fn apply_measurement(&self, measurement: Measurement) {
        if let ClockKind::System(system) = &*self.0 {
            system.update(measurement);
        }
    }

    /// The instant by which something is settled for good, where the database's own time was asked for it. A manual
    /// clock knows no time but its own.
    pub fn settled_at(&self, database_now: DateTime<Utc>) -> DateTime<Utc> {
        match &*self.0 {
            ClockKind::Manual(time) => *time.borrow(),
            ClockKind::System(_) => truncate_millis(database_now),
        }
    }

    /// Whether ownership may be judged by this clock: measured lately, and well enough.
    pub fn is_trusted(&self) -> bool {
        match &*self.0 {
            ClockKind::Manual(_) => true,
            ClockKind::System(system) => system.measured().is_some_and(|m| m.is_believable(self.elapsed())),
        }
    }

    /// Moves a manual clock forward (or back, with a negative step) and wakes its sleepers.
    ///
    /// # Panics
    /// On a system clock, which nobody moves.
    pub fn advance(&self, step: TimeDelta) {
        match &*self.0 {
            ClockKind::Manual(time) => time.send_modify(|t| *t = truncate_millis(*t + step)),
            ClockKind::System(_) => panic!("a system clock can't be advanced"),
        }
    }

    /// Returns once `now() >= instant`; at once if that is past.
    pub async fn sleep_until(&self, instant: DateTime<Utc>) {
        match &*self.0 {
            ClockKind::Manual(time) => {
                let mut seen = time.subscribe();
                let _ = seen.wait_for(|now| *now >= instant).await;
            }
            // by the time as it is, not as it is cut: else a sleep would begin up to a millisecond too long
            ClockKind::System(system) => {
                let until = whole_millis(instant).saturating_mul(1000);
                while let Ok(left @ 1..) = u64::try_from(until.saturating_sub(system.micros())) {
                    pause(Duration::from_micros(left).min(LONGEST_SLEEP)).await;
                }
            }
        }
    }

    /// Sleeps for a length of this clock's time.
    pub async fn sleep(&self, length: Duration) {
        self.sleep_until(self.now() + to_delta(length)).await;
    }
}

/// Real time passes, whatever a test's clock says: for waits on things outside (a database that is down, a socket).
#[allow(clippy::disallowed_methods)] // the owner
pub async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// The machine's own wall clock, for what happens before there is a database, and to measure against it.
pub fn machine_now() -> DateTime<Utc> {
    millis(machine_micros().div_euclid(1000))
}

/// The machine's own wall clock as exact as it is, for spans: those of one millisecond keep their order.
#[allow(clippy::disallowed_methods)] // the owner
pub fn machine_time() -> SystemTime {
    SystemTime::now()
}

#[allow(clippy::disallowed_methods)] // the owner
fn machine_micros() -> i64 {
    Utc::now().timestamp_micros()
}

/// The instant so many milliseconds after the epoch, or the last there is.
fn millis(since_epoch: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(since_epoch).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Milliseconds since the epoch; one that has begun counts.
fn whole_millis(instant: DateTime<Utc>) -> i64 {
    instant.timestamp_millis() + i64::from(instant > truncate_millis(instant))
}

/// Cuts an instant to whole milliseconds, which is what both databases keep.
pub fn truncate_millis(instant: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(instant.timestamp_millis()).unwrap_or(instant)
}

/// A length as chrono adds it; lengths beyond 290 million years are cut.
pub fn to_delta(length: Duration) -> TimeDelta {
    TimeDelta::from_std(length).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn manual_clock_wakes_its_sleepers_when_it_passes_their_instant() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(TimeDelta::seconds(59));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(TimeDelta::seconds(1));
        sleeper.await.unwrap();
    }

    #[test]
    fn database_s_time_wins_over_the_machine_s() {
        let clock = Clock::system();
        assert!(!clock.is_trusted());
        let database_now = machine_now() + TimeDelta::days(3);
        clock.apply_measurement(Measurement { database_now, at: clock.elapsed(), uncertainty: Duration::ZERO });
        assert!(clock.is_trusted());
        assert!(clock.now() >= database_now && clock.now() < database_now + TimeDelta::seconds(5));
    }

    #[tokio::test]
    async fn sleep_ends_once_its_instant_is_here() {
        for offset in [TimeDelta::zero(), TimeDelta::days(2)] {
            let clock = Clock::system();
            let database_now = machine_now() + offset;
            clock.apply_measurement(Measurement { database_now, at: clock.elapsed(), uncertainty: Duration::ZERO });
            for length in [Duration::ZERO, Duration::from_micros(300), Duration::from_micros(4_900)] {
                let instant = clock.now() + to_delta(length);
                clock.sleep_until(instant).await;
                assert!(clock.now() >= instant, "{length:?}");
            }
        }
    }

    #[test]
    fn millisecond_that_has_begun_is_slept_to_its_end() {
        for (nanos, millis) in [(-1, 0), (0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(whole_millis(DateTime::from_timestamp_nanos(nanos)), millis, "{nanos}");
        }
    }

    #[test]
    fn slow_answer_does_not_take_the_place_of_a_good_measurement() {
        let clock = Clock::system();
        let good = Measurement { database_now: machine_now(), at: clock.elapsed(), uncertainty: Duration::ZERO };
        clock.apply_measurement(good);
        let slow = Measurement { database_now: machine_now() + TimeDelta::days(1), ..good };
        clock.apply_measurement(Measurement { uncertainty: MEASUREMENT_ERROR * 2, ..slow });
        assert!(clock.is_trusted() && clock.now() < good.database_now + TimeDelta::hours(1));
        clock.apply_measurement(slow);
        assert!(clock.now() >= slow.database_now, "a certain one does");
    }

    #[test]
    fn database_time_in_the_transaction_outweighs_earlier_measurements() {
        let database_now = machine_now() + TimeDelta::days(3);
        assert_eq!(Clock::system().settled_at(database_now), database_now);
        assert_eq!(Clock::manual(DateTime::UNIX_EPOCH).settled_at(database_now), DateTime::UNIX_EPOCH);
    }

    #[test]
    fn uncertain_measurement_is_not_trusted() {
        let clock = Clock::system();
        let uncertainty = MEASUREMENT_ERROR + Duration::from_millis(1);
        clock.apply_measurement(Measurement { database_now: machine_now(), at: clock.elapsed(), uncertainty });
        assert!(!clock.is_trusted());
    }
}
