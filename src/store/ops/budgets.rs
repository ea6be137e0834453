//! Budgets: those of `[budgets]`, what an admin says for a tenant in their place, and what a tenant has spent in a day.
//!
//! Rows of tenants hold over restarts; each has what is said for the tenant's tasks, too. An instance looks at their
//! version as often as at that of halts, by one statement.

mod first_calls;
pub(in crate::store) mod ledger_batch;
pub(in crate::store) mod ledgers;
pub(in crate::store) mod reservation;
pub(in crate::store) mod reserving;
mod seen_ledgers;
pub(in crate::store) mod settlement;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::budget::{Budgets, DayBudget, RunBudget, Settings, Spend, TaskBudget};
use crate::store::db::text::{document, text};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::ops::budgets::first_calls::FirstCalls;
use crate::store::ops::budgets::seen_ledgers::SeenLedgers;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic, with_timeout};

/// Tenants whose budgets are kept in memory.
const KEPT: usize = 10_000;
/// Ledgers of tasks that are listed at once.
const LISTED: i64 = 200;
/// Tasks of one tenant that have a budget of an admin, at most.
const MOST_TASK_BUDGETS: usize = 200;

/// The budgets as one process knows them. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::store) struct KnownBudgets(Arc<BudgetCache>);

#[derive(Default)]
struct BudgetCache {
    settings: OnceLock<Settings>,
    cached: Mutex<CachedBudgets>,
    seen: SeenLedgers,
    first_calls: FirstCalls,
}

/// Of tenants, those that were read since the version changed.
#[derive(Default)]
struct CachedBudgets {
    version: i64,
    tenants: HashMap<String, Arc<TenantBudgets>>,
}

/// The budgets that an admin has said for a tenant, and for tasks of it. Where none are said for tasks, releases before
/// these read the row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TenantBudgets {
    run: RunBudget,
    task: DayBudget,
    tenant: DayBudget,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tasks: BTreeMap<Uuid, TaskBudget>,
}

impl TenantBudgets {
    fn budgets(&self) -> Budgets {
        Budgets { run: self.run, task: self.task, tenant: self.tenant }
    }
}

/// Standing of a ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerStanding {
    /// Spent so far.
    pub used: Spend,
    /// Reserved for calls under way.
    pub reserved: Spend,
}

/// Limits and ledgers of a tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BudgetUsage {
    /// Limits of its runs, before what their tasks say.
    pub limits: Budgets,
    /// Limits that an admin has said for it.
    pub overrides: Budgets,
    /// Limits that an admin has said for tasks of it.
    pub task_overrides: BTreeMap<Uuid, TaskBudget>,
    /// The tenant's day.
    pub tenant: LedgerStanding,
    /// Days of its tasks that have spent anything.
    pub tasks: BTreeMap<Uuid, LedgerStanding>,
}

impl Store {
    /// The budgets of `[budgets]`, from now on.
    pub fn set_default_budgets(&self, settings: Settings) {
        let _ = self.budgets.0.settings.set(settings);
    }

    /// Whether a model without a price may be used under a budget of money.
    pub fn allows_unpriced_models(&self) -> bool {
        self.budgets.0.settings.get().is_some_and(|settings| settings.allow_unpriced_models)
    }

    fn default_budgets(&self) -> Budgets {
        self.budgets.0.settings.get().map(Settings::budgets).unwrap_or_default()
    }

    /// The budgets of a tenant's runs, before what their tasks say. As long as no tenant has its own, the database is
    /// not asked.
    pub async fn budgets_of(&self, tenant: &str) -> Result<Budgets, StoreError> {
        self.budgets_of_task(tenant, None).await
    }

    /// As [`Store::budgets_of`], with what an admin says for one task.
    pub async fn budgets_of_task(&self, tenant: &str, task_id: Option<Uuid>) -> Result<Budgets, StoreError> {
        let (_, version) = self.halts_and_budget_version().await?;
        if version == 0 {
            return Ok(self.default_budgets());
        }
        let known = {
            let mut cached = self.budgets.0.cached.lock().expect("budgets lock");
            if cached.version != version || cached.tenants.len() >= KEPT {
                *cached = CachedBudgets { version, tenants: HashMap::new() };
            }
            cached.tenants.get(tenant).cloned()
        };
        let own = match known {
            Some(own) => own,
            None => {
                // few come to this, and its future is large
                let own = Arc::new(Box::pin(with_timeout(self.stored_budgets(tenant))).await?);
                let mut cached = self.budgets.0.cached.lock().expect("budgets lock");
                if cached.version == version {
                    cached.tenants.insert(tenant.to_owned(), Arc::clone(&own));
                }
                own
            }
        };
        let budgets = self.default_budgets().with(&own.budgets());
        let of_task = task_id.and_then(|id| own.tasks.get(&id));
        Ok(of_task.map_or(budgets, |said| budgets.with_task(said)))
    }

    async fn stored_budgets(&self, tenant: &str) -> Result<TenantBudgets, StoreError> {
        let mut read = self.db.read().await?;
        let stored: Option<String> = read.query(STORED_BUDGETS).bind(text(tenant)).optional_scalar().await?;
        // a tenant whose row can't be read has what everybody has
        let budgets = stored.map(|stored| serde_json::from_str(&stored)).transpose();
        let budgets = budgets.inspect_err(|error| self.unreadable.report("tenant_budgets", tenant, error));
        Ok(budgets.ok().flatten().unwrap_or_default())
    }

    /// Says the budgets of one tenant, in place of those that were said before. Those of its tasks stay.
    pub async fn put_budgets(&self, tenant: &str, said: &Budgets, by: &str) -> Result<(), StoreError> {
        let Budgets { run, task, tenant: day } = *said;
        let change = |before: TenantBudgets| Ok(TenantBudgets { run, task, tenant: day, ..before });
        self.change_budgets(tenant, change, (None, by, "budgets.set", json!(said))).await
    }

    /// Says the budget of one task of a tenant, in place of the one that was said before; `None`: it has what its
    /// tenant's tasks have.
    ///
    /// # Errors
    /// `Conflict`: as many tasks of the tenant have one as may have one.
    pub async fn set_task_budget(
        &self,
        tenant: &str,
        task_id: Uuid,
        said: Option<&TaskBudget>,
        by: &str,
    ) -> Result<(), StoreError> {
        let change = |mut before: TenantBudgets| {
            let _ = match said {
                Some(said) => before.tasks.insert(task_id, *said),
                None => before.tasks.remove(&task_id),
            };
            if before.tasks.len() > MOST_TASK_BUDGETS {
                let sentence = format!("{MOST_TASK_BUDGETS} tasks of the tenant have one, the most there may be");
                return Err(StoreError::Conflict(sentence));
            }
            Ok(before)
        };
        let (action, body) = match said {
            Some(said) => ("budgets.set", json!(said)),
            None => ("budgets.reset", json!({})),
        };
        self.change_budgets(tenant, change, (Some(task_id), by, action, body)).await
    }

    async fn change_budgets(
        &self,
        tenant: &str,
        change: impl FnOnce(TenantBudgets) -> Result<TenantBudgets, StoreError>,
        act: BudgetAct<'_>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(NEXT_VERSION).execute().await?;
        let stored: Option<String> = tx.query(STORED_BUDGETS).bind(text(tenant)).optional_scalar().await?;
        // what can't be read counts for nothing, and is replaced
        let before: TenantBudgets = stored.and_then(|stored| serde_json::from_str(&stored).ok()).unwrap_or_default();
        let said = change(before)?;
        tx.query(
            "insert into tenant_budgets (tenant_id, limits, updated_at) values ($1, $2, $3)
             on conflict (tenant_id) do update set limits = excluded.limits, updated_at = excluded.updated_at",
        )
        .bind(text(tenant))
        .bind(document(&said)?)
        .bind(now)
        .execute()
        .await?;
        record(tx, tenant, act, now).await?;
        write.commit().await?;
        self.notify(Topic::Cancels);
        Ok(())
    }

    /// Forgets the budgets that were said for a tenant and its tasks. Nothing happens where none were.
    pub async fn reset_budgets(&self, tenant: &str, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let stored: Option<String> = tx.query(STORED_BUDGETS).bind(text(tenant)).optional_scalar().await?;
        if stored.is_none() {
            return Ok(());
        }
        tx.query(NEXT_VERSION).execute().await?;
        tx.query("delete from tenant_budgets where tenant_id = $1").bind(text(tenant)).execute().await?;
        record(tx, tenant, (None, by, "budgets.reset", json!({})), now).await?;
        write.commit().await?;
        self.notify(Topic::Cancels);
        Ok(())
    }

    /// Budgets of a tenant as they are now, and what it has spent on a day.
    pub async fn budget_usage(&self, tenant: &str, day: NaiveDate) -> Result<BudgetUsage, StoreError> {
        let stored = self.stored_budgets(tenant).await?;
        let overrides = stored.budgets();
        let mut read = self.db.read_in(&Scope::Every).await?;
        let rows: Vec<(Uuid, i64, i64, i64, i64)> = read
            .query(
                "select task_id, tokens, cost_micros, reserved_tokens, reserved_cost_micros
                   from budget_days where tenant_id = $1 and day = $2 order by task_id limit $3",
            )
            .bind(text(tenant))
            .bind(day)
            .bind(LISTED + 1)
            .all()
            .await?;
        read.end().await?;
        let limits = self.default_budgets().with(&overrides);
        let mut usage = BudgetUsage { limits, overrides, task_overrides: stored.tasks, ..BudgetUsage::default() };
        for (task_id, tokens, cost_micros, reserved_tokens, reserved_cost_micros) in rows {
            let standing = LedgerStanding {
                used: Spend { tokens, cost_micros },
                reserved: Spend { tokens: reserved_tokens, cost_micros: reserved_cost_micros },
            };
            match task_id.is_nil() {
                true => usage.tenant = standing,
                false => drop(usage.tasks.insert(task_id, standing)),
            }
        }
        Ok(usage)
    }

    /// Deletes up to `limit` ledgers of days before `before`; answers how many.
    pub async fn forget_budget_days(&self, before: NaiveDate, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from budget_days where (tenant_id, task_id, day) in (
                select tenant_id, task_id, day from budget_days where day < $1 order by day limit $2)",
            before,
            limit,
        )
        .await
    }
}

const STORED_BUDGETS: &str = "select cast(limits as text) from tenant_budgets where tenant_id = $1";
/// In the transaction of a change, before the row is read: changes come one after the other, and instances see another
/// version.
const NEXT_VERSION: &str = "update halt_version set budget_version = budget_version + 1 where id = 1";

/// The task that a change is about, where it is about one, by whom it was made, its name and what it says.
type BudgetAct<'a> = (Option<Uuid>, &'a str, &'a str, serde_json::Value);

/// In the transaction of a change: the record has who made it.
async fn record(
    tx: &mut Tx<'_>,
    tenant: &str,
    (task_id, actor, action, body): BudgetAct<'_>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let subject_type = if task_id.is_some() { "task" } else { "tenant" };
    let subject_id = task_id.unwrap_or_default();
    let act = AuditAction { tenant, actor, via: "api", action, subject_type, subject_id, body };
    write_audit(tx, act, now).await
}
