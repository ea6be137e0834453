//! The ledgers of the days, and what calls of models under way have reserved in them.
//!
//! A reservation is one guarded write for each ledger, so nothing is spent twice, whatever instances do at once. It belongs to
//! the lease of its run: it is settled in the transaction that stores the turn, taken back with the run's end, and, where
//! the lease is held no more, by whoever comes to the limit. Ledgers are locked last of all, a tenant's before its tasks'.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use uuid::Uuid;

use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{BudgetQuantity, BudgetRefusal, BudgetScope, DayLimits, Spend};
use crate::domain::notification::{NewDelivery, NoticeKind};
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::ops::budgets::reservation::{Reservation, Reserved};
use crate::store::ops::budgets::settlement::Settlement;
use crate::store::tx::{Tx, TxQuery};
use crate::store::{Store, StoreError, Topic};

/// Reservations that one look takes back at most.
const TAKEN_BACK: i64 = 500;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LedgerKey {
    tenant: String,
    /// All zeros for the tenant's own.
    task_id: Uuid,
    day: NaiveDate,
}

impl LedgerKey {
    fn scope(&self) -> BudgetScope {
        if self.task_id.is_nil() { BudgetScope::Tenant } else { BudgetScope::Task }
    }
}

#[derive(sqlx_macros::FromRow)]
struct ReservationRow {
    tenant_id: String,
    task_id: Option<Uuid>,
    day: NaiveDate,
    tokens: i64,
    cost_micros: i64,
}

impl ReservationRow {
    fn ledgers(&self) -> impl Iterator<Item = LedgerKey> {
        ledgers(&self.tenant_id, self.task_id, self.day)
    }

    fn reserved(&self) -> Spend {
        Spend { tokens: self.tokens, cost_micros: self.cost_micros }
    }
}

/// The ledgers of a call, in the order in which they are locked.
fn ledgers(tenant: &str, task_id: Option<Uuid>, day: NaiveDate) -> impl Iterator<Item = LedgerKey> {
    let key = move |task_id| LedgerKey { tenant: tenant.to_owned(), task_id, day };
    std::iter::once(Uuid::nil()).chain(task_id).map(key)
}

/// A change of a ledger by calls that have ended.
#[derive(Default)]
struct LedgerChange {
    spent: Spend,
    taken_back: Spend,
    notice: Option<Arc<BudgetNotice>>,
}

#[derive(sqlx_macros::FromRow)]
struct LedgerRow {
    tokens: i64,
    cost_micros: i64,
    reserved_tokens: i64,
    reserved_cost_micros: i64,
    tokens_limit: Option<i64>,
    cost_micros_limit: Option<i64>,
}

impl LedgerRow {
    fn used(&self) -> Spend {
        Spend { tokens: self.tokens, cost_micros: self.cost_micros }
    }

    fn reserved(&self) -> Spend {
        Spend { tokens: self.reserved_tokens, cost_micros: self.reserved_cost_micros }
    }

    fn limits(&self) -> DayLimits {
        DayLimits { tokens: self.tokens_limit, cost_micros: self.cost_micros_limit }
    }
}

/// Takes the amount, where it is left. The first row of a day is written as it is: its caller has compared it with the limit.
pub(in crate::store) const RESERVE: &str = "
    insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros, tokens_limit,
                             cost_micros_limit)
    values ($1, $2, $3, 0, 0, $4, $5, $6, $7)
    on conflict (tenant_id, task_id, day) do update
       set reserved_tokens = budget_days.reserved_tokens + excluded.reserved_tokens,
           reserved_cost_micros = budget_days.reserved_cost_micros + excluded.reserved_cost_micros,
           tokens_limit = excluded.tokens_limit, cost_micros_limit = excluded.cost_micros_limit
     where (excluded.tokens_limit is null
            or budget_days.tokens + budget_days.reserved_tokens + excluded.reserved_tokens <= excluded.tokens_limit)
       and (excluded.cost_micros_limit is null
            or budget_days.cost_micros + budget_days.reserved_cost_micros + excluded.reserved_cost_micros
               <= excluded.cost_micros_limit)";

pub(in crate::store) const READ_LEDGER: &str = "
    select tokens, cost_micros, reserved_tokens, reserved_cost_micros, tokens_limit, cost_micros_limit
      from budget_days where tenant_id = $1 and task_id = $2 and day = $3";

pub(in crate::store) const SETTLE: &str = "
    update budget_days
       set tokens = tokens + $4, cost_micros = cost_micros + $5, reserved_tokens = reserved_tokens - $6,
           reserved_cost_micros = reserved_cost_micros - $7
     where tenant_id = $1 and task_id = $2 and day = $3
    returning tokens, cost_micros, reserved_tokens, reserved_cost_micros, tokens_limit, cost_micros_limit";

pub(in crate::store) const TAKE_RESERVATION: &str =
    "delete from budget_reservations where id = $1 returning tenant_id, task_id, day, tokens, cost_micros";

pub(in crate::store) const TAKE_OF_RUN: &str =
    "delete from budget_reservations where run_id = $1 returning tenant_id, task_id, day, tokens, cost_micros";

/// Of all tenants, or of one: those whose lease is held no more.
pub(in crate::store) const TAKE_STALE: &str = "
    delete from budget_reservations where id in (
        select r.id from budget_reservations r
         where ($1 is null or r.tenant_id = $1)
           and not exists (select 1 from queue q
                            where q.run_id = r.run_id and q.lease_token = r.lease_token and q.state = 'started')
         order by r.id limit $2)
    returning tenant_id, task_id, day, tokens, cost_micros";

impl Store {
    /// Reserves the worst that a call may come to in the ledgers of its tenant's and its task's day, or in none of them. A
    /// limit that is met by calls under way is no refusal; one that is used up is told once.
    pub async fn reserve_budget(&self, call: &Reservation) -> Result<Reserved, StoreError> {
        let reserved = self.try_reserve(call).await?;
        let reserved = match reserved {
            // somebody may have died with what is missing here
            Err(_) if self.release_stale_reservations(Some(&call.tenant), TAKEN_BACK).await? > 0 => {
                self.try_reserve(call).await?
            }
            reserved => reserved,
        };
        let Err((refusal, is_used_up)) = reserved else { return Ok(Reserved::Granted) };
        if !is_used_up {
            return Ok(Reserved::NotNow);
        }
        self.counts.budget_refused(refusal);
        self.tell_used_up(call, refusal).await?;
        Ok(Reserved::Refused(refusal))
    }

    /// As [`Store::reserve_budget`], for a call that nobody waits for: whether it is reserved. Nobody is told of a limit that is
    /// met.
    pub async fn reserve_budget_if_left(&self, call: &Reservation) -> Result<bool, StoreError> {
        Ok(self.try_reserve(call).await?.is_ok())
    }

    /// `Err`: the limit that is met, and whether what is spent alone meets it.
    async fn try_reserve(&self, call: &Reservation) -> Result<Result<(), (BudgetRefusal, bool)>, StoreError> {
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(&call.tenant))).await?;
        let tx = &mut write.tx();
        for key in ledgers(&call.tenant, call.task_id, call.day) {
            let (scope, limits) = (key.scope(), call.limits_of(&key));
            let refused = |quantity, is_used_up| Ok(Err((BudgetRefusal { scope, quantity }, is_used_up)));
            if let Some(quantity) = limits.exceeded(call.most) {
                return refused(quantity, true);
            }
            let written = tx
                .query(RESERVE)
                .bind(text(&key.tenant))
                .bind(key.task_id)
                .bind(key.day)
                .bind(call.most.tokens)
                .bind(call.most.cost_micros)
                .bind(limits.tokens)
                .bind(limits.cost_micros)
                .execute()
                .await?;
            if written == 0 {
                let row: LedgerRow = ledger_query(tx.query(READ_LEDGER), &key).one().await?;
                return match limits.exceeded(row.used() + call.most) {
                    Some(quantity) => refused(quantity, true),
                    None => {
                        let all = row.used() + row.reserved() + call.most;
                        refused(limits.exceeded(all).unwrap_or(BudgetQuantity::Tokens), false)
                    }
                };
            }
        }
        tx.query(
            "insert into budget_reservations (id, run_id, lease_token, tenant_id, task_id, day, tokens, cost_micros)
             values ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(call.id)
        .bind(call.lease.run_id)
        .bind(call.lease.token)
        .bind(text(&call.tenant))
        .bind(call.task_id)
        .bind(call.day)
        .bind(call.most.tokens)
        .bind(call.most.cost_micros)
        .execute()
        .await?;
        write.commit().await?;
        Ok(Ok(()))
    }

    /// Tells the owner that a budget of the day is used up, unless that was told.
    async fn tell_used_up(&self, call: &Reservation, refusal: BudgetRefusal) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_for_engine(QueueFlow::of(Some(&call.tenant))).await?;
        let tx = &mut write.tx();
        let task_id = match refusal.scope {
            BudgetScope::Task => call.task_id.unwrap_or_default(),
            BudgetScope::Run | BudgetScope::Tenant => Uuid::nil(),
        };
        let first = tx
            .query(
                "insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens,
                                          reserved_cost_micros, exhausted_at)
                 values ($1, $2, $3, 0, 0, 0, 0, $4)
                 on conflict (tenant_id, task_id, day) do update set exhausted_at = excluded.exhausted_at
                  where budget_days.exhausted_at is null",
            )
            .bind(text(&call.tenant))
            .bind(task_id)
            .bind(call.day)
            .bind(now)
            .execute()
            .await?;
        let about = (refusal.scope, refusal.quantity);
        let told = call.notice.as_ref().filter(|_| first == 1);
        let told = told.and_then(|notice| notice.delivery(about, NoticeKind::BudgetUsedUp, call.day));
        if let Some(told) = &told {
            tx.post(&[told], now).await?;
        }
        write.commit().await?;
        if told.is_some() {
            self.notify(Topic::Outbox);
        }
        Ok(())
    }

    /// Counts a call that the run's own budget has refused.
    pub fn count_budget_refusal(&self, refusal: BudgetRefusal) {
        self.counts.budget_refused(refusal);
    }

    /// Takes reservations back whose lease is held no more, of one tenant or of all; answers how many.
    pub async fn release_stale_reservations(&self, tenant: Option<&str>, limit: i64) -> Result<usize, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write_for_engine(QueueFlow::of(tenant)).await?;
        let tx = &mut write.tx();
        let rows: Vec<ReservationRow> = tx.query(TAKE_STALE).bind(tenant).bind(limit).all().await?;
        let taken = rows.len();
        change_ledgers(tx, taken_back(rows), now).await?;
        write.commit().await?;
        Ok(taken)
    }
}

impl Reservation {
    fn limits_of(&self, key: &LedgerKey) -> DayLimits {
        match key.scope() {
            BudgetScope::Task => self.task_limits,
            BudgetScope::Run | BudgetScope::Tenant => self.tenant_limits,
        }
    }
}

/// In the transaction that stores what calls came to: the ledgers have that in place of what was reserved. Answers whether
/// somebody is told something.
pub(in crate::store) async fn settle(
    store: &Store,
    tx: &mut Tx<'_>,
    settlements: impl Iterator<Item = &Settlement>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let mut in_order: Vec<&Settlement> = settlements.collect();
    in_order.sort_by_key(|settlement| settlement.id);
    let mut changes: BTreeMap<LedgerKey, LedgerChange> = BTreeMap::new();
    for settlement in in_order {
        // none: it was settled before, and this is the same write once more
        let row: Option<ReservationRow> = tx.query(TAKE_RESERVATION).bind(settlement.id).optional().await?;
        let Some(row) = row else { continue };
        store.counts.budget_spent(settlement.spent);
        for key in row.ledgers() {
            let change = changes.entry(key).or_default();
            change.spent = change.spent + settlement.spent;
            change.taken_back = change.taken_back + row.reserved();
            change.notice = change.notice.take().or_else(|| settlement.notice.clone());
        }
    }
    change_ledgers(tx, changes, now).await
}

/// In the transaction that ends executions: what their runs have reserved and not used is taken back.
pub(in crate::store) async fn release_runs(
    tx: &mut Tx<'_>,
    mut runs: Vec<Uuid>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    runs.sort();
    let mut rows = Vec::new();
    for run in runs {
        let taken: Vec<ReservationRow> = tx.query(TAKE_OF_RUN).bind(run).all().await?;
        rows.extend(taken);
    }
    change_ledgers(tx, taken_back(rows), now).await?;
    Ok(())
}

fn taken_back(rows: Vec<ReservationRow>) -> BTreeMap<LedgerKey, LedgerChange> {
    let mut changes: BTreeMap<LedgerKey, LedgerChange> = BTreeMap::new();
    for row in rows {
        for key in row.ledgers() {
            let change = changes.entry(key).or_default();
            change.taken_back = change.taken_back + row.reserved();
        }
    }
    changes
}

/// Writes changes in the order in which ledgers are locked, and tells owners of those of which most is used.
async fn change_ledgers(
    tx: &mut Tx<'_>,
    changes: BTreeMap<LedgerKey, LedgerChange>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let mut told: Vec<NewDelivery> = Vec::new();
    for (key, change) in &changes {
        let row: Option<LedgerRow> = ledger_query(tx.query(SETTLE), key)
            .bind(change.spent.tokens)
            .bind(change.spent.cost_micros)
            .bind(change.taken_back.tokens)
            .bind(change.taken_back.cost_micros)
            .optional()
            .await?;
        let Some(row) = row else { continue };
        let Some(quantity) = row.limits().nearly_used(row.used()).filter(|_| change.notice.is_some()) else { continue };
        let warns = ledger_query(
            tx.query(
                "update budget_days set warned_at = $4
                  where tenant_id = $1 and task_id = $2 and day = $3 and warned_at is null",
            ),
            key,
        );
        if warns.bind(now).execute().await? == 1 {
            let notice = change.notice.as_ref();
            let about = (key.scope(), quantity);
            told.extend(notice.and_then(|notice| notice.delivery(about, NoticeKind::BudgetWarning, key.day)));
        }
    }
    if !told.is_empty() {
        tx.post(&told.iter().collect::<Vec<_>>(), now).await?;
    }
    Ok(!told.is_empty())
}

fn ledger_query<'t>(query: TxQuery<'t>, key: &LedgerKey) -> TxQuery<'t> {
    query.bind(text(&key.tenant)).bind(key.task_id).bind(key.day)
}
