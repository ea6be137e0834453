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

use crate::clock::{Clock, signed};
use crate::metrics::Metrics;
use crate::retry::full_jitter;
use crate::store::{Store, StoreError};

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

    /// Does what there is to do now, a bounded part of it.
    fn tick(&self) -> impl Future<Output = Result<Next, TickError>> + Send;

    /// Listens for hints from now on; the answer returns at the first.
    fn hint(&self) -> BoxFuture<'static, ()>;
}

/// The first and the longest wait after an error.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest wait is shortened by up to this share.
const SPREAD: f64 = 0.2;
/// A service counts as stalled when no tick succeeded for this many of its longest waits, and this long at least.
const STALLED_AFTER: (u32, Duration) = (4, Duration::from_secs(20));

/// What every loop needs.
#[derive(Clone)]
pub(super) struct Looped {
    pub store: Store,
    pub metrics: Metrics,
}

impl Looped {
    pub(super) fn spawn<S: Service>(&self, service: Arc<S>, stop: CancellationToken) -> JoinHandle<()> {
        let patience = (S::LOOK_AGAIN * STALLED_AFTER.0).max(STALLED_AFTER.1);
        self.metrics.expect_ticks(S::NAME, patience);
        let looped = self.clone();
        tokio::spawn(async move { looped.run(service, stop).await })
    }

    async fn run<S: Service>(&self, service: Arc<S>, stop: CancellationToken) {
        let clock = self.store.clock();
        let mut failures = 0;
        while !stop.is_cancelled() {
            // listen first: what is committed during the tick must not be missed
            let hint = service.hint();
            let wait = match self.tick_once(&*service).await {
                Some(next) => {
                    failures = 0;
                    until_next(clock, next, S::LOOK_AGAIN, fastrand::f64())
                }
                None => {
                    failures += 1;
                    let wait = full_jitter(BACK_OFF.0, failures, BACK_OFF.1, fastrand::f64());
                    tokio::select! {
                        () = crate::clock::pause(wait) => {}
                        () = stop.cancelled() => {}
                    }
                    continue;
                }
            };
            let Some(until) = wait else { continue };
            tokio::select! {
                () = clock.sleep_until(until) => {}
                () = hint => {}
                () = stop.cancelled() => {}
            }
        }
        self.metrics.forget_ticks(S::NAME);
    }

    /// A tick with its panics caught and its end recorded; `None` when it failed.
    async fn tick_once<S: Service>(&self, service: &S) -> Option<Next> {
        let ticked = AssertUnwindSafe(service.tick()).catch_unwind().await;
        let now = self.store.clock().now();
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

/// Until when to wait; `None`: not at all. Looks without a cause are spread, so that instances do not keep step.
fn until_next(clock: &Clock, next: Next, look_again: Duration, random: f64) -> Option<DateTime<Utc>> {
    let latest = clock.now() + signed(look_again.mul_f64(1.0 - SPREAD * random));
    match next {
        Next::Now => None,
        Next::At(instant) => Some(instant.min(latest)),
        Next::OnWake => Some(latest),
    }
}
