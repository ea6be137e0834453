//! API tokens: only their hash is stored; each look-up asks the database, so that a revoked one is dead at once.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::actor::Actor;
use crate::store::db::listing::{BOUND, FIT, IN_ORDER, PAGE_BYTES, PagedRow, RowPage, fitting};
use crate::store::db::text::{document, text};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError};

/// A token as it is stored, without its text.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct StoredToken {
    /// Id of the token, a UUIDv7.
    pub id: Uuid,
    /// `None`: an admin token.
    pub tenant_id: Option<String>,
    /// Purpose of the token.
    pub name: String,
    /// SHA-256 of the text.
    pub hash: Vec<u8>,
    /// Words of `token::Permission`.
    #[sqlx(json)]
    pub scopes: Vec<String>,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant from which it is refused.
    pub expires_at: Option<DateTime<Utc>>,
    /// The instant at which it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// The token that it descends from: the first of those that made one another, `token:<id>` or `token:admin`. `None`:
    /// no other token made it.
    pub root: Option<String>,
}

const SELECT_TOKEN: &str = "
    select t.id, t.tenant_id, t.name, t.hash, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.root
      from tokens t ";

const MEASURED: &str = "with page as materialized (
    select t.id, octet_length(t.name) + octet_length(cast(t.scopes as text)) + coalesce(octet_length(t.tenant_id), 0) as bytes
      from tokens t where true";
const FITTING: Split = fitting!(SELECT_TOKEN, "t.id");

impl StoredToken {
    /// The name of the token that it descends from; its own where no other made it.
    pub fn root(&self) -> String {
        self.root.clone().unwrap_or_else(|| Actor::Token(self.id).to_string())
    }
}

impl Store {
    /// Stores a new token, confined to its tenant.
    pub async fn create_token(
        &self,
        token: &StoredToken,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let mut write = self.db.write_unconfined(token.tenant_id.as_deref()).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency, token.created_at).await? {
            return Ok(answer);
        }
        write.set_rls_tenant(token.tenant_id.as_deref()).await?;
        write
            .query(
                "insert into tokens (id, tenant_id, name, hash, scopes, created_at, expires_at, root)
                 values ($1, $2, $3, $4, $5, $6, $7, $8)",
            )
            .bind(token.id)
            .bind(&token.tenant_id)
            .bind(text(&token.name))
            .bind(&token.hash)
            .bind(document(&token.scopes)?)
            .bind(token.created_at)
            .bind(token.expires_at)
            .bind(&token.root)
            .execute()
            .await?;
        write.commit().await?;
        Ok(StoredAnswer::Done(()))
    }

    /// The token with this hash, dead or alive; whether it may be used is the caller's to judge.
    pub async fn find_token(&self, hash: &[u8]) -> Result<Option<StoredToken>, StoreError> {
        Ok(self.db.read_quick().await?.query(sql!(SELECT_TOKEN, "where t.hash = $1")).bind(hash).optional().await?)
    }

    /// The token with this id, dead or alive.
    pub async fn get_token(&self, id: Uuid) -> Result<Option<StoredToken>, StoreError> {
        Ok(self.db.read_quick().await?.query(sql!(SELECT_TOKEN, "where t.id = $1")).bind(id).optional().await?)
    }

    /// Whether any admin token that is not revoked is stored.
    pub async fn has_admin_token(&self) -> Result<bool, StoreError> {
        let found: Option<i32> = self
            .db
            .read()
            .await?
            .query("select 1 from tokens where tenant_id is null and revoked_at is null limit 1")
            .optional_scalar()
            .await?;
        Ok(found.is_some())
    }

    /// A page of the tokens in this scope, newest first, after `before`. Revoked ones are shown, too.
    pub async fn list_tokens(
        &self,
        scope: &Scope,
        tenant: Option<&str>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<RowPage<StoredToken>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(MEASURED);
        for tenant in [scope.tenant(), tenant].into_iter().flatten() {
            query.push(" and t.tenant_id = ").push_bind(text(tenant).into_owned());
        }
        if let Some(before) = before {
            query.push(" and t.id < ").push_bind(before);
        }
        query.push(" order by t.id desc limit ").push_bind(limit).push(FIT).push_split(FITTING);
        query.push(BOUND).push_bind(PAGE_BYTES).push(IN_ORDER);
        let rows: Vec<PagedRow<StoredToken>> = query.finish().all().await?;
        read.end().await?;
        RowPage::of(rows, Ok)
    }

    /// Ends a token for good. Revoking it again changes nothing.
    pub async fn revoke_token(&self, scope: &Scope, id: Uuid) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let found = write
            .query(
                "update tokens set revoked_at = coalesce(revoked_at, $3)
                  where id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(id)
            .bind(scope.tenant())
            .bind(now)
            .execute()
            .await?;
        write.commit().await?;
        if found == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }
}
