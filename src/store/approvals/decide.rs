//! One answer to one question: judged purely, written once, with what follows for the run.
//!
//! The run's rows are locked first, in the order of all locks (parked, runs), and the time is asked after them: of two
//! answers, an answer and an expiry, an answer and a parking, one sees what the other did.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::{Approval, ApprovalAnswer, ApprovalChoice, ApprovalStatus, VoterIdentities};
use crate::store::approvals::grants::{end_grants, keep_grant};
use crate::store::approvals::votes::count_vote;
use crate::store::approvals::{DecisionOutcome, DecisionRefusal, ONE, unpark};
use crate::store::db::text::{optional, optional_document, text};
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::tx::Tx;
use crate::store::{Grant, Split, Store, StoreError, Topic};

/// A run is parked once while one looks, and not this often.
pub(super) const TRIES: usize = 5;

/// Locks a run among the parked ones, where it waits for people; answers until when it is paused at the latest. On
/// Postgres the reason is asked in words that fit no index: the indexes of a reason have all runs that wait for it.
pub(super) const LOCK_PARKED: Split = Split {
    postgres: "select paused_until from parked where run_id = $1 and reason || '' = 'approval' for update",
    sqlite: "select paused_until from parked where run_id = $1 and reason = 'approval'",
};

/// Locks a run's record and answers its state.
pub(super) const LOCK_RUN: Split = Split {
    postgres: "select state from runs where id = $1 for update",
    sqlite: "select state from runs where id = $1",
};

/// Questions of the same run that are open.
const OPEN_SIBLINGS: &str = "
    select count(*) from approvals where run_id = $1 and status = 'pending' and replaced_by is null";

/// The effect of an answer.
#[derive(Debug, PartialEq)]
enum DecisionEffect {
    Refused(DecisionRefusal),
    /// It settles the question, once enough agree.
    Agrees(Agreement),
    Cancels,
    /// It was approved, and is held still.
    Stops,
}

/// The decision to which an answer agrees.
#[derive(Debug, PartialEq)]
struct Agreement {
    status: ApprovalStatus,
    digest: String,
    modifications: Option<Value>,
    hold_until: Option<DateTime<Utc>>,
}

fn judge(
    approval: &Approval,
    replaced: bool,
    answer: &ApprovalAnswer,
    voter: &Voter,
    now: DateTime<Utc>,
) -> DecisionEffect {
    let open = approval.status == ApprovalStatus::Pending && !replaced;
    let stops = answer.choice == ApprovalChoice::Cancel && approval.is_held(now) && !replaced;
    let proposal = &approval.proposal;
    let edited = (answer.choice == ApprovalChoice::Edit).then_some(answer.edited.as_ref());
    match answer.choice {
        _ if !(open || stops) => DecisionEffect::Refused(DecisionRefusal::Settled),
        _ if answer.digest != approval.digest => DecisionEffect::Refused(DecisionRefusal::OtherDigest),
        _ if open && approval.expires_at <= now => DecisionEffect::Refused(DecisionRefusal::Expired),
        _ if voter.is_excluded => DecisionEffect::Refused(DecisionRefusal::Excluded),
        choice if !proposal.offers(choice) || edited == Some(None) => {
            DecisionEffect::Refused(DecisionRefusal::NotOffered)
        }
        ApprovalChoice::Cancel if stops => DecisionEffect::Stops,
        ApprovalChoice::Cancel => DecisionEffect::Cancels,
        ApprovalChoice::Approve | ApprovalChoice::Edit | ApprovalChoice::Decline => {
            let (modifications, digest) = match edited.flatten() {
                Some((arguments, digest)) => (Some(arguments.clone()), digest.clone()),
                None => (None, approval.digest.clone()),
            };
            let status = if modifications.is_some() { ApprovalStatus::Edited } else { ApprovalStatus::Approved };
            let hold_until = proposal.undo_window().map(|hold| now + hold);
            DecisionEffect::Agrees(Agreement { status, digest, modifications, hold_until })
        }
    }
}

/// The audit entry for an answer.
fn act<'a>(approval: &'a Approval, answer: &'a ApprovalAnswer, action: &'a str, runs: Option<&str>) -> AuditAction<'a> {
    AuditAction {
        tenant: &approval.tenant_id,
        actor: &answer.by,
        via: answer.via.as_str(),
        action,
        subject_type: "approval",
        subject_id: approval.id,
        body: json!({
            "tool": approval.proposal.tool, "digest": approval.digest, "decided_digest": runs,
            "batch_id": approval.batch_id, "run_id": approval.run_id, "comment": answer.comment,
        }),
    }
}

/// The person who answers, and whether they may.
struct Voter {
    identities: VoterIdentities,
    /// It may be the one who asked, who may not answer.
    is_excluded: bool,
}

#[derive(sqlx_macros::FromRow)]
struct AskedApproval {
    #[sqlx(flatten)]
    approval: Approval,
    replaced_by: Option<Uuid>,
}

impl Store {
    /// Settles a question, at most once, by the database's own time; wakes the run where that lets it go on. While an
    /// approved call is held, `Cancel` stops it. Where several people have to agree, each has one vote, the last that
    /// was given, by however many links and tokens.
    pub async fn decide_approval(
        &self,
        scope: &Scope,
        id: Uuid,
        answer: &ApprovalAnswer,
    ) -> Result<DecisionOutcome, StoreError> {
        self.decide(scope, id, answer, None).await
    }

    /// Settles a question as [`Store::decide_approval`] does, and where it approves the call, keeps the grant with the
    /// decision: both, or neither where the task was changed meanwhile.
    pub async fn decide_and_grant(
        &self,
        scope: &Scope,
        id: Uuid,
        answer: &ApprovalAnswer,
        grant: &Grant,
    ) -> Result<DecisionOutcome, StoreError> {
        self.decide(scope, id, answer, Some(grant)).await
    }

    async fn decide(
        &self,
        scope: &Scope,
        id: Uuid,
        answer: &ApprovalAnswer,
        grant: Option<&Grant>,
    ) -> Result<DecisionOutcome, StoreError> {
        let voter = self.voter(scope, id, answer).await?;
        for _ in 0..TRIES {
            if let Some((decided, woken)) = self.try_decide(scope, id, (answer, &voter), grant).await? {
                if woken {
                    self.notify(Topic::Queue);
                }
                return Ok(decided);
            }
        }
        Err(StoreError::Unavailable(format!("the run of the approval {id} is neither parked nor going on")))
    }

    /// The person who answers a question, and whether they may.
    async fn voter(&self, scope: &Scope, id: Uuid, answer: &ApprovalAnswer) -> Result<Voter, StoreError> {
        let approval = self.get_approval(scope, id).await?;
        let identities = self.voter_identities(&answer.by).await?;
        let is_excluded = match &approval.proposal.excluded_approver {
            Some(excluded) => {
                identities.overlaps(&self.voter_identities(excluded).await?)
                    || self.is_requester(scope, approval.run_id, &identities).await?
            }
            None => false,
        };
        Ok(Voter { identities, is_excluded })
    }

    /// Whether a run was asked for by hand by whom these identities may be of.
    async fn is_requester(
        &self,
        scope: &Scope,
        run_id: Uuid,
        identities: &VoterIdentities,
    ) -> Result<bool, StoreError> {
        Ok(match self.requester_of(scope, run_id).await? {
            Some(requester) => identities.overlaps(&self.voter_identities(&requester).await?),
            None => false,
        })
    }

    /// One try, and whether the run goes on by it; `None` where the run was parked while it was looked for.
    async fn try_decide(
        &self,
        scope: &Scope,
        id: Uuid,
        (answer, voter): (&ApprovalAnswer, &Voter),
        grant: Option<&Grant>,
    ) -> Result<Option<(DecisionOutcome, bool)>, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let run_id = run_of(tx, scope, id).await?;
        let Some(waiting) = lock_run(tx, run_id).await? else { return Ok(None) };
        let now = self.settled_at(tx).await?;
        let asked: Option<AskedApproval> = tx.query(ONE).bind(id).bind(scope.tenant()).optional().await?;
        let AskedApproval { approval, replaced_by } = asked.ok_or(StoreError::NotFound)?;
        let decision = match judge(&approval, replaced_by.is_some(), answer, voter, now) {
            DecisionEffect::Refused(refusal) => return Ok(Some((DecisionOutcome::Refused(refusal, approval), false))),
            _ if waiting.is_paused => {
                return Ok(Some((DecisionOutcome::Refused(DecisionRefusal::Paused, approval), false)));
            }
            DecisionEffect::Agrees(agreement) => agree(tx, &approval, (answer, voter), agreement, now).await?,
            DecisionEffect::Cancels => cancel(tx, &approval, answer, (CANCEL, "approval.cancelled"), now).await?,
            DecisionEffect::Stops => cancel(tx, &approval, answer, (STOP, "approval.stopped"), now).await?,
        };
        let Some(WrittenDecision { is_settled, goes_on, audited }) = decision else { return Ok(None) };
        if let Some((action, runs)) = audited {
            adjust_grants(tx, scope, &approval, (answer.by.as_str(), action), grant, now).await?;
            write_audit(tx, act(&approval, answer, action, runs.as_deref()), now).await?;
        }
        let woken = goes_on && waiting.is_parked && unpark(tx, run_id, now).await?;
        let approval = tx.query(ONE).bind(id).bind(scope.tenant()).one().await?;
        write.commit().await?;
        Ok(Some((if is_settled { DecisionOutcome::Done(approval) } else { DecisionOutcome::Counted(approval) }, woken)))
    }
}

/// The run that asks a question.
async fn run_of(tx: &mut Tx<'_>, scope: &Scope, id: Uuid) -> Result<Uuid, StoreError> {
    let run_id: Option<Uuid> = tx
        .query("select run_id from approvals where id = $1 and ($2 is null or tenant_id = $2)")
        .bind(id)
        .bind(scope.tenant())
        .optional_scalar()
        .await?;
    run_id.ok_or(StoreError::NotFound)
}

/// How the run of a question waits; its rows are locked.
struct AskingRun {
    is_parked: bool,
    /// The operator has paused it: no answer is taken.
    is_paused: bool,
}

/// Locks a run's rows, the parked one first; `None` where it was parked while it was looked for.
async fn lock_run(tx: &mut Tx<'_>, run_id: Uuid) -> Result<Option<AskingRun>, StoreError> {
    let parked: Option<Option<DateTime<Utc>>> = tx.query(LOCK_PARKED).bind(run_id).optional_scalar().await?;
    let state: Option<String> = tx.query(LOCK_RUN).bind(run_id).optional_scalar().await?;
    if parked.is_none() && matches!(state.as_deref(), Some("pending_approval" | "waiting_for_input")) {
        return Ok(None);
    }
    Ok(Some(AskingRun { is_parked: parked.is_some(), is_paused: parked.flatten().is_some() }))
}

/// An answer's effect as it was written, before what follows from it.
struct WrittenDecision {
    is_settled: bool,
    /// The run waits for no other question.
    goes_on: bool,
    /// Action and digest for the audit log; `None`: a vote that had been counted before.
    audited: Option<(&'static str, Option<String>)>,
}

/// Counts a vote, and settles the question where enough people agree; `None` where it is not open any more.
async fn agree(
    tx: &mut Tx<'_>,
    approval: &Approval,
    (answer, voter): (&ApprovalAnswer, &Voter),
    agreement: Agreement,
    now: DateTime<Utc>,
) -> Result<Option<WrittenDecision>, StoreError> {
    let Agreement { status, digest, modifications, hold_until } = agreement;
    let (fresh, enough) = count_vote(tx, approval, &answer.by, &voter.identities, &digest, now).await?;
    if enough {
        let rows = tx
            .query(SETTLE)
            .bind(approval.id)
            .bind(status.as_str())
            .bind(now)
            .bind(text(&answer.by))
            .bind(answer.via.as_str())
            .bind(optional(answer.comment.as_deref()))
            .bind(optional_document(modifications.as_ref())?)
            .bind(&digest)
            .bind(hold_until)
            .execute()
            .await?;
        if rows == 0 {
            return Ok(None);
        }
    }
    let action = match status {
        _ if !enough => "approval.voted",
        _ if answer.choice == ApprovalChoice::Decline => "approval.declined",
        ApprovalStatus::Edited => "approval.edited",
        _ => "approval.approved",
    };
    let audited = (enough || fresh).then_some((action, Some(digest)));
    Ok(Some(WrittenDecision { is_settled: enough, goes_on: enough, audited }))
}

/// Cancels a question, or stops a call that is held, by its statement; `None` where that is too late.
async fn cancel(
    tx: &mut Tx<'_>,
    approval: &Approval,
    answer: &ApprovalAnswer,
    (statement, action): (&'static str, &'static str),
    now: DateTime<Utc>,
) -> Result<Option<WrittenDecision>, StoreError> {
    let rows = tx
        .query(statement)
        .bind(approval.id)
        .bind(now)
        .bind(text(&answer.by))
        .bind(answer.via.as_str())
        .bind(optional(answer.comment.as_deref()))
        .execute()
        .await?;
    if rows == 0 {
        return Ok(None);
    }
    let open: i64 = tx.query(OPEN_SIBLINGS).bind(approval.run_id).scalar().await?;
    Ok(Some(WrittenDecision { is_settled: true, goes_on: open == 0, audited: Some((action, None)) }))
}

/// Keeps the grant that comes with an approval. A call that somebody does not want as it was proposed loses its grants:
/// it is not allowed for good any longer. An answer to a server says nothing about the call.
async fn adjust_grants(
    tx: &mut Tx<'_>,
    scope: &Scope,
    approval: &Approval,
    (by, action): (&str, &str),
    grant: Option<&Grant>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let is_answer = approval.proposal.is_of_server() && action == "approval.edited";
    if let (Some(task_id), "approval.edited" | "approval.cancelled" | "approval.stopped") = (approval.task_id, action)
        && !is_answer
    {
        end_grants(tx, &approval.tenant_id, task_id, &approval.proposal.tool, by, now).await?;
    }
    if let (Some(grant), "approval.approved") = (grant, action) {
        let gone = StoreError::Conflict("the task was deleted meanwhile".into());
        keep_grant(tx, scope, grant, now, gone).await?;
    }
    Ok(())
}

/// The question is found by its id. All else is asked in words that fit no index, here and in the two statements below:
/// the indexes of open questions have everybody's.
const SETTLE: &str = "
    update approvals set status = $2, decided_at = $3, decided_by = $4, decided_via = $5, comment = $6,
                         modifications = $7, decided_digest = $8, hold_until = $9
     where id = $1 and status || '' = 'pending' and coalesce(replaced_by is null, false) and expires_at > $3";

const CANCEL: &str = "
    update approvals set status = 'cancelled', decided_at = $2, decided_by = $3, decided_via = $4, comment = $5
     where id = $1 and status || '' = 'pending' and coalesce(replaced_by is null, false) and expires_at > $2";

const STOP: &str = "
    update approvals set status = 'cancelled', decided_at = $2, decided_by = $3, decided_via = $4, comment = $5,
                         modifications = null, decided_digest = null, hold_until = null
     where id = $1 and status in ('approved', 'edited') and coalesce(replaced_by is null, false)
       and execution_started_at is null and hold_until > $2";
