//! The transcript of one run, as its executor sees it: read and appended to under the run's lease, and with what may
//! wait for the record of its end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::agent::{AgentStore, AppendError, SummaryCost};
use crate::domain::approval::{Approval, ApprovalOverride, ApprovedCallStart, CallOutcome, GrantAsk};
use crate::domain::budget::CallBound;
use crate::domain::conversation::{REMEMBERED, history};
use crate::domain::run::{Run, RunError, TranscriptEntry, TranscriptMessage, Usage};
use crate::executor::run_spending::RunSpending;
use crate::store::{BudgetEnd, GrantUse, Lease, Reservation, Store, StoreError, with_timeout};

/// Entries of a transcript that are read at once.
const PAGE: i64 = 500;

/// The transcript of a run that is executed here. Every append is fenced by the lease.
pub struct LeasedTranscript {
    store: Store,
    lease: Lease,
    /// The run's task and tenant.
    owner: (Option<Uuid>, String),
    /// That of the record until the transcript is read: an end before that keeps what the run has used.
    usage: Mutex<Usage>,
    /// Whether the database is known to have no entry.
    is_empty: AtomicBool,
    /// The number of the first entry that is not stored.
    next: AtomicI64,
    /// Appends that were not answered: they may still take effect.
    unanswered: AtomicUsize,
    /// Entries that the next append brings along, or the end.
    deferred: Mutex<Vec<TranscriptEntry>>,
    /// `None`: no budget holds.
    spending: Option<RunSpending>,
    /// Facts may be extracted from it.
    may_extract: AtomicBool,
}

impl LeasedTranscript {
    /// The transcript of this run, as long as the lease stands. `is_empty`: the run has never been started before, so
    /// that there is nothing to read.
    pub fn new(store: Store, lease: Lease, run: &Run, is_empty: bool) -> LeasedTranscript {
        let owner = (run.task_id, run.tenant_id.clone());
        let is_empty = AtomicBool::new(is_empty);
        LeasedTranscript {
            store,
            lease,
            owner,
            usage: Mutex::new(run.usage),
            is_empty,
            next: AtomicI64::new(0),
            unanswered: AtomicUsize::new(0),
            deferred: Mutex::default(),
            spending: None,
            may_extract: AtomicBool::new(false),
        }
    }

    /// As it is, under budgets.
    pub fn spending(self, spending: Option<RunSpending>) -> LeasedTranscript {
        LeasedTranscript { spending, ..self }
    }

    /// Usage of all entries that were read or written here, or wait; before the transcript is read, also that of the
    /// run's record.
    pub fn usage(&self) -> Usage {
        let mut usage = *self.usage.lock().expect("usage lock");
        self.deferred.lock().expect("entries lock").iter().for_each(|entry| usage += entry.usage);
        usage
    }

    /// Whether facts may be extracted from the run.
    pub fn may_extract(&self) -> bool {
        self.may_extract.load(Ordering::Relaxed)
    }

    /// Whether each append was answered, so that nothing is written to the transcript any more. One whose caller went
    /// away was not, nor was one that failed because the store was away: it may take effect later.
    pub fn is_settled(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// As [`LeasedTranscript::take_deferred`], once it is known of each reservation whether it was made.
    pub async fn end(&self) -> (Vec<TranscriptEntry>, Option<BudgetEnd>) {
        if let Some(spending) = &self.spending {
            // one of which nobody knows is taken back with the end, or by whoever comes to the limit
            let _ = spending.await_early().await;
        }
        self.take_deferred()
    }

    /// Takes the entries that still wait, to be stored with the end, and the reservations in budgets that end with it.
    pub fn take_deferred(&self) -> (Vec<TranscriptEntry>, Option<BudgetEnd>) {
        let entries = std::mem::take(&mut *self.deferred.lock().expect("entries lock"));
        let budget = self.spending.as_ref().and_then(|spending| spending.end(&entries));
        (entries, budget)
    }

    /// Notes that these entries are stored.
    fn stored(&self, entries: &[TranscriptEntry], settled: &[Uuid]) {
        let Some(last) = entries.last().map(|entry| entry.seq) else { return };
        self.next.fetch_max(last + 1, Ordering::Relaxed);
        // before they are counted: else they would count twice for a moment
        self.deferred.lock().expect("entries lock").retain(|entry| entry.seq > last);
        self.count(entries);
        // after they are counted: a call counts twice for a moment, rather than not at all
        if let Some(spending) = &self.spending {
            spending.stored(entries, settled);
        }
    }

    /// Whether the call that comes along is reserved.
    async fn write(
        &self,
        entries: Vec<TranscriptEntry>,
        reservation: Option<Reservation>,
    ) -> Result<bool, AppendError> {
        // before it is stored: it may take effect without an answer
        self.is_empty.store(false, Ordering::Relaxed);
        let settlements = self.spending.as_ref().map_or(Vec::new(), |spending| spending.settlements(&entries));
        let settled: Vec<Uuid> = settlements.iter().map(|settlement| settlement.id).collect();
        let append = self.store.append_budgeted(&self.owner.1, self.lease, &entries, settlements, reservation);
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        let written = with_timeout(append).await;
        if !matches!(written, Err(StoreError::Unavailable(_))) {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        let is_reserved = written.map_err(refused)?;
        self.stored(&entries, &settled);
        Ok(is_reserved)
    }

    fn count(&self, entries: &[TranscriptEntry]) {
        let mut usage = self.usage.lock().expect("usage lock");
        entries.iter().for_each(|entry| *usage += entry.usage);
    }
}

impl AgentStore for LeasedTranscript {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        Box::pin(async {
            let mut entries: Vec<TranscriptEntry> = Vec::new();
            if let Some(spending) = self.spending.as_ref().filter(|_| self.is_empty.load(Ordering::Relaxed)) {
                spending.reserve_early();
            }
            while !self.is_empty.load(Ordering::Relaxed) {
                let from = entries.last().map_or(0, |last| last.seq + 1);
                let (tenant, run_id) = (&self.owner.1, self.lease.run_id);
                let page = self.store.checkpoint(tenant, run_id, from, PAGE).await.map_err(refused)?;
                let last_page = (page.len() as i64) < PAGE;
                entries.extend(page);
                if last_page {
                    break;
                }
            }
            self.next.store(entries.last().map_or(0, |last| last.seq + 1), Ordering::Relaxed);
            *self.usage.lock().expect("usage lock") = Usage::default();
            self.count(&entries);
            Ok(entries)
        })
    }

    fn earlier(&self) -> BoxFuture<'_, Result<Vec<TranscriptMessage>, AppendError>> {
        Box::pin(async move {
            let (Some(task_id), tenant) = &self.owner else { return Ok(Vec::new()) };
            let earlier = self.store.earlier_runs(tenant, *task_id, self.lease.run_id, REMEMBERED);
            Ok(history(&with_timeout(earlier).await.map_err(refused)?))
        })
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move { self.write(entries, None).await.map(|_| ()) })
    }

    fn append_and_reserve(
        &self,
        entries: Vec<TranscriptEntry>,
        turn: i64,
        bound: CallBound,
    ) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(async move {
            let Some(spending) = &self.spending else { return self.write(entries, None).await };
            let Some(next) = spending.open_behind(&entries, self.usage(), turn, &bound) else {
                return self.write(entries, None).await;
            };
            let written = self.write(entries, next.reservation.clone()).await;
            spending.note_reserved(&next, written.as_ref().ok().copied());
            spending.warn(self.usage()).await;
            Ok(written? || next.reservation.is_none())
        })
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.deferred.lock().expect("entries lock").extend(entries);
    }

    fn allow_extraction(&self) {
        self.may_extract.store(true, Ordering::Relaxed);
    }

    fn is_budgeted(&self) -> bool {
        self.spending.is_some()
    }

    fn reserve(&self, turn: i64, bound: CallBound) -> BoxFuture<'_, Result<(), RunError>> {
        Box::pin(async move {
            match &self.spending {
                Some(spending) => {
                    spending.warn(self.usage()).await;
                    spending.reserve(self.usage(), turn, bound, self.next.load(Ordering::Relaxed)).await
                }
                None => Ok(()),
            }
        })
    }

    fn note_unmade(&self, turn: i64) {
        if let Some(spending) = &self.spending {
            spending.forget_turn(turn);
        }
    }

    fn note_cut(&self, turn: i64, usage: Usage) {
        if let Some(spending) = &self.spending {
            spending.charge_cut_call(turn, usage);
        }
    }

    fn reserve_summary(&self, cost: SummaryCost) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let (tenant, most) = (&self.owner.1, cost.bound.most.cost_micros);
            let taken = with_timeout(self.store.take_summary_money(tenant, most, cost.hourly_micros)).await;
            if !taken.unwrap_or(false) {
                return false;
            }
            let is_reserved = match &self.spending {
                Some(spending) => spending.reserve_summary(self.usage(), &cost).await,
                None => true,
            };
            if !is_reserved {
                self.give_summary_back(most).await;
            }
            is_reserved
        })
    }

    fn give_summary_back(&self, micros: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = with_timeout(self.store.give_summary_money_back(&self.owner.1, micros)).await {
                tracing::warn!(%error, "money for summaries could not be given back");
            }
        })
    }

    fn approvals(&self, turn: i64) -> BoxFuture<'_, Result<Vec<Approval>, AppendError>> {
        Box::pin(
            async move { with_timeout(self.store.approvals_of_turn(self.lease.run_id, turn)).await.map_err(refused) },
        )
    }

    fn may_suspend(&self) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(async move { with_timeout(self.store.may_suspend(&self.owner.1)).await.map_err(refused) })
    }

    fn begin<'a>(&'a self, approval: Uuid, digest: &'a str) -> BoxFuture<'a, Result<ApprovedCallStart, AppendError>> {
        Box::pin(async move {
            with_timeout(self.store.mark_execution_started(self.lease, approval, digest)).await.map_err(refused)
        })
    }

    fn overrides<'a>(
        &'a self,
        agent: Option<&'a str>,
        tools: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<ApprovalOverride>, AppendError>> {
        Box::pin(async move {
            let (task_id, tenant) = &self.owner;
            with_timeout(self.store.approval_overrides_of_calls(tenant, agent, *task_id, tools)).await.map_err(refused)
        })
    }

    fn use_grant<'a>(&'a self, call: GrantAsk<'a>) -> BoxFuture<'a, Result<Option<Uuid>, AppendError>> {
        Box::pin(async move {
            let (Some(task_id), tenant) = &self.owner else { return Ok(None) };
            let GrantAsk { turn, call_id, tool, definition, arguments } = call;
            let (run_id, task_id) = (self.lease.run_id, *task_id);
            let wanted = GrantUse { tenant, task_id, run_id, turn, call_id, tool, definition, arguments };
            with_timeout(self.store.use_grant(&wanted)).await.map_err(refused)
        })
    }

    fn note_outcome(&self, approval: Uuid, outcome: CallOutcome) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = with_timeout(self.store.note_outcome(approval, &outcome)).await {
                tracing::warn!(%error, "what came of an approved call could not be noted");
            }
        })
    }
}

fn refused(error: StoreError) -> AppendError {
    match error {
        StoreError::LeaseLost => AppendError::LeaseLost,
        StoreError::Unavailable(why) | StoreError::TimedOut(why) => {
            tracing::warn!(why, "a transcript could not be read or written");
            AppendError::Unavailable
        }
        StoreError::UnknownFormat { found, newest } => AppendError::UnknownFormat { found, newest },
        other => {
            tracing::error!(error = %other, "a transcript can't be read or written");
            AppendError::Corrupt
        }
    }
}
