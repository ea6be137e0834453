//! Reservations in the ledgers of the day, before calls of models are made. Those that wait at once are written
//! together.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::domain::budget::{BudgetQuantity, BudgetRefusal, BudgetScope, DayLimits};
use crate::domain::notification::NoticeKind;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::db::write_batcher::WriteBatcher;
use crate::store::ops::budgets::ledger_batch::{LedgerBatch, open_ledgers, reserve_opening, update_ledgers};
use crate::store::ops::budgets::ledgers::{LedgerKey, LedgerRow, READ_LEDGER, ledger_query, ledgers};
use crate::store::ops::budgets::reservation::{Reservation, ReservationOutcome};
use crate::store::{Settlement, Store, StoreError, Topic, with_timeout};

/// Reservations in one statement.
pub(in crate::store) const TOGETHER: usize = 100;

/// Reservations that one look takes back at most.
const TAKEN_BACK: i64 = 500;

/// Reservations that wait to be written, and how each ends.
pub(in crate::store) type ReservationBatcher = WriteBatcher<Reservation, Result<ReservationAttempt, StoreError>>;

/// Result of one attempt to reserve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::store) enum ReservationAttempt {
    Granted,
    /// The limit that is met, and whether what is spent alone meets it.
    Met(BudgetRefusal, bool),
}

impl Store {
    /// Reserves the worst that a call may come to in the ledgers of its tenant's and its task's day, or in none of
    /// them. A limit that is met by calls under way is no refusal; one that is used up is told once.
    pub async fn reserve_budget(&self, call: &Reservation) -> Result<ReservationOutcome, StoreError> {
        let tried = match self.try_reserve(call).await? {
            // somebody may have died with what is missing here
            ReservationAttempt::Met(..)
                if self.release_stale_reservations(Some(&call.tenant), TAKEN_BACK).await? > 0 =>
            {
                self.try_reserve(call).await?
            }
            tried => tried,
        };
        match tried {
            ReservationAttempt::Granted => Ok(ReservationOutcome::Granted),
            ReservationAttempt::Met(_, false) => Ok(ReservationOutcome::NotNow),
            ReservationAttempt::Met(refusal, true) => {
                self.counts.budget_refused(refusal);
                self.tell_used_up(call, refusal).await?;
                Ok(ReservationOutcome::Refused(refusal))
            }
        }
    }

    /// As [`Store::reserve_budget`], for a call that nobody waits for: whether it is reserved. Nobody is told of a
    /// limit that is met.
    pub async fn reserve_budget_if_left(&self, call: &Reservation) -> Result<bool, StoreError> {
        Ok(self.try_reserve(call).await? == ReservationAttempt::Granted)
    }

    /// Settles calls that are on the record, without an append. Settling one twice changes nothing.
    pub async fn settle_budget(&self, tenant: &str, settlements: &[Settlement]) -> Result<(), StoreError> {
        let batch = LedgerBatch::new(settlements.iter(), [], [].iter());
        let mut write = self.db.write_quick(QueueFlow::of(Some(tenant))).await?;
        let updated = update_ledgers(&mut write.tx(), &batch).await?.updated;
        write.commit().await?;
        self.publish_updates(&updated, settlements.iter()).await;
        Ok(())
    }

    async fn try_reserve(&self, call: &Reservation) -> Result<ReservationAttempt, StoreError> {
        let store = self.clone();
        let work = |calls: Vec<_>| async move { store.reserve_batch(&calls).await };
        let tried = self.reservations.submit_for(call.tenant.clone(), 0, call.clone(), work).await;
        tried.unwrap_or_else(|| Err(StoreError::Unavailable("the reservation was broken off".into())))
    }

    /// All at once while there is enough for all of them, and else one by one.
    async fn reserve_batch(&self, calls: &[Reservation]) -> Vec<Result<ReservationAttempt, StoreError>> {
        if calls.len() > 1 {
            match with_timeout(self.reserve_together(calls)).await {
                Ok(true) => return calls.iter().map(|_| Ok(ReservationAttempt::Granted)).collect(),
                // it may have taken effect
                Err(StoreError::Unavailable(why)) => {
                    return calls.iter().map(|_| Err(StoreError::Unavailable(why.clone()))).collect();
                }
                Ok(false) | Err(_) => {}
            }
        }
        let mut tried = Vec::with_capacity(calls.len());
        for call in calls {
            tried.push(with_timeout(self.reserve_alone(call)).await);
        }
        tried
    }

    /// Whether all of these are reserved; else none is. Ledgers that the day does not have yet are opened with that, so
    /// that the first calls of tasks in a day are one statement, as all others are.
    async fn reserve_together(&self, calls: &[Reservation]) -> Result<bool, StoreError> {
        let unseen = self.budgets.0.seen.unseen(ledgers_of(calls));
        match self.reserve_in(calls, &unseen).await {
            // somebody else has opened one of them meanwhile, and nothing was written
            Err(StoreError::Conflict(_)) if !unseen.is_empty() => {
                self.open_ledgers(&unseen).await?;
                self.reserve_in(calls, &BTreeMap::new()).await
            }
            reserved => reserved,
        }
    }

    /// As [`Store::reserve_together`], where the ledgers are there but for some of those that are `unseen`.
    async fn reserve_in(
        &self,
        calls: &[Reservation],
        unseen: &BTreeMap<LedgerKey, DayLimits>,
    ) -> Result<bool, StoreError> {
        let mut write = self.db.write_quick(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let is_reserved = match unseen.is_empty() {
            true => update_ledgers(tx, &LedgerBatch::new([].iter(), [], calls.iter())).await?.is_reserved,
            false => reserve_opening(tx, calls, unseen).await?,
        };
        write.commit().await?;
        if is_reserved {
            self.budgets.0.seen.note(unseen);
        }
        Ok(is_reserved)
    }

    async fn reserve_alone(&self, call: &Reservation) -> Result<ReservationAttempt, StoreError> {
        let met =
            |scope, quantity, is_used_up| Ok(ReservationAttempt::Met(BudgetRefusal { scope, quantity }, is_used_up));
        for key in ledgers(&call.tenant, call.task_id, call.day) {
            if let Some(quantity) = call.bounds_of(&key).exceeded(call.most) {
                return met(key.scope(), quantity, true);
            }
        }
        for _ in 0..2 {
            if self.reserve_together(std::slice::from_ref(call)).await? {
                return Ok(ReservationAttempt::Granted);
            }
            let mut is_new = false;
            for key in ledgers(&call.tenant, call.task_id, call.day) {
                let limits = call.bounds_of(&key);
                let row: Option<LedgerRow> =
                    ledger_query(self.db.read_quick().await?.query(READ_LEDGER), &key).optional().await?;
                let Some(row) = row else {
                    is_new = true;
                    continue;
                };
                if let Some(quantity) = limits.exceeded(row.used() + call.most) {
                    return met(key.scope(), quantity, true);
                }
                if let Some(quantity) = limits.exceeded(row.used() + row.reserved() + call.most) {
                    return met(key.scope(), quantity, false);
                }
            }
            // it was forgotten behind our back
            if is_new {
                self.open_ledgers(&ledgers_of(std::slice::from_ref(call))).await?;
            }
        }
        // what was missing is there by now
        met(BudgetScope::Tenant, BudgetQuantity::Tokens, false)
    }

    /// Opens these ledgers, and knows from then on that they are there.
    async fn open_ledgers(&self, opened: &BTreeMap<LedgerKey, DayLimits>) -> Result<(), StoreError> {
        let mut write = self.db.write_quick(QueueFlow::of(None)).await?;
        open_ledgers(&mut write.tx(), opened).await?;
        write.commit().await?;
        self.budgets.0.seen.note(opened);
        Ok(())
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
}

impl Reservation {
    /// Of so many parts of the limits, one may be used with it.
    pub(super) fn parts(&self) -> i64 {
        if self.within_half { 2 } else { 1 }
    }

    fn bounds_of(&self, key: &LedgerKey) -> DayLimits {
        self.limits_of(key).part(self.parts())
    }

    fn limits_of(&self, key: &LedgerKey) -> DayLimits {
        match key.scope() {
            BudgetScope::Task => self.task_limits,
            BudgetScope::Run | BudgetScope::Tenant => self.tenant_limits,
        }
    }
}

/// The ledgers of these calls, each with its limits, in the order in which they are locked.
fn ledgers_of(calls: &[Reservation]) -> BTreeMap<LedgerKey, DayLimits> {
    let each = |call: &Reservation| {
        let with_limits = |key: LedgerKey| (key.clone(), call.limits_of(&key));
        ledgers(&call.tenant, call.task_id, call.day).map(with_limits).collect::<Vec<_>>()
    };
    calls.iter().flat_map(each).collect()
}
