//! Runs that wait for people or for other systems, and whose time to be looked at has come.
//!
//! The longest due first; but where more are due than are looked at together, each tenant has a part of them in its
//! turn, so that a tenant with thousands that wait keeps no other's reminder, escalation or expiry waiting.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::db::text::document;
use crate::store::sql::sql;
use crate::store::tasks::tenant_turns::{self, TENANTS_WITH_DUE};
use crate::store::{Split, Store, StoreError};

/// Targets of the waits that services look after: people, or another system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum WaitTarget {
    People,
    Completion,
}

/// In words that fit no index of one reason: those are in the order of tenants, and would be walked through.
const EARLIEST: &str = "select run_id from parked where wake_at <= $1 and reason || '' = $2 order by wake_at limit $3";

/// Statements for one reason, which stands in the text so that its index can be used.
struct DueParkedStatements {
    /// The reason.
    reason: &'static str,
    /// From tenant to tenant.
    tenants: Split,
    /// The longest due (`$3` of each) of the listed tenants (`$2`). How a tenant is compared leaves Postgres no other
    /// index.
    of_tenants: Split,
}

const FOR_PEOPLE: DueParkedStatements = DueParkedStatements {
    reason: "approval",
    tenants: Split {
        postgres: sql!(TENANTS; "{index}" = ""; "{reason}" = "approval"),
        sqlite: sql!(TENANTS; "{index}" = "indexed by parked_for_approval"; "{reason}" = "approval"),
    },
    of_tenants: Split {
        postgres: sql!(OF_TENANTS.postgres; "{reason}" = "approval"),
        sqlite: sql!(OF_TENANTS.sqlite; "{index}" = "parked_for_approval"; "{reason}" = "approval"),
    },
};
const FOR_COMPLETION: DueParkedStatements = DueParkedStatements {
    reason: "completion",
    tenants: Split {
        postgres: sql!(TENANTS; "{index}" = ""; "{reason}" = "completion"),
        sqlite: sql!(TENANTS; "{index}" = "indexed by parked_for_completion"; "{reason}" = "completion"),
    },
    of_tenants: Split {
        postgres: sql!(OF_TENANTS.postgres; "{reason}" = "completion"),
        sqlite: sql!(OF_TENANTS.sqlite; "{index}" = "parked_for_completion"; "{reason}" = "completion"),
    },
};

const TENANTS: &str = sql!(
    TENANTS_WITH_DUE; "{table}" = "parked"; "{having}" = "d.reason = '{reason}'"; "{due}" = "d.wake_at <= $3";
    "{order}" = "d.wake_at"
);
const OF_TENANTS: Split = Split {
    postgres: "select p.run_id
                 from jsonb_array_elements_text($2::jsonb) as t (tenant_id)
                cross join lateral (select run_id, wake_at
                                      from parked
                                     where reason = '{reason}' and tenant_id between t.tenant_id and t.tenant_id
                                       and wake_at <= $1
                                     order by tenant_id, wake_at
                                     limit $3) p
                order by p.wake_at",
    sqlite: "select p.run_id
               from json_each($2) t
              cross join parked p
              where p.run_id in (select d.run_id from parked d indexed by {index}
                                  where d.reason = '{reason}' and d.tenant_id = t.value and d.wake_at <= $1
                                  order by d.wake_at limit $3)
              order by p.wake_at",
};

impl WaitTarget {
    fn reads(self) -> &'static DueParkedStatements {
        match self {
            WaitTarget::People => &FOR_PEOPLE,
            WaitTarget::Completion => &FOR_COMPLETION,
        }
    }
}

impl Store {
    /// Up to `limit` runs that want to be looked at; where there are more, as many of each tenant that has its turn.
    pub(in crate::store) async fn due_parked(
        &self,
        awaited: WaitTarget,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let DueParkedStatements { reason, tenants, of_tenants } = *awaited.reads();
        let earliest: Vec<Uuid> =
            self.db.read().await?.query(EARLIEST).bind(now).bind(reason).bind(limit).scalars().await?;
        if (earliest.len() as i64) < limit {
            return Ok(earliest);
        }
        let turn = self.next_turn(&self.parked_cursors[awaited as usize], tenants, now, limit).await?;
        if turn.is_empty() {
            return Ok(earliest);
        }
        let mut read = self.db.read().await?;
        let select = read.query(of_tenants).bind(now).bind(document(&turn)?);
        Ok(select.bind(tenant_turns::rows_per_tenant(limit, turn.len())).scalars().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_runs_of_a_tenant_are_found_by_an_index() {
        for (reads, index) in [(FOR_PEOPLE, "parked_for_approval"), (FOR_COMPLETION, "parked_for_completion")] {
            for statement in [reads.tenants, reads.of_tenants] {
                let plan = sqlite_plan(statement.sqlite).await;
                let on_parked: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
                assert!(!on_parked.is_empty() && on_parked.iter().all(|step| step.contains(index)), "{plan:?}");
                assert!(!plan.iter().any(|step| step.contains("SCAN p")), "{plan:?}");
            }
        }
        let plan = sqlite_plan(EARLIEST).await;
        assert!(plan.iter().any(|step| step.contains("parked_wake")), "{plan:?}");
    }
}
