//! Facts that agents know of the tenant, as tools and the beginnings of runs see them.
//!
//! An instance keeps the facts of which runs with a message were told. They are told again as long as the database
//! names the revision of the tenant's facts that they are of: so a task that runs again with the same message costs one
//! small read.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::memory::recall::{beginning, fused, persons_first, terms, within};
use crate::domain::memory::{Fact, FactOrigin, NewFact};
use crate::executor::host::nearest::{FactScope, ReadFacts};
use crate::executor::host::{StoreHost, host_error};
use crate::ports::tool::{FactQuery, HostError};
use crate::store::with_timeout;

/// Facts beside a new one that a model is shown, so that it sees what the new one contradicts.
const SIMILAR: usize = 3;
/// The actor of a deletion that a run has asked for and a person has approved.
const SERVICE: &str = "service";

/// The facts for a message in their order, as they were at a revision of their tenant's facts. Cheap to clone.
#[derive(Clone)]
pub(super) struct KnownRecall {
    revision: i64,
    facts: Arc<[Fact]>,
}

impl KnownRecall {
    fn bytes(&self) -> usize {
        self.facts.iter().map(|fact| size_of::<Fact>() + fact.text.len() + fact.collection.len()).sum()
    }
}

impl StoreHost {
    pub(super) async fn facts_of_run(
        &self,
        tenant: &Tenant,
        message: &str,
        chars: usize,
    ) -> Result<Vec<Fact>, HostError> {
        let message = beginning(message);
        let facts = match self.known_recall(tenant, &message).await? {
            Some(known) => known,
            None => self.recall(tenant, &message).await?,
        };
        let told = within(facts.to_vec(), chars);
        if let Err(error) = with_timeout(self.store.note_facts_used(tenant, &told)).await {
            tracing::warn!(%error, "the use of facts could not be noted");
        }
        Ok(told)
    }

    /// The facts for a message that are known, if the tenant's facts are as they were; else all that is known of it is
    /// forgotten.
    async fn known_recall(&self, tenant: &Tenant, message: &str) -> Result<Option<Arc<[Fact]>>, HostError> {
        let Some(known) = self.recalls.get(tenant, message) else { return Ok(None) };
        let revision = with_timeout(self.store.fact_revision(tenant)).await.map_err(host_error)?;
        if revision == known.revision {
            return Ok(Some(known.facts));
        }
        self.recalls.forget(tenant);
        Ok(None)
    }

    /// The facts for a message: those of the profile, then those that are found by words and by meaning. They are kept
    /// if nothing of that has failed.
    async fn recall(&self, tenant: &Tenant, message: &str) -> Result<Arc<[Fact]>, HostError> {
        let space = self.nearest.as_ref().and_then(|nearest| nearest.space_for(tenant, message));
        let recalled =
            with_timeout(self.store.recall_facts(tenant, &terms(message), space)).await.map_err(host_error)?;
        let (found, is_whole) = match &self.nearest {
            Some(nearest) => {
                let read = ReadFacts { embedded: Some(recalled.embedded), facts: &recalled.found };
                let told: Vec<Uuid> = recalled.profile.iter().map(|fact| fact.id).collect();
                let by_meaning = nearest.find(&self.store, tenant, message, FactScope::Besides(&told), read).await;
                // nothing is near to an empty message
                let is_whole = by_meaning.is_some() && (space.is_some() || message.trim().is_empty());
                (fused(recalled.found, by_meaning.unwrap_or_default()), is_whole)
            }
            None => (recalled.found, true),
        };
        let facts: Arc<[Fact]> = recalled.profile.into_iter().chain(found).collect();
        if let Some(revision) = recalled.revision.filter(|_| is_whole) {
            let known = KnownRecall { revision, facts: Arc::clone(&facts) };
            let bytes = known.bytes();
            self.recalls.put(tenant, message, known, bytes);
        }
        Ok(facts)
    }

    pub(super) async fn note(
        &self,
        tenant: &Tenant,
        fact: NewFact,
        replaces: Option<String>,
    ) -> Result<Value, HostError> {
        let noted = self.store.note_fact(tenant, &fact, replaces.as_deref());
        let noted = with_timeout(noted).await.map_err(host_error)?;
        // it is noted, whether others are found or not
        let mut similar = self.find(tenant, &fact.text, None).await.unwrap_or_default();
        // a run that has read nothing but words of the person reads nothing else here
        let may_read = |origin: FactOrigin| fact.origin == FactOrigin::Outside || origin == FactOrigin::Person;
        similar.retain(|other| other.id != noted.fact.id && may_read(other.origin));
        similar.truncate(SIMILAR);
        let similar: Vec<Value> = similar.iter().map(shown).collect();
        Ok(json!({ "fact": shown(&noted.fact), "noted_as": noted.noted_as, "similar": similar }))
    }

    pub(super) async fn search(&self, tenant: &Tenant, query: FactQuery) -> Result<Vec<Fact>, HostError> {
        let mut found = self.find(tenant, &query.text, query.collection.as_deref()).await?;
        found.truncate(query.limit);
        Ok(found)
    }

    pub(super) async fn fact(&self, tenant: &Tenant, id: Uuid) -> Result<Fact, HostError> {
        let scope = Scope::Only(tenant.clone());
        let (fact, _) = with_timeout(self.store.get_fact(&scope, id)).await.map_err(host_error)?;
        Ok(fact)
    }

    pub(super) async fn forget(&self, tenant: &Tenant, id: Uuid, run_id: Uuid) -> Result<Value, HostError> {
        let scope = Scope::Only(tenant.clone());
        with_timeout(self.store.delete_fact(&scope, id, SERVICE, Some(run_id))).await.map_err(host_error)?;
        Ok(json!({ "deleted": id }))
    }

    async fn find(&self, tenant: &Tenant, text: &str, collection: Option<&str>) -> Result<Vec<Fact>, HostError> {
        let terms = terms(text);
        let found = self.store.search_facts(tenant, &terms, collection);
        let mut found = with_timeout(found).await.map_err(host_error)?;
        if let Some(nearest) = &self.nearest {
            let among = collection.map_or(FactScope::All, FactScope::Collection);
            let read = ReadFacts { embedded: None, facts: &found };
            let by_meaning = nearest.find(&self.store, tenant, text, among, read).await;
            found = fused(found, by_meaning.unwrap_or_default());
        }
        persons_first(&mut found);
        Ok(found)
    }
}

/// A fact, for a model.
fn shown(fact: &Fact) -> Value {
    json!({ "id": fact.id, "text": fact.text, "collection": fact.collection })
}
