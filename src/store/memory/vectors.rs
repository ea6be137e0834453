//! Vectors of facts. Whether the text of a fact has one stands with the fact, so that facts without one are found by an
//! index; a text that takes the place of another one has none at first.

use chrono::TimeDelta;
use uuid::Uuid;

use crate::base::clock::truncate_millis;
use crate::base::id::{Scope, Tenant};
use crate::domain::memory::Fact;
use crate::store::db::ReadConnection;
use crate::store::memory::SELECT;
use crate::store::memory::fact_row::{IN_TURN, forget_vector};
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError};

/// Vectors of a tenant that are read at once.
pub const VECTORS_AT_ONCE: usize = 100;
/// Facts with a vector that are read at once, without it.
pub const EMBEDDED_AT_ONCE: usize = 1_000;

/// A fact that has a vector; where the rest is `None`, it is gone.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct EmbeddedFact {
    /// The fact.
    pub fact_id: Uuid,
    /// Its version: another one may have another vector.
    pub version: Option<i64>,
    /// Where the fact comes from.
    pub origin: Option<String>,
    /// Its collection.
    pub collection: Option<String>,
}

/// A claim lasts so long the first time, and each time after it twice as long as the time before: so a text that can't
/// be embedded is tried ever more rarely.
const CLAIM: TimeDelta = TimeDelta::seconds(120);
/// After so many claims it lasts no longer.
const LONGEST: i64 = 9;

/// From where the search for facts without a vector goes on: the space of a former vector, and a tenant.
pub type EmbeddingPlace = (String, String);

/// A fact whose vector is to be made here: its id, version and text.
pub type UnembeddedFact = (Uuid, i64, String);

/// The first tenant of a space with facts that are due, and the first behind a space. They begin where they stand in
/// the index, each by one bound.
const OF_SPACE: &str = "
    select embedded, tenant_id from facts
     where embedded = $1 and tenant_id > $2 and embedded >= '' and coalesce(embed_after <= $3, true)
     order by embedded, tenant_id limit 1";
const BETWEEN: &str = "
    select embedded, tenant_id from facts
     where embedded > $1 and embedded < $2 and embedded >= '' and coalesce(embed_after <= $3, true)
     order by embedded, tenant_id limit 1";
const BEHIND: &str = "
    select embedded, tenant_id from facts
     where embedded > $1 and embedded >= '' and coalesce(embed_after <= $2, true)
     order by embedded, tenant_id limit 1";

/// Those that were never claimed come together, each other one by itself.
const FRESH: &str = "
    select id, version, text, embed_claims from facts
     where embedded = $1 and tenant_id = $2 and embedded >= '' and embed_claims = 0
     order by embedded, tenant_id, id limit $3";
const AGAIN: &str = "
    select id, version, text, embed_claims from facts
     where embedded = $1 and tenant_id = $2 and embedded >= '' and embed_claims > 0 and coalesce(embed_after <= $3, true)
     order by embedded, tenant_id, id limit 1";

/// A text that was changed meanwhile keeps none.
const EMBEDDED: &str = "
    update facts set embedded = $4, embed_after = null, embed_claims = 0 where id = $1 and tenant_id = $2 and version = $3";
/// A page of facts that have a vector.
const PAGE: &str = "
    with page as materialized (
        select fact_id from fact_vectors
         where tenant_id = $1 and fact_id > $2 and space = $3
         order by tenant_id, fact_id limit $4)
    select page.fact_id, f.version, f.origin, f.collection from page {fact} order by page.fact_id";
const PAGE_BOTH: Split = Split {
    postgres: sql!(
        PAGE;
        "{fact}" = "left join lateral (
            select version, origin, collection from facts where facts.id = page.fact_id offset 0) f on true"
    ),
    sqlite: sql!(PAGE; "{fact}" = "left join facts f on f.id = page.fact_id"),
};
/// Behind the vectors of some facts: the versions of these.
const VERSIONS: Split = Split {
    postgres: ") as v cross join lateral (select version from facts where facts.id = v.fact_id offset 0) f",
    sqlite: ") as v join facts f on f.id = v.fact_id",
};
const KEEP: &str = "
    insert into fact_vectors (tenant_id, fact_id, space, vector) values ($1, $2, $3, $4)
    on conflict (tenant_id, fact_id) do update set space = excluded.space, vector = excluded.vector";

impl Store {
    /// The next tenant behind a place that has facts without a vector of this space, and the space that they have one
    /// of.
    pub async fn next_unembedded(
        &self,
        space: &str,
        after: &EmbeddingPlace,
    ) -> Result<Option<EmbeddingPlace>, StoreError> {
        let (now, (former, tenant)) = (self.clock.now(), after);
        let mut read = self.db.read_quick().await?;
        let mut found = None;
        if former != space {
            found = read.query(OF_SPACE).bind(former.as_str()).bind(tenant.as_str()).bind(now).optional().await?;
        }
        if found.is_none() && former.as_str() < space {
            found = read.query(BETWEEN).bind(former.as_str()).bind(space).bind(now).optional().await?;
        }
        if found.is_none() {
            let last = space.max(former.as_str());
            found = read.query(BEHIND).bind(last).bind(now).optional().await?;
        }
        read.end().await?;
        Ok(found)
    }

    /// Claims facts of a tenant that have a vector of this former space, or none, at most `limit` of them. None of a
    /// tenant that has stored all that it may: their vectors are made once there is room.
    pub async fn claim_unembedded(
        &self,
        tenant: &Tenant,
        former: &str,
        limit: i64,
    ) -> Result<Vec<UnembeddedFact>, StoreError> {
        if self.allowance(tenant.as_str()).await?.is_full() {
            return Ok(Vec::new());
        }
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let mut facts: Vec<(Uuid, i64, String, i64)> =
            tx.query(FRESH).bind(former).bind(tenant.as_str()).bind(limit).all().await?;
        if facts.is_empty() {
            facts = tx.query(AGAIN).bind(former).bind(tenant.as_str()).bind(now).all().await?;
        }
        let Some(claims) = facts.iter().map(|(.., claims)| *claims).max() else { return Ok(Vec::new()) };
        let until = truncate_millis(now + CLAIM * (1 << claims.min(LONGEST)));
        let mut claim = tx.build("update facts set embed_claims = embed_claims + 1, embed_after = ");
        claim.push_bind(until).push(" where tenant_id = ").push_bind(tenant.as_str()).push(" and id in (");
        claim.list(facts.iter().map(|(id, ..)| *id)).push(")");
        claim.finish().execute().await?;
        write.commit().await?;
        Ok(facts.into_iter().map(|(id, version, text, _)| (id, version, text)).collect())
    }

    /// Keeps the vectors of facts, each with the version whose text it is of; `None`: its text has none in this space.
    pub async fn keep_vectors(
        &self,
        tenant: &Tenant,
        space: &str,
        vectors: &[(Uuid, i64, Option<Vec<u8>>)],
    ) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        for (id, version, vector) in vectors {
            let embedded = tx.query(EMBEDDED).bind(*id).bind(tenant.as_str()).bind(*version).bind(space);
            if embedded.execute().await? == 0 {
                continue;
            }
            match vector {
                Some(vector) => {
                    let keep = tx.query(KEEP).bind(tenant.as_str()).bind(*id).bind(space).bind(vector.as_slice());
                    keep.execute().await?;
                }
                None => forget_vector(tx, tenant.as_str(), *id).await?,
            }
        }
        write.commit().await?;
        Ok(())
    }

    /// A tenant's facts with a vector in this space, in the order of their ids behind this one, a page of them.
    pub async fn embedded_facts(
        &self,
        tenant: &Tenant,
        space: &str,
        after: Option<Uuid>,
    ) -> Result<Vec<EmbeddedFact>, StoreError> {
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let page = embedded_page(&mut read, tenant, space, after).await?;
        read.end().await?;
        Ok(page)
    }

    /// The vectors in this space of some of a tenant's facts, [`VECTORS_AT_ONCE`] at most, each with its fact and the
    /// version whose text it is of.
    pub async fn vectors_of(
        &self,
        tenant: &Tenant,
        space: &str,
        facts: &[Uuid],
    ) -> Result<Vec<(Uuid, i64, Vec<u8>)>, StoreError> {
        if facts.is_empty() {
            return Ok(Vec::new());
        }
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let mut query = read.build("select v.fact_id, f.version, v.vector from (");
        query.push("select fact_id, vector from fact_vectors where tenant_id = ").push_bind(tenant.as_str());
        query.push(" and space = ").push_bind(space).push(" and fact_id in (");
        query.list(facts.iter().copied()).push(")").push_split(VERSIONS);
        let vectors = query.finish().persistent(false).all().await?;
        read.end().await?;
        Ok(vectors)
    }

    /// The facts of a tenant with these ids, in their order.
    pub async fn facts_by_ids(&self, tenant: &Tenant, ids: &[Uuid]) -> Result<Vec<Fact>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let mut query = read.build(SELECT);
        query.push("where f.tenant_id = ").push_bind(tenant.as_str()).push(" and f.id in (");
        query.list(ids.iter().copied()).push(")");
        let mut facts: Vec<Fact> = query.finish().all().await?;
        read.end().await?;
        facts.sort_by_key(|fact| ids.iter().position(|id| *id == fact.id));
        Ok(facts)
    }
}

pub(super) async fn embedded_page(
    read: &mut ReadConnection,
    tenant: &Tenant,
    space: &str,
    after: Option<Uuid>,
) -> Result<Vec<EmbeddedFact>, StoreError> {
    let page = read.query(PAGE_BOTH).bind(tenant.as_str()).bind(after.unwrap_or_default()).bind(space);
    Ok(page.bind(EMBEDDED_AT_ONCE as i64).all().await?)
}
