//! The ledgers of the days, and what calls of models under way have reserved in them.
//!
//! A reservation belongs to the lease of its run. It is settled with a turn or with the run's end, and, where the lease
//! is held no more, by what is on the record: by whoever comes to the limit, or goes on with the run. Ledgers are
//! locked last of all, a tenant's before its tasks', and compared with their limits under that lock: nothing is spent
//! twice, whatever instances do at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use uuid::Uuid;

use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{BudgetRefusal, BudgetScope, DayLimits, Spend};
use crate::domain::notification::{NewDelivery, NoticeKind};
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::runs::lease::Lease;
use crate::store::sql::sql;
use crate::store::tx::{Tx, TxQuery};
use crate::store::{Settlement, Store, StoreError, Topic};

/// One ledger. Their order is that in which they are locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) struct LedgerKey {
    pub tenant: String,
    /// All zeros for the tenant's own.
    pub task_id: Uuid,
    pub day: NaiveDate,
}

impl LedgerKey {
    /// Whether it is the ledger of a tenant or of a task.
    pub fn scope(&self) -> BudgetScope {
        if self.task_id.is_nil() { BudgetScope::Tenant } else { BudgetScope::Task }
    }
}

/// Money and tokens that are reserved for a call.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct ReservationRow {
    tenant_id: String,
    task_id: Option<Uuid>,
    day: NaiveDate,
    tokens: i64,
    cost_micros: i64,
}

impl ReservationRow {
    /// Adds to the changes of its ledgers that it is taken back, and its calls have come to so much.
    pub fn settle(&self, changes: &mut BTreeMap<LedgerKey, LedgerChange>, spent: Spend) {
        for key in ledgers(&self.tenant_id, self.task_id, self.day) {
            let change = changes.entry(key).or_default();
            change.spent = change.spent + spent;
            change.taken_back = change.taken_back + Spend { tokens: self.tokens, cost_micros: self.cost_micros };
        }
    }
}

/// The ledgers of a call, in the order in which they are locked.
pub(in crate::store) fn ledgers(
    tenant: &str,
    task_id: Option<Uuid>,
    day: NaiveDate,
) -> impl Iterator<Item = LedgerKey> {
    let key = move |task_id| LedgerKey { tenant: tenant.to_owned(), task_id, day };
    std::iter::once(Uuid::nil()).chain(task_id).map(key)
}

/// A change of a ledger.
#[derive(Default)]
pub(in crate::store) struct LedgerChange {
    pub spent: Spend,
    pub taken_back: Spend,
    pub reserved: Spend,
    /// With a reservation: the limits that hold for it.
    pub limits: Option<DayLimits>,
}

impl LedgerChange {
    /// By so much, spent and reserved together are more.
    pub fn net(&self) -> Spend {
        let less = Spend { tokens: -self.taken_back.tokens, cost_micros: -self.taken_back.cost_micros };
        self.spent + self.reserved + less
    }
}

/// A ledger that calls have changed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) struct UpdatedLedger {
    pub key: LedgerKey,
    /// The sum of the calls that were settled.
    pub spent: Spend,
    /// All that is spent now.
    pub used: Spend,
    pub limits: DayLimits,
    /// Whether the owner was told that most of it is used.
    pub is_warned: bool,
}

/// A ledger as it is stored.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct LedgerRow {
    tokens: i64,
    cost_micros: i64,
    reserved_tokens: i64,
    reserved_cost_micros: i64,
    tokens_limit: Option<i64>,
    cost_micros_limit: Option<i64>,
    is_warned: bool,
}

impl LedgerRow {
    /// Tokens and money that were spent.
    pub fn used(&self) -> Spend {
        Spend { tokens: self.tokens, cost_micros: self.cost_micros }
    }

    /// Tokens and money that are reserved for calls under way.
    pub fn reserved(&self) -> Spend {
        Spend { tokens: self.reserved_tokens, cost_micros: self.reserved_cost_micros }
    }
}

pub(in crate::store) const READ_LEDGER: &str = "
    select tokens, cost_micros, reserved_tokens, reserved_cost_micros, tokens_limit, cost_micros_limit,
           warned_at is not null as is_warned
      from budget_days where tenant_id = $1 and task_id = $2 and day = $3";

/// Without `$8` the limits stay as they are.
const CHANGE: &str = "
    update budget_days
       set tokens = tokens + $4, cost_micros = cost_micros + $5, reserved_tokens = reserved_tokens + $6,
           reserved_cost_micros = reserved_cost_micros + $7,
           tokens_limit = case when $8 then $9 else tokens_limit end,
           cost_micros_limit = case when $8 then $10 else cost_micros_limit end
     where tenant_id = $1 and task_id = $2 and day = $3
    returning tokens, cost_micros, reserved_tokens, reserved_cost_micros, tokens_limit, cost_micros_limit,
              warned_at is not null as is_warned";

pub(in crate::store) const TAKE_RESERVATION: &str =
    "delete from budget_reservations where id = $1 returning tenant_id, task_id, day, tokens, cost_micros";

pub(in crate::store) const TAKE_OF_RUN: &str =
    "delete from budget_reservations where run_id = $1 returning tenant_id, task_id, day, tokens, cost_micros";

/// A reservation whose worker is gone, with what its calls have come to on the record.
#[derive(sqlx_macros::FromRow)]
struct LostReservation {
    #[sqlx(flatten)]
    row: ReservationRow,
    spent_tokens: i64,
    spent_cost: i64,
}

/// Of all tenants, or of one: those whose lease is held no more, and of extractions those whose claim stands no more.
const TAKE_STALE: &str = sql!(
    "
    delete from budget_reservations where id in (
        select r.id from budget_reservations r
         where ($1 is null or r.tenant_id = $1)
           and not exists (select 1 from queue q
                            where q.run_id = r.run_id and q.lease_token = r.lease_token and q.state = 'started')
           and not exists (select 1 from extractions e
                            where e.tenant_id = r.tenant_id and e.run_id = r.run_id and abs(e.claims) = -r.lease_token)
         order by r.id limit $2)",
    WITH_RECORD
);

const TAKE_LOST_OF_RUN: &str =
    sql!("delete from budget_reservations where run_id = $1 and lease_token < $2", WITH_RECORD);

const WITH_RECORD: &str = "
    returning tenant_id, task_id, day, tokens, cost_micros,
              cast(coalesce((select sum(t.input_tokens + t.output_tokens) from turns t
                              where t.run_id = budget_reservations.run_id and t.seq >= budget_reservations.from_seq
                                and t.turns > 0), 0) as bigint) as spent_tokens,
              cast(coalesce((select sum(t.cost_micros) from turns t
                              where t.run_id = budget_reservations.run_id and t.seq >= budget_reservations.from_seq
                                and t.turns > 0), 0) as bigint) as spent_cost";

impl Store {
    /// Counts a call that the run's own budget has refused.
    pub fn count_budget_refusal(&self, refusal: BudgetRefusal) {
        self.counts.budget_refused(refusal);
    }

    /// Settles the reservations of earlier executions of a run by what is on its record, before this execution adds to
    /// it. Leases of earlier executions have lower tokens.
    pub async fn settle_lost_reservations(&self, tenant: &str, lease: Lease) -> Result<(), StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(tenant))).await?;
        let tx = &mut write.tx();
        let lost = tx.query(TAKE_LOST_OF_RUN).bind(lease.run_id).bind(lease.token).all().await?;
        let updated = change_ledgers(tx, settled_by_record(lost)).await?;
        write.commit().await?;
        self.count_spent(&updated);
        Ok(())
    }

    /// Settles reservations whose lease is held no more, of one tenant or of all, by what is on the record; answers how
    /// many. One that can't be read goes, and is told of with its tenant.
    pub async fn release_stale_reservations(&self, tenant: Option<&str>, limit: i64) -> Result<usize, StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(tenant)).await?;
        let tx = &mut write.tx();
        let lost = tx.query(TAKE_STALE).bind(tenant).bind(limit).rows().await?;
        let taken = lost.len();
        let (lost, _) =
            self.unreadable.partition_readable::<LostReservation, _, String>("budget_reservations", &lost, Ok);
        let updated = change_ledgers(tx, settled_by_record(lost)).await?;
        write.commit().await?;
        self.count_spent(&updated);
        Ok(taken)
    }

    /// Counts what calls have come to, and warns the owners of ledgers that are nearly used up. A warning that fails is
    /// left to the next settlement.
    pub(in crate::store) async fn publish_updates(
        &self,
        updated: &[UpdatedLedger],
        settlements: impl Iterator<Item = &Settlement>,
    ) {
        self.count_spent(updated);
        let notices: Vec<_> = settlements.filter_map(|one| one.notice.clone()).collect();
        if nearly_used(updated, &notices).next().is_none() {
            return;
        }
        if let Err(error) = self.warn_of_budgets(updated, &notices).await {
            tracing::warn!(%error, "owners could not be told that most of a budget is used");
        }
    }

    async fn warn_of_budgets(
        &self,
        updated: &[UpdatedLedger],
        notices: &[Arc<BudgetNotice>],
    ) -> Result<(), StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
        let told = warn_owners(&mut write.tx(), updated, notices, self.clock.now()).await?;
        write.commit().await?;
        if told {
            self.notify(Topic::Outbox);
        }
        Ok(())
    }

    /// Counts what calls have come to in these ledgers.
    pub(in crate::store) fn count_spent(&self, updated: &[UpdatedLedger]) {
        let of_tenants = updated.iter().filter(|ledger| ledger.key.scope() == BudgetScope::Tenant);
        of_tenants.for_each(|ledger| self.counts.budget_spent(ledger.spent));
    }
}

fn settled_by_record(lost: Vec<LostReservation>) -> BTreeMap<LedgerKey, LedgerChange> {
    let mut changes = BTreeMap::new();
    for LostReservation { row, spent_tokens, spent_cost } in lost {
        row.settle(&mut changes, Spend { tokens: spent_tokens, cost_micros: spent_cost });
    }
    changes
}

/// Writes changes in the order in which ledgers are locked.
pub(in crate::store) async fn change_ledgers(
    tx: &mut Tx<'_>,
    changes: BTreeMap<LedgerKey, LedgerChange>,
) -> Result<Vec<UpdatedLedger>, StoreError> {
    let mut updated = Vec::new();
    for (key, change) in changes {
        let limits = change.limits.unwrap_or_default();
        let row: Option<LedgerRow> = ledger_query(tx.query(CHANGE), &key)
            .bind(change.spent.tokens)
            .bind(change.spent.cost_micros)
            .bind(change.reserved.tokens - change.taken_back.tokens)
            .bind(change.reserved.cost_micros - change.taken_back.cost_micros)
            .bind(change.limits.is_some())
            .bind(limits.tokens)
            .bind(limits.cost_micros)
            .optional()
            .await?;
        // none: its day was forgotten
        let Some(row) = row else { continue };
        let (used, is_warned) = (row.used(), row.is_warned);
        let limits = DayLimits { tokens: row.tokens_limit, cost_micros: row.cost_micros_limit };
        updated.push(UpdatedLedger { key, spent: change.spent, used, limits, is_warned });
    }
    Ok(updated)
}

/// Tells owners of ledgers of which most is used now, each once; answers whether somebody is told.
pub(in crate::store) async fn warn_owners(
    tx: &mut Tx<'_>,
    updated: &[UpdatedLedger],
    notices: &[Arc<BudgetNotice>],
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let mut told: Vec<NewDelivery> = Vec::new();
    for (ledger, notice) in nearly_used(updated, notices) {
        let UpdatedLedger { key, used, limits, .. } = ledger;
        let Some(quantity) = limits.nearly_used(*used) else { continue };
        let warns = tx.query(
            "update budget_days set warned_at = $4
              where tenant_id = $1 and task_id = $2 and day = $3 and warned_at is null",
        );
        if ledger_query(warns, key).bind(now).execute().await? == 1 {
            told.extend(notice.delivery((key.scope(), quantity), NoticeKind::BudgetWarning, key.day));
        }
    }
    if !told.is_empty() {
        tx.post(&told.iter().collect::<Vec<_>>(), now).await?;
    }
    Ok(!told.is_empty())
}

/// Ledgers whose owner is to know, and has not been told, that most of them is used, each with the notice about it.
fn nearly_used<'a>(
    updated: &'a [UpdatedLedger],
    notices: &'a [Arc<BudgetNotice>],
) -> impl Iterator<Item = (&'a UpdatedLedger, &'a BudgetNotice)> {
    updated.iter().filter_map(|ledger| {
        let is_due = !ledger.is_warned && ledger.limits.nearly_used(ledger.used).is_some();
        let UpdatedLedger { key, .. } = ledger;
        let notice = notices.iter().find(|notice| notice.is_about(&key.tenant, key.task_id));
        Some((ledger, &**notice.filter(|_| is_due)?))
    })
}

pub(in crate::store) fn ledger_query<'t>(query: TxQuery<'t>, key: &LedgerKey) -> TxQuery<'t> {
    query.bind(text(&key.tenant)).bind(key.task_id).bind(key.day)
}
