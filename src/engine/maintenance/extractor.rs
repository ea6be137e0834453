//! The extractor: notes facts from runs that have ended, where a model for that is configured. Each extraction goes on in a task of its
//! own, a few at a time and one of a tenant, from tenant to tenant: one that hangs delays no run, no answer and no other tenant.
//!
//! Between claim and record nothing is locked. A crash costs the call, which is made again when its claim has run out; facts that it has
//! noted are not noted again. One that keeps failing is given up.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::agent::budget::{usage_of, worst_usage};
use crate::agent::{ExtractedFact, ExtractionMaterial, MemorySettings, read_facts};
use crate::base::backoff::full_jitter;
use crate::base::clock::{Clock, pause, to_delta, truncate_millis};
use crate::base::compute::Compute;
use crate::base::id::Scope;
use crate::base::metrics::Metrics;
use crate::domain::halt::Halts;
use crate::domain::memory::Fact;
use crate::domain::memory::recall::terms;
use crate::domain::run::Usage;
use crate::domain::run::transcript::ModelCall;
use crate::engine::Wakeup;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NextTick, ServiceLoop, TickError};
use crate::ports::llm::fallback::{Chain, Completed};
use crate::ports::llm::{Models, StopReason};
use crate::store::{ExtractionCall, ExtractionClaim, Store, StoreError, Topic, with_timeout};

/// Extractions at the same time, on one instance.
const AT_ONCE: usize = 4;
/// Tenants that are looked at in one tick.
const TENANTS: i64 = 100;
/// Entries of a transcript that are read, the first ones.
const ENTRIES: i64 = 200;
/// A claim outlasts the call by so much: what comes before and behind it.
const CLAIM_MARGIN: TimeDelta = TimeDelta::seconds(60);
/// How often an extraction is tried.
const TRIES: i64 = 5;
/// The first and the longest wait before it is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1800));
/// How long an extraction that is under way may go on when the service stops. What is cut off is done again.
const DRAIN: Duration = Duration::from_secs(2);
/// The wait before a store that is away is asked again to record one.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Works off the queue of extractions.
pub struct FactExtractor {
    work: ExtractionWork,
    places: Arc<Semaphore>,
    /// The tenant after which the search goes on.
    searched: Mutex<String>,
    under_way: TaskTracker,
    /// Rung after each: its place is free, and its tenant may have another one.
    done: Wakeup,
}

/// The parts that each extraction needs.
#[derive(Clone)]
struct ExtractionWork {
    store: Store,
    models: Models,
    settings: MemorySettings,
    compute: Compute,
    clock: Clock,
    extracted: Counter,
    facts: Counter,
    failed: Counter,
    skipped: Counter,
}

/// How an attempt ended.
enum ExtractionAttempt {
    /// There is nothing more to do.
    Done(Option<ExtractionCall>),
    /// It is worth another try.
    Failed(Option<ExtractionCall>),
}

impl FactExtractor {
    /// The service with the model that the settings name; `None`: they name none, and nothing is extracted.
    pub fn new(
        store: Store,
        models: Models,
        settings: MemorySettings,
        compute: Compute,
        metrics: &Metrics,
    ) -> Option<FactExtractor> {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        let work = ExtractionWork {
            clock: store.clock().clone(),
            store,
            models,
            settings,
            compute,
            extracted: counted("extractions", "Ended runs from which facts were extracted"),
            facts: counted("extracted_facts", "Facts that were noted by extraction"),
            failed: counted("extraction_failures", "Attempts to extract facts that failed"),
            skipped: counted(
                "extractions_skipped",
                "Ended runs left out because no money was left for their extraction",
            ),
        };
        let is_wanted = work.settings.model.is_some();
        is_wanted.then(|| FactExtractor {
            work,
            places: Arc::new(Semaphore::new(AT_ONCE)),
            searched: Mutex::default(),
            under_way: TaskTracker::new(),
            done: Wakeup::default(),
        })
    }

    /// Begins one extraction of each tenant behind the one that the search came to, as long as there are places; answers whether
    /// there may be more.
    async fn begin(&self, halts: &Halts) -> Result<bool, StoreError> {
        let after = self.searched.lock().expect("searched").clone();
        let now = self.work.clock.now();
        let tenants = self.work.store.extractions_in_turn(&after, TENANTS, now).await?;
        let mut last = String::new();
        let is_full_page = tenants.len() as i64 == TENANTS;
        let mut is_out_of_places = false;
        for (tenant, run_id) in tenants {
            let Some(run_id) = run_id.filter(|_| halts.halt_of(&tenant).is_none()) else {
                last = tenant;
                continue;
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                is_out_of_places = true;
                break;
            };
            let until = truncate_millis(now + to_delta(self.work.settings.time_limit()) + CLAIM_MARGIN);
            if let Some(claim) = self.work.store.claim_extraction(&tenant, run_id, until).await? {
                self.spawn(claim, place);
            }
            last = tenant;
        }
        // behind the last tenant it begins again with the first one
        let goes_on = is_full_page || is_out_of_places;
        *self.searched.lock().expect("searched") = if goes_on { last } else { String::new() };
        Ok((goes_on || !after.is_empty()) && !is_out_of_places)
    }

    fn spawn(&self, claim: ExtractionClaim, place: OwnedSemaphorePermit) {
        let (work, done) = (self.work.clone(), Arc::clone(&self.done));
        self.under_way.spawn(async move {
            work.extract(claim).await;
            drop(place);
            done.notify_one();
        });
    }

    /// Waits for those that are under way, but not for ever.
    pub async fn drain(&self) {
        self.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.under_way.wait()).await;
        self.under_way.reopen();
    }
}

impl ServiceLoop for FactExtractor {
    const NAME: &'static str = "extractor";
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.extraction });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.work.clock.trusted() {
            return Err(TickError::ClockUnknown);
        }
        if self.places.available_permits() == 0 {
            return Ok(NextTick::OnWake);
        }
        let halts = self.work.store.halts().await?;
        if halts.all() {
            return Ok(NextTick::OnWake);
        }
        Ok(if self.begin(&halts).await? { NextTick::Now } else { NextTick::OnWake })
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

impl ExtractionWork {
    /// Asks, notes, records.
    async fn extract(&self, claim: ExtractionClaim) {
        let attempt = AssertUnwindSafe(self.attempt(&claim)).catch_unwind().await;
        let attempt = attempt.unwrap_or_else(|_| {
            tracing::error!(run_id = %claim.run_id, "an extraction panicked");
            Ok(ExtractionAttempt::Failed(None))
        });
        let attempt = attempt.unwrap_or_else(|error| {
            tracing::warn!(run_id = %claim.run_id, %error, "facts could not be extracted");
            ExtractionAttempt::Failed(None)
        });
        let (call, again_at) = match attempt {
            ExtractionAttempt::Done(call) => (call, None),
            ExtractionAttempt::Failed(call) => {
                self.failed.inc();
                let is_last = claim.claims >= TRIES;
                if is_last {
                    tracing::warn!(run_id = %claim.run_id, tries = TRIES, "no facts are extracted from a run");
                }
                (call, (!is_last).then(|| self.next_try(claim.claims)))
            }
        };
        self.record(&claim, call, again_at).await;
    }

    fn next_try(&self, tries: i64) -> DateTime<Utc> {
        let wait = full_jitter(BACK_OFF.0, tries as u32, BACK_OFF.1, fastrand::f64()).max(BACK_OFF.0);
        truncate_millis(self.clock.now() + to_delta(wait))
    }

    async fn record(&self, claim: &ExtractionClaim, call: Option<ExtractionCall>, again_at: Option<DateTime<Utc>>) {
        let give_up = self.clock.now() + CLAIM_MARGIN;
        while let Err(error) = with_timeout(self.store.finish_extraction(claim, call.as_ref(), again_at)).await {
            if !matches!(error, StoreError::Unavailable(_) | StoreError::TimedOut(_)) || self.clock.now() >= give_up {
                tracing::error!(run_id = %claim.run_id, %error, "an extraction could not be recorded; it is made again");
                return;
            }
            pause(ASK_AGAIN).await;
        }
    }

    async fn attempt(&self, claim: &ExtractionClaim) -> Result<ExtractionAttempt, StoreError> {
        let ExtractionClaim { tenant, run_id, .. } = claim;
        let scope = Scope::Only(tenant.clone());
        // one that is gone was deleted, and is to be known of no more
        let Some(run) = with_timeout(self.store.find_run(&scope, *run_id)).await? else {
            return Ok(ExtractionAttempt::Done(None));
        };
        let page = with_timeout(self.store.transcript_page(&scope, *run_id, 0, ENTRIES)).await?;
        let is_whole = !page.is_cut && (page.rows.len() as i64) < ENTRIES;
        let read = move || ExtractionMaterial::of(&page.rows, is_whole);
        let material = self.compute.run(tenant.as_str(), read).await.unwrap_or(None);
        let Some(material) = material else { return Ok(ExtractionAttempt::Done(None)) };
        let recalled = with_timeout(self.store.recall_facts(tenant, &terms(&material.text))).await?;
        let mut known: Vec<Fact> = recalled.profile.into_iter().chain(recalled.found).collect();
        known.retain(|fact| material.may_show(fact));
        let Some(chain) = self.models.chain(self.settings.model.as_deref(), tenant.as_str()) else {
            return Ok(ExtractionAttempt::Done(None));
        };
        let (call, answer) = match self.ask(&chain.budgeted().without_thinking(), claim, &material, &known).await? {
            ExtractionReply::Answered(call, answer) => (ExtractionCall { task_id: run.task_id, ..call }, answer),
            ExtractionReply::Failed(call) => {
                return Ok(ExtractionAttempt::Failed(call.map(|call| ExtractionCall { task_id: run.task_id, ..call })));
            }
            ExtractionReply::NoMoney => {
                self.skipped.inc();
                return Ok(ExtractionAttempt::Done(None));
            }
        };
        match read_facts(&answer, known.len()) {
            Ok(facts) => {
                self.note(claim, &material, &known, facts).await?;
                self.extracted.inc();
                Ok(ExtractionAttempt::Done(Some(call)))
            }
            Err(why) => {
                tracing::info!(%run_id, why, "a model's answer has no facts that can be read");
                Ok(ExtractionAttempt::Failed(Some(call)))
            }
        }
    }

    /// Asks the model within the time limit, if the tenant has the money left.
    async fn ask(
        &self,
        chain: &Chain,
        claim: &ExtractionClaim,
        material: &ExtractionMaterial,
        known: &[Fact],
    ) -> Result<ExtractionReply, StoreError> {
        let tenant = claim.tenant.as_str();
        let request = material.request(known, &self.settings);
        let bound = chain.worst_case(&request);
        let (most, limit) = (bound.most.cost_micros, self.settings.hourly_micros());
        if !with_timeout(self.store.has_budget_left(tenant, &bound)).await?
            || !with_timeout(self.store.take_extraction_money(tenant, most, limit)).await?
        {
            return Ok(ExtractionReply::NoMoney);
        }
        let begun = Instant::now();
        let completed = tokio::select! {
            biased;
            completed = chain.complete(&request, &|_| {}) => Some(completed),
            () = self.clock.sleep(self.settings.time_limit()) => None,
        };
        let duration_ms = begun.elapsed().as_millis() as i64;
        let call = |model_call, usage| ExtractionCall { task_id: None, model_call, usage, duration_ms };
        let (asked, cost) = match completed {
            Some(Ok(Completed { answer, model, cost_micros })) => {
                let usage = usage_of(answer.tokens, cost_micros);
                let call = call(Some(ModelCall { model, tokens: answer.tokens }), usage);
                let text = answer.text.filter(|_| answer.stop == StopReason::Done);
                (ExtractionReply::Answered(call, text.unwrap_or_default()), cost_micros)
            }
            Some(Err(error)) => {
                tracing::info!(run_id = %claim.run_id, %error, "no model extracts facts");
                let usage = chain.take_unusable();
                let paid = (usage != Usage::default()).then(|| call(None, usage));
                (ExtractionReply::Failed(paid), usage.cost_micros)
            }
            // it may have been paid
            None => {
                (ExtractionReply::Failed(Some(call(None, worst_usage(bound.most, self.settings.max_tokens)))), most)
            }
        };
        let back = (most - cost).max(0);
        if let Err(error) = with_timeout(self.store.give_extraction_money_back(tenant, back)).await {
            tracing::warn!(%error, "money for extractions could not be given back");
        }
        Ok(asked)
    }

    /// Notes the facts, one after the other. One that can't be noted keeps no other from being noted.
    async fn note(
        &self,
        claim: &ExtractionClaim,
        material: &ExtractionMaterial,
        known: &[Fact],
        facts: Vec<ExtractedFact>,
    ) -> Result<(), StoreError> {
        for extracted in facts {
            let fact = material.fact(&extracted, claim.run_id);
            // the run has noted it by itself
            if known.iter().any(|known| known.run_id == Some(claim.run_id) && known.text == fact.text) {
                continue;
            }
            let replaces = extracted.replaces.and_then(|place| known.get(place)).map(|known| known.id.to_string());
            let noted = with_timeout(self.store.note_fact(&claim.tenant, &fact, replaces.as_deref())).await;
            let noted = match noted {
                // it may not take the place of a person's word, or that is gone by now
                Err(StoreError::Conflict(_) | StoreError::NotFound) if replaces.is_some() => {
                    with_timeout(self.store.note_fact(&claim.tenant, &fact, None)).await
                }
                noted => noted,
            };
            match noted {
                Ok(_) => drop(self.facts.inc()),
                Err(error @ (StoreError::Unavailable(_) | StoreError::TimedOut(_))) => return Err(error),
                Err(error) => {
                    tracing::info!(run_id = %claim.run_id, %error, "an extracted fact is not noted");
                }
            }
        }
        Ok(())
    }
}

/// How the question to the model ended. The task of a call is not known yet.
enum ExtractionReply {
    Answered(ExtractionCall, String),
    Failed(Option<ExtractionCall>),
    NoMoney,
}
