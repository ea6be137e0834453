//! Answers of POST requests that named an `Idempotency-Key`, written in the transaction of their effect.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::types::Json;

use crate::base::id::Scope;
use crate::store::db::text::{StoredJson, text};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

/// How long an answer is remembered, in hours.
const REMEMBERED_HOURS: i64 = 24;
/// Keys of admin tokens. No tenant can be called so, and what is kept under them counts for none.
const OF_ADMINS: &str = "*";

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
    pub body: AnswerBody,
}

/// The body of an answer, written as JSON as it is stored. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerBody(StoredJson);

impl AnswerBody {
    /// Writes it.
    ///
    /// # Errors
    /// `Corrupt`: it can't be written as JSON.
    pub fn of<T: Serialize + ?Sized>(answer: &T) -> Result<AnswerBody, StoreError> {
        StoredJson::of(answer).map(AnswerBody)
    }

    /// The answer that was written, as it is read back.
    pub fn value(&self) -> Value {
        self.0.read().expect("it was written as JSON")
    }
}

impl From<Value> for AnswerBody {
    fn from(answer: Value) -> AnswerBody {
        AnswerBody::of(&answer).expect("a value is JSON")
    }
}

/// Result of an effect that carries an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredAnswer<T> {
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

impl Idempotency {
    /// Bytes that are kept of a tenant with the answer.
    pub(in crate::store) fn bytes_of_tenant(&self, tenant: &str) -> usize {
        match self.tenant == tenant {
            true => self.key.len() + self.body.0.json().0.get().len(),
            false => 0,
        }
    }
}

/// The first answer to a key.
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct RememberedResponse {
    request_digest: Vec<u8>,
    status: i32,
    body: Json<Value>,
}

impl RememberedResponse {
    pub(in crate::store) fn answer<T>(self, digest: &[u8]) -> StoredAnswer<T> {
        if self.request_digest != digest {
            return StoredAnswer::Mismatch;
        }
        StoredAnswer::Replayed { status: self.status as u16, body: self.body.0 }
    }
}

/// In a transaction that writes: remembers the answer; or answers with the one that is remembered, and nothing is to be
/// committed.
pub(in crate::store) async fn once<T>(
    tx: &mut Tx<'_>,
    idempotency: Option<&Idempotency>,
    now: DateTime<Utc>,
) -> Result<Option<StoredAnswer<T>>, StoreError> {
    let Some(asked) = idempotency else { return Ok(None) };
    let fresh = tx
        .query(REMEMBER)
        .bind(&asked.tenant)
        .bind(text(&asked.key))
        .bind(&asked.digest)
        .bind(i32::from(asked.status))
        .bind(asked.body.0.json())
        .bind(now + TimeDelta::hours(REMEMBERED_HOURS))
        .bind(now)
        .execute()
        .await?;
    if fresh > 0 {
        return Ok(None);
    }
    let remembered: RememberedResponse = tx.query(RECALL).bind(&asked.tenant).bind(text(&asked.key)).one().await?;
    Ok(Some(remembered.answer(&asked.digest)))
}

/// An entry that has expired counts as none.
const REMEMBER: &str = "
    insert into idempotency (tenant_id, key, request_digest, status, body, expires_at)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (tenant_id, key) do update
       set request_digest = excluded.request_digest, status = excluded.status,
           body = excluded.body, expires_at = excluded.expires_at
     where idempotency.expires_at <= $7";

const RECALL: &str = "select request_digest, status, body from idempotency where tenant_id = $1 and key = $2";

impl Store {
    /// The stored answer to a request of this caller with this key, made before `now`, if there is one. For callers who
    /// must not judge a repetition anew; the effect's own transaction asks again.
    pub async fn recall_answer(
        &self,
        scope: &Scope,
        key: &str,
        digest: &[u8],
        now: DateTime<Utc>,
    ) -> Result<Option<StoredAnswer<()>>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let row: Option<RememberedResponse> = read
            .query(
                "select request_digest, status, body from idempotency
                  where tenant_id = $1 and key = $2 and expires_at > $3",
            )
            .bind(scope.tenant().unwrap_or(OF_ADMINS))
            .bind(text(key))
            .bind(now)
            .optional()
            .await?;
        read.end().await?;
        Ok(row.map(|row| row.answer(digest)))
    }

    /// Remembers the answer of an effect that has its own transaction and may be repeated; answers with the one that is
    /// remembered already. Of a tenant that may store no more no new answer is kept: such effects are never refused.
    pub async fn remember_answer(
        &self,
        idempotency: &Idempotency,
        now: DateTime<Utc>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        if idempotency.tenant != OF_ADMINS {
            match self.try_admit_once(&idempotency.tenant, 0, Some(idempotency), now).await {
                Err(StoreError::Quota(_)) => return Ok(StoredAnswer::Done(())),
                admitted => admitted?,
            }
        }
        self.keep_answer(idempotency, now).await
    }

    /// As [`Store::remember_answer`], before an effect that its repetition must find.
    ///
    /// # Errors
    /// `Quota`: the tenant may store no more, and the key is new.
    pub async fn claim_key(
        &self,
        idempotency: &Idempotency,
        now: DateTime<Utc>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        if idempotency.tenant != OF_ADMINS {
            self.admit_once(&idempotency.tenant, 0, Some(idempotency), now).await?;
        }
        self.keep_answer(idempotency, now).await
    }

    async fn keep_answer(&self, idempotency: &Idempotency, now: DateTime<Utc>) -> Result<StoredAnswer<()>, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, Some(idempotency), now).await? {
            return Ok(answer);
        }
        write.commit().await?;
        Ok(StoredAnswer::Done(()))
    }

    /// Forgets up to `limit` answers that have expired; returns how many.
    pub async fn forget_answers(&self, now: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from idempotency where (tenant_id, key) in (
                select tenant_id, key from idempotency where expires_at <= $1 order by expires_at limit $2)",
            now,
            limit,
        )
        .await
    }
}
