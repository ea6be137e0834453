//! Looking after runs that wait for people: overdue ones expire, settled ones go on, the rest waits.
//!
//! The same locks as an answer takes, and the same time: the database's, asked after the locks.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::actor::SERVICE;
use crate::domain::approval::{Approval, ApprovalStatus, OnExpiry};
use crate::domain::notification::NewDelivery;
use crate::domain::run::{RunEvent, RunState};
use crate::store::approvals::decide::{LOCK_PARKED, LOCK_RUN};
use crate::store::approvals::row::SELECT_APPROVAL;
use crate::store::approvals::suspended::resume_overdue;
use crate::store::approvals::{WaitingOutcome, WaitingRun, WaitingUpdate, unpark};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::runs::due_parked::WaitTarget;
use crate::store::runs::slots::{free, hand_over};
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError, Topic};

/// Why a run expired for which nobody answered.
const REASON_EXPIRED: &str = "approval_expired";
/// Why a run expired that nobody told what it lacked.
const REASON_NO_INPUT: &str = "input_expired";

/// The questions for which the run waits: those of the turns that it names, or of its newest one.
const LATEST: Split = Split {
    postgres: sql!(
        SELECT_APPROVAL.postgres,
        "where a.run_id = $1 and a.replaced_by is null
           and a.turn = any (
                   select cast(t.turn as bigint)
                     from jsonb_array_elements_text(coalesce(
                              (select p.turns from parked p where p.run_id = $1),
                              (select to_jsonb(array[max(l.turn)]) from approvals l where l.run_id = $1))) as t (turn))
         order by a.id"
    ),
    sqlite: sql!(
        SELECT_APPROVAL.sqlite,
        "where a.run_id = $1 and a.replaced_by is null
           and a.turn in (
                   select t.value
                     from json_each(coalesce(
                              (select p.turns from parked p where p.run_id = $1),
                              (select json_array(max(l.turn)) from approvals l where l.run_id = $1))) t)
         order by a.id"
    ),
};

/// The status is asked in words that fit no index: the indexes of open questions have everybody's.
const EXPIRE: &str = "
    update approvals set status = 'expired', decided_at = $2, decided_by = 'service', decided_via = 'service'
     where id = $1 and status || '' = 'pending' and expires_at <= $2";

/// The fate of a run whose questions stand like that.
#[derive(Debug, PartialEq)]
enum QuestionFate {
    GoesOn,
    Expires,
    /// Until an answer, or until then at the latest.
    Waits(Option<DateTime<Utc>>),
}

fn question_state(approvals: &[Approval], now: DateTime<Utc>) -> QuestionFate {
    let with = |status| approvals.iter().filter(move |approval| approval.status == status);
    let mut to_run =
        approvals.iter().filter(|approval| approval.status.allows() && approval.execution_started_at.is_none());
    let expires =
        |approval: &Approval| approval.proposal.on_expiry == OnExpiry::Expire && approval.proposal.source == "trigger";
    let open = with(ApprovalStatus::Pending).map(|approval| approval.expires_at).min();
    let held = to_run.clone().filter_map(|approval| approval.hold_until).filter(|until| now < *until).min();
    if to_run.any(|approval| approval.hold_until.is_none_or(|until| until <= now)) {
        QuestionFate::GoesOn
    } else if open.is_some() || held.is_some() {
        QuestionFate::Waits(open.into_iter().chain(held).min())
    } else if with(ApprovalStatus::Expired).next().is_some()
        && !approvals.iter().any(|approval| approval.status.allows() && !has_later_approval(approval, approvals))
        && approvals.iter().all(expires)
    {
        QuestionFate::Expires
    } else {
        QuestionFate::GoesOn
    }
}

/// Whether it supplied arguments of a call that was put up for approval afterwards.
fn has_later_approval(approval: &Approval, approvals: &[Approval]) -> bool {
    let is_the_call = |other: &&Approval| {
        !other.proposal.is_input() && (other.turn, &other.call_id) == (approval.turn, &approval.call_id)
    };
    approval.proposal.is_input() && approvals.iter().any(|other| is_the_call(&other))
}

fn expiry_reason(approvals: &[Approval]) -> &'static str {
    let mut expired = approvals.iter().filter(|approval| approval.status == ApprovalStatus::Expired);
    match expired.all(|approval| approval.proposal.is_input()) {
        true => REASON_NO_INPUT,
        false => REASON_EXPIRED,
    }
}

fn expired(approval: &Approval) -> AuditAction<'_> {
    AuditAction {
        tenant: &approval.tenant_id,
        actor: SERVICE,
        via: SERVICE,
        action: "approval.expired",
        subject_type: "approval",
        subject_id: approval.id,
        body: json!({
            "tool": approval.proposal.tool, "digest": approval.digest, "batch_id": approval.batch_id,
            "run_id": approval.run_id,
        }),
    }
}

impl Store {
    /// Runs that wait for people and want to be looked at, the longest due first, or tenants in turn where more than
    /// `limit` do. One that can't be read is set aside.
    pub async fn waiting_for_people(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<WaitingRun>, StoreError> {
        let ids = self.due_parked(WaitTarget::People, now, limit).await?;
        let mut runs = self.runs_by_id(&ids).await?;
        let task_ids: Vec<Uuid> = runs.values().filter_map(|run| run.task_id).collect();
        let tasks = self.tasks_by_id(&task_ids).await?;
        let mut waiting = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(run) = runs.remove(&id) else {
                self.set_aside_parked(id, &"its run can't be read").await?;
                continue;
            };
            let mut read = self.db.read().await?;
            let rows = read.query(LATEST).bind(id).rows().await?;
            let (approvals, others) = self.unreadable.partition_readable::<_, _, Uuid>("approvals", &rows, Ok);
            read.end().await?;
            if let Some(approval) = others.first() {
                self.set_aside_parked(id, &format!("its question {approval} can't be read")).await?;
                continue;
            }
            let task = run.task_id.and_then(|id| tasks.get(&id).cloned());
            waiting.push(WaitingRun { run, task, approvals });
        }
        Ok(waiting)
    }

    /// When the next one wants to be looked at.
    pub async fn next_waiting_at(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_waiting_at()).await
    }

    async fn read_next_waiting_at(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query("select wake_at from parked where reason || '' = 'approval' order by wake_at limit 1")
            .optional_scalar()
            .await?)
    }

    /// Settles what is overdue by the database's own time, and does what follows. One that waits on is looked at again
    /// at `update.wake_at`, or earlier where a question expires or a hold ends before.
    pub async fn settle_waiting(&self, run_id: Uuid, update: &WaitingUpdate) -> Result<WaitingOutcome, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let parked: Option<Option<DateTime<Utc>>> = tx.query(LOCK_PARKED).bind(run_id).optional_scalar().await?;
        let Some(paused_until) = parked else { return Ok(WaitingOutcome::Gone) };
        let state: String = tx.query(LOCK_RUN).bind(run_id).scalar().await?;
        let state = RunState::parse(&state).ok_or_else(|| StoreError::Corrupt(format!("run {run_id}: {state}")))?;
        let now = self.settled_at(tx).await?;
        if let Some(until) = paused_until {
            let resumed = resume_overdue(tx, (run_id, until), now).await?;
            write.commit().await?;
            return Ok(if resumed { WaitingOutcome::Resumed } else { WaitingOutcome::Waits });
        }
        let mut approvals: Vec<Approval> = tx.query(LATEST).bind(run_id).all().await?;
        for approval in approvals.iter_mut().filter(|approval| approval.status == ApprovalStatus::Pending) {
            let overdue = tx.query(EXPIRE).bind(approval.id).bind(now).execute().await?;
            if overdue == 1 {
                approval.status = ApprovalStatus::Expired;
                write_audit(tx, expired(approval), now).await?;
            }
        }
        let (done, deliveries) = match question_state(&approvals, now) {
            QuestionFate::GoesOn => {
                unpark(tx, run_id, now).await?;
                (WaitingOutcome::Woken, &[][..])
            }
            QuestionFate::Waits(until) => {
                let wake_at = until.map_or(update.wake_at, |until| until.min(update.wake_at));
                tx.query("update parked set wake_at = $2 where run_id = $1")
                    .bind(run_id)
                    .bind(wake_at)
                    .execute()
                    .await?;
                (WaitingOutcome::Waits, &update.deliveries[..])
            }
            QuestionFate::Expires => {
                let next = state.on(RunEvent::Expire).map_err(|illegal| StoreError::Conflict(illegal.to_string()))?;
                tx.query("delete from parked where run_id = $1").bind(run_id).execute().await?;
                let task_id: Option<Uuid> = tx
                    .query("update runs set state = $2, reason = $3, finished_at = $4 where id = $1 returning task_id")
                    .bind(run_id)
                    .bind(next.as_str())
                    .bind(expiry_reason(&approvals))
                    .bind(now)
                    .scalar()
                    .await?;
                if let Some(task_id) = task_id
                    && free(tx, task_id, run_id).await? > 0
                {
                    hand_over(tx, task_id, now).await?;
                }
                (WaitingOutcome::Expired, &update.if_expired[..])
            }
        };
        let deliveries: Vec<&NewDelivery> = deliveries.iter().collect();
        if !deliveries.is_empty() {
            tx.post(&deliveries, now).await?;
        }
        write.commit().await?;
        if done != WaitingOutcome::Waits {
            self.notify(Topic::Queue);
        }
        self.notify(Topic::Outbox);
        Ok(done)
    }
}
