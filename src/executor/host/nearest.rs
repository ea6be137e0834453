//! Facts of about the meaning of a text: the nearest among the vectors of a tenant, each of which is compared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::agent::MemorySettings;
use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::id::Tenant;
use crate::base::limiter::{ConcurrencyLimiter, Limit, Permit};
use crate::domain::memory::recall::{MOST_RECALLED, beginning};
use crate::domain::memory::{Fact, FactOrigin, is_within};
use crate::executor::host::known_vectors::{KNOWN_BYTES, KNOWN_BYTES_OF_ONE, KnownVectors};
use crate::executor::host::text_cache::TextCache;
use crate::ports::llm;
use crate::ports::llm::openai::embedding::{Embedding, Embeddings};
use crate::store::{EMBEDDED_AT_ONCE, EmbeddedFact, Store, StoreError, VECTORS_AT_ONCE, with_timeout};

/// How long a run waits for the vector of its message.
const WITHIN: Duration = Duration::from_secs(2);
/// How long the vectors of its tenant may then be compared with it, the wait for a permit included.
const COMPARED_WITHIN: Duration = Duration::from_secs(3);
/// Searches at once on one instance; of one tenant it is one.
pub const SEARCHES: usize = 8;

/// The facts that a search for the nearest covers.
#[derive(Clone, Copy)]
pub enum FactScope<'a> {
    /// All of the tenant.
    All,
    /// All but these, which the run is told already.
    Besides(&'a [Uuid]),
    /// Those of a collection, and below it.
    Collection(&'a str),
}

/// The search by meaning, where it is configured.
#[derive(Clone)]
pub struct NearestFacts {
    /// The endpoint.
    pub embeddings: Embeddings,
    /// How near a fact has to be, from 0 to 1.
    pub min_similarity: f32,
    /// Searches under way.
    pub permits: ConcurrencyLimiter<Tenant>,
    /// Vectors that need not be read again.
    pub known: KnownVectors,
    /// Vectors of texts for which facts were looked for: the endpoint is asked once for a text that comes again.
    pub wanted: TextCache<Arc<Embedding>>,
}

/// Rows that a search by words has read, and a search by meaning need not read again.
pub struct ReadFacts<'a> {
    /// The first page of the facts with a vector.
    pub embedded: Option<Vec<EmbeddedFact>>,
    /// Facts.
    pub facts: &'a [Fact],
}

/// A fact, and the vector of its text.
type FactVector = (EmbeddedFact, Arc<[u8]>);

impl NearestFacts {
    /// The search with the model that the settings name; `None`: they name none.
    pub fn configured(
        memory: &MemorySettings,
        models: &llm::Settings,
        clock: Clock,
        compute: Compute,
    ) -> Option<NearestFacts> {
        let model = models.models.get(memory.embedding_model.as_deref()?)?;
        let embeddings = Embeddings::new(model, memory.embedding_dimensions, clock, compute)?;
        Some(NearestFacts {
            embeddings,
            min_similarity: memory.min_similarity as f32,
            permits: ConcurrencyLimiter::new(SEARCHES),
            known: KnownVectors::new(KNOWN_BYTES, KNOWN_BYTES_OF_ONE),
            wanted: TextCache::default(),
        })
    }

    /// The space in which the facts nearest to a text would be looked for now; `None`: its vector is not known, and the
    /// endpoint would not be asked for it.
    pub fn space_for(&self, tenant: &Tenant, text: &str) -> Option<&str> {
        let may_have = self.embeddings.may_ask(tenant.as_str(), text) || self.wanted.has(tenant, &beginning(text));
        may_have.then(|| self.embeddings.space())
    }

    /// The facts nearest to a text, the nearest first, at most [`MOST_RECALLED`] of each origin; without those that are
    /// told already, or those of a collection and below it. `None`: the endpoint or the store does not answer in time.
    pub async fn find(
        &self,
        store: &Store,
        tenant: &Tenant,
        text: &str,
        among: FactScope<'_>,
        read: ReadFacts<'_>,
    ) -> Option<Vec<Fact>> {
        if read.embedded.as_ref().is_some_and(Vec::is_empty) {
            return Some(Vec::new());
        }
        let wanted = self.vector_of(tenant, &beginning(text)).await?;
        let compared = tokio::select! {
            biased;
            compared = self.compare(store, tenant, wanted, among, read) => compared,
            () = store.clock().sleep(COMPARED_WITHIN) => Err(StoreError::TimedOut("vectors are compared for too long".into())),
        };
        compared.inspect_err(|error| tracing::warn!(%error, "facts are looked for without vectors")).ok()
    }

    /// The vector of a text, for which the endpoint is asked unless it is known.
    async fn vector_of(&self, tenant: &Tenant, text: &str) -> Option<Arc<Embedding>> {
        if let Some(known) = self.wanted.get(tenant, text) {
            return Some(known);
        }
        let vector = Arc::new(self.embeddings.try_embed(tenant.as_str(), text, WITHIN).await?);
        self.wanted.put(tenant, text, Arc::clone(&vector), size_of::<f32>() * vector.dimensions());
        Some(vector)
    }

    async fn compare(
        &self,
        store: &Store,
        tenant: &Tenant,
        wanted: Arc<Embedding>,
        among: FactScope<'_>,
        read: ReadFacts<'_>,
    ) -> Result<Vec<Fact>, StoreError> {
        let nearest = self.nearest(store, tenant, wanted, among, read.embedded).await?;
        facts_of(store, tenant, &nearest, read.facts).await
    }

    /// The ids of the nearest facts, the nearest first. `embedded`: the first page of those with a vector, if it is
    /// read.
    async fn nearest(
        &self,
        store: &Store,
        tenant: &Tenant,
        wanted: Arc<Embedding>,
        among: FactScope<'_>,
        embedded: Option<Vec<EmbeddedFact>>,
    ) -> Result<Vec<Uuid>, StoreError> {
        let _permit = self.permit(tenant).await;
        let (mut nearest, mut seen) = (NearestOf::default(), HashSet::new());
        let mut next = match embedded {
            Some(facts) => Some(facts),
            None => Some(self.page(store, tenant, None).await?),
        };
        while let Some(facts) = next.take() {
            let last = facts.last().map(|fact| fact.fact_id).filter(|_| facts.len() == EMBEDDED_AT_ONCE);
            seen.extend(facts.iter().map(|fact| fact.fact_id));
            let wanted_facts = facts.into_iter().filter(|fact| among.has(fact)).collect();
            let page = self.with_vectors(store, tenant, wanted_facts).await?;
            let (wanted, least, steps) = (Arc::clone(&wanted), self.min_similarity, wanted.steps(page.len()));
            let work = move || nearest.and(&page, &wanted, least);
            let found = store.computing().run_if_costly(tenant.as_str(), steps, work).await;
            nearest = found.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))?;
            if last.is_some() {
                next = Some(self.page(store, tenant, last).await?);
            }
        }
        self.known.retain(tenant, &seen);
        Ok(nearest.ids())
    }

    /// Facts with a vector behind this one, a page of them.
    async fn page(&self, store: &Store, tenant: &Tenant, after: Option<Uuid>) -> Result<Vec<EmbeddedFact>, StoreError> {
        with_timeout(store.embedded_facts(tenant, self.embeddings.space(), after)).await
    }

    /// These facts with their vectors, which are read unless they are known.
    async fn with_vectors(
        &self,
        store: &Store,
        tenant: &Tenant,
        facts: Vec<EmbeddedFact>,
    ) -> Result<Vec<FactVector>, StoreError> {
        let mut vectors = self.known.get(tenant, facts.iter().map(|fact| (fact.fact_id, fact.version)));
        let unknown: Vec<Uuid> = facts.iter().map(|fact| fact.fact_id).filter(|id| !vectors.contains_key(id)).collect();
        for ids in unknown.chunks(VECTORS_AT_ONCE) {
            let read = with_timeout(store.vectors_of(tenant, self.embeddings.space(), ids)).await?;
            let read: Vec<(Uuid, i64, Arc<[u8]>)> =
                read.into_iter().map(|(id, version, vector)| (id, version, Arc::from(vector))).collect();
            self.known.add(tenant, &read);
            vectors.extend(read.into_iter().map(|(id, _, vector)| (id, vector)));
        }
        let with_its_own = |fact: EmbeddedFact| vectors.remove(&fact.fact_id).map(|vector| (fact, vector));
        Ok(facts.into_iter().filter_map(with_its_own).collect())
    }

    /// The right to compare, once there is one: a tenant has one at most, so that it keeps no other waiting.
    async fn permit(&self, tenant: &Tenant) -> Permit<Tenant> {
        loop {
            match self.permits.acquire([(tenant.clone(), Limit::Fixed(1))]) {
                Ok(permit) => return permit,
                Err(_) => self.permits.released().await,
            }
        }
    }
}

/// The facts with these ids, in their order; those that are read are not read again.
async fn facts_of(store: &Store, tenant: &Tenant, ids: &[Uuid], read: &[Fact]) -> Result<Vec<Fact>, StoreError> {
    let known: HashMap<Uuid, &Fact> = read.iter().map(|fact| (fact.id, fact)).collect();
    let unread: Vec<Uuid> = ids.iter().copied().filter(|id| !known.contains_key(id)).collect();
    let mut facts = with_timeout(store.facts_by_ids(tenant, &unread)).await?;
    facts.extend(ids.iter().filter_map(|id| known.get(id).copied().cloned()));
    facts.sort_by_key(|fact| ids.iter().position(|id| *id == fact.id));
    Ok(facts)
}

impl FactScope<'_> {
    fn has(self, fact: &EmbeddedFact) -> bool {
        let Some(collection) = &fact.collection else { return false };
        match self {
            FactScope::All => true,
            FactScope::Besides(told) => !told.contains(&fact.fact_id),
            FactScope::Collection(of) => is_within(collection, of),
        }
    }
}

/// The nearest so far: those that persons have said, and those from outside, which so crowd none of them out.
#[derive(Default)]
struct NearestOf {
    persons: Vec<(f32, Uuid)>,
    outside: Vec<(f32, Uuid)>,
}

impl NearestOf {
    /// These and those of a page.
    fn and(mut self, page: &[FactVector], wanted: &Embedding, least: f32) -> NearestOf {
        for (fact, vector) in page {
            let Some(similarity) = wanted.similarity(vector).filter(|similarity| *similarity >= least) else {
                continue;
            };
            let is_persons = fact.origin.as_deref() == Some(FactOrigin::Person.as_str());
            let found = if is_persons { &mut self.persons } else { &mut self.outside };
            found.push((similarity, fact.fact_id));
        }
        for found in [&mut self.persons, &mut self.outside] {
            found.sort_by(|a, b| b.0.total_cmp(&a.0));
            found.truncate(MOST_RECALLED);
        }
        self
    }

    /// The ids, the nearest first.
    fn ids(mut self) -> Vec<Uuid> {
        self.persons.append(&mut self.outside);
        self.persons.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.persons.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_from_outside_crowd_no_nearer_fact_of_a_person_out() {
        let vector = |number: u128, origin: FactOrigin, values: &[f32]| {
            let fact = EmbeddedFact {
                fact_id: Uuid::from_u128(number),
                version: Some(1),
                origin: Some(origin.as_str().into()),
                collection: Some(String::new()),
            };
            (fact, Arc::from(Embedding::new(values.to_vec()).unwrap().bytes()))
        };
        let wanted = Embedding::new(vec![1.0, 0.0]).unwrap();
        let mut page: Vec<FactVector> =
            (1..=40).map(|number| vector(number, FactOrigin::Outside, &[1.0, 0.0])).collect();
        page.push(vector(100, FactOrigin::Person, &[1.0, 1.0]));
        page.push(vector(101, FactOrigin::Person, &[0.0, 1.0]));
        let found = NearestOf::default().and(&page[..20], &wanted, 0.3).and(&page[20..], &wanted, 0.3).ids();
        assert_eq!(found.len(), MOST_RECALLED + 1);
        assert_eq!(found.last(), Some(&Uuid::from_u128(100)), "the nearest first, and what is far is none");
    }

    #[test]
    fn facts_are_looked_for_within_their_collection_or_beside_those_that_are_told() {
        let of = |number: u128, collection: Option<&str>| EmbeddedFact {
            fact_id: Uuid::from_u128(number),
            version: Some(1),
            origin: None,
            collection: collection.map(str::to_owned),
        };
        assert!(
            FactScope::Collection("a").has(&of(1, Some("a/b"))) && !FactScope::Collection("a").has(&of(1, Some("ab")))
        );
        let told = [Uuid::from_u128(1)];
        let beside = FactScope::Besides(&told);
        assert!(beside.has(&of(2, Some("profile"))) && !beside.has(&of(1, Some("profile"))));
        assert!(FactScope::All.has(&of(1, Some(""))) && !FactScope::All.has(&of(1, None)), "one that is gone is none");
    }
}
