//! An approval as it is stored, and its way back.

use sqlx::FromRow;

use crate::domain::approval::{Approval, ApprovalStatus, Via};
use crate::store::Split;
use crate::store::columns::Columns;
use crate::store::sql::sql;

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

impl<'r, R: Columns> FromRow<'r, R> for Approval {
    fn from_row(row: &'r R) -> Result<Approval, sqlx::Error> {
        Ok(Approval {
            id: row.value("id")?,
            batch_id: row.value("batch_id")?,
            run_id: row.value("run_id")?,
            task_id: row.value("task_id")?,
            tenant_id: row.value("tenant_id")?,
            turn: row.value("turn")?,
            call_id: row.value("call_id")?,
            digest: row.value("digest")?,
            proposal: row.document("proposal")?,
            status: row.word("status", ApprovalStatus::parse)?,
            created_at: row.value("created_at")?,
            expires_at: row.value("expires_at")?,
            decided_at: row.value("decided_at")?,
            decided_by: row.value("decided_by")?,
            decided_via: row.optional_word("decided_via", Via::parse)?,
            comment: row.value("comment")?,
            modifications: row.optional_document("modifications")?,
            decided_digest: row.value("decided_digest")?,
            hold_until: row.value("hold_until")?,
            execution_started_at: row.value("execution_started_at")?,
            outcome: row.optional_document("outcome")?,
            votes: row.document("votes")?,
        })
    }
}
