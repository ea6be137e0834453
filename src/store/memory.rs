//! Facts that agents know of a tenant: listed, read, and recalled for a run. `noting` and `deleting` have the writes,
//! `vectors` what is found by its meaning.
//!
//! A search goes through the facts of its tenant, which are bounded, by one statement that is the same work on both
//! databases.

mod deleting;
pub(super) mod extractions;
mod fact_row;
mod noting;
pub(super) mod revisions;
mod vectors;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::memory::recall::{LOOKED_AT_OF_PROFILE, MOST_OF_PROFILE, OF_EACH_KIND, TERMS};
use crate::domain::memory::{Fact, FactOrigin, FactVersion, folded};
use crate::store::columns::Columns;
use crate::store::db::listing::{PAGE_BYTES, RowPage, fitting, push_page};
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
    /// The first page of those that have a vector in the space that was asked for, with which a search by meaning
    /// begins; none if it can't be read.
    pub embedded: Vec<EmbeddedFact>,
    /// The revision of the tenant's facts: as long as [`Store::fact_revision`] answers it, the same would be told.
    /// `None`: it has no facts, or something can't be read.
    pub revision: Option<i64>,
}

/// A fact that is told, if there is one, and what holds for all of its tenant.
struct RecalledRow {
    /// Whether it is of the profile, with it.
    fact: Option<(bool, Fact)>,
    has_any: bool,
    revision: i64,
}

const SELECT: &str = sql!("select ", FACT, " from facts f ");
/// Beginning of a page's statement.
const MEASURED: &str = "with page as materialized (
    select f.id, octet_length(f.text) + octet_length(f.collection) + octet_length(f.noted_by) as bytes
      from facts f where true";
const FITTING: Split = fitting!(SELECT, "f.id");

/// The facts that every run is told. A name is noted early and a preference changes, so of the collection `profile` the
/// oldest come first, and of the preferences the newest. So many of each kind come before the rest of both. Both are
/// looked for among the oldest and the newest of all, so many of each.
const PROFILE: &str = "
    select true as is_told,
           row_number() over (order by case when told.place <= $12 then 0 else 1 end, told.kind, told.place) as place, {fact}
      from (select id, kind, place
              from (select id, kind, row_number() over (
                               partition by kind order by case when kind = 0 then id end, id desc) as place
                      from (select id,
                                   case when collection = 'profile' or {in}(collection, 'profile/') = 1 then 0 else 1 end
                                   as kind
                              from (select * from (select id, collection from facts
                                                    where tenant_id = $1 and is_profile
                                                    order by tenant_id, id limit $14) oldest
                                    union
                                    select * from (select id, collection from facts
                                                    where tenant_id = $1 and is_profile
                                                    order by tenant_id desc, id desc limit $14) newest) ends) kinds) placed
             order by case when place <= $12 then 0 else 1 end, kind, place
             limit $13) told
      join facts f on {key}";

/// The function that answers the place of a text within another, from 1; 0 where it is not there.
const PLACE: Split = Split { postgres: "strpos", sqlite: "instr" };

/// The facts with one of eight terms in their text, of each origin those with most of them; a term that is null is in
/// none, and without a first one no text is looked into.
const MATCHES: &str = "
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
                     where f.tenant_id = $1 and cast($4 as text) is not null
                       and (cast($2 as text) is null or f.collection = cast($2 as text)
                            or {in}(f.collection, cast($2 as text) || '/') = 1)) f
             where f.score > 0) f
     where f.place <= $3";
const BEST_FIRST: &str = " order by f.score desc, f.last_used_at desc, f.id desc";
const SEARCH: &str = sql!("select {fact}", MATCHES, BEST_FIRST);
const SEARCH_BOTH: Split = Split {
    postgres: sql!(SEARCH; "{fact}" = FACT; "{in}" = "strpos"),
    sqlite: sql!(SEARCH; "{fact}" = FACT; "{in}" = "instr"),
};

/// All that a run is told, as of one instant: the facts of the profile, then those that are found, with the revision of
/// them all. Without a fact it is one row.
const RECALL: &str = sql!(
    "select p.*, coalesce((select r.revision from fact_revisions r where r.tenant_id = $1), 0) as revision,
            p.is_told is not null
            or (select 1 from facts where tenant_id = $1 order by tenant_id, id limit 1) is not null as has_any
       from (select 1 as one) o
       left join (",
    PROFILE,
    " union all select false, row_number() over (",
    BEST_FIRST,
    "), {fact}",
    MATCHES,
    ") p on true
      order by p.is_told desc, p.place"
);
const RECALL_BOTH: Split = Split {
    postgres: sql!(RECALL; "{fact}" = FACT; "{in}" = "strpos"; "{key}" = "f.id = any (array[told.id])"),
    sqlite: sql!(RECALL; "{fact}" = FACT; "{in}" = "instr"; "{key}" = "f.id = told.id"),
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

impl<'r, R: Columns> FromRow<'r, R> for RecalledRow {
    fn from_row(row: &'r R) -> Result<RecalledRow, sqlx::Error> {
        let is_told: Option<bool> = row.value("is_told")?;
        Ok(RecalledRow {
            fact: is_told.map(|is_told| Fact::from_row(row).map(|fact| (is_told, fact))).transpose()?,
            has_any: row.value("has_any")?,
            revision: row.value("revision")?,
        })
    }
}

impl RecalledFacts {
    /// The facts of these rows, each once.
    fn of(rows: Vec<RecalledRow>) -> RecalledFacts {
        let mut recalled = RecalledFacts::default();
        for RecalledRow { fact, has_any, revision } in rows {
            recalled.has_any |= has_any;
            recalled.revision = Some(revision).filter(|_| has_any);
            match fact {
                Some((true, told)) => recalled.profile.push(told),
                // those of the profile come first
                Some((false, found)) if recalled.profile.iter().all(|told| told.id != found.id) => {
                    recalled.found.push(found)
                }
                Some((false, _)) | None => {}
            }
        }
        recalled
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
            let key = scope.tenant().map(|tenant| ("f.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "f.id", before);
        }
        push_page(&mut query, (order, "f.id"), filter.limit, (FITTING, PAGE_BYTES));
        let rows = query.finish().rows().await?;
        read.end().await?;
        Ok(RowPage::from_rows(&self.unreadable, "facts", &rows, filter.limit, Ok))
    }

    /// The facts that a run is told: those of the profile, names before preferences, and of the others those in whose
    /// text one of the terms is; and what a search by meaning in a space begins with.
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
        let look = self.without_facts.look(now);
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let recall = bind_terms(read.query(RECALL_BOTH), tenant, terms, None).bind(OF_EACH_KIND as i64);
        let rows: Vec<RecalledRow> =
            recall.bind(MOST_OF_PROFILE as i64).bind(LOOKED_AT_OF_PROFILE as i64).all().await?;
        let mut recalled = RecalledFacts::of(rows);
        if !recalled.has_any {
            self.without_facts.remember(tenant.as_str(), look);
        }
        let embedded = match space.filter(|_| recalled.has_any) {
            Some(space) => vectors::embedded_page(&mut read, tenant, space, None).await,
            None => Ok(Vec::new()),
        };
        match embedded {
            Ok(embedded) => {
                read.end().await?;
                recalled.embedded = embedded;
            }
            // the transaction goes with the failure, and what was read before stands
            Err(error) => {
                tracing::warn!(%error, "facts are looked for without vectors");
                recalled.revision = None;
            }
        }
        Ok(recalled)
    }

    /// The facts of a collection and those below it, of any collection where none is named, in whose text one of the
    /// terms is, those with most of them first.
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
    Ok(bind_terms(query, tenant, terms, collection).all().await?)
}

/// The first eleven values of a statement that searches.
fn bind_terms<'t>(query: TxQuery<'t>, tenant: &Tenant, terms: &[String], collection: Option<&str>) -> TxQuery<'t> {
    let query = query.bind(tenant.as_str()).bind(optional(collection)).bind(FOUND);
    (0..TERMS).fold(query, |query, place| query.bind(terms.get(place).map(|term| text(term))))
}

fn is_used_anew(fact: &Fact, now: DateTime<Utc>) -> bool {
    fact.last_used_at + USED_ANEW <= now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_all_that_a_run_is_told_is_found_by_its_tenant() {
        let plan = sqlite_plan(RECALL_BOTH.sqlite).await;
        let of_tenant = plan.iter().filter(|step| step.starts_with("SEARCH") && step.ends_with("(tenant_id=?)"));
        // the oldest and the newest of the profile, those with a term, the revision, and whether there is any
        assert_eq!(of_tenant.count(), 5, "{plan:?}");
        assert!(plan.iter().any(|step| step.starts_with("SEARCH f ") && step.ends_with("(id=?)")), "{plan:?}");
    }
}
