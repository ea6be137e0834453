//! One answer to one question: judged purely, written once, with what follows for the run.
//!
//! The run's rows are locked first, in the order of all locks (parked, runs), and the time is asked after them: of two
//! answers, an answer and an expiry, an answer and a parking, one sees what the other did.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::voter::distinct_people;
use crate::domain::approval::{Approval, ApprovalAnswer, ApprovalChoice, ApprovalStatus, Vote, VoterIdentities};
use crate::store::approvals::grants::{end_grants, keep_grant};
use crate::store::approvals::{DecisionOutcome, DecisionRefusal, ONE, unpark};
use crate::store::db::text::{document, optional, optional_document, text};
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
    Agrees {
        status: ApprovalStatus,
        digest: String,
        modifications: Option<Value>,
        hold_until: Option<DateTime<Utc>>,
    },
    Cancels,
    /// It was approved, and is held still.
    Stops,
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
        choice if !proposal.options.contains(&choice) || edited == Some(None) => {
            DecisionEffect::Refused(DecisionRefusal::NotOffered)
        }
        ApprovalChoice::Cancel if stops => DecisionEffect::Stops,
        ApprovalChoice::Cancel => DecisionEffect::Cancels,
        ApprovalChoice::Approve | ApprovalChoice::Edit => {
            let (modifications, digest) = match edited.flatten() {
                Some((arguments, digest)) => (Some(arguments.clone()), digest.clone()),
                None => (None, approval.digest.clone()),
            };
            let status = if modifications.is_some() { ApprovalStatus::Edited } else { ApprovalStatus::Approved };
            DecisionEffect::Agrees {
                status,
                digest,
                modifications,
                hold_until: proposal.undo_window().map(|hold| now + hold),
            }
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

/// A vote as it is stored.
#[derive(sqlx_macros::FromRow)]
struct VoteRow {
    approver: String,
    digest: String,
    identities: Option<Json<VoterIdentities>>,
}

/// Those of one question, the row of which is locked.
const VOTES: &str = "select approver, digest, identities from approval_votes where approval_id = $1";

/// An answer that agrees: whether this vote is a new one, and whether enough people agree to the same now.
async fn count_vote(
    tx: &mut Tx<'_>,
    approval: &Approval,
    by: &str,
    identities: &VoterIdentities,
    digest: &str,
    now: DateTime<Utc>,
) -> Result<(bool, bool), StoreError> {
    Ok(if approval.proposal.approvers <= 1 {
        (true, true)
    } else {
        let fresh = tx
            .query(
                "insert into approval_votes (approval_id, approver, digest, at, identities) values ($1, $2, $3, $4, $5)
                 on conflict (approval_id, approver, digest) do nothing",
            )
            .bind(approval.id)
            .bind(text(by))
            .bind(digest)
            .bind(now)
            .bind(document(identities)?)
            .execute()
            .await?;
        let votes: Vec<VoteRow> = tx.query(VOTES).bind(approval.id).all().await?;
        let mut same = Vec::new();
        for VoteRow { approver, digest: voted, identities: cast } in votes {
            let vote = Vote { by: approver, identities: cast.map(|cast| cast.0).unwrap_or_default() };
            if voted == digest {
                same.push(vote);
            } else if vote.may_be_of(identities) {
                // who agrees to something else has changed their mind
                tx.query("delete from approval_votes where approval_id = $1 and approver = $2 and digest = $3")
                    .bind(approval.id)
                    .bind(text(&vote.by))
                    .bind(&voted)
                    .execute()
                    .await?;
            }
        }
        (fresh == 1, distinct_people(&same) >= approval.proposal.approvers as usize)
    })
}

impl Store {
    /// Settles a question, at most once, by the database's own time; wakes the run where that lets it go on. While an
    /// approved call is held, `Cancel` stops it. Where several people have to agree, each has one vote, the last that was
    /// given, by however many links and tokens.
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
        let run_id: Option<Uuid> = tx
            .query("select run_id from approvals where id = $1 and ($2 is null or tenant_id = $2)")
            .bind(id)
            .bind(scope.tenant())
            .optional_scalar()
            .await?;
        let run_id = run_id.ok_or(StoreError::NotFound)?;
        let parked: Option<Option<DateTime<Utc>>> = tx.query(LOCK_PARKED).bind(run_id).optional_scalar().await?;
        let state: Option<String> = tx.query(LOCK_RUN).bind(run_id).optional_scalar().await?;
        if parked.is_none() && matches!(state.as_deref(), Some("pending_approval" | "waiting_for_input")) {
            return Ok(None);
        }
        let now = self.settled_at(tx).await?;
        let asked: Option<AskedApproval> = tx.query(ONE).bind(id).bind(scope.tenant()).optional().await?;
        let AskedApproval { approval, replaced_by } = asked.ok_or(StoreError::NotFound)?;
        let (settled, goes_on, recorded) = match judge(&approval, replaced_by.is_some(), answer, voter, now) {
            DecisionEffect::Refused(refusal) => return Ok(Some((DecisionOutcome::Refused(refusal, approval), false))),
            _ if parked.flatten().is_some() => {
                return Ok(Some((DecisionOutcome::Refused(DecisionRefusal::Paused, approval), false)));
            }
            DecisionEffect::Agrees { status, digest, modifications, hold_until } => {
                let (fresh, enough) = count_vote(tx, &approval, &answer.by, &voter.identities, &digest, now).await?;
                if enough {
                    let rows = tx
                        .query(SETTLE)
                        .bind(id)
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
                    ApprovalStatus::Edited => "approval.edited",
                    _ => "approval.approved",
                };
                (enough, enough, (enough || fresh).then_some((action, Some(digest))))
            }
            verdict @ (DecisionEffect::Cancels | DecisionEffect::Stops) => {
                let stops = verdict == DecisionEffect::Stops;
                let rows = tx
                    .query(if stops { STOP } else { CANCEL })
                    .bind(id)
                    .bind(now)
                    .bind(text(&answer.by))
                    .bind(answer.via.as_str())
                    .bind(optional(answer.comment.as_deref()))
                    .execute()
                    .await?;
                if rows == 0 {
                    return Ok(None);
                }
                let open: i64 = tx.query(OPEN_SIBLINGS).bind(run_id).scalar().await?;
                (true, open == 0, Some((if stops { "approval.stopped" } else { "approval.cancelled" }, None)))
            }
        };
        // what a person does not want as it was proposed is not allowed for good any longer
        if let (Some(task_id), Some(("approval.edited" | "approval.cancelled" | "approval.stopped", _))) =
            (approval.task_id, &recorded)
        {
            end_grants(tx, &approval.tenant_id, task_id, &approval.proposal.tool, &answer.by, now).await?;
        }
        if let (Some(grant), Some(("approval.approved", _))) = (grant, &recorded) {
            let gone = StoreError::Conflict("the task was deleted meanwhile".into());
            keep_grant(tx, scope, grant, now, gone).await?;
        }
        if let Some((action, runs)) = recorded {
            write_audit(tx, act(&approval, answer, action, runs.as_deref()), now).await?;
        }
        let woken = goes_on && parked.is_some() && unpark(tx, run_id, now).await?;
        let approval = tx.query(ONE).bind(id).bind(scope.tenant()).one().await?;
        write.commit().await?;
        Ok(Some((if settled { DecisionOutcome::Done(approval) } else { DecisionOutcome::Counted(approval) }, woken)))
    }
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
