//! Events that were taken while the bus was away, in the order in which they came.

use crate::base::id::{Scope, Tenant};
use crate::domain::event::Event;
use crate::store::db::text::document;
use crate::store::events::delete_by_seq;
use crate::store::{Store, StoreError};

/// Rows of one statement: three parameters each.
const ROWS: usize = 500;

impl Store {
    /// Keeps events until they are forwarded, all of them or none.
    pub async fn keep_events(&self, events: &[Event]) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        for some in events.chunks(ROWS) {
            let mut insert = tx.build("insert into bus_outbox (tenant_id, body, created_at) ");
            let bodies = some.iter().map(document).collect::<Result<Vec<_>, StoreError>>()?;
            insert.push_values(some.iter().zip(bodies), |row, (event, body)| {
                row.push_bind(event.tenant.as_str().to_owned()).push_bind(body).push_bind(now);
            });
            insert.finish().execute().await?;
        }
        write.commit().await?;
        Ok(())
    }

    /// Whether events of this tenant wait to be forwarded.
    pub async fn keeps_events_of(&self, tenant: &Tenant) -> Result<bool, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut read = self.db.read_in(&scope).await?;
        let found: Option<i32> = read
            .query("select 1 from bus_outbox where tenant_id = $1 limit 1")
            .bind(tenant.as_str())
            .optional_scalar()
            .await?;
        read.end().await?;
        Ok(found.is_some())
    }

    /// The oldest of what is kept, with their places, as JSON.
    pub async fn kept_events(&self, limit: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query("select seq, cast(body as text) from bus_outbox order by seq limit $1").bind(limit).all().await?)
    }

    /// Forgets what was forwarded.
    pub async fn forget_kept_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        delete_by_seq(&mut write.tx(), "delete from bus_outbox where seq in (", seqs).await?;
        write.commit().await?;
        Ok(())
    }
}
