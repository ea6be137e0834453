//! Allowances of tenants, read for several at once. What nearly every tenant has none of is looked up along with them:
//! whoever is about to begin a run asks about it next.

use std::collections::HashMap;

use super::{Allowance, EVERYBODY, QuotaRow};
use crate::domain::quota::{Overrides, Quotas};
use crate::store::db::text::text;
use crate::store::tx::{Tx, TxQuery};
use crate::store::{Store, StoreError};

#[derive(sqlx_macros::FromRow)]
struct TenantRow {
    tenant_id: String,
    #[sqlx(flatten)]
    said: QuotaRow,
}

const READ_SOME: &str = "
    select tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls, stored_bytes, streams,
           concurrent_runs, data_file_bytes, suspended_agents
      from tenant_quotas where tenant_id in (";

/// With it whether the tenant has overrides of approvals, and facts.
const READ_STORED: &str = "
    select u.tenant_id, u.stored_bytes,
           (select 1 from approval_overrides o where o.tenant_id = u.tenant_id limit 1) is not null,
           (select 1 from facts f where f.tenant_id = u.tenant_id limit 1) is not null
      from tenant_usage u where u.tenant_id in (";

/// Asks about everybody and these tenants, where the text ends with a list.
fn of_tenants<'t>(tx: &'t mut Tx<'_>, start: &'static str, tenants: &[&str]) -> TxQuery<'t> {
    let mut query = tx.build(start);
    query.list([EVERYBODY].iter().chain(tenants).map(|tenant| text(tenant))).push(")");
    query.finish()
}

impl Store {
    /// The quotas of a tenant, not older than a few seconds.
    pub async fn quotas_of(&self, tenant: &str) -> Result<Quotas, StoreError> {
        Ok(self.allowance(tenant).await?.quotas)
    }

    pub(in crate::store) async fn allowance(&self, tenant: &str) -> Result<Allowance, StoreError> {
        match self.quotas.cached(tenant, self.clock.now()) {
            Some(allowance) => Ok(allowance),
            None => Ok(self.allowances(&[tenant]).await?.remove(tenant).unwrap_or_default()),
        }
    }

    /// The allowances of several tenants, by one look at most.
    pub(in crate::store) async fn allowances(
        &self,
        tenants: &[&str],
    ) -> Result<HashMap<String, Allowance>, StoreError> {
        let now = self.clock.now();
        let mut found = HashMap::with_capacity(tenants.len());
        let mut unknown = Vec::new();
        for tenant in tenants {
            match self.quotas.cached(tenant, now) {
                Some(allowance) => drop(found.insert((*tenant).to_owned(), allowance)),
                None => unknown.push(*tenant),
            }
        }
        if unknown.is_empty() {
            return Ok(found);
        }
        let (overrides, facts) = (self.without_overrides.look(now), self.without_facts.look(now));
        let mut read = self.db.read_quick().await?;
        let tx = &mut read.tx();
        let rows = of_tenants(tx, READ_SOME, &unknown).rows().await?;
        // a tenant whose row can't be read has what everybody has
        let (rows, _) =
            self.unreadable.partition_readable::<_, _, String>("tenant_quotas", &rows, |row: TenantRow| Ok(row));
        let stored: Vec<(String, i64, bool, bool)> = of_tenants(tx, READ_STORED, &unknown).all().await?;
        read.end().await?;
        let said: HashMap<String, Overrides> =
            rows.into_iter().map(|row| (row.tenant_id, row.said.overrides())).collect();
        for (tenant, _, has_overrides, has_facts) in &stored {
            if !has_overrides {
                self.without_overrides.remember(tenant, overrides);
            }
            if !has_facts {
                self.without_facts.remember(tenant, facts);
            }
        }
        let stored: HashMap<String, i64> = stored.into_iter().map(|(tenant, bytes, ..)| (tenant, bytes)).collect();
        let of = |tenant: &str| said.get(tenant).copied().unwrap_or_default();
        let usual = Quotas::default().with(&of(EVERYBODY));
        for tenant in unknown {
            let stored = stored.get(tenant).copied().unwrap_or_default().max(0) as u64;
            let allowance = Allowance { quotas: usual.with(&of(tenant)), stored };
            self.quotas.remember(tenant, allowance, now);
            found.insert(tenant.to_owned(), allowance);
        }
        Ok(found)
    }
}
