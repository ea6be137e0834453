//! Due deliveries of the outbox, and the beginning of attempts. The notifier decides which of the waiting deliveries
//! are claimed.
//!
//! A look for due deliveries takes no lock and reads an index from one end. The number of rows that it reads is
//! bounded, however many are stored.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::SELECT_DELIVERY;
use crate::domain::notification::{Delivery, DeliveryClaim};
use crate::store::db::text::text;
use crate::store::ops::unreadable::RETRY_AFTER;
use crate::store::sql::sql;
use crate::store::tx::Rows;
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
    /// The token of an earlier attempt whose outcome was not recorded; 0 where there is none.
    lease_token: i64,
}

/// Reads of pending deliveries from one end of an index. For SQLite they name the index: without statistics it would
/// read all pending rows.
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
const NEXT_QUEUE: Split = Split {
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

/// A delivery that still waits, as it is by now. The condition on the state fits no index on purpose.
const STILL_PENDING: &str = sql!(SELECT, "where id = $1 and state || '' = 'pending'");
const SET_ASIDE: &str = "update deliveries set next_at = $2 where id = $1";
/// Unreadable rows of a queue that one look passes over, at most.
const PASSED_OVER: usize = 100;

/// Locks deliveries against the claims of other instances. SQLite has one writer.
pub(super) const LOCKED: Split = Split { postgres: " for update skip locked", sqlite: "" };

impl Store {
    /// Up to `limit` due deliveries, the longest due first. A delivery that can't be read is looked at again in an
    /// hour.
    pub async fn due_deliveries(&self, limit: i64) -> Result<Vec<QueuedDelivery>, StoreError> {
        let now = self.clock.now();
        let mut read = self.db.read_quick().await?;
        let rows = read.query(DUE).bind(now).bind(limit).rows().await?;
        read.end().await?;
        self.readable_deliveries(&rows).await
    }

    /// The first delivery, due or not, of the queue behind that of this channel and tenant. A queue is all that one
    /// tenant has waiting on one channel. Queues are in the order of channel and tenant; without a tenant the first
    /// queue of the next channel follows. A delivery that can't be read is looked at again in an hour, and the one
    /// behind it is answered.
    pub async fn next_queue(&self, channel: &str, tenant: Option<&str>) -> Result<Option<QueuedDelivery>, StoreError> {
        for _ in 0..PASSED_OVER {
            let mut read = self.db.read_quick().await?;
            let query = match tenant {
                Some(tenant) => read.query(NEXT_QUEUE).bind(text(channel)).bind(text(tenant)),
                None => read.query(NEXT_CHANNEL).bind(text(channel)),
            };
            let rows = query.rows().await?;
            read.end().await?;
            let first = self.readable_deliveries(&rows).await?.pop();
            if first.is_some() || rows.len() == 0 {
                return Ok(first);
            }
        }
        Ok(None)
    }

    /// The deliveries that can be read in these rows. The others are read once more in a transaction, and set aside
    /// where they still wait and still can't be read.
    async fn readable_deliveries(&self, rows: &Rows) -> Result<Vec<QueuedDelivery>, StoreError> {
        let readable =
            |rows: &Rows| self.unreadable.partition_readable::<_, _, Uuid>("deliveries", rows, Ok::<QueuedDelivery, _>);
        let (readable_ones, others) = readable(rows);
        if !others.is_empty() {
            let until = self.clock.now() + RETRY_AFTER;
            let mut write = self.db.write_first().await?;
            let tx = &mut write.tx();
            for id in &others {
                let still = tx.query(STILL_PENDING).bind(id).rows().await?;
                if !readable(&still).1.is_empty() {
                    tx.query(SET_ASIDE).bind(id).bind(until).execute().await?;
                }
            }
            write.commit().await?;
        }
        Ok(readable_ones)
    }

    /// Begins an attempt of each of these deliveries that is still due. No other instance begins one until
    /// `claimed_until`. A delivery that can't be read is looked at again in an hour.
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
            tx.query(SET_ASIDE).bind(id).bind(now + RETRY_AFTER).execute().await?;
        }
        let done = match rows.is_empty() {
            true => Vec::new(),
            false => {
                // one token for all of them: a later claim of any of them gets another token
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

    /// The instant at which the next delivery is due; `None` where none waits. A message that waits for a digest has no
    /// instant of its own.
    pub async fn next_delivery(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_delivery()).await
    }

    async fn read_next_delivery(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
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
        for statement in [DUE, NEXT, NEXT_QUEUE, NEXT_CHANNEL] {
            let plan = sqlite_plan(statement.sqlite).await;
            assert!(plan.len() == 1 && plan[0].starts_with("SEARCH deliveries USING INDEX"), "{plan:?}");
        }
    }
}
