//! The one loop of all services: a tick, or for an idle service a read of the pending work; then a wait for the next
//! instant, a wake-up, or the stop.
//!
//! It alone catches panics, backs off after errors, and records that a service is well.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::base::backoff::{IDLE_AFTER, full_jitter, idle_wait};
use crate::base::clock::{Clock, to_delta};
use crate::base::metrics::Metrics;
use crate::ports::bus::BusError;
use crate::store::{PendingWork, Store, StoreError};

/// When a service wants its next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTick {
    /// There is more to do.
    Now,
    /// Not before this instant, unless it is woken.
    At(DateTime<Utc>),
    /// When it is woken, or looks again by itself.
    OnWake,
}

impl From<Option<DateTime<Utc>>> for NextTick {
    /// At the next instant, if one is known.
    fn from(next: Option<DateTime<Utc>>) -> NextTick {
        next.map_or(NextTick::OnWake, NextTick::At)
    }
}

/// Why a tick came to nothing. Nothing is lost: the next one does it.
#[derive(Debug, thiserror::Error)]
pub enum TickError {
    /// The store has failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bus has failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The database's time is not known yet.
    #[error("the database's clock is not known well enough to claim anything")]
    ClockUnknown,
    /// The tick took longer than this.
    #[error("no answer from the database within {0:?}")]
    Slow(Duration),
}

/// The wait of an idle service: after empty polls it goes by the counts of pending work, which all idle services
/// share, and ticks for what they show.
pub struct IdlePolicy<S> {
    /// The longest wait between two reads of the pending work.
    pub max_wait: Duration,
    /// The earliest instant for which there is something to do; past: now. `None`: nothing.
    pub next: fn(&S, &PendingWork) -> Option<DateTime<Utc>>,
}

/// One kind of work, done in ticks.
pub trait ServiceLoop: Sized + Send + Sync + 'static {
    /// Name of the service in logs, metrics and `/readyz`.
    const NAME: &'static str;
    /// The longest wait unless it is idle: polling finds what no wake-up tells.
    const POLL_INTERVAL: Duration;
    /// `None`: it is never idle.
    const IDLE: Option<IdlePolicy<Self>> = None;
    /// The longest tick, in real time. A wire that was cut without a word never answers; the next tick takes another.
    const TIME_LIMIT: Duration = Duration::from_secs(30);

    /// Does what there is to do now, a bounded part of it.
    fn tick(&self) -> impl Future<Output = Result<NextTick, TickError>> + Send;

    /// Listens for wake-ups from now on; the answer returns at the first. None come where a service says nothing of it.
    fn wakeup(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// The first and the longest wait after an error.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest wait is shortened by up to this share.
const SPREAD: f64 = 0.2;
/// The longest wait of an idle service that is woken for everything: it finds work whose wake-up was lost. With the age
/// of the shared counts that is within eight seconds.
pub const MAX_IDLE_WAIT: Duration = Duration::from_secs(6);
/// Services of an instance read the pending work at common moments, so far apart: one read serves them all, and the
/// process sleeps in between.
const STEP: TimeDelta = TimeDelta::seconds(2);
/// "Now", whatever the clock says.
pub const NOW: DateTime<Utc> = DateTime::<Utc>::MIN_UTC;
/// A service counts as stalled when no tick succeeded for this many of its longest waits, and this long at least.
const STALLED_AFTER: (u32, Duration) = (4, Duration::from_secs(20));

/// Source of the counts of pending work.
pub(super) trait PendingWorkSource: Send + Sync {
    /// `None`: it can't be told.
    fn pending_work(&self) -> BoxFuture<'_, Option<PendingWork>>;
}

impl PendingWorkSource for Store {
    fn pending_work(&self) -> BoxFuture<'_, Option<PendingWork>> {
        Box::pin(self.shared_pending_work())
    }
}

/// The parts that every loop needs.
#[derive(Clone)]
pub(super) struct ServiceRunner {
    pub clock: Clock,
    pub metrics: Metrics,
    pub pending_work: Arc<dyn PendingWorkSource>,
    /// Where the common moments lie, a share of what is between two: instances do not keep step.
    pub phase: f64,
}

impl ServiceRunner {
    pub(super) fn spawn<S: ServiceLoop>(&self, service: Arc<S>, stop: CancellationToken) -> JoinHandle<()> {
        // else the next common moment could be the present one
        const { assert!(spans_a_step(&S::IDLE), "an idle service waits for two seconds at least") };
        let patience = (S::POLL_INTERVAL * STALLED_AFTER.0).max(max_wait::<S>() * 2).max(STALLED_AFTER.1);
        self.metrics.expect_ticks(S::NAME, patience);
        let looped = self.clone();
        tokio::spawn(async move { looped.run(service, stop).await })
    }

    async fn run<S: ServiceLoop>(&self, service: Arc<S>, stop: CancellationToken) {
        let clock = &self.clock;
        let (mut failures, mut quiet) = (0, 0);
        let mut wakeup = service.wakeup();
        while !stop.is_cancelled() {
            let foreseen =
                AssertUnwindSafe(self.next_while_idle(&*service, quiet)).catch_unwind().await.unwrap_or_else(|_| {
                    tracing::error!(service = S::NAME, "reading the pending work panicked, a tick takes its place");
                    None
                });
            let ticked = match foreseen {
                Some(next) => Some(next),
                None => {
                    quiet = quiet.min(IDLE_AFTER);
                    // listen first: what is committed during the tick must not be missed, nor what was since the last
                    wakeup = service.wakeup();
                    self.tick_once(&*service).await
                }
            };
            let wait = match ticked {
                Some(next) => {
                    failures = 0;
                    let longest = idle_wait(S::POLL_INTERVAL, quiet, max_wait::<S>());
                    let latest = match foreseen {
                        Some(_) => common_moment(clock.now() + to_delta(longest), self.phase),
                        None => clock.now() + to_delta(longest.mul_f64(1.0 - SPREAD * fastrand::f64())),
                    };
                    until_next(next, latest)
                }
                None => {
                    // wake-ups may have been lost with whatever failed
                    quiet = 0;
                    failures += 1;
                    let wait = full_jitter(BACK_OFF.0, failures, BACK_OFF.1, fastrand::f64());
                    tokio::select! {
                        () = crate::base::clock::pause(wait) => {}
                        () = stop.cancelled() => {}
                    }
                    continue;
                }
            };
            let Some(Wait { until, looks }) = wait else {
                quiet = 0;
                continue;
            };
            tokio::select! {
                biased;
                () = &mut wakeup => quiet = 0,
                () = clock.sleep_until(until) => quiet = match (looks, foreseen) {
                    (true, _) => quiet.saturating_add(1),
                    // it stays idle after this one
                    (false, Some(_)) => IDLE_AFTER,
                    (false, None) => 0,
                },
                () = stop.cancelled() => {}
            }
        }
        self.metrics.forget_ticks(S::NAME);
    }

    /// The next tick of a service that would find nothing, where that can be told without one; `None`: only a tick
    /// tells.
    async fn next_while_idle<S: ServiceLoop>(&self, service: &S, quiet: u32) -> Option<NextTick> {
        let idle_policy = S::IDLE.filter(|_| quiet > IDLE_AFTER && self.clock.is_trusted())?;
        let pending = self.pending_work.pending_work().await?;
        let now = self.clock.now();
        let next = match (idle_policy.next)(service, &pending) {
            Some(instant) if instant <= now => return None,
            Some(instant) => NextTick::At(instant),
            None => NextTick::OnWake,
        };
        self.metrics.ticked(S::NAME, true, now);
        Some(next)
    }

    /// A tick with its panics caught and its end recorded; `None` when it failed.
    async fn tick_once<S: ServiceLoop>(&self, service: &S) -> Option<NextTick> {
        let tick = async {
            tokio::time::timeout(S::TIME_LIMIT, service.tick()).await.unwrap_or(Err(TickError::Slow(S::TIME_LIMIT)))
        };
        let ticked = AssertUnwindSafe(tick).catch_unwind().await;
        let now = self.clock.now();
        match ticked {
            Ok(Ok(next)) => {
                self.metrics.ticked(S::NAME, true, now);
                return Some(next);
            }
            Ok(Err(error)) => tracing::warn!(service = S::NAME, %error, "a tick failed, it is tried again"),
            Err(_) => tracing::error!(service = S::NAME, "a tick panicked, it is tried again"),
        }
        self.metrics.ticked(S::NAME, false, now);
        None
    }
}

/// The longest wait of an idle service.
fn max_wait<S: ServiceLoop>() -> Duration {
    S::IDLE.map_or(S::POLL_INTERVAL, |policy| policy.max_wait)
}

/// A wait that ends by itself.
#[derive(Debug, PartialEq, Eq)]
struct Wait {
    until: DateTime<Utc>,
    /// Without a cause, for what no wake-up told of.
    looks: bool,
}

/// Whether the longest wait reaches to the next common moment.
const fn spans_a_step<S>(idle_policy: &Option<IdlePolicy<S>>) -> bool {
    match idle_policy {
        Some(policy) => policy.max_wait.as_secs() as i64 >= STEP.num_seconds(),
        None => true,
    }
}

/// The last common moment by then.
fn common_moment(latest: DateTime<Utc>, phase: f64) -> DateTime<Utc> {
    let step = STEP.num_milliseconds();
    let phase = (step as f64 * phase) as i64;
    latest - TimeDelta::milliseconds((latest.timestamp_millis() - phase).rem_euclid(step))
}

/// How long to wait, no longer than until `latest`; `None`: not at all.
fn until_next(next: NextTick, latest: DateTime<Utc>) -> Option<Wait> {
    match next {
        NextTick::Now => None,
        NextTick::At(instant) if instant <= latest => Some(Wait { until: instant, looks: false }),
        NextTick::At(_) | NextTick::OnWake => Some(Wait { until: latest, looks: true }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use tokio::sync::watch;

    use super::*;

    /// One scripted tick; `None`: it hangs.
    type ServiceAction = fn() -> Option<Result<NextTick, TickError>>;

    /// Ticks as it is told, tells each tick, and then waits to be woken.
    struct ScriptedService {
        script: Mutex<VecDeque<ServiceAction>>,
        ticks: tokio::sync::mpsc::UnboundedSender<usize>,
        wake: watch::Sender<()>,
    }

    /// The pending work for all who ask, and the number of times that they asked.
    #[derive(Clone, Default)]
    struct SharedPendingWork(Arc<Mutex<(Option<PendingWork>, usize)>>);

    impl SharedPendingWork {
        fn shows(&self, pending: Option<PendingWork>) {
            self.0.lock().unwrap().0 = pending;
        }

        fn looks(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    impl PendingWorkSource for SharedPendingWork {
        fn pending_work(&self) -> BoxFuture<'_, Option<PendingWork>> {
            let mut shared = self.0.lock().unwrap();
            shared.1 += 1;
            Box::pin(std::future::ready(shared.0))
        }
    }

    impl ServiceLoop for ScriptedService {
        const NAME: &'static str = "scripted";
        const POLL_INTERVAL: Duration = Duration::from_secs(100);
        const IDLE: Option<IdlePolicy<ScriptedService>> =
            Some(IdlePolicy { max_wait: Duration::from_secs(200), next: |_, pending| pending.fire });
        const TIME_LIMIT: Duration = Duration::from_millis(20);

        async fn tick(&self) -> Result<NextTick, TickError> {
            let (act, left) = {
                let mut script = self.script.lock().unwrap();
                (script.pop_front(), script.len())
            };
            self.ticks.send(left).unwrap();
            match act.map_or(Some(Ok(NextTick::OnWake)), |act| act()) {
                Some(ticked) => ticked,
                None => std::future::pending().await,
            }
        }

        fn wakeup(&self) -> BoxFuture<'static, ()> {
            let mut hints = self.wake.subscribe();
            Box::pin(async move {
                let _ = hints.changed().await;
            })
        }
    }

    struct LoopFixture {
        clock: Clock,
        metrics: Metrics,
        wake: watch::Sender<()>,
        pending_work: SharedPendingWork,
        ticks: tokio::sync::mpsc::UnboundedReceiver<usize>,
        stop: CancellationToken,
        ended: JoinHandle<()>,
    }

    fn looping(script: &[ServiceAction]) -> LoopFixture {
        let (clock, metrics) = (Clock::manual(DateTime::UNIX_EPOCH), Metrics::new());
        let (sender, ticks) = tokio::sync::mpsc::unbounded_channel();
        let (wake, stop) = (watch::Sender::new(()), CancellationToken::new());
        let script = Mutex::new(script.iter().copied().collect());
        let service = Arc::new(ScriptedService { script, ticks: sender, wake: wake.clone() });
        let pending_work = SharedPendingWork::default();
        let looped = ServiceRunner {
            clock: clock.clone(),
            metrics: metrics.clone(),
            pending_work: Arc::new(pending_work.clone()),
            phase: 0.5,
        };
        let ended = looped.spawn(service, stop.clone());
        LoopFixture { clock, metrics, wake, pending_work, ticks, stop, ended }
    }

    impl LoopFixture {
        async fn ticked(&mut self) -> usize {
            self.ticks.recv().await.unwrap()
        }

        /// Lets the loop do what it does without being waited for; true when it has not ticked.
        async fn is_quiet(&mut self) -> bool {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            self.ticks.try_recv().is_err()
        }

        /// The next tick comes when so many seconds have passed, and not before.
        async fn looks_after(&mut self, seconds: i64) {
            assert!(self.is_quiet().await);
            self.clock.advance(TimeDelta::seconds(seconds));
            self.ticked().await;
        }

        async fn ends(self) {
            self.stop.cancel();
            self.ended.await.unwrap();
        }
    }

    #[tokio::test]
    async fn tick_that_panics_fails_or_hangs_is_survived_and_shown() {
        let mut looping = looping(&[
            || panic!("as told"),
            || Some(Err(TickError::ClockUnknown)),
            || None,
            || Some(Ok(NextTick::OnWake)),
            || panic!("not before it is woken"),
        ]);
        for left in [4, 3, 2, 1] {
            assert_eq!(looping.ticked().await, left);
        }
        assert!(looping.is_quiet().await);
        let text = looping.metrics.text();
        assert!(text.contains(r#"reveille_service_ticks_total{service="scripted",result="error"} 3"#), "{text}");
        assert!(text.contains(r#"reveille_service_ticks_total{service="scripted",result="ok"} 1"#), "{text}");
        looping.ends().await;
    }

    #[tokio::test]
    async fn tick_follows_at_the_instant_that_was_asked_for_or_at_a_hint() {
        let mut looping = looping(&[
            || Some(Ok(NextTick::Now)),
            || Some(Ok(NextTick::At(DateTime::UNIX_EPOCH + TimeDelta::seconds(10)))),
        ]);
        assert_eq!([looping.ticked().await, looping.ticked().await], [1, 0]);
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(9));
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(1));
        looping.ticked().await;
        looping.wake.send_replace(());
        looping.ticked().await;
        // without a cause it looks again before its longest wait is over
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(100));
        looping.ticked().await;
        looping.ends().await;
    }

    /// An idle service: its polls have found nothing, and it reads the pending work from now on.
    async fn idle_policy() -> LoopFixture {
        let mut looping = looping(&[]);
        looping.ticked().await;
        for _ in 0..IDLE_AFTER {
            looping.looks_after(100).await;
        }
        looping
    }

    #[tokio::test]
    async fn service_at_rest_goes_by_the_outlook_and_is_well() {
        let mut looping = idle_policy().await;
        looping.pending_work.shows(Some(PendingWork::default()));
        for looks in 1..=5 {
            assert!(looping.is_quiet().await);
            looping.clock.advance(TimeDelta::seconds(200));
            assert!(looping.is_quiet().await, "there is nothing to tick for");
            assert_eq!(looping.pending_work.looks(), looks);
            assert!(looping.metrics.late_services(looping.clock.now()).is_empty());
        }
        // the wait is longer by now
        looping.clock.advance(TimeDelta::seconds(159));
        assert!(looping.is_quiet().await);
        assert_eq!(looping.pending_work.looks(), 5);
        looping.wake.send_replace(());
        looping.ticked().await;
        looping.looks_after(100).await;
        assert_eq!(looping.pending_work.looks(), 5, "a wake-up ends the idle time");
        looping.ends().await;
    }

    #[test]
    fn common_moments_are_two_seconds_apart_and_as_late_as_can_be() {
        let at = |seconds: f64| DateTime::UNIX_EPOCH + TimeDelta::milliseconds((seconds * 1000.0) as i64);
        assert_eq!(common_moment(at(6.3), 0.0), at(6.0));
        assert_eq!(common_moment(at(7.999), 0.0), at(6.0));
        assert_eq!(common_moment(at(8.0), 0.0), at(8.0));
        assert_eq!(common_moment(at(6.3), 0.25), at(4.5));
        assert_eq!(common_moment(at(6.5), 0.25), at(6.5));
    }

    #[tokio::test]
    async fn hint_that_comes_with_the_end_of_a_wait_is_not_missed() {
        for _ in 0..20 {
            let mut looping = idle_policy().await;
            looping.pending_work.shows(Some(PendingWork::default()));
            assert!(looping.is_quiet().await);
            looping.clock.advance(TimeDelta::seconds(200));
            looping.wake.send_replace(());
            looping.ticked().await;
            looping.ends().await;
        }
    }

    #[tokio::test]
    async fn service_at_rest_ticks_for_what_the_outlook_shows() {
        let mut looping = idle_policy().await;
        let shows = |looping: &LoopFixture, at| {
            looping.pending_work.shows(Some(PendingWork { fire: Some(at), ..PendingWork::default() }))
        };
        shows(&looping, looping.clock.now());
        for _ in 0..5 {
            looping.looks_after(100).await;
        }
        shows(&looping, looping.clock.now() + TimeDelta::seconds(150));
        looping.clock.advance(TimeDelta::seconds(100));
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(49));
        assert!(looping.is_quiet().await);
        looping.looks_after(1).await;
        // and stays idle
        looping.pending_work.shows(Some(PendingWork::default()));
        looping.clock.advance(TimeDelta::seconds(100));
        assert!(looping.is_quiet().await);
        looping.ends().await;
    }

    #[tokio::test]
    async fn service_that_is_not_told_goes_on_looking() {
        let mut looping = idle_policy().await;
        for _ in 0..5 {
            looping.looks_after(100).await;
        }
        assert_eq!(looping.pending_work.looks(), 5);
        looping.ends().await;
    }

    #[tokio::test]
    async fn service_that_does_not_come_to_a_good_tick_is_late_until_it_has_stopped() {
        let mut looping = looping(&[|| Some(Ok(NextTick::OnWake))]);
        looping.ticked().await;
        assert!(looping.is_quiet().await);
        let late = |looping: &LoopFixture, seconds: i64| {
            let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
            looping.metrics.late_services(now).iter().map(|late| late.service).collect::<Vec<_>>()
        };
        assert_eq!(late(&looping, 400), [""; 0]);
        assert_eq!(late(&looping, 401), ["scripted"]);
        looping.stop.cancel();
        (&mut looping.ended).await.unwrap();
        assert_eq!(late(&looping, 401), [""; 0]);
    }
}
