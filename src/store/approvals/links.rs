//! Links to a batch, by the hash of their token: the token itself is stored nowhere.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::approval::Approval;
use crate::store::approvals::ApprovalLink;
use crate::store::approvals::row::SELECT_APPROVAL;
use crate::store::db::text::text;
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError};

const OF_BATCH: Split = Split {
    postgres: sql!(
        SELECT_APPROVAL.postgres,
        "where a.batch_id = $1 and a.tenant_id = $2 and a.replaced_by is null order by a.id"
    ),
    sqlite: sql!(
        SELECT_APPROVAL.sqlite,
        "where a.batch_id = $1 and a.tenant_id = $2 and a.replaced_by is null order by a.id"
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

    /// The questions of a batch in the order of their calls, those that were replaced aside.
    pub async fn approvals_of_batch(&self, tenant: &str, batch_id: Uuid) -> Result<Vec<Approval>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query(OF_BATCH).bind(batch_id).bind(text(tenant)).all().await?)
    }

    /// The batch that a link leads to, in the order of its calls, those that were replaced aside. A link whose time is
    /// over is not found.
    pub async fn approvals_by_link(
        &self,
        token_hash: &[u8; 32],
        now: DateTime<Utc>,
    ) -> Result<(ApprovalLink, Vec<Approval>), StoreError> {
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let link: Option<ApprovalLink> = tx
            .query(
                "select batch_id, tenant_id, recipient, channel, expires_at from approval_links
                  where token_hash = $1 and expires_at > $2",
            )
            .bind(&token_hash[..])
            .bind(now)
            .optional()
            .await?;
        let link = link.ok_or(StoreError::NotFound)?;
        let approvals = tx.query(OF_BATCH).bind(link.batch_id).bind(&link.tenant_id).all().await?;
        read.end().await?;
        Ok((link, approvals))
    }
}
