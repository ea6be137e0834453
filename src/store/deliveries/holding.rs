//! Messages that are held: the digests that tell them, and the count of a day's interruptions.
//!
//! A digest takes messages until it is claimed for the first time, and none later; what it comes to, they come to in
//! the same transaction. Locks are taken on the digest before its messages.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::domain::notification::{Delivery, DeliveryClaim, DeliveryState, HoldReason, NewDelivery};
use crate::store::db::text::{document, optional_document, text};
use crate::store::deliveries::SELECT_DELIVERY;
use crate::store::sql::sql;
use crate::store::tx::{Rows, Tx};
use crate::store::{Split, Store, StoreError, Topic};

/// A digest as whoever joins it finds it: id, fallback as it is stored, and whether it takes more.
type OpenDigest = (Uuid, String, bool);

const DIGEST: Split = Split {
    postgres: "select id, cast(fallback as text), state = 'pending' and attempts = 0 from deliveries
                where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4 for update",
    sqlite: "select id, cast(fallback as text), state = 'pending' and attempts = 0 from deliveries
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
        insert_digest(tx, digest, at, now).await?;
        let (id, fallback, is_open) = lock_digest(tx, digest).await?;
        let fallback = serde_json::from_str::<Vec<String>>(&fallback);
        let fallback = fallback.inspect_err(|error| self.unreadable.report("deliveries", id, error));
        let place = match fallback {
            Ok(fallback) if is_open => {
                widen_fallback(tx, id, fallback, &digest.fallback).await?;
                HeldPlace::InDigest(id)
            }
            Ok(_) => HeldPlace::DigestLeft,
            Err(_) => HeldPlace::ByItself,
        };
        end_claim(tx, claim, hold_reason, place, (now, at)).await?;
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(DeliveryState::Pending)
    }

    /// Up to `limit` messages that a digest is still to tell, oldest first, and how many there are. One that can't be
    /// read is left out. The state is asked in words that fit no index: the indexes of states have all that is pending.
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
            .rows()
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
        Ok((self.readable_messages(&found), count))
    }

    /// Up to `limit` messages that a digest told or tells, on this channel or on one that it fell back to, the oldest
    /// first, and how many there are. One that can't be read is left out.
    pub async fn digest_messages(&self, digest: &Delivery, limit: i64) -> Result<(Vec<Delivery>, i64), StoreError> {
        let ways = std::iter::once(&digest.channel).chain(&digest.fallback);
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let (mut messages, mut count): (Vec<Delivery>, i64) = (Vec::new(), 0);
        for channel in ways {
            let rows = tx
                .query(TOLD_BY)
                .bind(&digest.tenant_id)
                .bind(&digest.recipient)
                .bind(text(channel))
                .bind(text(&digest.dedupe_key))
                .bind(limit)
                .rows()
                .await?;
            if rows.len() == 0 {
                continue;
            }
            messages = self.readable_messages(&rows);
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
        Ok((messages, count))
    }

    fn readable_messages(&self, rows: &Rows) -> Vec<Delivery> {
        self.unreadable.partition_readable::<Delivery, _, Uuid>("deliveries", rows, Ok).0
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

/// The place of a held message, as the state of its digest leaves it.
#[derive(Clone, Copy)]
enum HeldPlace {
    /// The digest tells it.
    InDigest(Uuid),
    /// The digest is on its way already: the message is due now.
    DigestLeft,
    /// The digest can't be read and tells nothing more: the message waits by itself.
    ByItself,
}

/// Makes a digest, due at `at`, where there is none of its key.
async fn insert_digest(
    tx: &mut Tx<'_>,
    digest: &NewDelivery,
    at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
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
    Ok(())
}

/// Locks the digest of this key.
async fn lock_digest(tx: &mut Tx<'_>, digest: &NewDelivery) -> Result<OpenDigest, StoreError> {
    Ok(tx
        .query(DIGEST)
        .bind(&digest.tenant_id)
        .bind(&digest.recipient)
        .bind(text(&digest.channel))
        .bind(text(&digest.dedupe_key))
        .one()
        .await?)
}

/// Adds channels to those on which a digest falls back, where it does not have them.
async fn widen_fallback(
    tx: &mut Tx<'_>,
    digest: Uuid,
    mut fallback: Vec<String>,
    added: &[String],
) -> Result<(), StoreError> {
    let before = fallback.len();
    for channel in added {
        if !fallback.contains(channel) {
            fallback.push(channel.clone());
        }
    }
    if fallback.len() > before {
        tx.query("update deliveries set fallback = $2 where id = $1")
            .bind(digest)
            .bind(document(&fallback)?)
            .execute()
            .await?;
    }
    Ok(())
}

/// Ends the claim of a message without an attempt, and puts it into its place. By itself it waits until `at`.
async fn end_claim(
    tx: &mut Tx<'_>,
    claim: &DeliveryClaim,
    hold_reason: HoldReason,
    place: HeldPlace,
    (now, at): (DateTime<Utc>, DateTime<Utc>),
) -> Result<(), StoreError> {
    let (next_at, reason, digest) = match place {
        HeldPlace::InDigest(id) => (None, Some(hold_reason), Some(id)),
        HeldPlace::DigestLeft => (Some(now), None, None),
        HeldPlace::ByItself => (Some(at), Some(hold_reason), None),
    };
    let done = tx
        .query(
            "update deliveries set lease_token = 0, attempts = attempts - 1, last_error = null, next_at = $3,
                        hold_reason = $4, digest_id = $5, due_at = coalesce($3, due_at)
                  where id = $1 and lease_token = $2 and state = 'pending'",
        )
        .bind(claim.delivery.id)
        .bind(claim.lease_token)
        .bind(next_at)
        .bind(reason.map(HoldReason::as_str))
        .bind(digest)
        .execute()
        .await?;
    if done == 0 {
        return Err(StoreError::LeaseLost);
    }
    Ok(())
}
