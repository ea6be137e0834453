//! Messages that are held: the digests that tell them, and the count of a day's interruptions.
//!
//! A digest takes messages until it is claimed for the first time, and none later; what it comes to, they come to in the
//! same transaction. Locks are taken on the digest before its messages.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::domain::notification::{Delivery, DeliveryClaim, DeliveryState, HoldReason, NewDelivery};
use crate::store::db::text::{document, optional_document, text};
use crate::store::deliveries::SELECT_DELIVERY;
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError, Topic};

/// A digest as whoever joins it finds it: id, fallback, and whether it takes more.
type OpenDigest = (Uuid, Json<Vec<String>>, bool);

const DIGEST: Split = Split {
    postgres: "select id, fallback, state = 'pending' and attempts = 0 from deliveries
                where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4 for update",
    sqlite: "select id, fallback, state = 'pending' and attempts = 0 from deliveries
              where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4",
};

const TOLD_BY: &str = sql!(
    SELECT_DELIVERY,
    "where d.digest_id = (select id from deliveries
                           where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4)
     order by d.id limit $5"
);
const COUNT_TOLD_BY: &str = "
    select count(*) from deliveries
     where digest_id = (select id from deliveries
                         where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4)";

impl Store {
    /// Ends a claim without an attempt: `digest`, due at `at`, tells the message. It is made or joined; where it is on
    /// its way already, the message is due now.
    pub(in crate::store) async fn hold_delivery(
        &self,
        claim: &DeliveryClaim,
        hold_reason: HoldReason,
        digest: &NewDelivery,
        at: DateTime<Utc>,
    ) -> Result<DeliveryState, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, fallback, state, next_at,
                                     created_at, urgency, subject_ref)
             values ($1, $2, $3, $4, $5, $6, $7, 'pending', $8, $9, $10, $11)
             on conflict (tenant_id, recipient, channel, dedupe_key) do nothing",
        )
        .bind(new_id(now))
        .bind(&digest.tenant_id)
        .bind(&digest.recipient)
        .bind(text(&digest.channel))
        .bind(text(&digest.dedupe_key))
        .bind(digest.kind.as_str())
        .bind(document(&digest.fallback)?)
        .bind(at)
        .bind(now)
        .bind(digest.urgency.as_str())
        .bind(optional_document(digest.subject_ref.as_ref())?)
        .execute()
        .await?;
        let (id, mut fallback, open): OpenDigest = tx
            .query(DIGEST)
            .bind(&digest.tenant_id)
            .bind(&digest.recipient)
            .bind(text(&digest.channel))
            .bind(text(&digest.dedupe_key))
            .one()
            .await?;
        let ways = fallback.0.len();
        for channel in &digest.fallback {
            if !fallback.0.contains(channel) {
                fallback.0.push(channel.clone());
            }
        }
        if open && fallback.0.len() > ways {
            tx.query("update deliveries set fallback = $2 where id = $1")
                .bind(id)
                .bind(document(&fallback.0)?)
                .execute()
                .await?;
        }
        let done = tx
            .query(
                "update deliveries set lease_token = 0, attempts = attempts - 1, last_error = null, next_at = $3,
                        hold_reason = $4, digest_id = $5, due_at = coalesce($3, due_at)
                  where id = $1 and lease_token = $2 and state = 'pending'",
            )
            .bind(claim.delivery.id)
            .bind(claim.lease_token)
            .bind((!open).then_some(now))
            .bind(open.then_some(hold_reason.as_str()))
            .bind(open.then_some(id))
            .execute()
            .await?;
        if done == 0 {
            return Err(StoreError::LeaseLost);
        }
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(DeliveryState::Pending)
    }

    /// Up to `limit` messages that a digest is still to tell, oldest first, and how many there are. The state is asked
    /// in words that fit no index: the indexes of states have all that is pending.
    pub async fn digest_members(
        &self,
        scope: &Scope,
        digest: Uuid,
        limit: i64,
    ) -> Result<(Vec<Delivery>, i64), StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let tx = &mut read.tx();
        let found = tx
            .query(sql!(
                SELECT_DELIVERY,
                "where d.digest_id = $1 and d.state || '' = 'pending' and ($2 is null or d.tenant_id = $2)
                 order by d.id limit $3"
            ))
            .bind(digest)
            .bind(scope.tenant())
            .bind(limit)
            .all()
            .await?;
        let count: i64 = tx
            .query(
                "select count(*) from deliveries
                  where digest_id = $1 and state || '' = 'pending' and ($2 is null or tenant_id = $2)",
            )
            .bind(digest)
            .bind(scope.tenant())
            .scalar()
            .await?;
        read.end().await?;
        Ok((found, count))
    }

    /// Up to `limit` messages that a digest told or tells, on this channel or on one that it fell back to, the oldest
    /// first, and how many there are.
    pub async fn digest_messages(&self, digest: &Delivery, limit: i64) -> Result<(Vec<Delivery>, i64), StoreError> {
        let ways = std::iter::once(&digest.channel).chain(&digest.fallback);
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let (mut rows, mut count): (Vec<Delivery>, i64) = (Vec::new(), 0);
        for channel in ways {
            rows = tx
                .query(TOLD_BY)
                .bind(&digest.tenant_id)
                .bind(&digest.recipient)
                .bind(text(channel))
                .bind(text(&digest.dedupe_key))
                .bind(limit)
                .all()
                .await?;
            if rows.is_empty() {
                continue;
            }
            count = tx
                .query(COUNT_TOLD_BY)
                .bind(&digest.tenant_id)
                .bind(&digest.recipient)
                .bind(text(channel))
                .bind(text(&digest.dedupe_key))
                .scalar()
                .await?;
            break;
        }
        read.end().await?;
        Ok((rows, count))
    }

    /// Counts one interruption of a recipient on a day of its calendar; `false`, and nothing counted, where there were
    /// `limit` already.
    pub async fn count_interruption(&self, recipient: &str, day: &str, limit: Option<u32>) -> Result<bool, StoreError> {
        if limit == Some(0) {
            return Ok(false);
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let counted = write
            .query(
                "insert into interruptions (tenant_id, day, sent) values ($1, $2, 1)
                 on conflict (tenant_id, day) do update set sent = interruptions.sent + 1
                  where $3 is null or interruptions.sent < $3",
            )
            .bind(text(recipient))
            .bind(day)
            .bind(limit.map(i64::from))
            .execute()
            .await?;
        write.commit().await?;
        Ok(counted > 0)
    }

    /// Takes one interruption back that was counted and then interrupted nobody. The day is asked in words that fit no
    /// index: the index of days has everybody's counts of a day.
    pub async fn uncount_interruption(&self, recipient: &str, day: &str) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write
            .query("update interruptions set sent = sent - 1 where tenant_id = $1 and day || '' = $2 and sent > 0")
            .bind(text(recipient))
            .bind(day)
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }

    /// Deletes up to `limit` counts of days before this one, and codes whose time was over before `before`; answers how
    /// many.
    pub async fn forget_counts(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let day = before.date_naive().to_string();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let counts = tx
            .query(
                "delete from interruptions where (tenant_id, day) in (
                    select tenant_id, day from interruptions where day < $1 order by day, tenant_id limit $2)",
            )
            .bind(day)
            .bind(limit)
            .execute()
            .await?;
        let codes = tx
            .query(
                "delete from verifications where (tenant_id, channel) in (
                    select tenant_id, channel from verifications where expires_at < $1 order by expires_at limit $2)",
            )
            .bind(before)
            .bind(limit)
            .execute()
            .await?;
        write.commit().await?;
        Ok(counts + codes)
    }
}
