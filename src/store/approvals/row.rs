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

/// Everything of an approval whose documents are too large to be read: in the place of its arguments, proposed and
/// decided, stands the beginning of their text, and `left_out` is how many bytes those have with which the call runs.
pub(super) const SELECT_BEGINNING: Split = Split {
    postgres: sql!(SELECT_APPROVAL.postgres; "a.modifications," = DECIDED.postgres; "a.proposal," = PROPOSED.postgres),
    sqlite: sql!(SELECT_APPROVAL.sqlite; "a.modifications," = DECIDED.sqlite; "a.proposal," = PROPOSED.sqlite),
};

const PROPOSED: Split = Split {
    postgres: "a.proposal || jsonb_build_object(
               'arguments', left((a.proposal -> 'arguments')::text, 1000), 'parameters', null, 'precheck', null,
               'summary', left(a.proposal ->> 'summary', 1000),
               'description', left(a.proposal ->> 'description', 1000)) as proposal,
           cast(octet_length(coalesce(a.modifications, a.proposal -> 'arguments')::text) as bigint) as left_out,",
    sqlite: "json_set(a.proposal, '$.arguments', substr(a.proposal ->> '$.arguments', 1, 1000),
                    '$.parameters', null, '$.precheck', null,
                    '$.summary', substr(a.proposal ->> '$.summary', 1, 1000),
                    '$.description', substr(a.proposal ->> '$.description', 1, 1000)) as proposal,
           octet_length(coalesce(a.modifications, a.proposal ->> '$.arguments')) as left_out,",
};

const DECIDED: Split = Split {
    postgres: "to_jsonb(left(a.modifications::text, 1000)) as modifications,",
    sqlite: "case when a.modifications is not null then json_quote(substr(a.modifications, 1, 1000)) end
               as modifications,",
};

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
