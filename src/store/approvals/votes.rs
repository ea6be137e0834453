//! The votes on a question that several people have to agree on: each person has one, the last that was given.

use chrono::{DateTime, Utc};
use sqlx::types::Json;

use crate::domain::approval::voter::distinct_people;
use crate::domain::approval::{Approval, Vote, VoterIdentities};
use crate::store::StoreError;
use crate::store::db::text::{document, text};
use crate::store::tx::Tx;

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
pub(super) async fn count_vote(
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
