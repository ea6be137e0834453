//! The one loop of all services: a tick, then a wait for the next instant, a hint, or the stop.
//!
//! It alone catches panics, backs off after errors, and records that a service is well.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bus::BusError;
use crate::clock::{Clock, signed};
use crate::metrics::Metrics;
use crate::retry::{CALM, full_jitter, resting};
use crate::store::StoreError;

/// When a service wants its next tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// There is more to do.
    Now,
    /// Not before this instant, unless it is woken.
    At(DateTime<Utc>),
    /// When it is woken, or looks again by itself.
    OnWake,
}

/// Why a tick came to nothing. Nothing is lost: the next one does it.
#[derive(Debug, thiserror::Error)]
pub enum TickError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("the database's clock is not known well enough to claim anything")]
    ClockUnknown,
    #[error("no answer from the database within {0:?}")]
    Slow(Duration),
}

/// One kind of work, done in ticks.
pub trait Service: Send + Sync + 'static {
    const NAME: &'static str;
    /// The longest wait: what no hint tells is found by looking.
    const LOOK_AGAIN: Duration;
    /// The longest wait at rest, when look after look has found nothing. Longer where hints tell of all that is not of
    /// this instance's making: what is left then is a hint that was lost.
    const AT_REST: Duration = Self::LOOK_AGAIN;
    /// The longest tick, in real time. A wire that was cut without a word never answers; the next tick takes another.
    const TIME_LIMIT: Duration = Duration::from_secs(30);

    /// Whether nothing is there that only looks find: asked before a wait that is longer than [`Service::LOOK_AGAIN`].
    fn may_rest(&self) -> impl Future<Output = bool> + Send {
        std::future::ready(true)
    }

    /// Does what there is to do now, a bounded part of it.
    fn tick(&self) -> impl Future<Output = Result<Next, TickError>> + Send;

    /// Listens for hints from now on; the answer returns at the first.
    fn hint(&self) -> BoxFuture<'static, ()>;
}

/// The first and the longest wait after an error.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest wait is shortened by up to this share.
const SPREAD: f64 = 0.2;
/// [`Service::AT_REST`] of services that hints tell of everything.
pub const REST: Duration = Duration::from_secs(8);
/// A service counts as stalled when no tick succeeded for this many of its longest waits, and this long at least.
const STALLED_AFTER: (u32, Duration) = (4, Duration::from_secs(20));

/// What every loop needs.
#[derive(Clone)]
pub(super) struct Looped {
    pub clock: Clock,
    pub metrics: Metrics,
}

impl Looped {
    pub(super) fn spawn<S: Service>(&self, service: Arc<S>, stop: CancellationToken) -> JoinHandle<()> {
        let patience = (S::LOOK_AGAIN * STALLED_AFTER.0).max(S::AT_REST * 2).max(STALLED_AFTER.1);
        self.metrics.expect_ticks(S::NAME, patience);
        let looped = self.clone();
        tokio::spawn(async move { looped.run(service, stop).await })
    }

    async fn run<S: Service>(&self, service: Arc<S>, stop: CancellationToken) {
        let clock = &self.clock;
        let (mut failures, mut quiet) = (0, 0);
        while !stop.is_cancelled() {
            // listen first: what is committed during the tick must not be missed
            let hint = service.hint();
            let wait = match self.tick_once(&*service).await {
                Some(next) => {
                    failures = 0;
                    if quiet > CALM && S::AT_REST > S::LOOK_AGAIN {
                        let may_rest = tokio::time::timeout(S::TIME_LIMIT, service.may_rest()).await;
                        quiet = if may_rest == Ok(true) { quiet } else { CALM };
                    }
                    until_next(clock, next, resting(S::LOOK_AGAIN, quiet, S::AT_REST), fastrand::f64())
                }
                None => {
                    // hints may have been lost with whatever failed
                    quiet = 0;
                    failures += 1;
                    let wait = full_jitter(BACK_OFF.0, failures, BACK_OFF.1, fastrand::f64());
                    tokio::select! {
                        () = crate::clock::pause(wait) => {}
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
                () = clock.sleep_until(until) => quiet = if looks { quiet + 1 } else { 0 },
                () = hint => quiet = 0,
                () = stop.cancelled() => {}
            }
        }
        self.metrics.forget_ticks(S::NAME);
    }

    /// A tick with its panics caught and its end recorded; `None` when it failed.
    async fn tick_once<S: Service>(&self, service: &S) -> Option<Next> {
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

/// A wait that ends by itself.
#[derive(Debug, PartialEq, Eq)]
struct Wait {
    until: DateTime<Utc>,
    /// Without a cause, for what no hint told.
    looks: bool,
}

/// How long to wait; `None`: not at all. Looks without a cause are spread, so that instances do not keep step.
fn until_next(clock: &Clock, next: Next, longest: Duration, random: f64) -> Option<Wait> {
    let latest = clock.now() + signed(longest.mul_f64(1.0 - SPREAD * random));
    match next {
        Next::Now => None,
        Next::At(instant) if instant <= latest => Some(Wait { until: instant, looks: false }),
        Next::At(_) | Next::OnWake => Some(Wait { until: latest, looks: true }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use chrono::TimeDelta;
    use tokio::sync::Notify;

    use super::*;

    /// What a tick does; `None`: it hangs.
    type Act = fn() -> Option<Result<Next, TickError>>;

    /// Ticks as it is told, tells each tick, and then waits to be woken.
    struct Scripted {
        script: Mutex<VecDeque<Act>>,
        ticks: tokio::sync::mpsc::UnboundedSender<usize>,
        wake: Arc<Notify>,
        is_busy: Arc<AtomicBool>,
    }

    impl Service for Scripted {
        const NAME: &'static str = "scripted";
        const LOOK_AGAIN: Duration = Duration::from_secs(100);
        const AT_REST: Duration = Duration::from_secs(200);
        const TIME_LIMIT: Duration = Duration::from_millis(20);

        async fn tick(&self) -> Result<Next, TickError> {
            let (act, left) = {
                let mut script = self.script.lock().unwrap();
                (script.pop_front(), script.len())
            };
            self.ticks.send(left).unwrap();
            match act.map_or(Some(Ok(Next::OnWake)), |act| act()) {
                Some(ticked) => ticked,
                None => std::future::pending().await,
            }
        }

        async fn may_rest(&self) -> bool {
            !self.is_busy.load(Ordering::Relaxed)
        }

        fn hint(&self) -> BoxFuture<'static, ()> {
            let wake = Arc::clone(&self.wake);
            Box::pin(async move { wake.notified().await })
        }
    }

    struct Looping {
        clock: Clock,
        metrics: Metrics,
        wake: Arc<Notify>,
        is_busy: Arc<AtomicBool>,
        ticks: tokio::sync::mpsc::UnboundedReceiver<usize>,
        stop: CancellationToken,
        ended: JoinHandle<()>,
    }

    fn looping(script: &[Act]) -> Looping {
        let (clock, metrics) = (Clock::manual(DateTime::UNIX_EPOCH), Metrics::new());
        let (sender, ticks) = tokio::sync::mpsc::unbounded_channel();
        let (wake, stop) = (Arc::<Notify>::default(), CancellationToken::new());
        let script = Mutex::new(script.iter().copied().collect());
        let is_busy = Arc::<AtomicBool>::default();
        let service =
            Arc::new(Scripted { script, ticks: sender, wake: Arc::clone(&wake), is_busy: Arc::clone(&is_busy) });
        let looped = Looped { clock: clock.clone(), metrics: metrics.clone() };
        let ended = looped.spawn(service, stop.clone());
        Looping { clock, metrics, wake, is_busy, ticks, stop, ended }
    }

    impl Looping {
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
    async fn a_tick_that_panics_fails_or_hangs_is_survived_and_shown() {
        let mut looping = looping(&[
            || panic!("as told"),
            || Some(Err(TickError::ClockUnknown)),
            || None,
            || Some(Ok(Next::OnWake)),
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
    async fn a_tick_follows_at_the_instant_that_was_asked_for_or_at_a_hint() {
        let mut looping =
            looping(&[|| Some(Ok(Next::Now)), || Some(Ok(Next::At(DateTime::UNIX_EPOCH + TimeDelta::seconds(10))))]);
        assert_eq!([looping.ticked().await, looping.ticked().await], [1, 0]);
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(9));
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(1));
        looping.ticked().await;
        looping.wake.notify_one();
        looping.ticked().await;
        // without a cause it looks again before its longest wait is over
        assert!(looping.is_quiet().await);
        looping.clock.advance(TimeDelta::seconds(100));
        looping.ticked().await;
        looping.ends().await;
    }

    #[tokio::test]
    async fn looks_that_find_nothing_become_rare_until_something_is_there() {
        let mut looping = looping(&[]);
        looping.ticked().await;
        for _ in 0..=CALM {
            looping.looks_after(100).await;
        }
        for _ in 0..2 {
            looping.clock.advance(TimeDelta::seconds(159));
            assert!(looping.is_quiet().await, "at rest the wait is longer");
            looping.looks_after(41).await;
        }
        looping.wake.notify_one();
        looping.ticked().await;
        looping.looks_after(100).await;
        looping.ends().await;
    }

    #[tokio::test]
    async fn who_may_not_rest_goes_on_looking() {
        let mut looping = looping(&[]);
        looping.is_busy.store(true, Ordering::Relaxed);
        looping.ticked().await;
        for _ in 0..CALM + 5 {
            looping.looks_after(100).await;
        }
        looping.is_busy.store(false, Ordering::Relaxed);
        looping.looks_after(100).await;
        looping.clock.advance(TimeDelta::seconds(159));
        assert!(looping.is_quiet().await);
        looping.ends().await;
    }

    #[tokio::test]
    async fn a_service_that_does_not_come_to_a_good_tick_is_late_until_it_has_stopped() {
        let mut looping = looping(&[|| Some(Ok(Next::OnWake))]);
        looping.ticked().await;
        assert!(looping.is_quiet().await);
        let late = |looping: &Looping, seconds: i64| {
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
