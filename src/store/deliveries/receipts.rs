//! Reports of providers about messages that they took on, and the end of waiting for them.
//!
//! A report settles a delivery in one transaction with its fall-back. It may come before the attempt itself is
//! recorded: then the lease is left to the worker, whose mark finds the end written already.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::members::{hand_over, settle_members};
use crate::base::id::Scope;
use crate::domain::notification::{Delivery, DeliveryReport, DeliveryState, MessageKind, ReportedFate};
use crate::store::db::text::optional;
use crate::store::deliveries::SELECT_DELIVERY;
use crate::store::deliveries::claiming::LOCKED;
use crate::store::runs::alerts::reset_alert;
use crate::store::sql::sql;
use crate::store::{Split, Store, StoreError, Topic};

const LOCKED_DELIVERY: Split = Split {
    postgres: sql!(SELECT_DELIVERY, "where d.id = $1 and d.channel = $2 for update"),
    sqlite: sql!(SELECT_DELIVERY, "where d.id = $1 and d.channel = $2"),
};

/// SQLite, which has no statistics, would read all that was sent.
const OVERDUE: Split = Split {
    postgres: "select id from deliveries where state = 'sent' and sent_at <= $1 order by sent_at limit $2",
    sqlite: "select id from deliveries indexed by deliveries_sent where state = 'sent' and sent_at <= $1
              order by sent_at limit $2",
};

/// Of those that were overdue the ones that still are. The state is asked in words that fit no index.
const STILL_SENT: &str = "select id from deliveries where state || '' = 'sent' and id in (";

/// Why a delivery is unknown whose receipt has not come.
const SILENCE: &str = "the provider took it on and never said whether it arrived";

impl Store {
    /// Takes a provider's report on a delivery that went through `channel`; answers the state that stands then. What
    /// failed falls back in the same transaction. A report that changes nothing writes nothing.
    pub async fn receive_receipt(
        &self,
        id: Uuid,
        channel: &str,
        report: &DeliveryReport,
    ) -> Result<DeliveryState, StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let found: Option<Delivery> = tx.query(LOCKED_DELIVERY).bind(id).bind(channel).optional().await?;
        let delivery = found.ok_or(StoreError::NotFound)?;
        let Some(state) = report.next_state(delivery.state, delivery.provider_id.as_deref()) else {
            return Ok(delivery.state);
        };
        let error = match &report.fate {
            ReportedFate::Failed { why } => Some(why.as_str()),
            ReportedFate::UnderWay | ReportedFate::Delivered => None,
        };
        tx.query(
            "update deliveries
                set state = $2, next_at = null, last_error = $3, provider_id = coalesce($4, provider_id),
                    sent_at = coalesce(sent_at, $5), delivered_at = $6
              where id = $1",
        )
        .bind(id)
        .bind(state.as_str())
        .bind(optional(error))
        .bind(optional(report.provider_id.as_deref()))
        .bind(now)
        .bind((state == DeliveryState::Delivered).then_some(now))
        .execute()
        .await?;
        let next = delivery.fall_back().filter(|_| state == DeliveryState::Failed);
        if let Some(next) = &next {
            tx.post(&[next], now).await?;
        }
        if delivery.kind == MessageKind::Digest {
            let delivered = (state == DeliveryState::Delivered).then_some(now);
            match &next {
                Some(next) => hand_over(tx, id, next, error).await?,
                None => settle_members(tx, id, state, error, Some(now), delivered).await?,
            }
        }
        if state == DeliveryState::Failed && (next.is_none() || delivery.kind == MessageKind::Digest) {
            reset_alert(tx, id).await?;
        }
        write.commit().await?;
        if next.is_some() {
            self.notify(Topic::Outbox);
        }
        Ok(state)
    }

    /// Calls up to `limit` deliveries unknown that were taken on at `before` or earlier and of which nothing was
    /// reported; answers how many. Where there are none, nothing is written.
    pub async fn lose_receipts(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let overdue: Vec<Uuid> = self.db.read_quick().await?.query(OVERDUE).bind(before).bind(limit).scalars().await?;
        if overdue.is_empty() {
            return Ok(0);
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let mut still_sent = tx.build(STILL_SENT);
        still_sent.list(overdue.iter()).push(")").push_split(LOCKED);
        let overdue: Vec<Uuid> = still_sent.finish().persistent(false).scalars().await?;
        for id in &overdue {
            tx.query("update deliveries set state = 'unknown', last_error = $2 where id = $1")
                .bind(id)
                .bind(SILENCE)
                .execute()
                .await?;
            // where it is a digest
            settle_members(
                tx,
                *id,
                DeliveryState::Unknown,
                Some(SILENCE),
                None::<DateTime<Utc>>,
                None::<DateTime<Utc>>,
            )
            .await?;
        }
        write.commit().await?;
        Ok(overdue.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_what_is_overdue_is_read_from_one_end_of_an_index() {
        let plan = sqlite_plan(OVERDUE.sqlite).await;
        assert!(plan.len() == 1 && plan[0].contains("deliveries_sent"), "{plan:?}");
    }
}
