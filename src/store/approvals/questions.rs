//! Putting questions when a run is parked, withdrawing them when it ends, and letting it go on. Steps of the
//! transactions that do so.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::domain::actor::SERVICE;
use crate::domain::approval::{Approval, POLICY, Via};
use crate::store::db::text::{document, text};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::runs::overlap::rule::EACH_IN_TURN;
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Puts questions, each once: one about a call that has its question already is left out, unless it replaces it. What
/// nobody is asked about is put as approved and held. `$now` is the database's time.
pub(in crate::store) async fn ask(
    tx: &mut Tx<'_>,
    asks: &[(Approval, Option<Uuid>)],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (approval, replaces) in asks {
        if let Some(replaced) = replaces {
            tx.query(REPLACE).bind(replaced).bind(approval.id).bind(now).execute().await?;
        }
        let put = QuestionInstants::of(approval, now);
        let put_now = tx
            .query(INSERT)
            .bind(approval.id)
            .bind(approval.batch_id)
            .bind(approval.run_id)
            .bind(approval.task_id)
            .bind(&approval.tenant_id)
            .bind(approval.turn)
            .bind(text(&approval.call_id))
            .bind(text(&approval.proposal.tool))
            .bind(&approval.digest)
            .bind(document(&approval.proposal)?)
            .bind(approval.created_at)
            .bind(put.expires_at)
            .bind(approval.status.as_str())
            .bind(put.decided_at)
            .bind(&approval.decided_by)
            .bind(approval.decided_via.map(Via::as_str))
            .bind(&approval.decided_digest)
            .bind(put.hold_until)
            .bind(approval.proposal.kind.as_str())
            .execute()
            .await?;
        if put_now == 1 {
            let act = asked(approval, *replaces, put.hold_until);
            write_audit(tx, act, now).await?;
        }
    }
    Ok(())
}

/// Replaces questions, which can't be answered any more. That they were not replaced is asked in words that fit no
/// index: one has all questions that count.
pub(in crate::store) const REPLACE: &str = "
    update approvals
       set replaced_by = $2,
           decided_at = case when status = 'pending' then $3 else decided_at end,
           decided_by = case when status = 'pending' then 'service' else decided_by end,
           decided_via = case when status = 'pending' then 'service' else decided_via end,
           status = case when status = 'pending' then 'cancelled' else status end
     where id = $1 and coalesce(replaced_by is null, false)";

pub(in crate::store) const INSERT: &str = "
    insert into approvals (id, batch_id, run_id, task_id, tenant_id, turn, call_id, tool, digest, proposal, status,
                           created_at, expires_at, decided_at, decided_by, decided_via, decided_digest, hold_until, kind)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $13, $11, $12, $14, $15, $16, $17, $18, $19)
    on conflict do nothing";

/// The instants of a question as it is put. What nobody is asked about is held from now on, by the database's time.
pub(in crate::store) struct QuestionInstants {
    pub expires_at: DateTime<Utc>,
    pub decided_at: Option<DateTime<Utc>>,
    pub hold_until: Option<DateTime<Utc>>,
}

impl QuestionInstants {
    /// The instants of a question that is asked at `now`.
    pub fn of(approval: &Approval, now: DateTime<Utc>) -> QuestionInstants {
        match approval.proposal.undo_window().filter(|_| approval.proposal.is_auto_approved()) {
            None => QuestionInstants { expires_at: approval.expires_at, decided_at: None, hold_until: None },
            Some(window) => {
                let until = now + window;
                QuestionInstants { expires_at: until, decided_at: Some(now), hold_until: Some(until) }
            }
        }
    }
}

pub(in crate::store) fn asked(
    approval: &Approval,
    replaces: Option<Uuid>,
    held: Option<DateTime<Utc>>,
) -> AuditAction<'_> {
    let mut body = json!({
        "tool": approval.proposal.tool, "digest": approval.digest, "batch_id": approval.batch_id,
        "run_id": approval.run_id, "replaces": replaces,
    });
    if let Some(until) = held {
        body["hold_until"] = json!(until);
        body["reasons"] = json!(approval.proposal.reasons);
    }
    AuditAction {
        tenant: &approval.tenant_id,
        actor: if held.is_some() { POLICY } else { SERVICE },
        via: SERVICE,
        action: if held.is_some() { "approval.held" } else { "approval.asked" },
        subject_type: "approval",
        subject_id: approval.id,
        body,
    }
}

/// An open question of a run that has ended, or a call of it that is held.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct ClosedQuestion {
    pub id: Uuid,
    pub tenant_id: String,
    pub tool: String,
    pub digest: String,
    pub batch_id: Uuid,
    pub run_id: Uuid,
}

impl ClosedQuestion {
    /// The entry of the audit record for the end of this question.
    pub fn act(&self, reason: &str) -> AuditAction<'_> {
        AuditAction {
            tenant: &self.tenant_id,
            actor: SERVICE,
            via: SERVICE,
            action: "approval.cancelled",
            subject_type: "approval",
            subject_id: self.id,
            body: json!({
                "tool": self.tool, "digest": self.digest, "batch_id": self.batch_id, "run_id": self.run_id,
                "reason": reason,
            }),
        }
    }
}

/// Withdraws what is open of a run that has ended, and what is held of it: nothing of it is done any more.
pub(in crate::store) async fn close_questions(
    tx: &mut Tx<'_>,
    run_id: Uuid,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let closed: Vec<ClosedQuestion> = tx.query(CLOSE).bind(run_id).bind(now).all().await?;
    for closed in &closed {
        write_audit(tx, closed.act("run_ended"), now).await?;
    }
    Ok(())
}

/// Withdraws open questions of all but these turns, for which the run waits: the agents that made the other calls have
/// ended.
pub(in crate::store) async fn withdraw_other_turns(
    tx: &mut Tx<'_>,
    run_id: Uuid,
    turns: &[i64],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let open: Vec<(Uuid, i64)> = tx.query(OPEN).bind(run_id).all().await?;
    for (id, _) in open.into_iter().filter(|(_, turn)| !turns.contains(turn)) {
        let closed: ClosedQuestion = tx.query(CLOSE_ONE).bind(id).bind(now).one().await?;
        write_audit(tx, closed.act("call_ended"), now).await?;
    }
    Ok(())
}

/// Found by the run, and put in order then: the order of ids is that of an index that has everybody's questions. Status
/// and replacement are asked in words that fit no index, as two have all that are open.
const OPEN: &str = "
    with open_questions as materialized (
        select id, turn from approvals
         where run_id = $1 and status || '' = 'pending' and coalesce(replaced_by is null, false))
    select id, turn from open_questions order by id";

const CLOSE_ONE: &str = "
    update approvals set status = 'cancelled', decided_at = $2, decided_by = 'service', decided_via = 'service'
     where id = $1
    returning id, tenant_id, tool, digest, batch_id, run_id";

pub(in crate::store) const CLOSE: &str = "
    update approvals set status = 'cancelled', decided_at = $2, decided_by = 'service', decided_via = 'service'
     where run_id = $1
       and (status = 'pending'
            or (status in ('approved', 'edited') and replaced_by is null and execution_started_at is null and hold_until > $2))
    returning id, tenant_id, tool, digest, batch_id, run_id";

/// Lets a run go on that is parked for people: it is queued, ready now; answers whether it was parked still. Going on
/// is no new attempt. Where its task has one run at a time, and it has not kept the slot, it waits for its turn, and no
/// policy skips it.
pub(in crate::store) async fn unpark(tx: &mut Tx<'_>, run_id: Uuid, now: DateTime<Utc>) -> Result<bool, StoreError> {
    let parked: Option<(Option<Uuid>, String, Option<String>)> = tx.query(UNPARK).bind(run_id).optional().await?;
    let was_parked = parked.is_some();
    if let Some((task_id, tenant_id, overlap)) = parked {
        tx.query(REQUEUE)
            .bind(run_id)
            .bind(task_id)
            .bind(tenant_id)
            .bind(now)
            .bind(overlap)
            .bind(EACH_IN_TURN)
            .execute()
            .await?;
        tx.query(GO_ON).bind(run_id).execute().await?;
    }
    Ok(was_parked)
}

/// The reason is asked in words that fit no index: the indexes of a reason have all runs that wait for it.
const UNPARK: &str = "
    delete from parked where run_id = $1 and reason || '' = 'approval' returning task_id, tenant_id, overlap";

const REQUEUED: &str = "
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, overlap)
    values ($1, $2, $3, coalesce((select d.epoch from due d where d.task_id = $2), 0), $4, 0, 'ready',
            coalesce($5, (select case when coalesce({overlap}, 'skip') <> 'allow' then $6 end
                            from tasks t
                           where t.id = $2
                             and not exists (select 1 from slots s where s.task_id = $2 and s.run_id = $1))))";
pub(in crate::store) const REQUEUE: Split = Split {
    postgres: sql!(REQUEUED; "{overlap}" = "t.spec -> 'trigger' ->> 'overlap'"),
    sqlite: sql!(REQUEUED; "{overlap}" = "case when json_valid(t.spec) then t.spec -> 'trigger' ->> 'overlap' end"),
};

pub(in crate::store) const GO_ON: &str = "
    update runs set state = 'queued', attempt = case when attempt > 0 then attempt - 1 else 0 end
     where id = $1 and state in ('pending_approval', 'waiting_for_input')";
