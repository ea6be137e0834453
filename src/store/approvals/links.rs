//! Links to a batch, by the hash of their token: the token itself is stored nowhere.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::Approval;
use crate::store::approvals::ApprovalLink;
use crate::store::approvals::row::{SELECT_APPROVAL, SELECT_BEGINNING};
use crate::store::columns::Columns;
use crate::store::db::ReadConnection;
use crate::store::db::text::text;
use crate::store::sql::sql;
use crate::store::tx::Rows;
use crate::store::{Split, Store, StoreError};

/// Bytes of the questions of a batch that are read whole, as the database has them.
const BATCH_BYTES: i64 = 1_048_576;

/// A question of a batch, whole as far as there is room for it.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchQuestion {
    /// The question. One that is not whole has the beginning of its arguments' text in the place of its arguments,
    /// proposed and decided; it has no schema of them, and nothing of the look beforehand.
    pub approval: Approval,
    /// Bytes as JSON of the arguments with which the call runs, where they are not whole.
    pub left_out: Option<i64>,
}

impl<'r, R: Columns> FromRow<'r, R> for BatchQuestion {
    fn from_row(row: &'r R) -> Result<BatchQuestion, sqlx::Error> {
        Ok(BatchQuestion { approval: Approval::from_row(row)?, left_out: row.value("left_out")? })
    }
}

#[derive(sqlx_macros::FromRow)]
struct MeasuredQuestion {
    id: Uuid,
    is_open: bool,
    bytes: i64,
}

/// Tenant and replacement are asked in words that fit no index: those have all of a tenant, and all that count.
const MEASURED: &str = "
    select a.id, a.status = 'pending' as is_open,
           cast(octet_length(cast(a.proposal as text)) + coalesce(octet_length(cast(a.modifications as text)), 0)
                as bigint) as bytes
      from approvals a
     where a.batch_id = $1 and a.tenant_id || '' = $2 and coalesce(a.replaced_by is null, false) order by a.id";
const OF_BATCH: Split = Split {
    postgres: sql!(
        SELECT_APPROVAL.postgres,
        "where a.batch_id = $1 and a.tenant_id || '' = $2 and coalesce(a.replaced_by is null, false) order by a.id"
    ),
    sqlite: sql!(
        SELECT_APPROVAL.sqlite,
        "where a.batch_id = $1 and a.tenant_id || '' = $2 and coalesce(a.replaced_by is null, false) order by a.id"
    ),
};

impl Store {
    /// Keeps the hash of a link's token; once more is the same, with the time it is given then.
    pub async fn remember_link(&self, token_hash: &[u8; 32], link: &ApprovalLink) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query(
                "insert into approval_links (token_hash, batch_id, tenant_id, recipient, channel, expires_at)
                 values ($1, $2, $3, $4, $5, $6)
                 on conflict (token_hash) do update set expires_at = excluded.expires_at",
            )
            .bind(&token_hash[..])
            .bind(link.batch_id)
            .bind(text(&link.tenant_id))
            .bind(text(&link.recipient))
            .bind(text(&link.channel))
            .bind(link.expires_at)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }

    /// The questions of a batch in the order of their calls, those that were replaced aside. No more is read of them
    /// than there is room for, the open ones first.
    pub async fn approvals_of_batch(&self, tenant: &str, batch_id: Uuid) -> Result<Vec<BatchQuestion>, StoreError> {
        let read = self.db.read().await?;
        self.questions(read, tenant, batch_id).await
    }

    /// The tenant that owns a batch; `None`: there is no such batch.
    pub async fn tenant_of_batch(&self, batch_id: Uuid) -> Result<Option<String>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let tenant = read.query("select tenant_id from approvals where batch_id = $1 limit 1").bind(batch_id);
        Ok(tenant.optional_scalar().await?)
    }

    /// The batch that a link leads to, as [`Store::approvals_of_batch`] reads it. A link whose time is over is not
    /// found.
    pub async fn approvals_by_link(
        &self,
        token_hash: &[u8; 32],
        now: DateTime<Utc>,
    ) -> Result<(ApprovalLink, Vec<BatchQuestion>), StoreError> {
        let mut read = self.db.read().await?;
        let link: Option<ApprovalLink> = read
            .query(
                "select batch_id, tenant_id, recipient, channel, expires_at from approval_links
                  where token_hash = $1 and expires_at > $2",
            )
            .bind(&token_hash[..])
            .bind(now)
            .optional()
            .await?;
        let link = link.ok_or(StoreError::NotFound)?;
        let questions = self.questions(read, &link.tenant_id, link.batch_id).await?;
        Ok((link, questions))
    }

    /// Reads a batch. Documents of tenants are parsed off the threads that serve, after the connection is given back.
    async fn questions(
        &self,
        mut read: ReadConnection,
        tenant: &str,
        batch_id: Uuid,
    ) -> Result<Vec<BatchQuestion>, StoreError> {
        let measured: Vec<MeasuredQuestion> = read.query(MEASURED).bind(batch_id).bind(text(tenant)).all().await?;
        let whole = whole(&measured);
        let (rows, beginnings) = if whole.len() == measured.len() {
            (Some(read.query(OF_BATCH).bind(batch_id).bind(text(tenant)).rows().await?), None)
        } else {
            let others: Vec<Uuid> = measured.iter().map(|one| one.id).filter(|id| !whole.contains(id)).collect();
            let rows = rows_of(&mut read, SELECT_APPROVAL, &whole).await?;
            (rows, rows_of(&mut read, SELECT_BEGINNING, &others).await?)
        };
        read.end().await?;
        Ok(self.compute(tenant, move || in_order(rows, beginnings)).await??)
    }
}

/// The questions that are read whole: each for which there is room, the open ones first.
fn whole(measured: &[MeasuredQuestion]) -> Vec<Uuid> {
    let mut room = BATCH_BYTES;
    let of = |is_open: bool| measured.iter().filter(move |one| one.is_open == is_open);
    let mut whole = Vec::new();
    for one in of(true).chain(of(false)) {
        if one.bytes <= room {
            room -= one.bytes;
            whole.push(one.id);
        }
    }
    whole
}

async fn rows_of(read: &mut ReadConnection, select: Split, ids: &[Uuid]) -> Result<Option<Rows>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(None);
    }
    let mut query = read.build(select);
    query.push("where a.id in (").list(ids.iter().copied()).push(")");
    Ok(Some(query.finish().persistent(false).rows().await?))
}

fn in_order(whole: Option<Rows>, beginnings: Option<Rows>) -> Result<Vec<BatchQuestion>, sqlx::Error> {
    let whole: Vec<Approval> = whole.map_or_else(|| Ok(Vec::new()), |rows| rows.read())?;
    let beginnings: Vec<BatchQuestion> = beginnings.map_or_else(|| Ok(Vec::new()), |rows| rows.read())?;
    let whole = whole.into_iter().map(|approval| BatchQuestion { approval, left_out: None });
    let mut questions: Vec<BatchQuestion> = whole.chain(beginnings).collect();
    questions.sort_by_key(|question| question.approval.id);
    Ok(questions)
}
