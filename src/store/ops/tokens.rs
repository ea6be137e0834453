//! API tokens. Only the hash of a token is stored. Each look-up asks the database, so that a revoked token is refused
//! at once.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::actor::Actor;
use crate::store::db::listing::{PAGE_BYTES, PagedRow, RowPage, fitting, push_page};
use crate::store::db::text::{document, text};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::{TENANT_LOCK, sql};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// Most tokens that a tenant may have stored, revoked and expired ones included.
pub const MOST_TOKENS: i64 = 10_000;

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
    /// The token from which this one descends, `token:<id>` or `token:admin`: the first one of a chain in which each
    /// token made the next. `None`: no other token made this one.
    pub root: Option<String>,
}

const SELECT_TOKEN: &str = "
    select t.id, t.tenant_id, t.name, t.hash, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.root
      from tokens t ";

const MEASURED: &str = "with page as materialized (
    select t.id, octet_length(t.name) + octet_length(cast(t.scopes as text)) + coalesce(octet_length(t.tenant_id), 0) as bytes
      from tokens t where true";
const FITTING: Split = fitting!(SELECT_TOKEN, "t.id");

/// The lock under which tokens of a tenant are made one after the other, until the end of the transaction.
const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_tokens"), sqlite: TENANT_LOCK.sqlite };

const COUNT: &str = "select count(*) from tokens where tenant_id = $1";

/// Deletes the oldest tokens of a tenant that are revoked or have expired. A token that no other token made stays: its
/// tenant tells who has asked for the runs of tokens that descend from it, and that person must not approve the calls
/// of those runs.
const DROP_DEAD: Split =
    Split { postgres: sql!(DROP_OLDEST; "{key}" = "any (array[$1])"), sqlite: sql!(DROP_OLDEST; "{key}" = "$1") };
const DROP_OLDEST: &str = "
    delete from tokens where id in (
        select id from tokens
         where tenant_id = {key} and root is not null and (revoked_at is not null or expires_at <= $2)
         order by tenant_id, id limit $3)";

/// Tokens of every tenant that were revoked before an instant ($1), as [`DROP_DEAD`] deletes those of one.
const FORGET_REVOKED: &str = sql!(FORGET_DEAD; "{dead_at}" = "revoked_at");
/// Tokens of every tenant that had expired before an instant ($1), as [`DROP_DEAD`] deletes those of one.
const FORGET_EXPIRED: &str = sql!(FORGET_DEAD; "{dead_at}" = "expires_at");
const FORGET_DEAD: &str = "
    delete from tokens where id in (
        select id from tokens
         where {dead_at} <= $1 and root is not null and tenant_id is not null order by {dead_at} limit $2)";

impl StoredToken {
    /// The name of the token from which this one descends; its own name where no other token made it.
    pub fn root(&self) -> String {
        self.root.clone().unwrap_or_else(|| Actor::Token(self.id).to_string())
    }
}

impl Store {
    /// Stores a new token, confined to its tenant. Where the tenant has [`MOST_TOKENS`], its oldest token that is
    /// revoked or has expired is deleted.
    ///
    /// # Errors
    /// `Conflict`: the hash is stored already, or the tenant has [`MOST_TOKENS`] and none of them may be deleted.
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
        if let Some(tenant) = &token.tenant_id {
            make_room(&mut write.tx(), tenant, token.created_at).await?;
        }
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

    /// The token with this hash. It may be revoked or expired: the caller judges whether it may be used.
    pub async fn find_token(&self, hash: &[u8]) -> Result<Option<StoredToken>, StoreError> {
        Ok(self.db.read_quick().await?.query(sql!(SELECT_TOKEN, "where t.hash = $1")).bind(hash).optional().await?)
    }

    /// The token with this id. It may be revoked or expired.
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

    /// A page of the tokens in this scope, newest first, behind `before`. Revoked tokens are among them.
    pub async fn list_tokens(
        &self,
        scope: &Scope,
        tenant: Option<&str>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<RowPage<StoredToken>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let (mut query, mut order) = (read.build(MEASURED), "");
        for tenant in [scope.tenant(), tenant].into_iter().flatten() {
            query.push_key("t.tenant_id", text(tenant).into_owned());
            order = "t.tenant_id desc, ";
        }
        if let Some(before) = before {
            let key = [scope.tenant(), tenant].into_iter().flatten().next_back();
            let key = key.map(|tenant| ("t.tenant_id", text(tenant).into_owned()));
            query.push_before(key, "t.id", before);
        }
        push_page(&mut query, (order, "t.id"), limit, (FITTING, PAGE_BYTES));
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

    /// Deletes tokens of all tenants that were revoked or had expired before an instant, up to `limit` of each kind;
    /// answers how many.
    pub async fn forget_tokens(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let mut forgotten = 0;
        for statement in [FORGET_REVOKED, FORGET_EXPIRED] {
            forgotten += write.query(statement).bind(before).bind(limit).execute().await?;
        }
        write.commit().await?;
        Ok(forgotten)
    }
}

/// Deletes revoked and expired tokens of a tenant until it may have one more.
async fn make_room(tx: &mut Tx<'_>, tenant: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
    tx.query(IN_TURN).bind(text(tenant)).execute().await?;
    let stored: i64 = tx.query(COUNT).bind(text(tenant)).scalar().await?;
    let beyond = stored + 1 - MOST_TOKENS;
    if beyond <= 0 {
        return Ok(());
    }
    let dropped = tx.query(DROP_DEAD).bind(text(tenant)).bind(now).bind(beyond).execute().await?;
    match dropped < beyond as u64 {
        true => Err(StoreError::Conflict(format!(
            "the tenant has {MOST_TOKENS} tokens, the most there may be, and all of them are good; revoke one first"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_tokens_of_a_tenant_and_dead_ones_are_found_by_their_indexes() {
        for (statement, index) in [
            (COUNT, "tokens_of_tenant"),
            (DROP_DEAD.sqlite, "tokens_of_tenant"),
            (FORGET_REVOKED, "tokens_revoked"),
            (FORGET_EXPIRED, "tokens_expired"),
        ] {
            let plan = sqlite_plan(statement).await.join("; ");
            assert!(plan.contains(index) && !plan.contains("SCAN"), "{statement}: {plan}");
        }
    }
}
