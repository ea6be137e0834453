//! The lease of a run, and the data that is passed under it: claims, renewals, ends and started runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::approval::{Approval, OpenQuestion};
use crate::domain::notification::{NewDelivery, RunNotification};
use crate::domain::run::{Run, RunFault, RunFinish, RunState, TranscriptEntry, Usage};
use crate::domain::task::Task;
use crate::store::BudgetEnd;
use crate::store::db::text::StoredJson;
use crate::store::runs::shares::TenantShares;

/// Time after its instant at which a claim that was made ahead and not started is given up.
pub const CLAIM_MARGIN: TimeDelta = TimeDelta::seconds(5);

/// Tenants that get their share at once, at most; the others have their turn next.
const TENANTS_AT_ONCE: i64 = 256;
/// Tenants that are looked at for their share by a take with room for few runs.
const FEWEST_TENANTS: i64 = 32;

/// The running time that a run without a task may take.
const CHAT_LIMIT: Duration = Duration::from_secs(600);

/// The running time that a run of this task may take, all executions together.
pub(in crate::store) fn time_limit(task: Option<&Task>) -> Duration {
    task.map_or(CHAT_LIMIT, |task| Duration::from_secs(task.spec.timeout_seconds))
}

/// The right to write for a run, until someone else is given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, sqlx_macros::FromRow)]
pub struct Lease {
    /// The run under the lease.
    pub run_id: Uuid,
    /// Token that fences every write; it is never given twice.
    #[sqlx(rename = "lease_token")]
    pub token: i64,
}

/// A run that is leased and waits for its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClaim {
    /// The lease of the claim.
    pub lease: Lease,
    /// The instant at which the run starts.
    pub run_at: DateTime<Utc>,
    /// The instant until which the claim holds.
    pub until: DateTime<Utc>,
    /// Hash of its tenant: see [`tenant_hash()`](crate::store::tenant_hash()).
    pub tenant_hash: u32,
}

/// A lease that was renewed, and whether the end of its run was asked for.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct RenewedLease {
    /// The run under the lease.
    pub run_id: Uuid,
    /// The reason for which it is to stop, if it is.
    pub cancel_reason: Option<String>,
}

/// How an execution ended, as it is to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The lease under which the run was executed.
    pub lease: Lease,
    /// The run's task; `None` for a chat run.
    pub task_id: Option<Uuid>,
    /// The attempt that ended, by which an end that a lost answer hid is known again; 0: unknown.
    pub attempt: i32,
    /// Decided by `RunState::on`.
    pub state: RunState,
    /// The word for the reason, where there is one.
    pub reason: Option<String>,
    /// The answer of the run.
    pub output: Option<String>,
    /// How an agent came to the answer.
    pub finish: Option<RunFinish>,
    /// The error of the run.
    pub error: Option<RunFault>,
    /// The run's whole usage, all attempts together.
    pub usage: Usage,
    /// How long this execution took, in milliseconds.
    pub execution_ms: i64,
    /// Back to the queue instead of an end.
    pub again: Option<RequeuedRun>,
    /// Entries of its transcript that waited for the end.
    pub entries: Vec<TranscriptEntry>,
    /// Whether each append to its transcript was answered, so that none can be written any more.
    pub is_transcript_settled: bool,
    /// Reservations in budgets of a day that are done with it; `None`: none of them pays for the run.
    pub budget: Option<BudgetEnd>,
    /// Messages that go out because of it.
    pub deliveries: Vec<NewDelivery>,
    /// The notification of its end, as far as the alert state of its task lets it through.
    pub tells: Option<RunNotification>,
    /// The process that executed it died; it is counted with the end.
    pub crashed: bool,
    /// It goes back because a part of the infrastructure was away; it is counted with the end.
    pub infra_retry: bool,
    /// It waits instead of ending.
    pub park: Option<Park>,
    /// While it waits it counts as running: its task's slot stays with it.
    pub overlap_counts_waiting: bool,
    /// Facts are to be noted from it.
    pub extracts: bool,
    /// Its task is a conversation, which counts as used at the end.
    pub in_conversation: bool,
}

impl Finish {
    /// An end of which nothing else is known.
    pub fn of(lease: Lease, task_id: Option<Uuid>, state: RunState) -> Finish {
        Finish {
            lease,
            task_id,
            attempt: 0,
            state,
            reason: None,
            output: None,
            finish: None,
            error: None,
            usage: Usage::default(),
            execution_ms: 0,
            again: None,
            entries: Vec::new(),
            is_transcript_settled: false,
            budget: None,
            deliveries: Vec::new(),
            tells: None,
            crashed: false,
            infra_retry: false,
            park: None,
            overlap_counts_waiting: false,
            extracts: false,
            in_conversation: false,
        }
    }

    /// When it ended, if it did.
    pub(in crate::store) fn finished_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        (self.again.is_none() && self.park.is_none()).then_some(now)
    }

    /// Whether the slot stays with it, unless its end was asked for.
    pub(in crate::store) fn keeps_slot(&self) -> bool {
        self.park.is_some() && self.overlap_counts_waiting
    }

    /// Whether nothing follows from it, as far as that is known before it is written, but its record, its entries, and
    /// usage and budgets that the statement which writes them can count: nobody counts on behind it, and no append is
    /// written meanwhile.
    pub(in crate::store) fn stands_alone(&self) -> bool {
        let is_counted_at_once = self.usage == Usage::default() || (self.is_transcript_settled && self.again.is_none());
        let is_told = self.tells.is_some() || !self.deliveries.is_empty();
        // an append that was not answered may bring a reservation, which the statement would not see
        let is_settled_at_once = self.budget.is_none() || self.is_transcript_settled;
        let has_more = self.park.is_some() || self.extracts || self.in_conversation;
        is_counted_at_once && is_settled_at_once && !is_told && !has_more
    }

    /// How many attempts are given back.
    pub(in crate::store) fn attempts_back(&self) -> i32 {
        i32::from(self.again.is_some_and(|again| !again.uses_attempt))
    }
}

/// The reason for which a run is parked.
#[derive(Debug, Clone, PartialEq)]
pub enum Park {
    /// A foreign runtime, at the latest until then.
    Completion {
        /// The instant at which the wait expires.
        until: DateTime<Utc>,
    },
    /// People; it is looked at then.
    Approval {
        /// The instant of the next look at the questions.
        wake_at: DateTime<Utc>,
        /// Questions that are to be put, with those that they replace.
        asks: Vec<(Approval, Option<Uuid>)>,
        /// Questions that were open, or whose call was held, when the loop stopped: one that is not any more means that
        /// the run goes on at once.
        open: Vec<OpenQuestion>,
    },
}

impl Park {
    pub(in crate::store) fn reason(&self) -> &'static str {
        match self {
            Park::Completion { .. } => "completion",
            Park::Approval { .. } => "approval",
        }
    }

    /// The turns whose questions it waits for; `None`: it waits for none.
    pub(in crate::store) fn turns(&self) -> Option<Vec<i64>> {
        let Park::Approval { asks, open, .. } = self else { return None };
        let turns = asks.iter().map(|(ask, _)| ask.turn).chain(open.iter().map(|question| question.turn));
        let turns: BTreeSet<i64> = turns.collect();
        (!turns.is_empty()).then(|| turns.into_iter().collect())
    }

    pub(in crate::store) fn wake_at(&self) -> DateTime<Utc> {
        match self {
            Park::Completion { until } => *until,
            Park::Approval { wake_at, .. } => *wake_at,
        }
    }
}

/// A run that goes back to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequeuedRun {
    /// The instant from which it is ready.
    pub run_at: DateTime<Utc>,
    /// A hand-back is no attempt.
    pub uses_attempt: bool,
}

/// A request to take ready runs.
#[derive(Debug, Clone)]
pub struct TakeRequest {
    /// The instance that takes them.
    pub worker: Uuid,
    /// The present.
    pub now: DateTime<Utc>,
    /// Runs that are due later, and until then, are leased ahead.
    pub ahead: DateTime<Utc>,
    /// End of the leases of runs that start.
    pub lease_until: DateTime<Utc>,
    /// Runs at most.
    pub limit: i64,
    /// In turn: as many of each tenant that is not halted. For when there is more than can be taken, or any is halted;
    /// else the most urgent are taken.
    pub fair: Option<ClaimCursor>,
    /// How many may be under way at once. Kept by takes in turn alone: where there are any, `fair` is there.
    pub limits: RunLimits,
    /// Rest of this instance's slots for each tenant; `None`: whatever there is. Kept by takes in turn alone: one of
    /// the most urgent must have no higher limit than what is left to everybody.
    pub shares: Option<TenantShares>,
}

impl TakeRequest {
    /// Tenants that get their share by a take in turn, at most. Each costs a look into the index, and there is no share
    /// for more of them than there is room for runs; some may have nothing that is due, or only what others take just
    /// now.
    pub(in crate::store) fn tenants_at_once(&self) -> i64 {
        self.limit.saturating_mul(2).clamp(FEWEST_TENANTS, TENANTS_AT_ONCE)
    }
}

/// The turn of the tenants whose names follow this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimCursor(pub(in crate::store) String);

impl ClaimCursor {
    /// The next turn: that of the tenants after the last that was served. Where that was the last that had its turn,
    /// those who follow it if there may be `more`, and else the first.
    pub(in crate::store) fn after(served: Option<String>, last: &str, more: bool) -> ClaimCursor {
        match served {
            Some(served) if served != last => ClaimCursor(served),
            _ if more => ClaimCursor(last.to_owned()),
            _ => ClaimCursor::default(),
        }
    }
}

/// Outcome of the overlap rule for a run whose task has another one running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlapOutcome {
    /// Recorded as skipped.
    Skipped,
    /// Waits for the slot.
    Behind,
    /// Someone cancelled it meanwhile.
    Cancelled,
    /// The slot is free by now, or was taken from a run that waited: claim it again.
    Again,
}

/// Runs under way at most; `None`: as many as the instances execute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// Of one tenant.
    pub per_tenant: Option<i64>,
    /// Of all tenants together.
    pub total: Option<i64>,
    /// Some tenants have a number of their own, in the place of `per_tenant`.
    pub own: bool,
}

impl RunLimits {
    /// As settings have it: 0 is no limit.
    pub fn new(per_tenant: u32, total: u32) -> RunLimits {
        let limit = |most: u32| (most > 0).then_some(i64::from(most));
        RunLimits { per_tenant: limit(per_tenant), total: limit(total), own: false }
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.per_tenant.is_some() || self.total.is_some() || self.own
    }
}

/// A run that has started, and until when it may run.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub(in crate::store) struct StartedRow {
    #[sqlx(flatten)]
    pub lease: Lease,
    pub task_id: Option<Uuid>,
    pub tenant_id: String,
    pub deadline_at: DateTime<Utc>,
    /// Whether it has never been started before.
    pub is_first: bool,
    /// Version of its task, where that was looked at.
    #[sqlx(default)]
    pub task_version: Option<i64>,
    /// Its record, where the statement that started it knew it or answered it along.
    #[sqlx(skip)]
    pub run: Option<Run>,
    /// The cause of its fire, where `run` is without it: it is read once the start is committed.
    #[sqlx(skip)]
    pub cause: Option<StoredJson>,
    /// Its task, where that was known before it started.
    #[sqlx(skip)]
    pub task: Option<Arc<Task>>,
}

/// Runs that one statement started, and what it answered beside them.
#[derive(Debug, Default)]
pub(in crate::store) struct StartedRows {
    pub rows: Vec<StartedRow>,
    /// Recipients of their tenants, as they are stored; `None` where they are still to be read.
    pub recipients: Option<Vec<(String, String)>>,
    /// Runs that were to be leased or started and whose rows can't be read, each with the reason: they are set aside.
    /// None on Postgres, whose columns have types.
    pub unreadable: Vec<(Uuid, String)>,
}

/// Result of taking ready runs.
#[derive(Debug, Default)]
pub(in crate::store) struct TakenRuns {
    pub started: StartedRows,
    /// Due, and leased, but not to be started as it is.
    pub stopped: Vec<Lease>,
    /// Due later.
    pub claims: Vec<RunClaim>,
    pub turn: ClaimCursor,
}

impl TakenRuns {
    /// Counts in a run that is leased now. `deadline_at` is there if it has started.
    pub(in crate::store) fn add(&mut self, claim: RunClaim, started: Option<StartedRow>, now: DateTime<Utc>) {
        match started {
            Some(started) => self.started.rows.push(started),
            None if claim.run_at <= now => self.stopped.push(claim.lease),
            None => self.claims.push(claim),
        }
    }
}

/// A run whose end was written.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub(in crate::store) struct FinishedRow {
    #[sqlx(flatten)]
    pub lease: Lease,
    /// Its end was asked for before.
    pub cancel_reason: Option<String>,
    /// People are asked something about it still.
    pub has_questions: bool,
    /// Whether runs of its task may wait for the task's slot.
    pub is_waited_for: bool,
}
