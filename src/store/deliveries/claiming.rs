//! Due deliveries of the outbox, and the beginning of attempts. The notifier decides which of those that wait are
//! claimed.
//!
//! Looking takes no lock and goes by an index from one end: what it reads is bounded, however much is stored.

use chrono::{DateTime, Utc};
use sqlx::QueryBuilder;
use uuid::Uuid;

use super::{DeliveryRow, SELECT_DELIVERY};
use crate::notification::{Claim, Delivery};
use crate::store::text::text;
use crate::store::unreadable::LOOK_AGAIN;
use crate::store::{NEXT_TOKEN, Split, Store, StoreError};

/// A delivery that waits for its time, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct InLine {
    /// Id of the delivery.
    pub id: Uuid,
    /// The channel of the attempt.
    pub channel: String,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// The instant from which it is due.
    pub next_at: DateTime<Utc>,
}

/// Pending deliveries from one end of an index. SQLite, which has no statistics, would read all that is pending.
macro_rules! pending {
    ($index:literal, $rest:literal) => {
        Split {
            postgres: concat!(
                "select id, channel, tenant_id, next_at from deliveries where state = 'pending' and ",
                $rest
            ),
            sqlite: concat!(
                "select id, channel, tenant_id, next_at from deliveries indexed by ",
                $index,
                " where state = 'pending' and ",
                $rest
            ),
        }
    };
}

const DUE: Split = pending!("deliveries_next", "next_at <= $1 order by next_at limit $2");
const NEXT: Split = pending!("deliveries_next", "next_at is not null order by next_at limit 1");
const NEXT_LINE: Split = pending!(
    "deliveries_lines",
    "next_at is not null and (channel, tenant_id) > ($1, $2) order by channel, tenant_id, next_at limit 1"
);
const NEXT_CHANNEL: Split =
    pending!("deliveries_lines", "next_at is not null and channel > $1 order by channel, tenant_id, next_at limit 1");

/// Nobody else may claim them meanwhile; SQLite has one writer.
const LOCKED: Split = Split { postgres: " for update skip locked", sqlite: "" };

impl Store {
    /// Up to `limit` deliveries that are due, those first that are due for the longest time.
    pub async fn due_deliveries(&self, limit: i64) -> Result<Vec<InLine>, StoreError> {
        let now = self.clock.now();
        Ok(on_read!(quick self.db, |conn| {
            sqlx::query_as(self.db.text(DUE)).bind(now).bind(limit).fetch_all(conn).await?
        }))
    }

    /// Lines are what a tenant has waiting on a channel, in the order of channel and tenant: the first delivery of the
    /// line after this one, due or not. After a channel and no tenant comes the next channel.
    pub async fn next_line(&self, channel: &str, tenant: Option<&str>) -> Result<Option<InLine>, StoreError> {
        Ok(on_read!(quick self.db, |conn| {
            let query = match tenant {
                Some(tenant) => sqlx::query_as(self.db.text(NEXT_LINE)).bind(text(channel)).bind(text(tenant)),
                None => sqlx::query_as(self.db.text(NEXT_CHANNEL)).bind(text(channel)),
            };
            query.fetch_optional(conn).await?
        }))
    }

    /// Begins an attempt of each of these that is still due. Until `claimed_until` nobody else does. One that can't be read
    /// is looked at again in an hour.
    pub async fn claim_deliveries(&self, ids: &[Uuid], claimed_until: DateTime<Utc>) -> Result<Vec<Claim>, StoreError> {
        if ids.is_empty() {
            return Ok(vec![]);
        }
        let now = self.clock.now();
        Ok(on_write!(self.db, |conn| {
            let mut due = QueryBuilder::new(SELECT_DELIVERY);
            due.push(" where d.state = 'pending' and d.next_at <= ").push_bind(now).push(" and d.id in (");
            let mut listed = due.separated(", ");
            ids.iter().for_each(|id| {
                listed.push_bind(*id);
            });
            due.push(") order by d.next_at, d.id").push(self.db.text(LOCKED));
            let rows = due.build().persistent(false).fetch_all(&mut *conn).await?;
            let read = |row: DeliveryRow| Ok((row.lease_token, row.delivery()?));
            let (rows, others) = self.unreadable.sift("deliveries", &rows, read);
            for id in others {
                sqlx::query("update deliveries set next_at = $2 where id = $1")
                    .bind(id)
                    .bind(now + LOOK_AGAIN)
                    .execute(&mut *conn)
                    .await?;
            }
            match rows.is_empty() {
                true => Vec::new(),
                false => {
                    // one for all of them: whoever claims one of them later has another
                    let token: i64 = sqlx::query_scalar(self.db.text(NEXT_TOKEN)).fetch_one(&mut *conn).await?;
                    let mut begin = QueryBuilder::new("update deliveries set lease_token = ");
                    begin.push_bind(token).push(", next_at = ").push_bind(claimed_until);
                    begin.push(", attempts = attempts + 1 where id in (");
                    let mut listed = begin.separated(", ");
                    rows.iter().for_each(|(_, delivery)| {
                        listed.push_bind(delivery.id);
                    });
                    begin.push(")").build().persistent(false).execute(&mut *conn).await?;
                    let claim = |(before, mut delivery): (i64, Delivery)| {
                        delivery.attempts += 1;
                        Claim { delivery, lease_token: token, interrupted: before != 0 }
                    };
                    rows.into_iter().map(claim).collect()
                }
            }
        }))
    }

    /// When the next delivery is due; `None` where none waits. What a digest tells has no time of its own.
    pub async fn next_delivery(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let first: Option<InLine> =
            on_read!(self.db, |conn| sqlx::query_as(self.db.text(NEXT)).fetch_optional(conn).await?);
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
