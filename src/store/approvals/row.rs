//! An approval as it is stored, and its way back.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::domain::approval::{Approval, ApprovalStatus, CallOutcome, Proposal, Via, Vote};
use crate::store::sql::sql;
use crate::store::{Split, StoreError};

/// Everything of an approval. Its votes are those for what was decided; before that, all.
const SELECT: &str = "
    select a.id, a.batch_id, a.run_id, a.task_id, a.tenant_id, a.turn, a.call_id, a.replaced_by, a.digest, a.proposal,
           a.status, a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decided_via, a.comment, a.modifications,
           a.decided_digest, a.hold_until, a.execution_started_at, a.outcome,
           (select {votes} from approval_votes v
             where v.approval_id = a.id and (a.decided_digest is null or v.digest = a.decided_digest)) as votes
      from approvals a ";

pub(super) const SELECT_APPROVAL: Split =
    Split { postgres: sql!(SELECT; "{votes}" = VOTES.postgres), sqlite: sql!(SELECT; "{votes}" = VOTES.sqlite) };

const VOTES: Split = Split {
    postgres: "coalesce(jsonb_agg(jsonb_build_object('by', v.approver, 'identities', coalesce(v.identities, '[]'))
                                  order by v.at, v.approver), '[]')",
    sqlite: "json_group_array(json_object('by', v.approver, 'identities', json(coalesce(v.identities, '[]')))
                              order by v.at, v.approver)",
};

#[derive(sqlx_macros::FromRow)]
pub(super) struct ApprovalRow {
    id: Uuid,
    batch_id: Uuid,
    run_id: Uuid,
    task_id: Option<Uuid>,
    tenant_id: String,
    turn: i64,
    call_id: String,
    pub replaced_by: Option<Uuid>,
    digest: String,
    proposal: Json<Proposal>,
    status: String,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    decided_at: Option<DateTime<Utc>>,
    decided_by: Option<String>,
    decided_via: Option<String>,
    comment: Option<String>,
    modifications: Option<Json<Value>>,
    decided_digest: Option<String>,
    hold_until: Option<DateTime<Utc>>,
    execution_started_at: Option<DateTime<Utc>>,
    outcome: Option<Json<CallOutcome>>,
    votes: Json<Vec<Vote>>,
}

impl ApprovalRow {
    pub fn approval(self) -> Result<Approval, StoreError> {
        let unreadable = |what: &str, word: &str| StoreError::Corrupt(format!("approval {}: {what} {word}", self.id));
        let status = ApprovalStatus::parse(&self.status).ok_or_else(|| unreadable("status", &self.status))?;
        let decided_via = match self.decided_via.as_deref() {
            None => None,
            Some(word) => Some(Via::parse(word).ok_or_else(|| unreadable("decided_via", word))?),
        };
        Ok(Approval {
            id: self.id,
            batch_id: self.batch_id,
            run_id: self.run_id,
            task_id: self.task_id,
            tenant_id: self.tenant_id,
            turn: self.turn,
            call_id: self.call_id,
            digest: self.digest,
            proposal: self.proposal.0,
            status,
            created_at: self.created_at,
            expires_at: self.expires_at,
            decided_at: self.decided_at,
            decided_by: self.decided_by,
            decided_via,
            comment: self.comment,
            modifications: self.modifications.map(|json| json.0),
            decided_digest: self.decided_digest,
            hold_until: self.hold_until,
            execution_started_at: self.execution_started_at,
            outcome: self.outcome.map(|json| json.0),
            votes: self.votes.0,
        })
    }
}
