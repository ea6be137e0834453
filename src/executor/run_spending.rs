//! Spending of one execution under budgets: each call of a model is reserved before it is made, alone or with others,
//! and its entry in the transcript says what it came to.
//!
//! The run's own budget is judged here, from the usage on its record; the days of its task and tenant are ledgers in
//! the store. A crash loses what is in memory here; the store settles the reservations by what is on the record, as the
//! lease is held no more.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::agent::SummaryCost;
use crate::base::backoff::full_jitter;
use crate::base::clock::pause;
use crate::base::id::new_id;
use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{Budgets, CallBound, Spend, day_of};
use crate::domain::run::{Run, RunError, TranscriptEntry, Usage};
use crate::executor::early_reservation::EarlyReservation;
use crate::executor::held_reservations::{AHEAD, SettledReservation};
use crate::executor::open_calls::{NextCall, OpenCall, OpenCalls, summaries, turns};
use crate::executor::pending_reservation::{PendingReservation, unreserved};
use crate::store::{BudgetEnd, Lease, Reservation, ReservationOutcome, Settlement, Store, with_timeout};

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
    /// When the run's time began, without its waits.
    begun: DateTime<Utc>,
    spending: Mutex<OpenCalls>,
    /// Made ahead of the first call.
    early: Mutex<Option<EarlyReservation>>,
}

impl RunSpending {
    /// The budgets of a run under a lease.
    pub fn new(store: Store, lease: Lease, run: &Run, budgets: Budgets, notice: Option<BudgetNotice>) -> RunSpending {
        RunSpending {
            begun: store.clock().now(),
            store,
            lease,
            tenant: run.tenant_id.clone(),
            task_id: run.task_id,
            budgets,
            notice: notice.map(Arc::new),
            spending: Mutex::default(),
            early: Mutex::default(),
        }
    }

    /// As it is, for a run whose time began then, without its waits.
    pub fn since(self, begun: DateTime<Utc>) -> RunSpending {
        RunSpending { begun, ..self }
    }

    /// Begins to reserve for a run that has said nothing yet, if it is known what its first call may come to.
    pub fn reserve_early(&self) {
        let of_days = self.task_id.filter(|_| self.budgets.has_days());
        let Some(most) = of_days.and_then(|task_id| self.store.first_call_of(task_id)) else { return };
        let call = OpenCall { id: new_id(self.now()), turn: None, most, reservation: None };
        let begin = || EarlyReservation::begin(self.store.clone(), self.ahead(call, 0));
        self.early.lock().expect("early lock").get_or_insert_with(begin);
    }

    /// Waits for what was reserved early, if nobody has: calls take from it, and its rest ends with the execution.
    pub async fn await_early(&self) -> Result<(), RunError> {
        let Some(early) = self.early.lock().expect("early lock").take() else { return Ok(()) };
        let Reservation { id, day, most, .. } = early.reservation;
        let pending = PendingReservation::new(&self.spending, id);
        let is_reserved = early.answer().await.map_err(unreserved)?;
        pending.answered();
        let mut spending = self.spending();
        match is_reserved {
            true => spending.held.keep(id, day, most),
            false => spending.scarce_day = Some(day),
        }
        Ok(())
    }

    fn spending(&self) -> MutexGuard<'_, OpenCalls> {
        self.spending.lock().expect("spending lock")
    }

    /// Tells the owner once that most of the run's own budget is used. Best effort.
    pub async fn warn(&self, used: Usage) {
        let took = (self.now() - self.begun).to_std().unwrap_or_default();
        let Some(quantity) = self.budgets.run.nearly_used(used, took) else { return };
        if std::mem::replace(&mut self.spending().is_warned, true) {
            return;
        }
        let told = self.notice.as_ref().and_then(|notice| notice.run_delivery(self.lease.run_id, quantity));
        let Some(told) = told else { return };
        if let Err(error) = with_timeout(self.store.post_delivery(&told)).await {
            tracing::warn!(%error, "the owner could not be told that most of a run's budget is used");
        }
    }

    /// Reserves what a call may come to at worst. `used`: the run's usage so far; `from`: the number of the first entry
    /// that may say what it came to.
    pub async fn reserve(&self, used: Usage, turn: i64, bound: CallBound, from: i64) -> Result<(), RunError> {
        self.refuse_unpriced(&bound)?;
        let call = self.open(used, turn, bound.most)?;
        let reserved = match self.budgets.has_days() {
            true => self.reserve_days(call, from).await,
            false => Ok(()),
        };
        if reserved.is_err() {
            self.spending().forget(&call);
        }
        reserved
    }

    /// Notes the call behind these entries, which are stored with its reservation, if the run's own budget has as much
    /// left then. `used`: the run's usage without them.
    pub fn open_behind(
        &self,
        entries: &[TranscriptEntry],
        mut used: Usage,
        turn: i64,
        bound: &CallBound,
    ) -> Option<NextCall> {
        self.refuse_unpriced(bound).ok()?;
        entries.iter().for_each(|entry| used += entry.usage);
        let from = entries.last().map_or(0, |last| last.seq + 1);
        let (now, day) = (self.now(), day_of(self.now()));
        let mut spending = self.spending();
        let recorded = spending.recorded_by(entries);
        self.budgets.run.admit(used, &spending.under_way(&recorded), bound.most).ok()?;
        let mut call = OpenCall { id: new_id(now), turn: Some(turn), most: bound.most, reservation: None };
        let mut reservation = None;
        if self.budgets.has_days() {
            call.reservation = spending.held.take(call.most, day, &turns(&recorded));
            if call.reservation.is_none() {
                spending.held.retire();
                reservation = Some(match spending.scarce_day == Some(day) {
                    true => self.alone(call),
                    false => self.ahead(call, from),
                });
            }
        }
        spending.calls.push(call);
        Some(NextCall { call, reservation })
    }

    /// Notes whether the reservation of this call was made; where nobody knows, it is taken back.
    pub fn note_reserved(&self, next: &NextCall, is_reserved: Option<bool>) {
        let mut spending = self.spending();
        let is_made = next.reservation.is_none() || is_reserved == Some(true);
        match (&next.reservation, is_reserved) {
            (Some(made), Some(true)) => {
                spending.held.hold(made.id, made.day, made.most, next.call.most);
                spending.note_reservation(next.call.id, made.id);
            }
            (Some(unconfirmed), None) => spending.unconfirmed.push(unconfirmed.id),
            // the answer is about all that was asked with it
            (Some(_), Some(false)) | (None, _) => {}
        }
        if !is_made || is_reserved.is_none() {
            spending.forget(&next.call);
        }
    }

    /// Reserves what a summary may come to, if the run has it left beside another turn, and the ledgers have it left
    /// now. Nobody is told that it is not.
    pub async fn reserve_summary(&self, used: Usage, cost: &SummaryCost) -> bool {
        let mut call = OpenCall { id: new_id(self.now()), turn: None, most: cost.bound.most, reservation: None };
        call.reservation = self.budgets.has_days().then_some(call.id);
        if self.refuse_unpriced(&cost.bound).is_err() || !self.note_beside_a_turn(used, call, cost.turn) {
            return false;
        }
        let is_reserved = match self.budgets.has_days() {
            // in the half that leaves the other one to turns
            true => {
                let reservation = Reservation { within_half: true, ..self.alone(call) };
                self.try_reserve(&reservation).await.unwrap_or(false)
            }
            false => true,
        };
        if !is_reserved {
            self.spending().forget(&call);
        }
        is_reserved
    }

    /// Notes a call, if the run's own budget has as much left and as much as a turn may come to.
    fn note_beside_a_turn(&self, used: Usage, call: OpenCall, turn: Spend) -> bool {
        let mut spending = self.spending();
        let mut open = spending.under_way(&[]);
        open.push(turn);
        let is_left = self.budgets.run.admit(used, &open, call.most).is_ok();
        if is_left {
            spending.calls.push(call);
        }
        is_left
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
        let mut spending = self.spending();
        spending.forget_turn(turn);
        self.budgets.run.admit(used, &spending.under_way(&[]), most).map_err(|refusal| {
            self.store.count_budget_refusal(refusal);
            RunError::Fail { fault: refusal.fault() }
        })?;
        let call = OpenCall { id: new_id(self.now()), turn: Some(turn), most, reservation: None };
        spending.calls.push(call);
        Ok(call)
    }

    /// Takes the call from what is reserved, or reserves in the ledgers of the day: for several calls while much is
    /// left there, else for this one, as soon as others have not reserved what may be left.
    async fn reserve_days(&self, call: OpenCall, from: i64) -> Result<(), RunError> {
        self.await_early().await?;
        if let Some(task_id) = self.task_id.filter(|_| from == 0) {
            self.store.note_first_call(task_id, call.most);
        }
        let day = day_of(self.now());
        let is_scarce = {
            let mut spending = self.spending();
            if let Some(reservation) = spending.held.take(call.most, day, &[]) {
                spending.note_reservation(call.id, reservation);
                return Ok(());
            }
            spending.held.retire();
            spending.scarce_day == Some(day)
        };
        self.settle_ended().await?;
        if !is_scarce {
            let ahead = self.ahead(call, from);
            if self.try_reserve(&ahead).await? {
                self.hold(&ahead, call);
                return Ok(());
            }
            self.spending().scarce_day = Some(day);
        }
        for tries in 1.. {
            let alone = self.alone(call);
            let pending = PendingReservation::new(&self.spending, alone.id);
            let reserved = with_timeout(self.store.reserve_budget(&alone)).await.map_err(unreserved)?;
            pending.answered();
            match reserved {
                ReservationOutcome::Granted => {
                    self.hold(&alone, call);
                    return Ok(());
                }
                ReservationOutcome::Refused(refusal) => return Err(RunError::Fail { fault: refusal.fault() }),
                ReservationOutcome::NotNow => {
                    let wait = full_jitter(FIRST_WAIT, tries, LONGEST_WAIT, fastrand::f64()).max(FIRST_WAIT);
                    pause(wait).await;
                    self.settle_ended().await?;
                }
            }
        }
        unreachable!("it is tried until it is decided")
    }

    /// Whether this is reserved: nobody is waited for.
    async fn try_reserve(&self, reservation: &Reservation) -> Result<bool, RunError> {
        let pending = PendingReservation::new(&self.spending, reservation.id);
        let reserved = with_timeout(self.store.reserve_budget_if_left(reservation)).await.map_err(unreserved)?;
        pending.answered();
        Ok(reserved)
    }

    /// Settles reservations of which nothing is left, whose calls are on the record, and takes those back of which
    /// nobody knows.
    async fn settle_ended(&self) -> Result<(), RunError> {
        let (ended, unconfirmed) = {
            let spending = self.spending();
            (spending.held.ended(&[]), spending.unconfirmed.clone())
        };
        let ids: Vec<Uuid> = ended.iter().map(|(id, _)| *id).collect();
        let unmade = unconfirmed.into_iter().map(|id| (id, Spend::default()));
        let settlements: Vec<Settlement> = ended.into_iter().chain(unmade).map(|one| self.settlement(one)).collect();
        if !settlements.is_empty() {
            with_timeout(self.store.settle_budget(&self.tenant, &settlements)).await.map_err(unreserved)?;
            self.spending().held.stored(&[], &ids);
        }
        Ok(())
    }

    fn hold(&self, made: &Reservation, call: OpenCall) {
        let mut spending = self.spending();
        spending.held.hold(made.id, made.day, made.most, call.most);
        spending.note_reservation(call.id, made.id);
    }

    /// The reservation of a call in the ledgers of today. It is settled with the entry that tells what the call has
    /// come to.
    fn alone(&self, call: OpenCall) -> Reservation {
        Reservation {
            id: call.reservation.unwrap_or_else(|| new_id(self.now())),
            lease: self.lease,
            tenant: self.tenant.clone(),
            task_id: self.task_id,
            day: day_of(self.now()),
            most: call.most,
            from: i64::MAX,
            within_half: false,
            tenant_limits: self.budgets.tenant.limits(),
            task_limits: self.budgets.task.limits(),
            notice: self.notice.clone(),
        }
    }

    /// The reservation of several calls like this one.
    fn ahead(&self, call: OpenCall, from: i64) -> Reservation {
        let Spend { tokens, cost_micros } = call.most;
        let most = Spend { tokens: AHEAD * tokens, cost_micros: AHEAD * cost_micros };
        Reservation { most, from, within_half: true, ..self.alone(call) }
    }

    /// Settlements that go with these entries: of reservations of which nothing is left, and of summaries.
    pub fn settlements(&self, entries: &[TranscriptEntry]) -> Vec<Settlement> {
        if !self.budgets.has_days() {
            return Vec::new();
        }
        let spending = self.spending();
        let recorded = spending.recorded_by(entries);
        let ended = spending.held.ended(&turns(&recorded));
        let unmade = spending.unconfirmed.iter().map(|id| (*id, Spend::default()));
        ended.into_iter().chain(summaries(&recorded)).chain(unmade).map(|settled| self.settlement(settled)).collect()
    }

    fn settlement(&self, (id, spent): SettledReservation) -> Settlement {
        Settlement { id, spent, notice: self.notice.clone() }
    }

    /// Notes that these entries are on the record, and what was settled with them.
    pub fn stored(&self, entries: &[TranscriptEntry], settled: &[Uuid]) {
        let mut spending = self.spending();
        let recorded = spending.recorded_by(entries);
        spending.held.stored(&turns(&recorded), settled);
        spending.calls.retain(|open| !recorded.iter().any(|(call, _)| call.id == open.id));
    }

    /// Reservations that end with the execution; these entries come with its end. A summary that is under way is
    /// charged the worst: its model may have been paid.
    pub fn end(&self, entries: &[TranscriptEntry]) -> Option<BudgetEnd> {
        if !self.budgets.has_days() {
            return None;
        }
        let spending = self.spending();
        let recorded = spending.recorded_by(entries);
        let is_recorded = |call: &OpenCall| recorded.iter().any(|(other, _)| other.id == call.id);
        let under_way = spending.calls.iter().filter(|call| call.turn.is_none() && !is_recorded(call));
        let under_way = under_way.filter_map(|call| Some((call.reservation?, call.most)));
        let settled = spending.held.all(&turns(&recorded)).into_iter().chain(summaries(&recorded)).chain(under_way);
        Some(BudgetEnd { settlements: settled.map(|settled| self.settlement(settled)).collect() })
    }

    /// Forgets the call of a turn that was not paid for.
    pub fn forget_turn(&self, turn: i64) {
        self.spending().forget_turn(turn);
    }

    /// Charges a turn that was cut off, and that no entry tells of.
    pub fn charge_cut_call(&self, turn: i64, usage: Usage) {
        self.spending().charge_cut_call(turn, Spend::of(usage));
    }

    fn now(&self) -> DateTime<Utc> {
        self.store.clock().now()
    }
}
