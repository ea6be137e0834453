//! How facts are deleted: nothing of their words is left here, nor in the record of audit. Transcripts, and questions
//! about a deletion, have what they were told.

use serde_json::json;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::actor::Actor;
use crate::store::memory::extractions::forget_of_tenant;
use crate::store::memory::fact_row::{BY_ID, FactRow, IN_TURN, act, remove};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::{CHOSEN, sql};
use crate::store::{Split, Store, StoreError};

/// Facts that one transaction deletes.
const AT_ONCE: i64 = 200;
const DELETE_SOME: Split = Split {
    postgres: sql!(sql!("delete from facts", CHOSEN.postgres, " returning id"); "{ids}" = OF_TENANT),
    sqlite: sql!(sql!("delete from facts", CHOSEN.sqlite, " returning id"); "{ids}" = OF_TENANT),
};
const OF_TENANT: &str = "select id from facts where tenant_id = $1 order by tenant_id, id limit $2";

impl Store {
    /// Deletes a fact with all that it has said; `run`: a run has asked for it.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn delete_fact(&self, scope: &Scope, id: Uuid, by: &str, run: Option<Uuid>) -> Result<(), StoreError> {
        let tenant = self.tenant_of_fact(scope, id).await?;
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let row: Option<FactRow> = tx.query(BY_ID).bind(tenant.as_str()).bind(id).optional().await?;
        let fact = row.ok_or(StoreError::NotFound)?.fact;
        remove(tx, &fact).await?;
        // a run that has said it may wait to be read
        forget_of_tenant(tx, &tenant).await?;
        write_audit(tx, act(&fact, by, "fact.deleted", run), self.clock.now()).await?;
        write.commit().await?;
        Ok(())
    }

    /// Deletes all that is known of a tenant, and what is still to be noted; answers how many facts. Broken off in the
    /// middle, it is done by another call.
    pub async fn delete_facts(&self, tenant: &Tenant, by: &str) -> Result<u64, StoreError> {
        let mut deleted = 0;
        loop {
            let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
            let tx = &mut write.tx();
            tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
            forget_of_tenant(tx, tenant).await?;
            let some: Vec<Uuid> = tx.query(DELETE_SOME).bind(tenant.as_str()).bind(AT_ONCE).scalars().await?;
            if some.is_empty() {
                write.commit().await?;
                return Ok(deleted);
            }
            let mut versions = tx.build("delete from fact_versions where fact_id in (");
            versions.list(some.iter().copied()).push(")");
            versions.finish().execute().await?;
            let mut vectors = tx.build("delete from fact_vectors where tenant_id = ");
            vectors.push_bind(tenant.as_str()).push(" and fact_id in (").list(some.iter().copied()).push(")");
            vectors.finish().execute().await?;
            let (via, body) = (Actor::parse(by).via().as_str(), json!({ "facts": some.len() }));
            let (action, subject_type, subject_id) = ("facts.deleted", "facts", Uuid::nil());
            let act = AuditAction { tenant: tenant.as_str(), actor: by, via, action, subject_type, subject_id, body };
            write_audit(tx, act, self.clock.now()).await?;
            write.commit().await?;
            deleted += some.len() as u64;
        }
    }

    pub(super) async fn tenant_of_fact(&self, scope: &Scope, id: Uuid) -> Result<Tenant, StoreError> {
        let (fact, _) = self.get_fact(scope, id).await?;
        Tenant::stored(&fact.tenant_id).map_err(StoreError::Corrupt)
    }
}
