//! The embedder: makes the vectors of facts, where an endpoint for that is configured, off the way of whoever notes
//! them. A few facts of one tenant, then a few of the next. A fact that is claimed and gets no vector is claimed again
//! later, by any instance, one fact at a time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::id::Tenant;
use crate::base::metrics::Metrics;
use crate::domain::halt::Halts;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::ports::llm::LlmError;
use crate::ports::llm::openai::embedding::{Embedding, Embeddings, TEXTS_AT_ONCE, is_of_text};
use crate::store::{EmbeddingPlace, Store, UnembeddedFact};

/// How long the endpoint may take for one request.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// How long a tenant's facts are left alone, or all of them, after the endpoint has failed, at least.
const REST: TimeDelta = TimeDelta::seconds(30);
/// Tenants that are looked at in one tick.
const TENANTS: usize = 100;
/// A text that an endpoint for vectors takes. Where it refuses this one as well, the fault is not in the texts of the
/// facts.
const PLAIN: &str = "A fact.";

/// Makes the vectors of facts.
pub struct FactEmbedder {
    store: Store,
    embeddings: Embeddings,
    /// Where the search goes on.
    searched: Mutex<EmbeddingPlace>,
    rests: Mutex<EmbeddingRests>,
    embedded: Counter,
    failed: Counter,
    stop: CancellationToken,
}

/// The time for which no vectors are asked for, after the endpoint has failed.
#[derive(Default)]
struct EmbeddingRests {
    /// Of no tenant until then.
    all: DateTime<Utc>,
    /// Of these until then.
    tenants: HashMap<Tenant, DateTime<Utc>>,
    /// The tenant of the last batch, where that has failed.
    failed: Option<Tenant>,
}

/// Facts of one tenant that are claimed here.
struct EmbeddingBatch {
    tenant: Tenant,
    facts: Vec<UnembeddedFact>,
}

impl FactEmbedder {
    /// The service with its endpoint; `None`: none is configured, and no vectors are made.
    pub fn new(store: Store, embeddings: Option<Embeddings>, metrics: &Metrics) -> Option<FactEmbedder> {
        let counted = |name: &str, help: &str| metrics.registered(name, help, Counter::default());
        let embedded = counted("embedded_facts", "Facts of which vectors were made");
        let failed = counted("embedding_failures", "Batches of facts of which no vectors could be made");
        let (searched, stop, rests) = (Mutex::default(), CancellationToken::new(), Mutex::default());
        embeddings.map(|embeddings| FactEmbedder { store, embeddings, searched, rests, embedded, failed, stop })
    }

    /// Breaks off what is under way: it is made later, by this instance or another.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Claims a few facts of the next tenant that has any, and is neither halted nor left alone; `None`: of none that
    /// was looked at.
    async fn claim(&self, halts: &Halts) -> Result<Option<EmbeddingBatch>, TickError> {
        let mut began_anew = false;
        for _ in 0..TENANTS {
            let after = self.searched.lock().expect("searched").clone();
            let Some(place) = self.store.next_unembedded(self.embeddings.space(), &after).await? else {
                *self.searched.lock().expect("searched") = EmbeddingPlace::default();
                // those before the place are looked at once more, unless that was the beginning
                if began_anew || after == EmbeddingPlace::default() {
                    return Ok(None);
                }
                began_anew = true;
                continue;
            };
            *self.searched.lock().expect("searched") = place.clone();
            let (former, tenant) = place;
            let tenant = match Tenant::stored(&tenant) {
                Ok(tenant) => tenant,
                Err(why) => {
                    tracing::error!(tenant, why, "facts of a tenant that can't be read have no vectors");
                    continue;
                }
            };
            if halts.halt_of(tenant.as_str()).is_some() || self.leaves_alone(&tenant) {
                continue;
            }
            let facts = self.store.claim_unembedded(&tenant, &former, TEXTS_AT_ONCE as i64).await?;
            if !facts.is_empty() {
                return Ok(Some(EmbeddingBatch { tenant, facts }));
            }
        }
        Ok(None)
    }

    /// Makes the vectors of these facts, and keeps each part as it comes. Where the endpoint refuses them together,
    /// each is tried by itself: one that is refused has none.
    async fn embed(&self, batch: &EmbeddingBatch) -> Result<Result<(), LlmError>, TickError> {
        let facts: Vec<&UnembeddedFact> = batch.facts.iter().collect();
        match self.ask(batch, &facts).await {
            Ok(vectors) => return self.keep(batch, &facts, vectors).await.map(Ok),
            Err(error) if !is_of_text(&error) => return Ok(Err(error)),
            Err(_) => {}
        }
        if let Err(error) = self.embeddings.embed(batch.tenant.as_str(), &[PLAIN], TIME_LIMIT).await {
            return Ok(Err(error));
        }
        for fact in facts {
            let vectors = match self.ask(batch, &[fact]).await {
                Ok(vectors) => vectors,
                Err(error) if is_of_text(&error) => {
                    tracing::warn!(tenant_id = %batch.tenant, fact_id = %fact.0, %error, "a fact has no vector");
                    vec![None]
                }
                Err(error) => return Ok(Err(error)),
            };
            self.keep(batch, &[fact], vectors).await?;
        }
        Ok(Ok(()))
    }

    async fn ask(&self, batch: &EmbeddingBatch, facts: &[&UnembeddedFact]) -> Result<Vec<Option<Embedding>>, LlmError> {
        let texts: Vec<&str> = facts.iter().map(|(_, _, text)| text.as_str()).collect();
        self.embeddings.embed(batch.tenant.as_str(), &texts, TIME_LIMIT).await
    }

    async fn keep(
        &self,
        batch: &EmbeddingBatch,
        facts: &[&UnembeddedFact],
        vectors: Vec<Option<Embedding>>,
    ) -> Result<(), TickError> {
        let kept = facts.iter().zip(&vectors);
        let kept: Vec<(Uuid, i64, Option<Vec<u8>>)> =
            kept.map(|((id, version, _), vector)| (*id, *version, vector.as_ref().map(Embedding::bytes))).collect();
        self.store.keep_vectors(&batch.tenant, self.embeddings.space(), &kept).await?;
        self.embedded.inc_by(vectors.iter().flatten().count() as u64);
        Ok(())
    }

    fn leaves_alone(&self, tenant: &Tenant) -> bool {
        let rests = self.rests.lock().expect("rest lock");
        rests.tenants.get(tenant).is_some_and(|until| self.store.clock().now() < *until)
    }

    /// Leaves the facts of a tenant alone for a while. Those of all are left alone where the failure is not one that a
    /// text may have caused, or another tenant's batch has failed just before; answers whether they are.
    fn rest(&self, tenant: &Tenant, error: &LlmError) -> bool {
        self.failed.inc();
        tracing::warn!(tenant_id = %tenant, %error, "no vectors of facts can be made now");
        let asked_for = match error {
            LlmError::RateLimited { retry_after, .. } | LlmError::Transient { retry_after, .. } => *retry_after,
            _ => None,
        };
        let wait = asked_for.map_or(REST, |wait| to_delta(wait).max(REST));
        let now = self.store.clock().now();
        let mut rests = self.rests.lock().expect("rest lock");
        let failed_another = rests.failed.replace(tenant.clone()).is_some_and(|before| before != *tenant);
        let is_of_all = failed_another || !matches!(error, LlmError::Transient { .. } | LlmError::Timeout { .. });
        if is_of_all {
            rests.all = now + wait;
        }
        rests.tenants.retain(|_, until| *until > now);
        rests.tenants.insert(tenant.clone(), now + wait);
        is_of_all
    }
}

impl ServiceLoop for FactEmbedder {
    const NAME: &'static str = "embedder";
    const POLL_INTERVAL: Duration = Duration::from_secs(5);
    /// Where the endpoint refuses a batch, it is asked for each text by itself.
    const TIME_LIMIT: Duration = Duration::from_secs(TIME_LIMIT.as_secs() * (TEXTS_AT_ONCE as u64 + 3));

    async fn tick(&self) -> Result<NextTick, TickError> {
        let clock = self.store.clock();
        if !clock.is_trusted() {
            return Err(TickError::ClockUnknown);
        }
        let halts = self.store.halts().await?;
        if halts.all() || clock.now() < self.rests.lock().expect("rest lock").all {
            return Ok(NextTick::OnWake);
        }
        let Some(batch) = self.claim(&halts).await? else { return Ok(NextTick::OnWake) };
        let embedded = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(NextTick::OnWake),
            embedded = self.embed(&batch) => embedded?,
            // its facts are claimed again once the halt is lifted
            () = self.store.until_halted(batch.tenant.as_str()) => return Ok(NextTick::Now),
        };
        Ok(match embedded {
            Ok(()) => {
                self.rests.lock().expect("rest lock").failed = None;
                NextTick::Now
            }
            Err(error) => match self.rest(&batch.tenant, &error) {
                true => NextTick::OnWake,
                false => NextTick::Now,
            },
        })
    }
}
