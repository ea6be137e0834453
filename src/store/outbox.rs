//! Events that were taken while the bus was away, in the order in which they came.

use sqlx::QueryBuilder;

use crate::event::Event;
use crate::id::{Scope, Tenant};
use crate::store::events::delete_by_seq;
use crate::store::text::document;
use crate::store::{Store, StoreError};

/// Rows of one statement: three parameters each.
const ROWS: usize = 500;

impl Store {
    /// Keeps events until they are forwarded, all of them or none.
    pub async fn keep_events(&self, events: &[Event]) -> Result<(), StoreError> {
        let now = self.clock.now();
        on_write!(self.db, |conn| {
            for some in events.chunks(ROWS) {
                let mut insert = QueryBuilder::new("insert into bus_outbox (tenant_id, body, created_at) ");
                let bodies = some.iter().map(document).collect::<Result<Vec<_>, StoreError>>()?;
                insert.push_values(some.iter().zip(bodies), |mut row, (event, body)| {
                    row.push_bind(event.tenant.as_str().to_owned()).push_bind(body).push_bind(now);
                });
                insert.build().execute(&mut *conn).await?;
            }
        });
        Ok(())
    }

    /// Whether events of this tenant wait to be forwarded.
    pub async fn keeps_events_of(&self, tenant: &Tenant) -> Result<bool, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let found: Option<i32> = on_read!(self.db, &scope, |conn| {
            sqlx::query_scalar("select 1 from bus_outbox where tenant_id = $1 limit 1")
                .bind(tenant.as_str())
                .fetch_optional(conn)
                .await?
        });
        Ok(found.is_some())
    }

    /// The oldest of what is kept, with their places, as JSON.
    pub async fn kept_events(&self, limit: i64) -> Result<Vec<(i64, String)>, StoreError> {
        Ok(on_read!(self.db, |conn| {
            sqlx::query_as("select seq, cast(body as text) from bus_outbox order by seq limit $1")
                .bind(limit)
                .fetch_all(conn)
                .await?
        }))
    }

    /// Forgets what was forwarded.
    pub async fn forget_kept_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        on_write!(self.db, |conn| {
            delete_by_seq!(conn, "bus_outbox", seqs);
        });
        Ok(())
    }
}
