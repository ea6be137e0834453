//! Facts that agents know of a tenant: listed, read, and recalled for a run. `noting` and `deleting` have the writes, `vectors` what is found
//! by its meaning.
//!
//! A search goes through the facts of its tenant, which are bounded, by one statement that is the same work on both databases.

mod deleting;
pub(super) mod extractions;
mod fact_row;
mod noting;
mod vectors;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::memory::recall::{LOOKED_AT_OF_PROFILE, MOST_OF_PROFILE, OF_EACH_KIND, TERMS};
use crate::domain::memory::{Fact, FactOrigin, FactVersion, folded};
use crate::store::columns::Columns;
use crate::store::db::listing::{BOUND, FIT, IN_ORDER, PAGE_BYTES, RowPage, fitting};
use crate::store::db::text::{optional, text};
use crate::store::memory::fact_row::{FACT, IN_TURN};
use crate::store::sql::sql;
use crate::store::tx::TxQuery;
use crate::store::{Split, Store, StoreError};

pub use extractions::{ExtractionCall, ExtractionClaim, ExtractionEnd, MOST_QUEUED};
pub use noting::{NotedFact, NotingKind};
pub use vectors::{EMBEDDED_AT_ONCE, EmbeddedFact, EmbeddingPlace, UnembeddedFact, VECTORS_AT_ONCE};

/// Facts of each origin that a search answers.
const FOUND: i64 = 30;
/// A use is recorded once in so long.
const USED_ANEW: TimeDelta = TimeDelta::days(1);

/// The facts to list. Newest first, after the fact `before`.
#[derive(Debug, Clone, Default)]
pub struct FactFilter {
    /// Only of this collection and those below it.
    pub collection: Option<String>,
    /// Only those with this in their text, in any case of its letters.
    pub q: Option<String>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// The facts that a run is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecalledFacts {
    /// Of the profile.
    pub profile: Vec<Fact>,
    /// The others in whose text one of the terms is, those with most of them first.
    pub found: Vec<Fact>,
    /// Whether the tenant has facts at all.
    pub has_any: bool,
    /// The first page of those that have a vector in the space that was asked for, with which a search by meaning begins; none if it
    /// can't be read.
    pub embedded: Vec<EmbeddedFact>,
}

const SELECT: &str = sql!("select ", FACT, " from facts f ");
/// Beginning of a page's statement.
const MEASURED: &str = "with page as materialized (
    select f.id, octet_length(f.text) + octet_length(f.collection) + octet_length(f.noted_by) as bytes
      from facts f where true";
const FITTING: Split = fitting!(SELECT, "f.id");

/// The facts that every run is told. A name is noted early and a preference changes, so of the collection `profile` the oldest come
/// first, and of the preferences the newest. So many of each kind come before the rest of both.
/// Both are looked for among the oldest and the newest of all, so many of each.
const PROFILE: &str = "
    select {fact}
      from (select id, kind, place
              from (select id, kind, row_number() over (
                               partition by kind order by case when kind = 0 then id end, id desc) as place
                      from (select id,
                                   case when collection = 'profile' or {in}(collection, 'profile/') = 1 then 0 else 1 end
                                   as kind
                              from (select * from (select id, collection from facts
                                                    where tenant_id = $1 and is_profile
                                                    order by tenant_id, id limit $4) oldest
                                    union
                                    select * from (select id, collection from facts
                                                    where tenant_id = $1 and is_profile
                                                    order by tenant_id desc, id desc limit $4) newest) ends) kinds) placed
             order by case when place <= $2 then 0 else 1 end, kind, place
             limit $3) told
      join facts f on {key}
     order by case when told.place <= $2 then 0 else 1 end, told.kind, told.place";
const PROFILE_BOTH: Split = Split {
    postgres: sql!(PROFILE; "{fact}" = FACT; "{in}" = "strpos"; "{key}" = "f.id = any (array[told.id])"),
    sqlite: sql!(PROFILE; "{fact}" = FACT; "{in}" = "instr"; "{key}" = "f.id = told.id"),
};
const HAS_ANY: &str = "select exists (select 1 from facts where tenant_id = $1)";

/// The function that answers the place of a text within another, from 1; 0 where it is not there.
const PLACE: Split = Split { postgres: "strpos", sqlite: "instr" };

/// The facts with one of eight terms in their text, of each origin those with most of them; a term that is null is in none.
const SEARCH: &str = "
    select {fact}
      from (select f.*, row_number() over (
                       partition by f.origin order by f.score desc, f.last_used_at desc, f.id desc) as place
              from (select f.*,
                           case when {in}(f.folded, cast($4 as text)) > 0 then length(cast($4 as text)) else 0 end
                           + case when {in}(f.folded, cast($5 as text)) > 0 then length(cast($5 as text)) else 0 end
                           + case when {in}(f.folded, cast($6 as text)) > 0 then length(cast($6 as text)) else 0 end
                           + case when {in}(f.folded, cast($7 as text)) > 0 then length(cast($7 as text)) else 0 end
                           + case when {in}(f.folded, cast($8 as text)) > 0 then length(cast($8 as text)) else 0 end
                           + case when {in}(f.folded, cast($9 as text)) > 0 then length(cast($9 as text)) else 0 end
                           + case when {in}(f.folded, cast($10 as text)) > 0 then length(cast($10 as text)) else 0 end
                           + case when {in}(f.folded, cast($11 as text)) > 0 then length(cast($11 as text)) else 0 end
                           as score
                      from facts f
                     where f.tenant_id = $1
                       and (cast($2 as text) is null or f.collection = cast($2 as text)
                            or {in}(f.collection, cast($2 as text) || '/') = 1)) f
             where f.score > 0) f
     where f.place <= $3
     order by f.score desc, f.last_used_at desc, f.id desc";
const SEARCH_BOTH: Split = Split {
    postgres: sql!(SEARCH; "{fact}" = FACT; "{in}" = "strpos"),
    sqlite: sql!(SEARCH; "{fact}" = FACT; "{in}" = "instr"),
};

const VERSIONS: &str = "
    select version, collection, text, origin, run_id, turn, noted_by, noted_at, replaced_at
      from fact_versions where fact_id = $1 and tenant_id = $2 order by version desc";

impl<'r, R: Columns> FromRow<'r, R> for Fact {
    fn from_row(row: &'r R) -> Result<Fact, sqlx::Error> {
        Ok(Fact {
            id: row.value("id")?,
            tenant_id: row.value("tenant_id")?,
            collection: row.value("collection")?,
            text: row.value("text")?,
            origin: origin(row)?,
            run_id: row.value("run_id")?,
            turn: row.value("turn")?,
            noted_by: row.value("noted_by")?,
            version: row.value("version")?,
            mentions: row.value("mentions")?,
            created_at: row.value("created_at")?,
            noted_at: row.value("noted_at")?,
            last_used_at: row.value("last_used_at")?,
        })
    }
}

impl<'r, R: Columns> FromRow<'r, R> for FactVersion {
    fn from_row(row: &'r R) -> Result<FactVersion, sqlx::Error> {
        Ok(FactVersion {
            version: row.value("version")?,
            collection: row.value("collection")?,
            text: row.value("text")?,
            origin: origin(row)?,
            run_id: row.value("run_id")?,
            turn: row.value("turn")?,
            noted_by: row.value("noted_by")?,
            noted_at: row.value("noted_at")?,
            replaced_at: row.value("replaced_at")?,
        })
    }
}

/// One that this release does not know is told as text from outside is.
fn origin(row: &impl Columns) -> Result<FactOrigin, sqlx::Error> {
    Ok(FactOrigin::parse(&row.value::<String>("origin")?).unwrap_or_default())
}

impl Store {
    /// One fact, with its earlier versions, the newest first.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_fact(&self, scope: &Scope, id: Uuid) -> Result<(Fact, Vec<FactVersion>), StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found: Option<Fact> = read
            .query(sql!(SELECT, "where f.id = $1 and ($2 is null or f.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let fact = found.ok_or(StoreError::NotFound)?;
        let versions = read.query(VERSIONS).bind(id).bind(text(&fact.tenant_id)).all().await?;
        read.end().await?;
        Ok((fact, versions))
    }

    /// A page of facts, newest first.
    pub async fn list_facts(&self, scope: &Scope, filter: &FactFilter) -> Result<RowPage<Fact>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        if let Some(tenant) = scope.tenant() {
            query.push_key("f.tenant_id", text(tenant).into_owned());
            order = "f.tenant_id desc, ";
        }
        if let Some(collection) = &filter.collection {
            let collection = text(collection).into_owned();
            query.push(" and (f.collection = ").push_bind(collection.clone()).push(" or ").push_split(PLACE);
            query.push("(f.collection, ").push_bind(format!("{collection}/")).push(") = 1)");
        }
        if let Some(part) = &filter.q {
            query.push(" and ").push_split(PLACE).push("(f.folded, ").push_bind(folded(&text(part))).push(") > 0");
        }
        if let Some(before) = filter.before {
            query.push(" and f.id < ").push_bind(before);
        }
        query
            .push(" order by ")
            .push(order)
            .push("f.id desc limit ")
            .push_bind(filter.limit)
            .push(FIT)
            .push_split(FITTING);
        query.push(BOUND).push_bind(PAGE_BYTES).push(IN_ORDER);
        let rows = query.finish().rows().await?;
        read.end().await?;
        Ok(RowPage::from_rows(&self.unreadable, "facts", &rows, filter.limit, Ok))
    }

    /// The facts that a run is told: those of the profile, names before preferences, and of the others those in whose text one of the
    /// terms is; and what a search by meaning in a space begins with.
    pub async fn recall_facts(
        &self,
        tenant: &Tenant,
        terms: &[String],
        space: Option<&str>,
    ) -> Result<RecalledFacts, StoreError> {
        let now = self.clock.now();
        if self.without_facts.knows(tenant.as_str(), now) {
            return Ok(RecalledFacts::default());
        }
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let profile = read.query(PROFILE_BOTH).bind(tenant.as_str()).bind(OF_EACH_KIND as i64);
        let profile: Vec<Fact> = profile.bind(MOST_OF_PROFILE as i64).bind(LOOKED_AT_OF_PROFILE as i64).all().await?;
        let mut found = search(read.query(SEARCH_BOTH), tenant, terms, None).await?;
        found.retain(|fact| profile.iter().all(|told| told.id != fact.id));
        let has_any = !profile.is_empty()
            || !found.is_empty()
            || read.query(HAS_ANY).bind(tenant.as_str()).scalar::<bool>().await?;
        if !has_any {
            self.without_facts.remember(tenant.as_str(), now);
        }
        let embedded = match space.filter(|_| has_any) {
            Some(space) => vectors::embedded_page(&mut read, tenant, space, None).await,
            None => Ok(Vec::new()),
        };
        let embedded = match embedded {
            Ok(embedded) => {
                read.end().await?;
                embedded
            }
            // the transaction goes with the failure, and what was read before stands
            Err(error) => {
                tracing::warn!(%error, "facts are looked for without vectors");
                Vec::new()
            }
        };
        Ok(RecalledFacts { profile, found, has_any, embedded })
    }

    /// The facts of a collection and those below it, of any collection where none is named, in whose text one of the terms is,
    /// those with most of them first.
    pub async fn search_facts(
        &self,
        tenant: &Tenant,
        terms: &[String],
        collection: Option<&str>,
    ) -> Result<Vec<Fact>, StoreError> {
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let found = search(read.query(SEARCH_BOTH), tenant, terms, collection).await?;
        read.end().await?;
        Ok(found)
    }

    /// Notes that a run was told of these facts; once in a day for each.
    pub async fn note_facts_used(&self, tenant: &Tenant, facts: &[Fact]) -> Result<(), StoreError> {
        let now = self.clock.now();
        let stale: Vec<Uuid> = facts.iter().filter(|fact| is_used_anew(fact, now)).map(|fact| fact.id).collect();
        if stale.is_empty() {
            return Ok(());
        }
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let mut tx = write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let mut query = tx.build("update facts set last_used_at = ");
        query.push_bind(now).push(" where tenant_id = ").push_bind(tenant.as_str()).push(" and id in (");
        query.list(stale.into_iter()).push(")");
        query.finish().execute().await?;
        write.commit().await?;
        Ok(())
    }
}

async fn search(
    query: TxQuery<'_>,
    tenant: &Tenant,
    terms: &[String],
    collection: Option<&str>,
) -> Result<Vec<Fact>, StoreError> {
    if terms.is_empty() {
        return Ok(Vec::new());
    }
    let query = query.bind(tenant.as_str()).bind(optional(collection)).bind(FOUND);
    let query = (0..TERMS).fold(query, |query, place| query.bind(terms.get(place).map(|term| text(term))));
    Ok(query.all().await?)
}

fn is_used_anew(fact: &Fact, now: DateTime<Utc>) -> bool {
    fact.last_used_at + USED_ANEW <= now
}
