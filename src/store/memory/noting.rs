//! How facts are noted and corrected, one write of a tenant after the other. The same words are the same fact, which is
//! counted; one in whose place another is noted becomes an earlier version of it, behind its own earlier ones.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::words::words;
use crate::domain::memory::{
    Fact, FactChange, FactOrigin, MOST_FACTS, MOST_FROM_OUTSIDE, MOST_VERSIONS, NewFact, bytes_as_fact, folded,
    identity, is_profile,
};
use crate::domain::quota::ExceededQuota;
use crate::store::db::text::{optional, text};
use crate::store::memory::fact_row::{BY_ID, FactRow, IN_TURN, ROW, act, check_bytes, forget_vector, remove};
use crate::store::ops::audit::{ENTRY_BYTES, write_audit};
use crate::store::sql::sql;
use crate::store::tx::{Tx, TxQuery};
use crate::store::{Store, StoreError};

words! {
    /// How a fact was noted.
    pub enum NotingKind {
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
pub struct NotedFact {
    /// The fact, as it stands now.
    pub fact: Fact,
    /// How it was noted.
    pub noted_as: NotingKind,
}

const BY_IDENTITY: &str = sql!(ROW, "f.identity = $2");
/// The fact that a call has noted, whatever it says now.
const BY_CALL: &str = sql!(
    ROW,
    "(f.call_key = $2 or f.id in (select v.fact_id from fact_versions v where v.tenant_id = $1 and v.call_key = $2))
     limit 1"
);

const INSERT: &str = "
    insert into facts (id, collection, is_profile, text, folded, identity, origin, run_id, turn, noted_by, call_key,
                       created_at, noted_at, last_used_at, tenant_id, version, mentions)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $12, $13, 1, 1)";
const COUNT: &str = "
    update facts set mentions = mentions + 1, last_used_at = $2, collection = $3, is_profile = $4 where id = $1";
const MOVE: &str = "update facts set collection = $2, is_profile = $3 where id = $1";
const ARCHIVE: &str = "
    insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, run_id, turn, noted_by, call_key,
                               noted_at, replaced_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
/// The earlier versions of a fact become those of another one, in their order from this version of the other on.
const HAND_OVER: &str = "
    insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, run_id, turn, noted_by, call_key,
                               noted_at, replaced_at)
    select $2, $3 - 1 + row_number() over (order by v.version), v.tenant_id, v.collection, v.text, v.origin, v.run_id,
           v.turn, v.noted_by, v.call_key, v.noted_at, v.replaced_at
      from fact_versions v where v.fact_id = $1";
const REPLACE: &str = "
    update facts set collection = $2, is_profile = $3, text = $4, folded = $5, identity = $6, origin = $7, run_id = $8,
           turn = $9, noted_by = $10, call_key = $11, version = version + 1, mentions = 1, noted_at = $12,
           last_used_at = $12, embedded = '', embed_after = null, embed_claims = 0
     where id = $1";

impl Store {
    /// Notes a fact of a tenant, in the place of another one where `replaces` names it, by its id or its words. The
    /// same words again are counted, and the same call again changes nothing: a tenant without room does both.
    ///
    /// # Errors
    /// `NotFound`: there is no fact to be replaced. `Conflict`: the tenant has as many facts as it may have, or text
    /// from outside would take the place of a person's word. `Quota`: the tenant has stored all that it may.
    pub async fn note_fact(
        &self,
        tenant: &Tenant,
        new: &NewFact,
        replaces: Option<&str>,
    ) -> Result<NotedFact, StoreError> {
        self.note_once(tenant, new, replaces, false).await
    }

    /// Notes a fact that somebody gives, on the record of audit.
    ///
    /// # Errors
    /// As [`Store::note_fact`]; of a tenant that has stored all that it may, the same words again are refused, too.
    pub async fn add_fact(&self, tenant: &Tenant, new: &NewFact) -> Result<NotedFact, StoreError> {
        self.note_once(tenant, new, None, true).await
    }

    async fn note_once(
        &self,
        tenant: &Tenant,
        new: &NewFact,
        replaces: Option<&str>,
        is_recorded: bool,
    ) -> Result<NotedFact, StoreError> {
        let now = self.clock.now();
        let entry = if is_recorded { ENTRY_BYTES } else { 0 };
        let full = self.exceeded_by(tenant.as_str(), bytes_as_fact(&new.text) + entry).await?;
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        if let Some(noted) = noted_before(tx, tenant, new).await? {
            return Ok(noted);
        }
        if is_recorded {
            self.refusal(check_bytes(full.as_deref()))?;
        }
        let noted = self.refusal(note(tx, tenant, new, replaces, full.as_deref(), now).await)?;
        if is_recorded {
            write_audit(tx, act(&noted.fact, &new.noted_by, "fact.added", None), now).await?;
        }
        write.commit().await?;
        self.without_facts.forget(tenant.as_str());
        Ok(noted)
    }

    /// Corrects a fact. Where its text is given, it is a person's word from then on; its former text is kept.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope. `Conflict`: another one says the same. `Quota`: its tenant is full.
    pub async fn correct_fact(
        &self,
        scope: &Scope,
        id: Uuid,
        change: &FactChange,
        by: &str,
    ) -> Result<Fact, StoreError> {
        let now = self.clock.now();
        let tenant = self.tenant_of_fact(scope, id).await?;
        let bytes = change.text.as_deref().map_or(0, bytes_as_fact);
        self.admit_bytes(tenant.as_str(), bytes + ENTRY_BYTES).await?;
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let row: Option<FactRow> = tx.query(BY_ID).bind(tenant.as_str()).bind(id).optional().await?;
        let row = row.ok_or(StoreError::NotFound)?;
        match &change.text {
            Some(text) if *text != row.fact.text || row.fact.origin != FactOrigin::Person => {
                let same = with_words(tx, &tenant, text).await?;
                if let Some(other) = same.filter(|other| other.fact.id != id) {
                    return Err(StoreError::Conflict(format!("the fact {} says the same", other.fact.id)));
                }
                let new = NewFact {
                    collection: change.collection.clone(),
                    text: text.clone(),
                    origin: FactOrigin::Person,
                    is_direct: true,
                    source: None,
                    noted_by: by.to_owned(),
                    call_key: None,
                };
                replace(tx, row, &new, None, now).await?;
            }
            _ => {
                let collection = change.collection.as_ref().unwrap_or(&row.fact.collection);
                let is_profile = is_profile(collection, row.fact.origin);
                tx.query(MOVE).bind(id).bind(text(collection)).bind(is_profile).execute().await?;
            }
        }
        let corrected: FactRow = tx.query(BY_ID).bind(tenant.as_str()).bind(id).one().await?;
        write_audit(tx, act(&corrected.fact, by, "fact.corrected", None), now).await?;
        write.commit().await?;
        Ok(corrected.fact)
    }
}

/// In a transaction: notes a fact, unless the tenant is `full` and would store more with it. A refusal writes nothing.
pub(super) async fn note(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    new: &NewFact,
    replaces: Option<&str>,
    full: Option<&ExceededQuota>,
    now: DateTime<Utc>,
) -> Result<NotedFact, StoreError> {
    let same = with_words(tx, tenant, &new.text).await?;
    let replaced = match replaces {
        None => None,
        Some(named) => Some(named_by(tx, tenant, named).await?.ok_or(StoreError::NotFound)?),
    };
    match (same, replaced) {
        (None, None) => insert(tx, tenant, new, full, now).await,
        (None, Some(row)) => replace(tx, row, new, full, now).await,
        (Some(row), None) => count(tx, row, new, full, now).await,
        (Some(row), Some(replaced)) if row.fact.id == replaced.fact.id => match row.fact.text == new.text {
            true => count(tx, row, new, full, now).await,
            false => replace(tx, row, new, full, now).await,
        },
        (Some(row), Some(replaced)) => merge(tx, row, replaced, new, now).await,
    }
}

/// The fact that the same call has noted before, as it stands now.
async fn noted_before(tx: &mut Tx<'_>, tenant: &Tenant, new: &NewFact) -> Result<Option<NotedFact>, StoreError> {
    let Some(key) = &new.call_key else { return Ok(None) };
    let row: Option<FactRow> = tx.query(BY_CALL).bind(tenant.as_str()).bind(text(key)).optional().await?;
    Ok(row.map(|row| {
        let noted_as = if row.fact.version == 1 { NotingKind::New } else { NotingKind::Replacing };
        NotedFact { fact: row.fact, noted_as }
    }))
}

/// The collection of a fact that takes the place of one in another collection, or of none. Where text from outside may
/// have led to it, it does not choose where a person's word stands.
fn collection_of<'a>(new: &'a NewFact, before: Option<&'a Fact>) -> &'a str {
    match (new.origin, new.is_direct, before) {
        (FactOrigin::Person, false, Some(before)) if before.origin == FactOrigin::Person => &before.collection,
        (FactOrigin::Person, false, _) => "",
        (_, _, before) => {
            new.collection.as_deref().or(before.map(|before| before.collection.as_str())).unwrap_or_default()
        }
    }
}

async fn with_words(tx: &mut Tx<'_>, tenant: &Tenant, words: &str) -> Result<Option<FactRow>, StoreError> {
    Ok(tx.query(BY_IDENTITY).bind(tenant.as_str()).bind(identity(words)).optional().await?)
}

/// The fact of this id, or of these words.
async fn named_by(tx: &mut Tx<'_>, tenant: &Tenant, named: &str) -> Result<Option<FactRow>, StoreError> {
    match Uuid::try_parse(named) {
        Ok(id) => Ok(tx.query(BY_ID).bind(tenant.as_str()).bind(id).optional().await?),
        Err(_) => with_words(tx, tenant, named).await,
    }
}

async fn insert(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    new: &NewFact,
    full: Option<&ExceededQuota>,
    now: DateTime<Utc>,
) -> Result<NotedFact, StoreError> {
    check_room(tx, tenant, new.origin).await?;
    check_bytes(full)?;
    let values = (new_id(now), new, collection_of(new, None), now);
    with_version(tx.query(INSERT), values).bind(tenant.as_str()).execute().await?;
    let row: FactRow = tx.query(BY_IDENTITY).bind(tenant.as_str()).bind(identity(&new.text)).one().await?;
    Ok(NotedFact { fact: row.fact, noted_as: NotingKind::New })
}

/// The first twelve values of a statement that writes a version of a fact.
fn with_version<'t>(
    query: TxQuery<'t>,
    (id, new, collection, now): (Uuid, &NewFact, &str, DateTime<Utc>),
) -> TxQuery<'t> {
    query
        .bind(id)
        .bind(text(collection))
        .bind(is_profile(collection, new.origin))
        .bind(text(&new.text))
        .bind(folded(&text(&new.text)))
        .bind(identity(&new.text))
        .bind(new.origin.as_str())
        .bind(new.source.map(|(run, _)| run))
        .bind(new.source.map(|(_, turn)| turn))
        .bind(text(&new.noted_by))
        .bind(optional(new.call_key.as_deref()))
        .bind(now)
}

/// Whether the tenant may have one fact more, of this origin.
async fn check_room(tx: &mut Tx<'_>, tenant: &Tenant, origin: FactOrigin) -> Result<(), StoreError> {
    const STORED: &str = "select count(*) from facts where tenant_id = $1 and ($2 is null or origin = $2)";
    let (counted, most, of) = match origin {
        FactOrigin::Person => (None, MOST_FACTS, ""),
        FactOrigin::Outside => (Some(origin.as_str()), MOST_FROM_OUTSIDE, " from outside"),
    };
    let stored: i64 = tx.query(STORED).bind(tenant.as_str()).bind(counted).scalar().await?;
    match stored >= most {
        true => {
            Err(StoreError::Conflict(format!("{most} facts{of} are noted, the most there may be; delete some first")))
        }
        false => Ok(()),
    }
}

async fn count(
    tx: &mut Tx<'_>,
    row: FactRow,
    new: &NewFact,
    full: Option<&ExceededQuota>,
    now: DateTime<Utc>,
) -> Result<NotedFact, StoreError> {
    if row.fact.origin == FactOrigin::Outside && new.origin == FactOrigin::Person {
        return replace(tx, row, new, full, now).await;
    }
    let mut fact = row.fact;
    if fact.origin == new.origin {
        fact.collection = collection_of(new, Some(&fact)).to_owned();
    }
    fact.mentions += 1;
    fact.last_used_at = now;
    tx.query(COUNT)
        .bind(fact.id)
        .bind(now)
        .bind(text(&fact.collection))
        .bind(is_profile(&fact.collection, fact.origin))
        .execute()
        .await?;
    Ok(NotedFact { fact, noted_as: NotingKind::Known })
}

async fn replace(
    tx: &mut Tx<'_>,
    row: FactRow,
    new: &NewFact,
    full: Option<&ExceededQuota>,
    now: DateTime<Utc>,
) -> Result<NotedFact, StoreError> {
    check_word(&row.fact, new)?;
    check_bytes(full)?;
    archive(tx, &row, (row.fact.id, row.fact.version), now).await?;
    let values = (row.fact.id, new, collection_of(new, Some(&row.fact)), now);
    with_version(tx.query(REPLACE), values).execute().await?;
    forget_vector(tx, &row.fact.tenant_id, row.fact.id).await?;
    let now: FactRow = tx.query(BY_ID).bind(text(&row.fact.tenant_id)).bind(row.fact.id).one().await?;
    Ok(NotedFact { fact: now.fact, noted_as: NotingKind::Replacing })
}

/// Counts a fact that is known already and takes the place of another, which becomes an earlier version of it, as its
/// own earlier ones do. No more is stored than before.
async fn merge(
    tx: &mut Tx<'_>,
    row: FactRow,
    replaced: FactRow,
    new: &NewFact,
    now: DateTime<Utc>,
) -> Result<NotedFact, StoreError> {
    check_word(&replaced.fact, new)?;
    check_word(&row.fact, new)?;
    let hand_over = tx.query(HAND_OVER).bind(replaced.fact.id).bind(row.fact.id).bind(row.fact.version);
    let last = row.fact.version + hand_over.execute().await? as i64;
    remove(tx, &replaced.fact).await?;
    archive(tx, &replaced, (row.fact.id, last), now).await?;
    tx.query("update facts set version = $3, call_key = $2 where id = $1")
        .bind(row.fact.id)
        .bind(optional(new.call_key.as_deref()))
        .bind(last + 1)
        .execute()
        .await?;
    let mut fact = Fact { version: last + 1, ..row.fact };
    if fact.collection.is_empty() {
        fact.collection = replaced.fact.collection;
    }
    let noted = count(tx, FactRow { fact, ..row }, new, None, now).await?;
    Ok(NotedFact { noted_as: NotingKind::Replacing, ..noted })
}

/// Text from outside takes the place of no word of a person.
fn check_word(replaced: &Fact, new: &NewFact) -> Result<(), StoreError> {
    match replaced.origin == FactOrigin::Outside || new.is_direct {
        true => Ok(()),
        false => Err(StoreError::Conflict(
            "a person has said that, and text from outside may have led to this; note the new fact without `replaces`, or ask to \
             delete the old one with `forget`"
                .into(),
        )),
    }
}

async fn archive(
    tx: &mut Tx<'_>,
    row: &FactRow,
    (of, version): (Uuid, i64),
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let fact = &row.fact;
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
        .bind(optional(row.call_key.as_deref()))
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
