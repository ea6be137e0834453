//! Links that sign a browser in to the dashboard, by the hash of the code in their address. A link is spent once.

use chrono::{DateTime, Utc};

use crate::base::id::Scope;
use crate::store::sql::{TENANT_LOCK, sql};
use crate::store::{Split, Store, StoreError};

/// Most links that are stored of one token, spent and expired ones included.
pub const MOST_LINKS: i64 = 100;

/// A link as it is stored, without its code.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct StoredLoginLink {
    /// SHA-256 of the token that made it.
    pub token_hash: Vec<u8>,
    /// The instant at which it was made.
    pub made_at: DateTime<Utc>,
    /// The instant from which it is refused.
    pub expires_at: DateTime<Utc>,
    /// The instant at which it was spent.
    pub spent_at: Option<DateTime<Utc>>,
}

/// The lock under which links of a token are made one after the other, until the end of the transaction.
const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_login_links"), sqlite: TENANT_LOCK.sqlite };

const MAKE: &str = "insert into login_links (hash, token_hash, made_at, expires_at) values ($1, $2, $3, $4)";

/// Deletes all links of a token ($1) but the newest.
const TRIM: &str = "
    delete from login_links where token_hash = $1 and hash not in (
        select hash from login_links where token_hash = $1 order by token_hash desc, made_at desc, hash desc limit $2)";

const FIND: &str = "select token_hash, made_at, expires_at, spent_at from login_links where hash = $1";

/// Of two who spend it at once the second finds no row that is not spent.
const SPEND: &str = "
    update login_links set spent_at = $2 where hash = $1 and spent_at is null and expires_at > $2 returning token_hash";

const FORGET: &str = "
    delete from login_links where hash in (
        select hash from login_links where expires_at <= $1 order by expires_at limit $2)";

impl Store {
    /// Stores a link that a token has made, known by the hash of its code. Where the token has [`MOST_LINKS`], the
    /// oldest is gone.
    ///
    /// # Errors
    /// `Conflict`: the hash is stored already.
    pub async fn make_login_link(
        &self,
        hash: &[u8],
        token_hash: &[u8],
        made_at: DateTime<Utc>,
        expires_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query(IN_TURN).bind(hex::encode(token_hash)).execute().await?;
        write.query(MAKE).bind(hash).bind(token_hash).bind(made_at).bind(expires_at).execute().await?;
        write.query(TRIM).bind(token_hash).bind(MOST_LINKS).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// The link with this hash. It may be spent or expired: the caller judges whether it may be used.
    pub async fn find_login_link(&self, hash: &[u8]) -> Result<Option<StoredLoginLink>, StoreError> {
        Ok(self.db.read_quick().await?.query(FIND).bind(hash).optional().await?)
    }

    /// Spends a link, if it is good at `now` and nobody has spent it; answers the hash of the token that made it.
    pub async fn spend_login_link(&self, hash: &[u8], now: DateTime<Utc>) -> Result<Option<Vec<u8>>, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let token_hash = write.query(SPEND).bind(hash).bind(now).optional_scalar().await?;
        write.commit().await?;
        Ok(token_hash)
    }

    /// Deletes up to `limit` links that had expired before an instant; answers how many.
    pub async fn forget_login_links(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let forgotten = write.query(FORGET).bind(before).bind(limit).execute().await?;
        write.commit().await?;
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_links_of_a_token_and_expired_ones_are_found_by_their_indexes() {
        for (statement, index) in [
            (FIND, "login_links"),
            (TRIM, "login_links_of_token"),
            (SPEND, "login_links"),
            (FORGET, "login_links_expired"),
        ] {
            let plan = sqlite_plan(statement).await.join("; ");
            assert!(plan.contains(index) && !plan.contains("SCAN"), "{statement}: {plan}");
        }
    }
}
