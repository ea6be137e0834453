//! The quota `suspended_agents` in the transaction that parks runs. Runs of a tenant that begin to wait for people at
//! the same instant are counted one after the other, on any instance. A run beyond the quota is not parked: it goes
//! back to the queue at once, and its call is refused there, like any call of a tenant that has used up the quota.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use uuid::Uuid;

use crate::store::approvals::suspended::COUNTED;
use crate::store::db::text::text;
use crate::store::runs::lease::{Finish, FinishedRow, Park};
use crate::store::sql::{TENANT_LOCK, sql};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// Runs of a tenant begin to wait one after the other, until the end of the transaction.
const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_suspended"), sqlite: TENANT_LOCK.sqlite };

/// An earlier question about this call, answered or not.
const ASKED_BEFORE: &str = "select 1 from approvals where run_id = $1 and turn = $2 and call_id = $3 limit 1";

/// How many runs of each tenant may wait for people. Only tenants with a run that is about to begin to wait are in it.
pub(in crate::store) struct SuspensionLimits(BTreeMap<String, i64>);

impl Store {
    /// The limits that apply to these ends. They are read before the transaction begins: a transaction that holds its
    /// connection must not wait for another one.
    pub(in crate::store) async fn suspension_limits(&self, ends: &[Finish]) -> Result<SuspensionLimits, StoreError> {
        let tenants: BTreeSet<&str> = ends.iter().filter_map(newly_waiting_tenant).collect();
        if tenants.is_empty() {
            return Ok(SuspensionLimits(BTreeMap::new()));
        }
        let allowances = self.allowances(&tenants.into_iter().collect::<Vec<_>>()).await?;
        let limit = |most: u64| i64::try_from(most).unwrap_or(i64::MAX);
        let limits = allowances.into_iter().map(|(tenant, of)| (tenant, limit(of.quotas.suspended_agents)));
        Ok(SuspensionLimits(limits.collect()))
    }
}

impl SuspensionLimits {
    /// The runs that may not wait, among those that this transaction has parked. The tenants are locked in the order of
    /// their names, so that no two transactions wait for each other.
    pub(in crate::store) async fn refused(
        &self,
        tx: &mut Tx<'_>,
        ended: &[(&Finish, &FinishedRow)],
    ) -> Result<HashSet<Uuid>, StoreError> {
        let mut refused = HashSet::new();
        for (tenant, limit) in &self.0 {
            let is_of = |end: &Finish| newly_waiting_tenant(end) == Some(tenant.as_str());
            let parked = ended.iter().filter(|(end, taken)| is_of(end) && !taken.must_end(end));
            let parked: Vec<&Finish> = parked.map(|(end, _)| *end).collect();
            if parked.is_empty() {
                continue;
            }
            tx.query(IN_TURN).bind(text(tenant)).execute().await?;
            let counted_to = limit.saturating_add(parked.len() as i64);
            let waiting: i64 = tx.query(COUNTED).bind(text(tenant)).bind(counted_to).scalar().await?;
            let mut over = waiting - limit;
            for end in parked.into_iter().rev() {
                if over <= 0 {
                    break;
                }
                if !has_waited(tx, end).await? {
                    refused.insert(end.lease.run_id);
                    over -= 1;
                }
            }
        }
        Ok(refused)
    }
}

/// The tenant of a run that begins to wait for people. `None`: the run does not wait for people, or it goes on waiting
/// for an earlier question.
fn newly_waiting_tenant(end: &Finish) -> Option<&str> {
    match &end.park {
        Some(Park::Approval { asks, open, .. }) if open.is_empty() => {
            let is_new = asks.iter().all(|(_, replaces)| replaces.is_none());
            asks.first().filter(|_| is_new).map(|(ask, _)| ask.tenant_id.as_str())
        }
        _ => None,
    }
}

/// Whether a person was asked about one of these calls before. Such a run waits again whatever the quota says: a person
/// has supplied what the call lacked in the meantime.
async fn has_waited(tx: &mut Tx<'_>, end: &Finish) -> Result<bool, StoreError> {
    let Some(Park::Approval { asks, .. }) = &end.park else { return Ok(false) };
    for (ask, _) in asks {
        let asked = tx.query(ASKED_BEFORE).bind(end.lease.run_id).bind(ask.turn).bind(text(&ask.call_id));
        if asked.optional_scalar::<i32>().await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_earlier_questions_about_a_call_are_found_by_an_index() {
        let plan = sqlite_plan(ASKED_BEFORE).await;
        assert!(plan.iter().any(|step| step.contains("USING") && step.contains("INDEX approvals_of")), "{plan:?}");
        let plan = sqlite_plan(COUNTED.sqlite).await;
        assert!(plan.iter().any(|step| step.contains("parked_suspended_of_tenant")), "{plan:?}");
    }
}
