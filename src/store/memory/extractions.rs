//! The queue of extractions: runs that have ended and from which facts are still to be noted. The transaction that
//! records the end queues them; the extractor works them off, one of a tenant at a time in the order of their ends, and
//! from tenant to tenant.

use chrono::{DateTime, NaiveDate, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::domain::budget::{CallBound, Spend, TaskBudget, day_of};
use crate::domain::memory::{NewFact, bytes_as_fact};
use crate::domain::quota::ExceededQuota;
use crate::domain::run::Usage;
use crate::domain::run::transcript::ModelCall;
use crate::domain::task::Task;
use crate::store::memory::fact_row::IN_TURN;
use crate::store::memory::noting::note;
use crate::store::ops::budgets::ledger_batch::{LedgerBatch, update_ledgers};
use crate::store::ops::usage::counting::{CallOutsideTranscript, count_beside};
use crate::store::runs::lease::{Finish, Lease};
use crate::store::sql::sql;
use crate::store::tasks::tenant_turns::{TENANTS_WITH_FIRST, tenants_in_order};
use crate::store::tx::Tx;
use crate::store::{Reservation, Settlement, Store, StoreError};

/// Runs of a tenant that wait for their extraction, at most.
pub const MOST_QUEUED: i64 = 100;

/// An extraction that is worked on here.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtractionClaim {
    /// The tenant that owns the run.
    pub tenant: Tenant,
    /// The run from which facts are to be noted.
    pub run_id: Uuid,
    /// How often it was claimed, this time included.
    pub claims: i64,
    /// The instant until which it is claimed.
    pub until: DateTime<Utc>,
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

/// How an attempt ended, as it is to be recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExtractionEnd {
    /// Facts that were found, each with the one in whose place it is noted.
    pub facts: Vec<(NewFact, Option<Uuid>)>,
    /// The call that it took, if any.
    pub call: Option<ExtractionCall>,
    /// The reservation for the call, and what the call is charged in its place.
    pub reservation: Option<(Uuid, Spend)>,
    /// It is made again then; `None`: it is over.
    pub again_at: Option<DateTime<Utc>>,
}

/// The first extraction of each tenant, if it is due.
const IN_ORDER: &str = sql!(
    TENANTS_WITH_FIRST; "{value}" = "case when d.due_at <= $3 then d.run_id end"; "{table}" = "extractions"; "{index}" = "";
    "{having}" = "true"; "{due}" = "true"; "{order}" = "d.queued_at, d.run_id"
);

/// Conditions besides the key are in words that fit no index.
const CLAIM: &str = "
    update extractions set due_at = $4, claims = claims + 1
     where tenant_id = $1 and run_id = $2 and coalesce(due_at <= $3, false)
       and not exists (select 1 from extractions o
                        where o.tenant_id between $1 and $1 and o.run_id <> $2 and o.claims <> 0
                          and coalesce(o.due_at > $3, false))
    returning claims";

/// The run must be there still, the claim not be called back, and nothing of the tenant's memory be deleted since the
/// run was recorded: what was deleted is known no more. Ids of both are in the order of time.
const STANDS: &str = "
    select e.claims > 0 and exists (select 1 from runs r where r.id = $2 and r.tenant_id = $1)
           and not exists (select 1 from audit a
                            where a.tenant_id = $1 and a.id > $2 and a.action in ('fact.deleted', 'facts.deleted'))
      from extractions e
     where e.tenant_id = $1 and e.run_id = $2 and abs(e.claims) = $3 and coalesce(e.due_at = $4, false)";

impl Store {
    /// Up to `limit` tenants behind this one that have extractions, in their order, each with the first of them if that
    /// is due.
    pub async fn extractions_in_turn(
        &self,
        after: &str,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<(String, Option<Uuid>)>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let tenants = tenants_in_order(read.query(IN_ORDER).bind(after).bind(limit).bind(now)).await?;
        read.end().await?;
        Ok(tenants)
    }

    /// Claims an extraction that is due, until then; `None`: it is another's, or gone, or another one of the tenant is
    /// worked on.
    pub async fn claim_extraction(
        &self,
        tenant: &str,
        run_id: Uuid,
        until: DateTime<Utc>,
    ) -> Result<Option<ExtractionClaim>, StoreError> {
        let tenant = Tenant::stored(tenant).map_err(StoreError::Corrupt)?;
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let claim = tx.query(CLAIM).bind(tenant.as_str()).bind(run_id).bind(now).bind(until);
        let claims: Option<i64> = claim.optional_scalar().await?;
        write.commit().await?;
        Ok(claims.map(|claims| ExtractionClaim { tenant, run_id, claims, until }))
    }

    /// Reserves what the call of an extraction may come to in the days of its tenant and of its run's task, in the half
    /// that leaves the other one to runs; whether it may be made, and the reservation, where a budget of a day holds.
    pub async fn reserve_extraction(
        &self,
        claim: &ExtractionClaim,
        task: Option<&Task>,
        bound: &CallBound,
    ) -> Result<Option<Option<Uuid>>, StoreError> {
        let task_id = task.map(|task| task.id);
        let budgets = self.budgets_of_task(claim.tenant.as_str(), task_id).await?;
        // what is wrong with it was said when the task was saved
        let own = task.and_then(|task| TaskBudget::read(&task.spec.action.config, "", &mut ValidationErrors::new()));
        let budgets = own.map_or(budgets, |own| budgets.narrowed(&own));
        if bound.unpriced.is_some() && budgets.has_money() && !self.allows_unpriced_models() {
            return Ok(None);
        }
        if !budgets.has_days() {
            return Ok(Some(None));
        }
        let reservation = Reservation {
            id: new_id(self.clock.now()),
            lease: lease_of(claim),
            tenant: claim.tenant.as_str().to_owned(),
            task_id,
            day: day_of(self.clock.now()),
            most: bound.most,
            from: i64::MAX,
            within_half: true,
            tenant_limits: budgets.tenant.limits(),
            task_limits: budgets.task.limits(),
            notice: None,
        };
        let is_reserved = self.reserve_budget_if_left(&reservation).await?;
        Ok(is_reserved.then_some(Some(reservation.id)))
    }

    /// Notes the facts of an extraction, records what it took, and that it is over, or due once more; answers whether
    /// its facts were noted. They are not where the run or the tenant's memory was deleted, new ones are not where the
    /// tenant has stored all that it may, and nothing is recorded where the claim is another's.
    pub async fn finish_extraction(&self, claim: &ExtractionClaim, end: &ExtractionEnd) -> Result<bool, StoreError> {
        let ExtractionClaim { tenant, run_id, claims, until } = claim;
        let now = self.clock.now();
        let bytes: usize = end.facts.iter().map(|(fact, _)| bytes_as_fact(&fact.text)).sum();
        let full = match bytes {
            0 => None,
            bytes => self.exceeded_by(tenant.as_str(), bytes).await?,
        };
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        let stands: Option<bool> =
            tx.query(STANDS).bind(tenant.as_str()).bind(*run_id).bind(*claims).bind(*until).optional_scalar().await?;
        let Some(may_note) = stands else { return Ok(false) };
        for (fact, replaces) in end.facts.iter().filter(|_| may_note) {
            note_found(tx, tenant, fact, *replaces, full.as_deref(), now).await?;
        }
        match end.again_at.filter(|_| may_note) {
            None => {
                let end = tx.query("delete from extractions where tenant_id = $1 and run_id = $2");
                end.bind(tenant.as_str()).bind(*run_id).execute().await?;
            }
            Some(at) => {
                let again = tx.query("update extractions set due_at = $3 where tenant_id = $1 and run_id = $2");
                again.bind(tenant.as_str()).bind(*run_id).bind(at).execute().await?;
            }
        }
        let settled = end.reservation.map(|(id, spent)| Settlement { id, spent, notice: None });
        let batch = LedgerBatch::new(settled.iter(), [], [].iter());
        let updated = if batch.is_empty() { Vec::new() } else { update_ledgers(tx, &batch).await?.updated };
        if let Some(call) = &end.call {
            count_beside(tx, &call.counted(tenant, day_of(now))).await?;
        }
        write.commit().await?;
        self.count_spent(&updated);
        self.without_facts.forget(tenant.as_str());
        Ok(may_note)
    }

    /// Counts the runs that are not read, and says once that there are such; to be called after the commit.
    pub(in crate::store) fn count_dropped(&self, queued: &QueuedExtractions) {
        let Some(run_id) = queued.dropped.first() else { return };
        if self.counts.extractions_dropped(queued.dropped.len()) {
            tracing::warn!(
                %run_id,
                most = MOST_QUEUED,
                "no facts are noted from a run: as many of its tenant wait for that as may; further ones are counted alone"
            );
        }
    }

    /// Deletes up to `limit` extractions of runs that ended before `before`: nobody works them off. Answers how many.
    pub async fn forget_extractions(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from extractions where (tenant_id, run_id) in (
                select tenant_id, run_id from extractions where queued_at < $1 order by queued_at limit $2)",
            before,
            limit,
        )
        .await
    }
}

impl ExtractionCall {
    fn counted<'a>(&'a self, tenant: &'a Tenant, day: NaiveDate) -> CallOutsideTranscript<'a> {
        CallOutsideTranscript {
            tenant: tenant.as_str(),
            day,
            task_id: self.task_id,
            model_call: self.model_call.as_ref(),
            usage: self.usage,
            duration_ms: self.duration_ms,
        }
    }
}

/// The reservation of a claim holds as long as the claim: leases of runs have tokens above 0.
fn lease_of(claim: &ExtractionClaim) -> Lease {
    Lease { run_id: claim.run_id, token: -claim.claims }
}

/// Notes a fact, in the place of another one if that may be. One that can't be noted keeps no other from being noted.
async fn note_found(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    fact: &NewFact,
    replaces: Option<Uuid>,
    full: Option<&ExceededQuota>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let replaces = replaces.map(|id| id.to_string());
    let noted = match note(tx, tenant, fact, replaces.as_deref(), full, now).await {
        Err(StoreError::Conflict(_) | StoreError::NotFound) if replaces.is_some() => {
            note(tx, tenant, fact, None, full, now).await
        }
        noted => noted,
    };
    match noted {
        Err(why @ (StoreError::Conflict(_) | StoreError::Quota(_))) => {
            tracing::info!(%tenant, %why, "an extracted fact is not noted");
            Ok(())
        }
        noted => noted.map(|_| ()),
    }
}

/// Runs that have ended, as the queue has taken them.
#[derive(Default)]
pub(in crate::store) struct QueuedExtractions {
    /// Whether any waits to be read now.
    pub is_any: bool,
    /// Runs that are not read: as many of their tenants wait as may.
    dropped: Vec<Uuid>,
}

/// Queues those of these runs from which facts are to be noted, in the transaction that has written their ends. A
/// tenant that has many waiting gets no more.
pub(in crate::store) async fn queue_extractions(
    tx: &mut Tx<'_>,
    ended: &[&Finish],
    now: DateTime<Utc>,
) -> Result<QueuedExtractions, StoreError> {
    let wanted: Vec<Uuid> = ended.iter().filter(|end| end.extracts).map(|end| end.lease.run_id).collect();
    if wanted.is_empty() {
        return Ok(QueuedExtractions::default());
    }
    let mut insert =
        tx.build("insert into extractions (tenant_id, run_id, due_at, claims, queued_at) select r.tenant_id, r.id, ");
    insert.push_bind(now).push(", 0, ").push_bind(now);
    insert.push(" from runs r where r.id in (").list(wanted.iter().copied());
    insert.push(") and (select count(*) from (select 1 from extractions e where e.tenant_id = r.tenant_id limit ");
    insert.push_bind(MOST_QUEUED).push(") waiting) < ").push_bind(MOST_QUEUED);
    insert.push(" on conflict (tenant_id, run_id) do nothing returning run_id");
    let queued: Vec<Uuid> = insert.finish().persistent(false).scalars().await?;
    let dropped = wanted.into_iter().filter(|run_id| !queued.contains(run_id)).collect();
    Ok(QueuedExtractions { is_any: !queued.is_empty(), dropped })
}

/// Forgets the extractions of a tenant: what was said so far is not noted any more. A claim is called back, and records
/// what it took.
pub(super) async fn forget_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> Result<(), StoreError> {
    for forget in [
        "delete from extractions where tenant_id = $1 and claims = 0",
        "update extractions set claims = -claims where tenant_id = $1 and claims > 0",
    ] {
        tx.query(forget).bind(tenant.as_str()).execute().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_extractions_are_found_by_their_tenant_without_a_sort() {
        let plan = sqlite_plan(IN_ORDER).await;
        let on_queue: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
        assert!(!on_queue.is_empty() && on_queue.iter().all(|step| step.starts_with("SEARCH")), "{plan:?}");
        assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{plan:?}");
    }
}
