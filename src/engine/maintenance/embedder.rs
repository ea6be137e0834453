//! The embedder: makes the vectors of facts, where an endpoint for that is configured, off the way of whoever notes them. A few facts
//! of one tenant, then a few of the next. What is claimed and not kept is claimed again later, by any instance, one fact at a time.

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
/// How long the endpoint is left alone after it has failed, at least.
const REST: TimeDelta = TimeDelta::seconds(30);
/// Tenants that are looked at in one tick.
const TENANTS: usize = 100;
/// A text that an endpoint for vectors takes. Where it refuses this one as well, the fault is not in the texts of the facts.
const PLAIN: &str = "A fact.";

/// Makes the vectors of facts.
pub struct FactEmbedder {
    store: Store,
    embeddings: Embeddings,
    /// Where the search goes on.
    searched: Mutex<EmbeddingPlace>,
    rests_until: Mutex<DateTime<Utc>>,
    embedded: Counter,
    failed: Counter,
    stop: CancellationToken,
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
        let (searched, stop, rests_until) = (Mutex::default(), CancellationToken::new(), Mutex::default());
        embeddings.map(|embeddings| FactEmbedder { store, embeddings, searched, rests_until, embedded, failed, stop })
    }

    /// Breaks off what is under way: it is made later, by this instance or another.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Claims a few facts of the next tenant that has any and is not halted; `None`: of none that was looked at.
    async fn claim(&self, halts: &Halts) -> Result<Option<EmbeddingBatch>, TickError> {
        for _ in 0..TENANTS {
            let after = self.searched.lock().expect("searched").clone();
            let Some(place) = self.store.next_unembedded(self.embeddings.space(), &after).await? else {
                *self.searched.lock().expect("searched") = EmbeddingPlace::default();
                // those before the place are looked at once more, unless that was the beginning
                match after == EmbeddingPlace::default() {
                    true => return Ok(None),
                    false => continue,
                }
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
            if halts.halt_of(tenant.as_str()).is_some() {
                continue;
            }
            let facts = self.store.claim_unembedded(&tenant, &former, TEXTS_AT_ONCE as i64).await?;
            if !facts.is_empty() {
                return Ok(Some(EmbeddingBatch { tenant, facts }));
            }
        }
        Ok(None)
    }

    /// Makes the vectors of these facts, and keeps each part as it comes. Where the endpoint refuses them together, each is tried by
    /// itself: one that is refused has none.
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

    /// Leaves the endpoint alone for a while.
    fn rest(&self, error: &LlmError) {
        self.failed.inc();
        tracing::warn!(%error, "no vectors of facts can be made now");
        let asked_for = match error {
            LlmError::RateLimited { retry_after, .. } | LlmError::Transient { retry_after, .. } => *retry_after,
            _ => None,
        };
        let wait = asked_for.map_or(REST, |wait| to_delta(wait).max(REST));
        *self.rests_until.lock().expect("rest lock") = self.store.clock().now() + wait;
    }
}

impl ServiceLoop for FactEmbedder {
    const NAME: &'static str = "embedder";
    const POLL_INTERVAL: Duration = Duration::from_secs(5);
    /// Where the endpoint refuses a batch, it is asked for each text by itself.
    const TIME_LIMIT: Duration = Duration::from_secs(TIME_LIMIT.as_secs() * (TEXTS_AT_ONCE as u64 + 3));

    async fn tick(&self) -> Result<NextTick, TickError> {
        let clock = self.store.clock();
        if !clock.trusted() {
            return Err(TickError::ClockUnknown);
        }
        let halts = self.store.halts().await?;
        if halts.all() || clock.now() < *self.rests_until.lock().expect("rest lock") {
            return Ok(NextTick::OnWake);
        }
        let Some(batch) = self.claim(&halts).await? else { return Ok(NextTick::OnWake) };
        let embedded = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(NextTick::OnWake),
            embedded = self.embed(&batch) => embedded?,
        };
        Ok(match embedded {
            Ok(()) => NextTick::Now,
            Err(error) => {
                self.rest(&error);
                NextTick::OnWake
            }
        })
    }
}
