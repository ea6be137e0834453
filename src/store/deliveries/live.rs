//! Messages for sessions that are open: written by the channel, taken by a session, withdrawn where nobody took one.
//!
//! A message is taken once, and what is withdrawn can't be taken: both are guarded writes of one row. A message that
//! was taken is kept for a while, so that a session that comes back can be told it.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::store::db::text::document;
use crate::store::{Store, StoreError, Topic};

/// A message in the table, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct LiveMessage {
    /// The delivery's.
    pub id: Uuid,
    /// The instant of the message.
    pub created_at: DateTime<Utc>,
    /// It holds a link that decides.
    pub has_approval_link: bool,
    /// A session has it.
    pub taken: bool,
}

impl Store {
    /// Lays a message out for the tenant's sessions, sealed by the vault. One with this id that is there already stays
    /// as it is.
    pub async fn put_live_message(
        &self,
        tenant: &Tenant,
        id: Uuid,
        has_approval_link: bool,
        sealed: &str,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        write
            .query(
                "insert into live_messages (id, tenant_id, body, has_approval_link, created_at) values ($1, $2, $3, $4, $5)
                 on conflict (id) do nothing",
            )
            .bind(id)
            .bind(tenant.as_str())
            .bind(document(sealed)?)
            .bind(has_approval_link)
            .bind(now)
            .execute()
            .await?;
        write.commit().await?;
        self.notify(Topic::Live);
        Ok(())
    }

    /// One message; `None` where there is none of this tenant with this id.
    pub async fn live_message(&self, tenant: &Tenant, id: Uuid) -> Result<Option<LiveMessage>, StoreError> {
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let found = read
            .query(
                "select id, created_at, has_approval_link, claimed_at is not null as taken from live_messages
                  where id = $1 and tenant_id = $2",
            )
            .bind(id)
            .bind(tenant.as_str())
            .optional()
            .await?;
        read.end().await?;
        Ok(found)
    }

    /// The tenant's messages that nobody has taken, and those that were laid out at `since` or later, oldest first. One
    /// that can't be read is left out.
    pub async fn live_messages(
        &self,
        tenant: &Tenant,
        since: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<LiveMessage>, StoreError> {
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let found = read
            .query(
                "select id, created_at, has_approval_link, claimed_at is not null as taken from live_messages
                  where tenant_id = $1 and (claimed_at is null or created_at >= $2)
                  order by created_at, id limit $3",
            )
            .bind(tenant.as_str())
            .bind(since)
            .bind(limit)
            .rows()
            .await?;
        read.end().await?;
        Ok(self.unreadable.partition_readable::<LiveMessage, _, Uuid>("live_messages", &found, Ok).0)
    }

    /// Takes a message for a session and answers its sealed text, also where another session has taken it. `None` where
    /// it was withdrawn.
    pub async fn take_live_message(&self, tenant: &Tenant, id: Uuid) -> Result<Option<String>, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let tx = &mut write.tx();
        tx.query("update live_messages set claimed_at = $3 where id = $1 and tenant_id = $2 and claimed_at is null")
            .bind(id)
            .bind(tenant.as_str())
            .bind(now)
            .execute()
            .await?;
        let body: Option<Json<String>> = tx
            .query("select body from live_messages where id = $1 and tenant_id = $2")
            .bind(id)
            .bind(tenant.as_str())
            .optional_scalar()
            .await?;
        write.commit().await?;
        self.notify(Topic::Live);
        Ok(body.map(|body| body.0))
    }

    /// Takes back a message that nobody has taken; answers whether that was so.
    pub async fn withdraw_live_message(&self, tenant: &Tenant, id: Uuid) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Only(tenant.clone())).await?;
        let withdrawn = write
            .query("delete from live_messages where id = $1 and tenant_id = $2 and claimed_at is null")
            .bind(id)
            .bind(tenant.as_str())
            .execute()
            .await?;
        write.commit().await?;
        Ok(withdrawn == 1)
    }

    /// A page of all tenants' messages in the order of their ids, after `after`: id, tenant, sealed text.
    pub async fn sealed_live_messages(
        &self,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<(Uuid, String, String)>, StoreError> {
        let rows: Vec<(Uuid, String, String)> = self
            .db
            .read()
            .await?
            .query("select id, tenant_id, cast(body as text) from live_messages where id > $1 order by id limit $2")
            .bind(after.unwrap_or_default())
            .bind(limit)
            .all()
            .await?;
        // a body that is no JSON text is sealed by no key, as it says of itself
        let sealed = |body: String| serde_json::from_str(&body).unwrap_or(body);
        Ok(rows.into_iter().map(|(id, tenant, body)| (id, tenant, sealed(body))).collect())
    }

    /// Puts a message's text under another master key; nobody else ever writes it anew. Answers whether it was still
    /// there.
    pub async fn rewrap_live_message(&self, id: Uuid, sealed: &str) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let written = write
            .query("update live_messages set body = $2 where id = $1")
            .bind(id)
            .bind(document(sealed)?)
            .execute()
            .await?;
        write.commit().await?;
        Ok(written == 1)
    }

    /// Deletes up to `limit` messages that were laid out before `before`; answers how many.
    pub async fn forget_live_messages(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from live_messages where id in (
                select id from live_messages where created_at < $1 order by created_at limit $2)",
            before,
            limit,
        )
        .await
    }
}
