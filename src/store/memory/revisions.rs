//! Revisions of facts: whoever has read the facts of a tenant knows by its revision whether they are as they were. Runs
//! that ask at once are answered by one statement.

use std::collections::{BTreeSet, HashMap};

use crate::base::id::Tenant;
use crate::store::db::write_batcher::WriteBatcher;
use crate::store::db::{Db, connection, sqlite_batch, with_timeout};
use crate::store::{Store, StoreError};

/// Runs that one statement answers.
pub(in crate::store) const TOGETHER: usize = 100;

/// Runs that wait for the revision of their tenant's facts.
pub(in crate::store) type RevisionBatcher = WriteBatcher<Tenant, Result<i64, StoreError>>;

/// The list of tenants follows.
pub(in crate::store) const LISTED: &str = "select tenant_id, revision from fact_revisions where tenant_id in ";

impl Store {
    /// The revision of a tenant's facts, which each change of one raises, whichever instance makes it. The statement
    /// begins after it was asked for.
    pub async fn fact_revision(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        let store = self.clone();
        let work = |tenants: Vec<Tenant>| async move { store.revisions_of_each(&tenants).await };
        let read = self.fact_revisions.submit(tenant.clone(), work).await;
        read.unwrap_or_else(|| Err(StoreError::Unavailable("the look for revisions was broken off".into())))
    }

    /// In the order of the tenants; one of which no fact was changed has none yet.
    async fn revisions_of_each(&self, tenants: &[Tenant]) -> Vec<Result<i64, StoreError>> {
        let distinct: BTreeSet<&str> = tenants.iter().map(Tenant::as_str).collect();
        match with_timeout(self.revisions_of(&distinct.into_iter().collect::<Vec<_>>())).await {
            Ok(read) => {
                tenants.iter().map(|tenant| Ok(read.get(tenant.as_str()).copied().unwrap_or_default())).collect()
            }
            Err(error) => tenants.iter().map(|_| Err(StoreError::Unavailable(error.to_string()))).collect(),
        }
    }

    async fn revisions_of(&self, tenants: &[&str]) -> Result<HashMap<String, i64>, StoreError> {
        let rows: Vec<(String, i64)> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = connection("quick", quick, waits).await?;
                sqlx::query_as("select tenant_id, revision from fact_revisions where tenant_id = any($1)")
                    .bind(tenants)
                    .fetch_all(&mut *held)
                    .await?
            }
            Db::Sqlite { readers, .. } => sqlite_batch::read(readers, LISTED, tenants).await?,
        };
        Ok(rows.into_iter().collect())
    }
}
