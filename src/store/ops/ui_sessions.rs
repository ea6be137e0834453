//! Sessions of the dashboard, by the hash of the secret that a browser shows. Each look-up asks the database, so that a
//! session that was ended is refused at once.

use chrono::{DateTime, Utc};

use crate::base::id::Scope;
use crate::store::sql::{TENANT_LOCK, sql};
use crate::store::{Split, Store, StoreError};

/// Most sessions that stand for one token.
pub const MOST_SESSIONS: i64 = 100;

/// A session as it is stored, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct UiSession {
    /// SHA-256 of the token that it stands for.
    pub token_hash: Vec<u8>,
    /// The instant of its beginning.
    pub created_at: DateTime<Utc>,
    /// The instant of its last request, as far as that was noted.
    pub seen_at: DateTime<Utc>,
    /// The instant from which it is refused, however busy it is.
    pub ends_at: DateTime<Utc>,
}

/// The lock under which sessions of a token begin one after the other, until the end of the transaction.
const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_ui_sessions"), sqlite: TENANT_LOCK.sqlite };

const OPEN: &str = "
    insert into ui_sessions (hash, token_hash, created_at, seen_at, ends_at) values ($1, $2, $3, $4, $5)";

/// Deletes all sessions of a token ($1) but the newest.
const TRIM: &str = "
    delete from ui_sessions where token_hash = $1 and hash not in (
        select hash from ui_sessions where token_hash = $1 order by token_hash desc, created_at desc, hash desc limit $2)";

const FIND: &str = "select token_hash, created_at, seen_at, ends_at from ui_sessions where hash = $1";

const FORGET: &str = "
    delete from ui_sessions where hash in (
        select hash from ui_sessions where ends_at <= $1 order by ends_at limit $2)";

impl Store {
    /// Begins a session, known by the hash of its secret. Where its token has [`MOST_SESSIONS`], the oldest ends.
    ///
    /// # Errors
    /// `Conflict`: the hash is stored already.
    pub async fn open_ui_session(&self, hash: &[u8], session: &UiSession) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query(IN_TURN).bind(hex::encode(&session.token_hash)).execute().await?;
        write
            .query(OPEN)
            .bind(hash)
            .bind(&session.token_hash)
            .bind(session.created_at)
            .bind(session.seen_at)
            .bind(session.ends_at)
            .execute()
            .await?;
        write.query(TRIM).bind(&session.token_hash).bind(MOST_SESSIONS).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// The session with this hash. It may have ended: the caller judges whether it may be used.
    pub async fn find_ui_session(&self, hash: &[u8]) -> Result<Option<UiSession>, StoreError> {
        Ok(self.db.read_quick().await?.query(FIND).bind(hash).optional().await?)
    }

    /// Notes a request of a session. One that was noted later stays.
    pub async fn touch_ui_session(&self, hash: &[u8], seen_at: DateTime<Utc>) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query("update ui_sessions set seen_at = $2 where hash = $1 and seen_at < $2")
            .bind(hash)
            .bind(seen_at)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }

    /// Ends a session for good. One that is not there has ended.
    pub async fn end_ui_session(&self, hash: &[u8]) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query("delete from ui_sessions where hash = $1").bind(hash).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// Deletes up to `limit` sessions that had ended before an instant; answers how many.
    pub async fn forget_ui_sessions(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
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
    async fn on_sqlite_sessions_of_a_token_and_ended_ones_are_found_by_their_indexes() {
        for (statement, index) in [(FIND, "ui_sessions"), (TRIM, "ui_sessions_of_token"), (FORGET, "ui_sessions_ended")]
        {
            let plan = sqlite_plan(statement).await.join("; ");
            assert!(plan.contains(index) && !plan.contains("SCAN"), "{statement}: {plan}");
        }
    }
}
