//! How facts are noted, corrected and deleted. The same words are the same fact, which is counted; one in whose place another is
//! noted becomes an earlier version of it.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::words::words;
use crate::domain::actor::Actor;
use crate::domain::memory::{Fact, FactOrigin, MOST_FACTS, MOST_VERSIONS, NewFact, folded, identity, is_profile};
use crate::store::db::text::{optional, text};
use crate::store::memory::SELECT;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// Facts that one transaction deletes.
const AT_ONCE: i64 = 200;

words! {
    /// How a fact was noted.
    #[derive(utoipa::ToSchema)]
    pub enum NotedAs {
        /// It is new.
        New = "new",
        /// It was known, and is counted.
        Known = "known",
        /// It has taken the place of another.
        Replacing = "replacing",
    }
}

/// A fact that was noted.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    /// The fact, as it stands now.
    pub fact: Fact,
    /// How it was noted.
    pub noted_as: NotedAs,
}

/// A fact that is to be changed, with what no reader needs.
#[derive(sqlx_macros::FromRow)]
struct FactRow {
    #[sqlx(flatten)]
    fact: Fact,
    call_key: Option<String>,
}

const ROW: &str = "
    select f.id, f.tenant_id, f.collection, f.text, f.origin, f.run_id, f.turn, f.noted_by, f.version, f.mentions,
           f.created_at, f.noted_at, f.last_used_at, f.call_key
      from facts f where f.tenant_id = $1 and ";
const BY_ID: Split = Split { postgres: sql!(ROW, "f.id = $2 for update"), sqlite: sql!(ROW, "f.id = $2") };
const BY_IDENTITY: Split =
    Split { postgres: sql!(ROW, "f.identity = $2 for update"), sqlite: sql!(ROW, "f.identity = $2") };

const INSERT: &str = "
    insert into facts (id, tenant_id, collection, is_profile, text, folded, identity, origin, run_id, turn, noted_by,
                       call_key, version, mentions, created_at, noted_at, last_used_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1, 1, $13, $13, $13)
    on conflict (tenant_id, identity) do nothing";
/// A person's word for what was known from outside makes it a person's.
const COUNT: &str = "
    update facts set mentions = mentions + 1, last_used_at = $2, call_key = $3,
           origin = case when $4 = 'person' then 'person' else origin end,
           collection = $5, is_profile = $6
     where id = $1";
const ARCHIVE: &str = "
    insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, run_id, turn, noted_by, noted_at,
                               replaced_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const REPLACE: &str = "
    update facts set collection = $2, is_profile = $3, text = $4, folded = $5, identity = $6, origin = $7, run_id = $8,
           turn = $9, noted_by = $10, call_key = $11, version = version + 1, mentions = 1, noted_at = $12,
           last_used_at = $12
     where id = $1";

impl Store {
    /// Notes a fact of a tenant, in the place of another one where `replaces` names it, by its id or its words. The same
    /// words again are counted, and the same call again changes nothing.
    ///
    /// # Errors
    /// `NotFound`: there is no fact to be replaced. `Conflict`: the tenant has as many facts as it may have, or text from outside
    /// would take the place of a person's word.
    pub async fn note_fact(&self, tenant: &Tenant, new: &NewFact, replaces: Option<&str>) -> Result<Noted, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let noted = note(&mut write.tx(), tenant, new, replaces, now).await?;
        write.commit().await?;
        self.without_facts.forget(tenant.as_str());
        Ok(noted)
    }

    /// Notes a fact that somebody gives, on the record of audit.
    ///
    /// # Errors
    /// As [`Store::note_fact`].
    pub async fn add_fact(
        &self,
        tenant: &Tenant,
        new: &NewFact,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<Noted>, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_unconfined(Some(tenant.as_str())).await?;
        if let Some(answer) = once(&mut write.tx(), idempotency, now).await? {
            return Ok(answer);
        }
        write.set_rls_tenant(Some(tenant.as_str())).await?;
        let tx = &mut write.tx();
        let noted = note(tx, tenant, new, None, now).await?;
        write_audit(tx, act(&noted.fact, &new.noted_by, "fact.added"), now).await?;
        write.commit().await?;
        self.without_facts.forget(tenant.as_str());
        Ok(StoredAnswer::Done(noted))
    }

    /// Corrects a fact: what it said becomes an earlier version.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn correct_fact(&self, scope: &Scope, id: Uuid, new: &NewFact) -> Result<Fact, StoreError> {
        let now = self.clock.now();
        let tenant = self.tenant_of_fact(scope, id).await?;
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        let noted = note(tx, &tenant, new, Some(&id.to_string()), now).await?;
        write_audit(tx, act(&noted.fact, &new.noted_by, "fact.corrected"), now).await?;
        write.commit().await?;
        Ok(noted.fact)
    }

    /// Deletes a fact with all that it has said.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn delete_fact(&self, scope: &Scope, id: Uuid, by: &str) -> Result<(), StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let found: Option<Fact> = tx
            .query(sql!(SELECT, "where f.id = $1 and ($2 is null or f.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let fact = found.ok_or(StoreError::NotFound)?;
        remove(tx, id).await?;
        write_audit(tx, act(&fact, by, "fact.deleted"), self.clock.now()).await?;
        write.commit().await?;
        Ok(())
    }

    /// Deletes all that is known of a tenant; answers how many facts. Broken off in the middle, it is done by another call.
    pub async fn delete_facts(&self, tenant: &Tenant, by: &str) -> Result<u64, StoreError> {
        let mut deleted = 0;
        loop {
            let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
            let tx = &mut write.tx();
            let some: Vec<Uuid> = tx
                .query("select id from facts where tenant_id = $1 order by id limit $2")
                .bind(tenant.as_str())
                .bind(AT_ONCE)
                .scalars()
                .await?;
            for id in &some {
                remove(tx, *id).await?;
            }
            deleted += some.len() as u64;
            let is_last = (some.len() as i64) < AT_ONCE;
            if is_last && deleted > 0 {
                let (via, body) = (Actor::parse(by).via().as_str(), json!({ "facts": deleted }));
                let (action, subject_type) = ("facts.deleted", "facts");
                let (tenant, subject_id) = (tenant.as_str(), Uuid::nil());
                let act = AuditAction { tenant, actor: by, via, action, subject_type, subject_id, body };
                write_audit(tx, act, self.clock.now()).await?;
            }
            write.commit().await?;
            if is_last {
                return Ok(deleted);
            }
        }
    }

    async fn tenant_of_fact(&self, scope: &Scope, id: Uuid) -> Result<Tenant, StoreError> {
        let (fact, _) = self.get_fact(scope, id).await?;
        Tenant::stored(&fact.tenant_id).map_err(StoreError::Corrupt)
    }
}

async fn note(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    new: &NewFact,
    replaces: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Noted, StoreError> {
    let same = find(tx, tenant, BY_IDENTITY, Key::Words(identity(&new.text))).await?;
    let replaced = match replaces {
        None => None,
        Some(named) => {
            let found = match Uuid::try_parse(named) {
                Ok(id) => find(tx, tenant, BY_ID, Key::Id(id)).await?,
                Err(_) => find(tx, tenant, BY_IDENTITY, Key::Words(identity(named))).await?,
            };
            // a call that is made again has replaced it already
            if found.is_none() && same.as_ref().is_some_and(|row| is_repeated(row, new)) {
                None
            } else {
                Some(found.ok_or(StoreError::NotFound)?)
            }
        }
    };
    match (same, replaced) {
        (None, None) => insert(tx, tenant, new, now).await,
        (None, Some(row)) => replace(tx, row, new, now).await,
        (Some(row), None) => count(tx, row, new, now).await,
        (Some(row), Some(replaced)) if row.fact.id == replaced.fact.id => count(tx, row, new, now).await,
        (Some(row), Some(replaced)) => merge(tx, row, replaced, new, now).await,
    }
}

enum Key {
    Id(Uuid),
    Words(String),
}

async fn find(tx: &mut Tx<'_>, tenant: &Tenant, statement: Split, key: Key) -> Result<Option<FactRow>, StoreError> {
    let query = tx.query(statement).bind(tenant.as_str());
    let query = match key {
        Key::Id(id) => query.bind(id),
        Key::Words(identity) => query.bind(identity),
    };
    Ok(query.optional().await?)
}

fn is_repeated(row: &FactRow, new: &NewFact) -> bool {
    new.call_key.is_some() && row.call_key == new.call_key
}

async fn insert(tx: &mut Tx<'_>, tenant: &Tenant, new: &NewFact, now: DateTime<Utc>) -> Result<Noted, StoreError> {
    let stored: i64 =
        tx.query("select count(*) from facts where tenant_id = $1").bind(tenant.as_str()).scalar().await?;
    if stored >= MOST_FACTS {
        return Err(StoreError::Conflict(format!(
            "{MOST_FACTS} facts are noted, the most there may be; delete some first"
        )));
    }
    let collection = new.collection.as_deref().unwrap_or_default();
    let inserted = tx
        .query(INSERT)
        .bind(new_id(now))
        .bind(tenant.as_str())
        .bind(text(collection))
        .bind(is_profile(collection))
        .bind(text(&new.text))
        .bind(folded(&text(&new.text)))
        .bind(identity(&new.text))
        .bind(new.origin.as_str())
        .bind(new.source.map(|(run, _)| run))
        .bind(new.source.map(|(_, turn)| turn))
        .bind(text(&new.noted_by))
        .bind(optional(new.call_key.as_deref()))
        .bind(now)
        .execute()
        .await?;
    let row = find(tx, tenant, BY_IDENTITY, Key::Words(identity(&new.text))).await?;
    let row = row.ok_or_else(|| StoreError::Unavailable("the fact was deleted meanwhile".into()))?;
    match inserted {
        // noted by another call at the same moment
        0 => count(tx, row, new, now).await,
        _ => Ok(Noted { fact: row.fact, noted_as: NotedAs::New }),
    }
}

async fn count(tx: &mut Tx<'_>, row: FactRow, new: &NewFact, now: DateTime<Utc>) -> Result<Noted, StoreError> {
    let mut fact = row.fact.clone();
    if is_repeated(&row, new) {
        let noted_as = if fact.version > 1 { NotedAs::Replacing } else { NotedAs::New };
        return Ok(Noted { fact, noted_as });
    }
    // text from outside moves no word of a person
    let may_move = fact.origin == FactOrigin::Outside || new.origin == FactOrigin::Person;
    if let Some(collection) = new.collection.as_ref().filter(|_| may_move) {
        fact.collection.clone_from(collection);
    }
    if new.origin == FactOrigin::Person {
        fact.origin = FactOrigin::Person;
    }
    fact.mentions += 1;
    fact.last_used_at = now;
    tx.query(COUNT)
        .bind(fact.id)
        .bind(now)
        .bind(optional(new.call_key.as_deref()))
        .bind(new.origin.as_str())
        .bind(text(&fact.collection))
        .bind(is_profile(&fact.collection))
        .execute()
        .await?;
    Ok(Noted { fact, noted_as: NotedAs::Known })
}

async fn replace(tx: &mut Tx<'_>, row: FactRow, new: &NewFact, now: DateTime<Utc>) -> Result<Noted, StoreError> {
    check_word(&row.fact, new)?;
    archive(tx, &row.fact, (row.fact.id, row.fact.version), now).await?;
    let collection = new.collection.as_deref().unwrap_or(&row.fact.collection);
    tx.query(REPLACE)
        .bind(row.fact.id)
        .bind(text(collection))
        .bind(is_profile(collection))
        .bind(text(&new.text))
        .bind(folded(&text(&new.text)))
        .bind(identity(&new.text))
        .bind(new.origin.as_str())
        .bind(new.source.map(|(run, _)| run))
        .bind(new.source.map(|(_, turn)| turn))
        .bind(text(&new.noted_by))
        .bind(optional(new.call_key.as_deref()))
        .bind(now)
        .execute()
        .await?;
    let fact: Fact = tx.query(sql!(SELECT, "where f.id = $1")).bind(row.fact.id).one().await?;
    Ok(Noted { fact, noted_as: NotedAs::Replacing })
}

/// What takes the place of a fact is known already: the replaced one becomes an earlier version of it.
async fn merge(
    tx: &mut Tx<'_>,
    row: FactRow,
    replaced: FactRow,
    new: &NewFact,
    now: DateTime<Utc>,
) -> Result<Noted, StoreError> {
    check_word(&replaced.fact, new)?;
    remove(tx, replaced.fact.id).await?;
    archive(tx, &replaced.fact, (row.fact.id, row.fact.version), now).await?;
    tx.query("update facts set version = version + 1 where id = $1").bind(row.fact.id).execute().await?;
    let fact = Fact { version: row.fact.version + 1, ..row.fact.clone() };
    let noted = count(tx, FactRow { fact, ..row }, new, now).await?;
    Ok(Noted { noted_as: NotedAs::Replacing, ..noted })
}

/// Text from outside takes the place of no word of a person.
fn check_word(replaced: &Fact, new: &NewFact) -> Result<(), StoreError> {
    match (replaced.origin, new.origin) {
        (FactOrigin::Person, FactOrigin::Outside) => Err(StoreError::Conflict(
            "a person has said that, and text from outside does not take its place; note the new fact without `replaces`"
                .into(),
        )),
        _ => Ok(()),
    }
}

async fn archive(
    tx: &mut Tx<'_>,
    fact: &Fact,
    (of, version): (Uuid, i64),
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tx.query(ARCHIVE)
        .bind(of)
        .bind(version)
        .bind(text(&fact.tenant_id))
        .bind(text(&fact.collection))
        .bind(text(&fact.text))
        .bind(fact.origin.as_str())
        .bind(fact.run_id)
        .bind(fact.turn)
        .bind(text(&fact.noted_by))
        .bind(fact.noted_at)
        .bind(now)
        .execute()
        .await?;
    tx.query("delete from fact_versions where fact_id = $1 and version <= $2")
        .bind(of)
        .bind(version - MOST_VERSIONS)
        .execute()
        .await?;
    Ok(())
}

async fn remove(tx: &mut Tx<'_>, id: Uuid) -> Result<(), StoreError> {
    tx.query("delete from fact_versions where fact_id = $1").bind(id).execute().await?;
    tx.query("delete from facts where id = $1").bind(id).execute().await?;
    Ok(())
}

/// The record has no words of the fact: one that is deleted is gone.
fn act<'a>(fact: &'a Fact, actor: &'a str, action: &'a str) -> AuditAction<'a> {
    let body = json!({ "version": fact.version, "origin": fact.origin });
    let via = Actor::parse(actor).via().as_str();
    AuditAction { tenant: &fact.tenant_id, actor, via, action, subject_type: "fact", subject_id: fact.id, body }
}
