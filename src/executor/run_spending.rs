//! Spending of one execution under budgets: each call of a model is reserved before it is made, and settled by the entry of the
//! transcript that says what it came to.
//!
//! The run's own budget is judged here, from the usage on its record; the days of its task and tenant are ledgers in the store.
//! A crash loses what is in memory here; the store takes the reservations back, as the lease is held no more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::agent::checkpoint::run_error;
use crate::agent::{AppendError, SummaryCost};
use crate::base::backoff::full_jitter;
use crate::base::clock::pause;
use crate::base::id::new_id;
use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{Budgets, CallBound, Spend, day_of};
use crate::domain::run::{Run, RunError, TranscriptEntry, Usage};
use crate::store::{BudgetEnd, Lease, Reservation, Reserved, Settlement, Store, StoreError, with_timeout};

/// The first wait for calls of others that have reserved what may be left; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest such wait. How long in all, the run's own time limit says.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The code of a run whose model may not be used under a budget of money.
const UNPRICED_MODEL: &str = "unpriced_model";

/// The budgets of one run that is executed here.
pub struct RunSpending {
    store: Store,
    lease: Lease,
    tenant: String,
    task_id: Option<Uuid>,
    budgets: Budgets,
    notice: Option<Arc<BudgetNotice>>,
    calls: Mutex<Vec<OpenCall>>,
    /// Reservations of which nobody knows whether they were made: the next append takes them back.
    unsure: Mutex<Vec<Uuid>>,
    /// When the run's time began, without its waits.
    begun: DateTime<Utc>,
    /// Whether the owner was told that most of the run's own budget is used.
    is_warned: AtomicBool,
}

/// A call that was reserved and is not on the record yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenCall {
    id: Uuid,
    /// `None`: it is a summary, beside the turns.
    turn: Option<i64>,
    most: Spend,
}

impl OpenCall {
    /// Whether the usage of this entry may be that of the call.
    fn fits(&self, entry: &TranscriptEntry) -> bool {
        match self.turn {
            Some(turn) => turn == entry.turn && entry.usage.turns > 0,
            None => entry.message.is_of_summary(),
        }
    }
}

impl RunSpending {
    /// The budgets of a run under a lease.
    pub fn new(store: Store, lease: Lease, run: &Run, budgets: Budgets, notice: Option<BudgetNotice>) -> RunSpending {
        let now = store.clock().now();
        RunSpending {
            store,
            lease,
            tenant: run.tenant_id.clone(),
            task_id: run.task_id,
            budgets,
            notice: notice.map(Arc::new),
            calls: Mutex::default(),
            unsure: Mutex::default(),
            begun: now,
            is_warned: AtomicBool::new(false),
        }
    }

    /// As it is, for a run whose time began then, without its waits.
    pub fn since(self, begun: DateTime<Utc>) -> RunSpending {
        RunSpending { begun, ..self }
    }

    /// Tells the owner once that most of the run's own budget is used. Best effort.
    pub async fn warn(&self, used: Usage) {
        let took = (self.now() - self.begun).to_std().unwrap_or_default();
        let Some(quantity) = self.budgets.run.nearly_used(used, took) else { return };
        if self.is_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let told = self.notice.as_ref().and_then(|notice| notice.run_delivery(self.lease.run_id, quantity));
        let Some(told) = told else { return };
        if let Err(error) = with_timeout(self.store.post_delivery(&told)).await {
            tracing::warn!(%error, "the owner could not be told that most of a run's budget is used");
        }
    }

    /// Reserves what a call may come to at worst. `used`: the run's usage so far.
    pub async fn reserve(&self, used: Usage, turn: i64, bound: CallBound) -> Result<(), RunError> {
        self.refuse_unpriced(&bound)?;
        let call = self.open(used, turn, bound.most)?;
        let reserved = match self.budgets.has_days() {
            true => self.reserve_days(call).await,
            false => Ok(()),
        };
        if reserved.is_err() {
            self.forget(&call);
        }
        reserved
    }

    /// Notes the call behind these entries, which are stored with its reservation, if the run's own budget has as much left then.
    /// `used`: the run's usage without them.
    pub fn open_behind(
        &self,
        entries: &[TranscriptEntry],
        mut used: Usage,
        turn: i64,
        bound: &CallBound,
    ) -> Option<OpenCall> {
        self.refuse_unpriced(bound).ok()?;
        let told = self.told_of(entries);
        entries.iter().for_each(|entry| used += entry.usage);
        let mut calls = self.calls.lock().expect("calls lock");
        let under_way = calls.iter().filter(|open| !told.iter().any(|(call, _)| call.id == open.id));
        let open: Vec<Spend> = under_way.map(|call| call.most).collect();
        self.budgets.run.admit(used, &open, bound.most).ok()?;
        let call = OpenCall { id: new_id(self.now()), turn: Some(turn), most: bound.most };
        calls.push(call);
        Some(call)
    }

    /// The reservation of a call in the ledgers of the day; `None` where no budget of a day holds.
    pub fn day_reservation(&self, call: &OpenCall) -> Option<Reservation> {
        self.has_days().then(|| self.reservation(*call))
    }

    /// Whether a budget of a day holds.
    pub fn has_days(&self) -> bool {
        self.budgets.has_days()
    }

    /// Reserves what a summary may come to, if the run has it left beside another turn, and the ledgers have it left now.
    /// Nobody is told that it is not.
    pub async fn reserve_summary(&self, used: Usage, cost: &SummaryCost) -> bool {
        let call = OpenCall { id: new_id(self.now()), turn: None, most: cost.bound.most };
        if self.refuse_unpriced(&cost.bound).is_err() || !self.note_beside_a_turn(used, call, cost.turn) {
            return false;
        }
        let is_reserved = match self.budgets.has_days() {
            true => with_timeout(self.store.reserve_budget_if_left(&self.reservation(call))).await.unwrap_or(false),
            false => true,
        };
        if !is_reserved {
            self.forget(&call);
        }
        is_reserved
    }

    /// Notes a call, if the run's own budget has as much left and as much as a turn may come to.
    fn note_beside_a_turn(&self, used: Usage, call: OpenCall, turn: Spend) -> bool {
        let mut calls = self.calls.lock().expect("calls lock");
        let open: Vec<Spend> = calls.iter().map(|call| call.most).chain([turn]).collect();
        let is_left = self.budgets.run.admit(used, &open, call.most).is_ok();
        if is_left {
            calls.push(call);
        }
        is_left
    }

    /// Forgets a call that is not made.
    pub fn forget(&self, call: &OpenCall) {
        self.calls.lock().expect("calls lock").retain(|open| open.id != call.id);
    }

    /// As [`RunSpending::forget`], where the reservation may have been made.
    pub fn forget_unsure(&self, call: &OpenCall) {
        self.forget(call);
        self.unsure.lock().expect("calls lock").push(call.id);
    }

    fn refuse_unpriced(&self, bound: &CallBound) -> Result<(), RunError> {
        match &bound.unpriced {
            Some(model) if self.budgets.has_money() && !self.store.allows_unpriced_models() => {
                let message = format!(
                    "the model `{model}` has no price, and the run has a budget of money; set its `price_per_million_input` and \
                     `price_per_million_output`, or `budgets.allow_unpriced_models`"
                );
                Err(RunError::fail(UNPRICED_MODEL, message))
            }
            _ => Ok(()),
        }
    }

    /// Notes the call, if the run's own budget has as much left.
    fn open(&self, used: Usage, turn: i64, most: Spend) -> Result<OpenCall, RunError> {
        let mut calls = self.calls.lock().expect("calls lock");
        let open: Vec<Spend> = calls.iter().map(|call| call.most).collect();
        self.budgets.run.admit(used, &open, most).map_err(|refusal| {
            self.store.count_budget_refusal(refusal);
            RunError::Fail { fault: refusal.fault() }
        })?;
        let call = OpenCall { id: new_id(self.now()), turn: Some(turn), most };
        calls.push(call);
        Ok(call)
    }

    /// Reserves in the ledgers of the day, as soon as others have not reserved what may be left.
    async fn reserve_days(&self, call: OpenCall) -> Result<(), RunError> {
        for tries in 1.. {
            let reserved = with_timeout(self.store.reserve_budget(&self.reservation(call))).await;
            match reserved.map_err(unreserved)? {
                Reserved::Granted => return Ok(()),
                Reserved::Refused(refusal) => return Err(RunError::Fail { fault: refusal.fault() }),
                Reserved::NotNow => {
                    let wait = full_jitter(FIRST_WAIT, tries, LONGEST_WAIT, fastrand::f64()).max(FIRST_WAIT);
                    pause(wait).await;
                }
            }
        }
        unreachable!("it is tried until it is decided")
    }

    /// The reservation of a call in the ledgers of today.
    fn reservation(&self, call: OpenCall) -> Reservation {
        Reservation {
            id: call.id,
            lease: self.lease,
            tenant: self.tenant.clone(),
            task_id: self.task_id,
            day: day_of(self.now()),
            most: call.most,
            tenant_limits: self.budgets.tenant.limits(),
            task_limits: self.budgets.task.limits(),
            notice: self.notice.clone(),
        }
    }

    /// Settlements of the calls that these entries tell of. A provider that counts no tokens is charged the worst.
    pub fn settlements(&self, entries: &[TranscriptEntry]) -> Vec<Settlement> {
        let told = self.told_of(entries);
        let settlement = |(call, spent): (OpenCall, Spend)| Settlement {
            id: call.id,
            spent: if spent.tokens > 0 { spent } else { call.most },
            notice: self.notice.clone(),
        };
        let unsure = self.unsure.lock().expect("calls lock").clone();
        let unmade = unsure.into_iter().map(|id| Settlement { id, spent: Spend::default(), notice: None });
        match self.has_days() {
            true => told.into_iter().map(settlement).chain(unmade).collect(),
            false => Vec::new(),
        }
    }

    /// Notes that these entries are on the record, and count there.
    pub fn stored(&self, entries: &[TranscriptEntry]) {
        let told = self.told_of(entries);
        self.unsure.lock().expect("calls lock").clear();
        self.calls.lock().expect("calls lock").retain(|open| !told.iter().any(|(call, _)| call.id == open.id));
    }

    /// Reservations that end with the execution; these entries come with its end. A summary that is under way is charged the
    /// worst: its model may have been paid.
    pub fn end(&self, entries: &[TranscriptEntry]) -> Option<BudgetEnd> {
        if !self.has_days() {
            return None;
        }
        let mut settlements = self.settlements(entries);
        let is_told = |call: &OpenCall| settlements.iter().any(|settlement| settlement.id == call.id);
        let calls = self.calls.lock().expect("calls lock");
        let under_way: Vec<Settlement> = calls
            .iter()
            .filter(|call| call.turn.is_none() && !is_told(call))
            .map(|call| Settlement { id: call.id, spent: call.most, notice: self.notice.clone() })
            .collect();
        settlements.extend(under_way);
        Some(BudgetEnd { settlements })
    }

    /// The calls of these entries, each with what it has come to: calls of one turn in the order in which they were reserved.
    fn told_of(&self, entries: &[TranscriptEntry]) -> Vec<(OpenCall, Spend)> {
        let calls = self.calls.lock().expect("calls lock");
        let mut told: Vec<(OpenCall, Spend)> = Vec::new();
        for entry in entries {
            let is_told = |call: &OpenCall| told.iter().any(|(other, _)| other.id == call.id);
            if let Some(call) = calls.iter().find(|call| call.fits(entry) && !is_told(call)) {
                told.push((*call, Spend::of(entry.usage)));
            }
        }
        told
    }

    fn now(&self) -> DateTime<Utc> {
        self.store.clock().now()
    }
}

/// The error of a run whose reservation could not be written.
fn unreserved(error: StoreError) -> RunError {
    match error {
        StoreError::Unavailable(_) | StoreError::TimedOut(_) => run_error(AppendError::Unavailable),
        other => {
            tracing::error!(error = %other, "a budget can't be read or written");
            run_error(AppendError::Corrupt)
        }
    }
}
