//! Answers of POST requests that named an `Idempotency-Key`, written in the transaction of their effect.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::types::Json;

use crate::id::Scope;
use crate::store::text::text;
use crate::store::{Store, StoreError};

/// How long an answer is remembered, in hours.
const REMEMBERED_HOURS: i64 = 24;

/// A request that may be repeated, with the answer that it will get.
#[derive(Debug, Clone, PartialEq)]
pub struct Idempotency {
    /// Keys of different tenants never meet; an admin token's keys are those of `*`.
    pub tenant: String,
    /// The caller's key.
    pub key: String,
    /// SHA-256 over method, path and body: the same key for another request is refused.
    pub digest: Vec<u8>,
    /// Status of the answer.
    pub status: u16,
    /// Body of the answer.
    pub body: Value,
}

/// Result of an effect that carries an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer<T> {
    /// It took effect now.
    Done(T),
    /// It had before; this was answered then.
    Replayed {
        /// Status of the first answer.
        status: u16,
        /// Body of the first answer.
        body: Value,
    },
    /// The key was used for another request.
    Mismatch,
}

#[derive(sqlx::FromRow)]
pub(super) struct Remembered {
    request_digest: Vec<u8>,
    status: i32,
    body: Json<Value>,
}

impl Remembered {
    pub(super) fn answer<T>(self, digest: &[u8]) -> Answer<T> {
        if self.request_digest != digest {
            return Answer::Mismatch;
        }
        Answer::Replayed { status: self.status as u16, body: self.body.0 }
    }
}

/// In a transaction that writes: remembers the answer, or returns early with the one that is remembered.
macro_rules! once {
    ($conn:ident, $idempotency:expr, $now:expr) => {
        if let Some(asked) = $idempotency {
            let expires_at = $crate::store::idempotency::expiry($now);
            let fresh = sqlx::query($crate::store::idempotency::REMEMBER)
                .bind(&asked.tenant)
                .bind($crate::store::text::text(&asked.key))
                .bind(&asked.digest)
                .bind(i32::from(asked.status))
                .bind($crate::store::text::document(&asked.body)?)
                .bind(expires_at)
                .bind($now)
                .execute(&mut *$conn)
                .await?
                .rows_affected();
            if fresh == 0 {
                let remembered: $crate::store::idempotency::Remembered =
                    sqlx::query_as($crate::store::idempotency::RECALL)
                        .bind(&asked.tenant)
                        .bind($crate::store::text::text(&asked.key))
                        .fetch_one(&mut *$conn)
                        .await?;
                return Ok(remembered.answer(&asked.digest));
            }
        }
    };
}
pub(super) use once;

/// An entry that has expired counts as none.
pub(super) const REMEMBER: &str = "
    insert into idempotency (tenant_id, key, request_digest, status, body, expires_at)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (tenant_id, key) do update
       set request_digest = excluded.request_digest, status = excluded.status,
           body = excluded.body, expires_at = excluded.expires_at
     where idempotency.expires_at <= $7";

pub(super) const RECALL: &str =
    "select request_digest, status, body from idempotency where tenant_id = $1 and key = $2";

pub(super) fn expiry(now: DateTime<Utc>) -> DateTime<Utc> {
    now + TimeDelta::hours(REMEMBERED_HOURS)
}

impl Store {
    /// The stored answer to a request of this caller with this key, made before `now`, if there is one. For callers who
    /// must not judge a repetition anew; the effect's own transaction asks again.
    pub async fn recall_answer(
        &self,
        scope: &Scope,
        key: &str,
        digest: &[u8],
        now: DateTime<Utc>,
    ) -> Result<Option<Answer<()>>, StoreError> {
        let row: Option<Remembered> = on_read!(self.db, scope, |conn| {
            sqlx::query_as(
                "select request_digest, status, body from idempotency
                  where tenant_id = $1 and key = $2 and expires_at > $3",
            )
            .bind(scope.tenant().unwrap_or("*"))
            .bind(text(key))
            .bind(now)
            .fetch_optional(conn)
            .await?
        });
        Ok(row.map(|row| row.answer(digest)))
    }

    /// Remembers the answer of an effect that has its own transaction and may be repeated; answers with the one that is
    /// remembered already.
    pub async fn remember_answer(
        &self,
        idempotency: &Idempotency,
        now: DateTime<Utc>,
    ) -> Result<Answer<()>, StoreError> {
        on_write!(self.db, |conn| once!(conn, Some(idempotency), now));
        Ok(Answer::Done(()))
    }

    /// Forgets up to `limit` answers that have expired; returns how many.
    pub async fn forget_answers(&self, now: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        Ok(on_write!(self.db, |conn| {
            sqlx::query(
                "delete from idempotency where (tenant_id, key) in (
                    select tenant_id, key from idempotency where expires_at <= $1 order by expires_at limit $2)",
            )
            .bind(now)
            .bind(limit)
            .execute(conn)
            .await?
            .rows_affected()
        }))
    }
}
