//! The extractor: notes facts from runs that have ended, where a model for that is configured. Each extraction goes on
//! in a task of its own, a few at a time and one of a tenant, from tenant to tenant: one that hangs delays no run, no
//! answer and no other tenant.
//!
//! Between claim and record nothing is locked. A crash costs the call, which is made again when its claim has run out;
//! its facts are noted with the record of its end, or not at all. One that keeps failing is given up.

mod extraction_work;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::agent::MemorySettings;
use crate::base::clock::{to_delta, truncate_millis};
use crate::base::compute::Compute;
use crate::base::metrics::Metrics;
use crate::domain::halt::Halts;
use crate::engine::Wakeup;
use crate::engine::maintenance::extractor::extraction_work::ExtractionWork;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::executor::host::nearest::NearestFacts;
use crate::ports::llm::Models;
use crate::store::{Store, StoreError, Topic};

/// Extractions at the same time, on one instance.
const AT_ONCE: usize = 4;
/// Tenants that are looked at in one tick, so many at a time and so many times.
const TENANTS: i64 = 100;
const PAGES: usize = 8;
/// A claim outlasts the call by so much: what comes before and behind it.
const CLAIM_MARGIN: TimeDelta = TimeDelta::seconds(60);
/// How long it may take to give back those that are under way when the service stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Works off the queue of extractions.
pub struct FactExtractor {
    work: ExtractionWork,
    permits: Arc<Semaphore>,
    /// The tenant after which the search goes on.
    searched: Mutex<String>,
    under_way: TaskTracker,
    /// Rung after each: its permit is free, and its tenant may have another one.
    done: Wakeup,
}

impl FactExtractor {
    /// The service with the model that the settings name; `None`: they name none, and nothing is extracted. `nearest`
    /// finds known facts by their meaning.
    pub fn new(
        store: Store,
        models: Models,
        settings: MemorySettings,
        nearest: Option<NearestFacts>,
        compute: Compute,
        metrics: &Metrics,
    ) -> Option<FactExtractor> {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        let work = ExtractionWork {
            clock: store.clock().clone(),
            store,
            models,
            settings,
            nearest,
            compute,
            extracted: counted("extractions", "Ended runs from which facts were extracted"),
            facts: counted("extracted_facts", "Facts that were noted by extraction"),
            failed: counted("extraction_failures", "Attempts to extract facts that failed"),
            skipped: counted(
                "extractions_skipped",
                "Ended runs left out because no money was left for their extraction",
            ),
            stop: CancellationToken::new(),
        };
        let is_wanted = work.settings.model.is_some();
        is_wanted.then(|| FactExtractor {
            work,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            searched: Mutex::default(),
            under_way: TaskTracker::new(),
            done: Wakeup::default(),
        })
    }

    /// Begins one extraction of each tenant, from where the search before came to, as long as there are permits;
    /// answers how many were begun, and whether the search stopped before it was round.
    async fn begin(&self, halts: &Halts) -> Result<(usize, bool), StoreError> {
        let mut after = self.searched.lock().expect("searched").clone();
        let mut from_the_first = after.is_empty();
        let mut begun = 0;
        for _ in 0..PAGES {
            let tenants = self.work.store.extractions_in_turn(&after, TENANTS, self.work.clock.now()).await?;
            let is_last_page = (tenants.len() as i64) < TENANTS;
            for (tenant, run_id) in tenants {
                if let Some(run_id) = run_id.filter(|_| halts.halt_of(&tenant).is_none()) {
                    let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                        *self.searched.lock().expect("searched") = after;
                        return Ok((begun, false));
                    };
                    begun += match self.claim(&tenant, run_id, permit).await {
                        Ok(claimed) => usize::from(claimed),
                        Err(error @ (StoreError::Unavailable(_) | StoreError::TimedOut(_))) => return Err(error),
                        Err(error) => {
                            tracing::error!(tenant_id = tenant, %run_id, %error, "an extraction can't be claimed");
                            0
                        }
                    };
                }
                after = tenant;
            }
            if is_last_page {
                after.clear();
                if std::mem::replace(&mut from_the_first, true) {
                    self.searched.lock().expect("searched").clear();
                    return Ok((begun, false));
                }
            }
        }
        *self.searched.lock().expect("searched") = after;
        Ok((begun, true))
    }

    /// Claims an extraction, and begins it; whether it was to be had.
    async fn claim(&self, tenant: &str, run_id: Uuid, permit: OwnedSemaphorePermit) -> Result<bool, StoreError> {
        let time = to_delta(self.work.settings.time_limit()) + CLAIM_MARGIN;
        let until = truncate_millis(self.work.clock.now() + time);
        let Some(claim) = self.work.store.claim_extraction(tenant, run_id, until).await? else { return Ok(false) };
        let (work, done) = (self.work.clone(), Arc::clone(&self.done));
        self.under_way.spawn(async move {
            work.extract(claim).await;
            drop(permit);
            done.notify_one();
        });
        Ok(true)
    }

    /// Breaks off those that are under way, and gives them back; returns once that is recorded, but not for ever.
    pub async fn drain(&self) {
        self.work.stop.cancel();
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
    }
}

impl ServiceLoop for FactExtractor {
    const NAME: &'static str = "extractor";
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.extraction });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.work.clock.is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        if self.permits.available_permits() == 0 {
            return Ok(NextTick::OnWake);
        }
        let halts = self.work.store.halts().await?;
        if halts.all() {
            return Ok(NextTick::OnWake);
        }
        let (begun, has_more) = self.begin(&halts).await?;
        Ok(if begun > 0 && has_more { NextTick::Now } else { NextTick::OnWake })
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut queued = self.work.store.listen(Topic::Extractions);
        let done = Arc::clone(&self.done);
        Box::pin(async move {
            tokio::select! {
                _ = queued.changed() => {}
                () = done.notified() => {}
            }
        })
    }
}
