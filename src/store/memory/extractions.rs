//! The queue of extractions: runs that have ended and from which facts are still to be noted. The transaction that records the
//! end queues them; the extractor works them off, one of a tenant at a time and from tenant to tenant.

use chrono::{DateTime, NaiveDate, Utc};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::domain::budget::{CallBound, Spend, day_of};
use crate::domain::run::Usage;
use crate::domain::run::transcript::ModelCall;
use crate::store::db::flow::QueueFlow;
use crate::store::ops::budgets::ledgers::{charge_ledgers, read_ledger};
use crate::store::ops::usage::counting::{BesideUsage, count_beside};
use crate::store::runs::lease::Finish;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

/// An extraction that is worked on here.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtractionClaim {
    /// The tenant that owns the run.
    pub tenant: Tenant,
    /// The run from which facts are to be noted.
    pub run_id: Uuid,
    /// How often it was claimed, this time included.
    pub claims: i64,
}

/// The call of a model that an extraction took.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtractionCall {
    /// The task of the run.
    pub task_id: Option<Uuid>,
    /// The model and its tokens; `None`: nobody knows which one was paid.
    pub model_call: Option<ModelCall>,
    /// The usage of the call.
    pub usage: Usage,
    /// Time of the call, in milliseconds.
    pub duration_ms: i64,
}

/// From tenant to tenant by one look into the index each, and the first extraction of each, if it is due. How a tenant is
/// compared leaves Postgres no other index.
const IN_TURN: &str = "
    with recursive tenants (tenant_id, place) as (
        select (select e.tenant_id from extractions e where e.tenant_id > $1 order by e.tenant_id limit 1), 1
        union all
        select (select e.tenant_id from extractions e where e.tenant_id > t.tenant_id order by e.tenant_id limit 1),
               t.place + 1
          from tenants t where t.tenant_id is not null and t.place < $2
    )
    select t.tenant_id,
           (select case when e.due_at <= $3 then e.run_id end from extractions e
             where e.tenant_id between t.tenant_id and t.tenant_id
             order by e.tenant_id, e.run_id limit 1) as run_id
      from tenants t where t.tenant_id is not null";

const CLAIM: &str = "
    update extractions set due_at = $4, claims = claims + 1
     where tenant_id = $1 and run_id = $2 and due_at <= $3
    returning claims";

impl Store {
    /// Up to `limit` tenants behind this one that have extractions, in their order, each with the first of them if that is due.
    pub async fn extractions_in_turn(
        &self,
        after: &str,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<(String, Option<Uuid>)>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let mut tenants: Vec<(String, Option<Uuid>)> =
            read.query(IN_TURN).bind(after).bind(limit).bind(now).all().await?;
        tenants.sort_unstable();
        Ok(tenants)
    }

    /// Claims an extraction that is due, until then; `None`: it is another's, or gone.
    pub async fn claim_extraction(
        &self,
        tenant: &str,
        run_id: Uuid,
        until: DateTime<Utc>,
    ) -> Result<Option<ExtractionClaim>, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(tenant))).await?;
        let mut tx = write.tx();
        let claim = tx.query(CLAIM).bind(tenant).bind(run_id).bind(now).bind(until);
        let claims: Option<i64> = claim.optional_scalar().await?;
        write.commit().await?;
        let Some(claims) = claims else { return Ok(None) };
        Ok(Some(ExtractionClaim { tenant: Tenant::stored(tenant).map_err(StoreError::Corrupt)?, run_id, claims }))
    }

    /// Records what an extraction took, and that it is over, or, with `again_at`, due once more. A claim that has run out ends
    /// nothing; what it took is counted all the same.
    pub async fn finish_extraction(
        &self,
        claim: &ExtractionClaim,
        call: Option<&ExtractionCall>,
        again_at: Option<DateTime<Utc>>,
    ) -> Result<(), StoreError> {
        let ExtractionClaim { tenant, run_id, claims } = claim;
        let day = day_of(self.clock.now());
        let has_days = call.is_some() && self.budgets_of(tenant.as_str()).await?.has_days();
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(tenant.as_str()))).await?;
        let tx = &mut write.tx();
        let end = match again_at {
            None => tx.query("delete from extractions where tenant_id = $1 and run_id = $2 and claims = $3"),
            Some(_) => {
                tx.query("update extractions set due_at = $4 where tenant_id = $1 and run_id = $2 and claims = $3")
            }
        };
        let end = end.bind(tenant.as_str()).bind(*run_id).bind(*claims);
        let end = again_at.into_iter().fold(end, |end, at| end.bind(at));
        end.execute().await?;
        if let Some(call) = call {
            if has_days {
                charge_ledgers(tx, tenant.as_str(), call.task_id, day, Spend::of(call.usage)).await?;
            }
            count_beside(tx, &call.counted(tenant, day)).await?;
        }
        write.commit().await?;
        if let Some(call) = call.filter(|_| has_days) {
            self.counts.budget_spent(Spend::of(call.usage));
        }
        Ok(())
    }

    /// Whether the budgets of a tenant leave as much for a call as it may come to. Nothing is reserved: one call of a tenant is made
    /// at a time.
    pub async fn has_budget_left(&self, tenant: &str, bound: &CallBound) -> Result<bool, StoreError> {
        let budgets = self.budgets_of(tenant).await?;
        if bound.unpriced.is_some() && budgets.has_money() && !self.allows_unpriced_models() {
            return Ok(false);
        }
        if !budgets.has_days() {
            return Ok(true);
        }
        let taken = read_ledger(self.db.read_quick().await?, tenant, day_of(self.clock.now())).await?;
        Ok(budgets.tenant.limits().exceeded(taken + bound.most).is_none())
    }

    /// Deletes up to `limit` extractions that were due before `before`: nobody works them off. Answers how many.
    pub async fn forget_extractions(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from extractions where (tenant_id, run_id) in (
                select tenant_id, run_id from extractions where due_at < $1 order by due_at limit $2)",
            before,
            limit,
        )
        .await
    }
}

impl ExtractionCall {
    fn counted<'a>(&'a self, tenant: &'a Tenant, day: NaiveDate) -> BesideUsage<'a> {
        BesideUsage {
            tenant: tenant.as_str(),
            day,
            task_id: self.task_id,
            model_call: self.model_call.as_ref(),
            usage: self.usage,
            duration_ms: self.duration_ms,
        }
    }
}

/// Queues those of these runs from which facts are to be noted, in the transaction that has written their ends; answers whether
/// there are any.
pub(in crate::store) async fn queue_extractions(
    tx: &mut Tx<'_>,
    ended: &[&Finish],
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let queued: Vec<Uuid> = ended.iter().filter(|end| end.extracts).map(|end| end.lease.run_id).collect();
    if queued.is_empty() {
        return Ok(false);
    }
    let mut insert = tx.build("insert into extractions (tenant_id, run_id, due_at, claims) select tenant_id, id, ");
    insert.push_bind(now).push(", 0 from runs where id in (").list(queued.into_iter());
    insert.push(") on conflict (tenant_id, run_id) do nothing");
    insert.finish().persistent(false).execute().await?;
    Ok(true)
}

/// Forgets the extractions of a tenant, with all that is known of it.
pub(super) async fn forget_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> Result<(), StoreError> {
    tx.query("delete from extractions where tenant_id = $1").bind(tenant.as_str()).execute().await?;
    Ok(())
}
