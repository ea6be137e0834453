//! Due deliveries of the outbox, and the beginning of attempts. The notifier decides which of those that wait are
//! claimed.
//!
//! Looking takes no lock and goes by an index from one end: what it reads is bounded, however much is stored.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::SELECT_DELIVERY;
use crate::domain::notification::{Delivery, DeliveryClaim};
use crate::store::db::text::text;
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::sql::sql;
use crate::store::{NEXT_TOKEN, Split, Store, StoreError};

/// A delivery that waits for its time, with its tenant.
#[derive(Debug, Clone, PartialEq, Eq, sqlx_macros::FromRow)]
pub struct QueuedDelivery {
    /// Id of the delivery.
    pub id: Uuid,
    /// The channel of the attempt.
    pub channel: String,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// The instant from which it is due.
    pub next_at: DateTime<Utc>,
}

/// A delivery whose attempt is about to begin.
#[derive(sqlx_macros::FromRow)]
struct DueDelivery {
    #[sqlx(flatten)]
    delivery: Delivery,
    /// Of the attempt before it, which was not marked; 0 where there is none.
    lease_token: i64,
}

/// Pending deliveries from one end of an index. SQLite, which has no statistics, would read all that is pending.
const SELECT: &str = "select id, channel, tenant_id, next_at from deliveries ";
const PENDING: &str = " where state = 'pending' and ";

const DUE: Split = Split {
    postgres: sql!(SELECT, PENDING, "next_at <= $1 order by next_at limit $2"),
    sqlite: sql!(SELECT, "indexed by deliveries_next", PENDING, "next_at <= $1 order by next_at limit $2"),
};
const NEXT: Split = Split {
    postgres: sql!(SELECT, PENDING, "next_at is not null order by next_at limit 1"),
    sqlite: sql!(SELECT, "indexed by deliveries_next", PENDING, "next_at is not null order by next_at limit 1"),
};
const NEXT_LINE: Split = Split {
    postgres: sql!(
        SELECT,
        PENDING,
        "next_at is not null and (channel, tenant_id) > ($1, $2) order by channel, tenant_id, next_at limit 1"
    ),
    sqlite: sql!(
        SELECT,
        "indexed by deliveries_pending_of_tenant",
        PENDING,
        "next_at is not null and (channel, tenant_id) > ($1, $2) order by channel, tenant_id, next_at limit 1"
    ),
};
const NEXT_CHANNEL: Split = Split {
    postgres: sql!(
        SELECT,
        PENDING,
        "next_at is not null and channel > $1 order by channel, tenant_id, next_at limit 1"
    ),
    sqlite: sql!(
        SELECT,
        "indexed by deliveries_pending_of_tenant",
        PENDING,
        "next_at is not null and channel > $1 order by channel, tenant_id, next_at limit 1"
    ),
};

/// Nobody else may claim them meanwhile; SQLite has one writer.
pub(super) const LOCKED: Split = Split { postgres: " for update skip locked", sqlite: "" };

impl Store {
    /// Up to `limit` deliveries that are due, those first that are due for the longest time.
    pub async fn due_deliveries(&self, limit: i64) -> Result<Vec<QueuedDelivery>, StoreError> {
        let now = self.clock.now();
        let mut read = self.db.read_quick().await?;
        Ok(read.query(DUE).bind(now).bind(limit).all().await?)
    }

    /// Lines are what a tenant has waiting on a channel, in the order of channel and tenant: the first delivery of the
    /// line after this one, due or not. After a channel and no tenant comes the next channel.
    pub async fn next_queue(&self, channel: &str, tenant: Option<&str>) -> Result<Option<QueuedDelivery>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let query = match tenant {
            Some(tenant) => read.query(NEXT_LINE).bind(text(channel)).bind(text(tenant)),
            None => read.query(NEXT_CHANNEL).bind(text(channel)),
        };
        Ok(query.optional().await?)
    }

    /// Begins an attempt of each of these that is still due. Until `claimed_until` nobody else does. One that can't be read
    /// is looked at again in an hour.
    pub async fn claim_deliveries(
        &self,
        ids: &[Uuid],
        claimed_until: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>, StoreError> {
        if ids.is_empty() {
            return Ok(vec![]);
        }
        let now = self.clock.now();
        let mut write = self.db.write_first().await?;
        let tx = &mut write.tx();
        let mut due = tx.build(SELECT_DELIVERY);
        due.push(" where d.state = 'pending' and d.next_at <= ").push_bind(now).push(" and d.id in (");
        due.list(ids.iter()).push(") order by d.next_at, d.id").push_split(LOCKED);
        let rows = due.finish().persistent(false).rows().await?;
        let (rows, others) =
            self.unreadable.partition_readable::<_, _, Uuid>("deliveries", &rows, Ok::<DueDelivery, _>);
        for id in others {
            tx.query("update deliveries set next_at = $2 where id = $1")
                .bind(id)
                .bind(now + RETRY_AFTER)
                .execute()
                .await?;
        }
        let done = match rows.is_empty() {
            true => Vec::new(),
            false => {
                // one for all of them: whoever claims one of them later has another
                let token: i64 = tx.query(NEXT_TOKEN).scalar().await?;
                let mut begin = tx.build("update deliveries set lease_token = ");
                begin.push_bind(token).push(", next_at = ").push_bind(claimed_until);
                begin.push(", attempts = attempts + 1 where id in (");
                begin.list(rows.iter().map(|due| due.delivery.id)).push(")");
                begin.finish().persistent(false).execute().await?;
                let claim = |DueDelivery { mut delivery, lease_token: before }| {
                    delivery.attempts += 1;
                    DeliveryClaim { delivery, lease_token: token, interrupted: before != 0 }
                };
                rows.into_iter().map(claim).collect()
            }
        };
        write.commit().await?;
        Ok(done)
    }

    /// When the next delivery is due; `None` where none waits. What a digest tells has no time of its own.
    pub async fn next_delivery(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let first: Option<QueuedDelivery> = self.db.read_quick().await?.query(NEXT).optional().await?;
        Ok(first.map(|first| first.next_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_what_is_due_is_read_from_one_end_of_an_index() {
        for statement in [DUE, NEXT, NEXT_LINE, NEXT_CHANNEL] {
            let plan = sqlite_plan(statement.sqlite).await;
            assert!(plan.len() == 1 && plan[0].starts_with("SEARCH deliveries USING INDEX"), "{plan:?}");
        }
    }
}
