//! The row of a fact that is to be changed, and how its writes take their turn.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::actor::Actor;
use crate::domain::memory::Fact;
use crate::domain::quota::ExceededQuota;
use crate::store::ops::audit::AuditAction;
use crate::store::sql::{TENANT_LOCK, sql};
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// A fact that is to be changed, with the call that noted it.
#[derive(sqlx_macros::FromRow)]
pub(super) struct FactRow {
    #[sqlx(flatten)]
    pub(super) fact: Fact,
    pub(super) call_key: Option<String>,
}

/// Facts of a tenant are written one write after the other, until the end of the transaction.
pub(super) const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_facts"), sqlite: TENANT_LOCK.sqlite };

/// The columns of a fact.
pub(super) const FACT: &str = "
    f.id, f.tenant_id, f.collection, f.text, f.origin, f.run_id, f.turn, f.noted_by, f.version, f.mentions, f.created_at,
    f.noted_at, f.last_used_at";
pub(super) const ROW: &str = sql!("select ", FACT, ", f.call_key from facts f where f.tenant_id = $1 and ");
pub(super) const BY_ID: &str = sql!(ROW, "f.id = $2");

pub(super) async fn remove(tx: &mut Tx<'_>, fact: &Fact) -> Result<(), StoreError> {
    tx.query("delete from facts where id = $1").bind(fact.id).execute().await?;
    tx.query("delete from fact_versions where fact_id = $1").bind(fact.id).execute().await?;
    forget_vector(tx, &fact.tenant_id, fact.id).await
}

/// Refuses what stores more of a tenant that is `full`.
pub(super) fn check_bytes(full: Option<&ExceededQuota>) -> Result<(), StoreError> {
    full.map_or(Ok(()), |exceeded| Err(StoreError::Quota(Box::new(exceeded.clone()))))
}

/// Forgets the vector of a fact whose text is not there any more.
pub(super) async fn forget_vector(tx: &mut Tx<'_>, tenant: &str, id: Uuid) -> Result<(), StoreError> {
    let forget = tx.query("delete from fact_vectors where tenant_id = $1 and fact_id = $2");
    forget.bind(tenant).bind(id).execute().await?;
    Ok(())
}

/// An act on a fact, without its words.
pub(super) fn act<'a>(fact: &'a Fact, actor: &'a str, action: &'a str, run: Option<Uuid>) -> AuditAction<'a> {
    let mut body = json!({ "version": fact.version, "origin": fact.origin });
    if let Some(run) = run {
        body["run_id"] = Value::String(run.to_string());
    }
    let via = Actor::parse(actor).via().as_str();
    AuditAction { tenant: &fact.tenant_id, actor, via, action, subject_type: "fact", subject_id: fact.id, body }
}
