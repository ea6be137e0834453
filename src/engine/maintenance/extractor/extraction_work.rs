//! One extraction, from its claim to the record of its end.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures::FutureExt;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::agent::budget::{usage_of, worst_usage};
use crate::agent::{ExtractedFact, ExtractionMaterial, MemorySettings, read_facts};
use crate::base::backoff::full_jitter;
use crate::base::clock::{Clock, pause, to_delta, truncate_millis};
use crate::base::compute::Compute;
use crate::base::id::{Scope, Tenant};
use crate::domain::budget::{CallBound, Spend};
use crate::domain::memory::recall::{RECALLED_CHARS, fused, terms, within};
use crate::domain::memory::{Fact, FactOrigin, NewFact, identity};
use crate::domain::run::Usage;
use crate::domain::run::transcript::ModelCall;
use crate::domain::task::Task;
use crate::executor::host::nearest::{FactScope, NearestFacts, ReadFacts};
use crate::ports::llm::fallback::{Chain, ModelCompletion};
use crate::ports::llm::{LlmError, ModelAnswer, ModelRequest, Models, StopReason};
use crate::store::{ExtractionCall, ExtractionClaim, ExtractionEnd, Store, StoreError, with_timeout};

/// Longest transcript that is read, in entries.
const ENTRIES: i64 = 200;
/// How often an extraction is tried.
const TRIES: i64 = 5;
/// The first and the longest wait before it is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// The wait before a store that is away is asked again to record one.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The parts that each extraction needs.
#[derive(Clone)]
pub(super) struct ExtractionWork {
    pub(super) store: Store,
    pub(super) models: Models,
    pub(super) settings: MemorySettings,
    /// `None`: known facts are found by their words alone.
    pub(super) nearest: Option<NearestFacts>,
    pub(super) compute: Compute,
    pub(super) clock: Clock,
    pub(super) extracted: Counter,
    pub(super) facts: Counter,
    pub(super) failed: Counter,
    pub(super) skipped: Counter,
    pub(super) stop: CancellationToken,
}

impl ExtractionWork {
    /// Asks, and records what came of it.
    pub(super) async fn extract(&self, claim: ExtractionClaim) {
        let asked = OnceLock::new();
        let attempt = AssertUnwindSafe(self.attempt(&claim, &asked)).catch_unwind();
        let attempted = self.stop.run_until_cancelled(attempt).await;
        let end = match attempted {
            // another instance, or this one when it is there again
            None => ExtractionEnd { again_at: Some(self.clock.now()), ..asked.into_inner().unwrap_or_default() },
            Some(Ok(Ok(end))) => end,
            Some(Ok(Err(error))) => {
                tracing::warn!(run_id = %claim.run_id, %error, "facts could not be extracted");
                self.again(&claim)
            }
            Some(Err(_)) => {
                tracing::error!(run_id = %claim.run_id, "an extraction panicked");
                self.again(&claim)
            }
        };
        self.record(&claim, &end).await;
    }

    /// Another try, or the end where there were enough.
    fn again(&self, claim: &ExtractionClaim) -> ExtractionEnd {
        self.failed.inc();
        if claim.claims >= TRIES {
            tracing::warn!(run_id = %claim.run_id, tries = TRIES, "no facts are extracted from a run");
            return ExtractionEnd::default();
        }
        let wait = full_jitter(BACK_OFF.0, claim.claims as u32, BACK_OFF.1, fastrand::f64()).max(BACK_OFF.0);
        let again_at = Some(truncate_millis(self.clock.now() + to_delta(wait)));
        ExtractionEnd { again_at, ..ExtractionEnd::default() }
    }

    async fn record(&self, claim: &ExtractionClaim, end: &ExtractionEnd) {
        loop {
            match with_timeout(self.store.finish_extraction(claim, end)).await {
                Ok(true) => self.count(end),
                Ok(false) => {
                    tracing::info!(run_id = %claim.run_id, "what was extracted is not noted: its run or the memory was deleted")
                }
                Err(StoreError::Unavailable(_) | StoreError::TimedOut(_)) if self.clock.now() < claim.until => {
                    pause(ASK_AGAIN).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(run_id = %claim.run_id, %error, "an extraction could not be recorded; it is made again");
                }
            }
            return;
        }
    }

    fn count(&self, end: &ExtractionEnd) {
        self.facts.inc_by(end.facts.len() as u64);
        if end.call.is_some() && end.again_at.is_none() {
            self.extracted.inc();
        }
    }

    /// Asks a model. `asked` is set before that: what is to be recorded where the answer is not waited for, because its
    /// model may have been paid.
    async fn attempt(
        &self,
        claim: &ExtractionClaim,
        asked: &OnceLock<ExtractionEnd>,
    ) -> Result<ExtractionEnd, StoreError> {
        let ExtractionClaim { tenant, run_id, claims, .. } = claim;
        let over = ExtractionEnd::default();
        if *claims <= 0 {
            // it was called back, and its process died
            return Ok(over);
        }
        if *claims > TRIES {
            // its process died each time
            return Ok(self.again(claim));
        }
        let scope = Scope::Only(tenant.clone());
        // one that is gone was deleted, and is to be known of no more
        let Some(run) = with_timeout(self.store.find_run(&scope, *run_id)).await? else { return Ok(over) };
        let page = with_timeout(self.store.transcript_page(&scope, *run_id, 0, ENTRIES)).await?;
        if page.is_cut || page.rows.len() as i64 == ENTRIES {
            // in the rest the person may have made it forget something
            return Ok(over);
        }
        let read = self.compute.run(tenant.as_str(), move || ExtractionMaterial::of(&page.rows)).await;
        let Ok(material) = read else { return Ok(self.again(claim)) };
        let Some(material) = material else { return Ok(over) };
        let known = self.known(tenant, &material).await?;
        let Some(chain) = self.models.chain(self.settings.model.as_deref(), tenant.as_str()) else { return Ok(over) };
        let chain = chain.budgeted().without_thinking();
        let request = material.request(&known, run.created_at.date_naive(), &self.settings);
        let bound = chain.measured_worst_case(&request, &self.compute).await;
        let task = match run.task_id {
            Some(id) => with_timeout(self.store.find_task(&scope, id)).await?,
            None => None,
        };
        let Some(reservation) = self.reserve(claim, task.as_ref(), &bound).await? else {
            self.skipped.inc();
            return Ok(over);
        };
        let at_worst = worst_usage(bound.most, self.settings.max_tokens);
        let unanswered = ExtractionCall { task_id: run.task_id, model_call: None, usage: at_worst, duration_ms: 0 };
        let at_stake = reservation.map(|id| (id, bound.most));
        let _ = asked.set(ExtractionEnd { call: Some(unanswered), reservation: at_stake, ..ExtractionEnd::default() });
        let begun = Instant::now();
        let answer = self.ask(&chain, &request, claim).await;
        let duration_ms = begun.elapsed().as_millis() as i64;
        let call = |model_call, usage| ExtractionCall { task_id: run.task_id, model_call, usage, duration_ms };
        let (end, charge) = match answer {
            ExtractionReply::Answered(ModelCompletion { answer, model, cost_micros }) => {
                let usage = usage_of(answer.tokens, cost_micros);
                let call = Some(call(Some(ModelCall { model, tokens: answer.tokens }), usage));
                let facts = found(&answer, &known, claim, &material);
                (ExtractionEnd { facts, call, ..over }, Spend::of(usage).or_worst(bound.most))
            }
            ExtractionReply::Refused(error) => {
                let usage = chain.take_unusable();
                let call = (usage != Usage::default()).then(|| call(None, usage));
                let end = match error {
                    // asked again it would be refused again
                    LlmError::Overflow { .. } | LlmError::Rejected { .. } => {
                        self.failed.inc();
                        over
                    }
                    _ => self.again(claim),
                };
                (ExtractionEnd { call, ..end }, Spend::of(usage))
            }
            // it may have been paid
            ExtractionReply::Late => {
                (ExtractionEnd { call: Some(call(None, at_worst)), ..self.again(claim) }, bound.most)
            }
            // no failure: it is begun again once the halt is lifted
            ExtractionReply::Halted => {
                let again_at = Some(self.clock.now());
                (ExtractionEnd { call: Some(call(None, at_worst)), again_at, ..over }, bound.most)
            }
        };
        self.give_back(tenant, bound.most.cost_micros - charge.cost_micros).await;
        Ok(ExtractionEnd { reservation: reservation.map(|id| (id, charge)), ..end })
    }

    /// Known facts that a person has said and that fit the material, as many as a run would be told. Those of about its
    /// meaning are among them, where vectors can be had in time, so that a fact that contradicts one in other words
    /// replaces it.
    async fn known(&self, tenant: &Tenant, material: &ExtractionMaterial) -> Result<Vec<Fact>, StoreError> {
        let text = material.text();
        let space = self.nearest.as_ref().and_then(|nearest| nearest.space_for(tenant, &text));
        let recalled = with_timeout(self.store.recall_facts(tenant, &terms(&text), space)).await?;
        let found = match &self.nearest {
            Some(nearest) => {
                let read = ReadFacts { embedded: Some(recalled.embedded), facts: &recalled.found };
                // a fact of the profile that is not among the told ones is found, too
                let by_meaning = nearest.find(&self.store, tenant, &text, FactScope::All, read).await;
                let mut by_meaning = by_meaning.unwrap_or_default();
                by_meaning.retain(|fact| recalled.profile.iter().all(|told| told.id != fact.id));
                fused(recalled.found, by_meaning)
            }
            None => recalled.found,
        };
        let known = recalled.profile.into_iter().chain(found);
        Ok(within(known.filter(|fact| fact.origin == FactOrigin::Person).collect(), RECALLED_CHARS))
    }

    /// Reserves what the call may come to, of the hour and of the day; `None`: so much is not left.
    async fn reserve(
        &self,
        claim: &ExtractionClaim,
        task: Option<&Task>,
        bound: &CallBound,
    ) -> Result<Option<Option<Uuid>>, StoreError> {
        let (tenant, most) = (claim.tenant.as_str(), bound.most.cost_micros);
        if !with_timeout(self.store.take_extraction_money(tenant, most, self.settings.hourly_micros())).await? {
            tracing::info!(tenant_id = tenant, "no facts are extracted: the money for this hour is used up");
            return Ok(None);
        }
        let reserved = with_timeout(self.store.reserve_extraction(claim, task, bound)).await;
        if matches!(reserved, Ok(None)) {
            tracing::info!(tenant_id = tenant, "no facts are extracted: a budget does not allow it");
        }
        if !matches!(reserved, Ok(Some(_))) {
            self.give_back(&claim.tenant, most).await;
        }
        reserved
    }

    async fn give_back(&self, tenant: &Tenant, micros: i64) {
        let back = self.store.give_extraction_money_back(tenant.as_str(), micros.max(0));
        if let Err(error) = with_timeout(back).await {
            tracing::warn!(%error, "money for extractions could not be given back");
        }
    }

    /// Asks the model within the time limit, and as long as its tenant is not halted.
    async fn ask(&self, chain: &Chain, request: &ModelRequest, claim: &ExtractionClaim) -> ExtractionReply {
        let ExtractionClaim { tenant, run_id, .. } = claim;
        tokio::select! {
            biased;
            completed = chain.complete(request, &|_| {}) => completed.map_or_else(|error| {
                tracing::info!(%run_id, %error, "no model extracts facts");
                ExtractionReply::Refused(error)
            }, ExtractionReply::Answered),
            () = self.clock.sleep(self.settings.time_limit()) => {
                tracing::info!(%run_id, "the model that extracts facts takes too long");
                ExtractionReply::Late
            }
            () = self.store.until_halted(tenant.as_str()) => {
                tracing::info!(%run_id, "a halt cuts off the model that extracts facts");
                ExtractionReply::Halted
            }
        }
    }
}

/// How a question to the model ended.
enum ExtractionReply {
    Answered(ModelCompletion),
    Refused(LlmError),
    Late,
    /// The call was cut off.
    Halted,
}

/// The facts of an answer, each with the one in whose place it is noted.
fn found(
    answer: &ModelAnswer,
    known: &[Fact],
    claim: &ExtractionClaim,
    material: &ExtractionMaterial,
) -> Vec<(NewFact, Option<Uuid>)> {
    let text = answer.text.as_deref().filter(|_| answer.stop == StopReason::Done).unwrap_or_default();
    let facts = read_facts(text, known.len()).unwrap_or_else(|why| {
        tracing::info!(run_id = %claim.run_id, why, "a model's answer has no facts that can be read");
        Vec::new()
    });
    // what the run has noted by itself is counted already
    let of_run = known.iter().filter(|known| known.run_id == Some(claim.run_id));
    let noted: BTreeSet<String> = of_run.map(|known| identity(&known.text)).collect();
    let facts = facts.into_iter().filter(|fact| noted.is_empty() || !noted.contains(&identity(&fact.text)));
    let replaced = |fact: &ExtractedFact| fact.replaces.and_then(|place| known.get(place)).map(|known| known.id);
    facts.map(|fact| (material.fact(&fact, claim.run_id), replaced(&fact))).collect()
}
