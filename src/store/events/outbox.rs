//! Events that were taken while the bus was away, each tenant's in the order in which they came.
//!
//! They are forwarded in turns of tenants: a tenant that has its turn has a part of the batch. So what waits of a
//! tenant waits for a number of batches that grows with the tenants beside it, and not with what waits of these.

use crate::base::id::{Scope, Tenant};
use crate::domain::event::Event;
use crate::store::db::text::document;
use crate::store::events::delete_by_seq;
use crate::store::sql::sql;
use crate::store::tasks::tenant_turns::{self, TENANTS, in_rounds};
use crate::store::{Split, Store, StoreError};

/// Rows of one statement: three parameters each.
const ROWS: usize = 500;
/// Bytes of events, as counted when they came, after which no further event is handed out with them.
const FORWARDED_BYTES: i64 = 4 * 1_048_576;

/// The index is used where its condition is said, and by nothing else.
const KEPT_TENANTS: Split = Split {
    postgres: sql!(TENANTS; "{table}" = "bus_outbox"; "{index}" = ""; "{having}" = "d.seq > 0"),
    sqlite: sql!(
        TENANTS; "{table}" = "bus_outbox"; "{index}" = "indexed by bus_outbox_of_tenant"; "{having}" = "d.seq > 0"
    ),
};

/// The oldest (`$2` of each) of the listed tenants (`$1`), without their texts. How a tenant is compared leaves
/// Postgres no other order.
const OF_TENANTS: Split = Split {
    postgres: "select o.seq, t.tenant_id, o.stored_bytes
                 from jsonb_array_elements_text($1::jsonb) as t (tenant_id)
                cross join lateral (select d.seq, d.stored_bytes from bus_outbox d
                                     where d.seq > 0 and d.tenant_id = any (array[t.tenant_id])
                                     order by d.tenant_id, d.seq limit $2) o
                order by o.seq",
    sqlite: "select o.seq, o.tenant_id, cast(o.stored_bytes as bigint)
               from json_each($1) t
              cross join bus_outbox o
              where o.seq in (select d.seq from bus_outbox d indexed by bus_outbox_of_tenant
                               where d.seq > 0 and d.tenant_id = t.value order by d.seq limit $2)
              order by o.seq",
};

const BODIES: Split = Split {
    postgres: "select d.seq, cast(d.body as text) from bus_outbox d
                where d.seq = any (array(select cast(s.value as bigint) from jsonb_array_elements_text($1::jsonb) s))
                order by d.seq",
    sqlite: "select d.seq, cast(d.body as text) from bus_outbox d where d.seq in (select value from json_each($1))
              order by d.seq",
};

const ANY_OF_TENANT: Split = Split {
    postgres: "select 1 from bus_outbox d where d.seq > 0 and d.tenant_id = any (array[$1])
                order by d.tenant_id, d.seq limit 1",
    sqlite: "select 1 from bus_outbox d indexed by bus_outbox_of_tenant where d.seq > 0 and d.tenant_id = $1 limit 1",
};

/// Place, tenant and bytes of an event that waits.
type WaitingRow = (i64, String, i64);

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
        let found: Option<i32> = read.query(ANY_OF_TENANT).bind(tenant.as_str()).optional_scalar().await?;
        read.end().await?;
        Ok(found.is_some())
    }

    /// Events that are to be forwarded next, with their places, as JSON: `limit` of them and 4 MiB at most, or one. Of
    /// each tenant that has its turn its oldest, in the order in which they came. None: nothing is kept.
    pub async fn kept_events(&self, limit: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let turn = self.next_turn(&self.outbox_cursor, KEPT_TENANTS, self.clock.now(), limit).await?;
        if turn.is_empty() {
            return Ok(Vec::new());
        }
        let each = tenant_turns::rows_per_tenant(limit, turn.len());
        let mut read = self.db.read_quick().await?;
        let waiting: Vec<WaitingRow> = read.query(OF_TENANTS).bind(document(&turn)?).bind(each).all().await?;
        let (mut waiting, tenants) = in_rounds(waiting, &turn, |(_, tenant, _)| tenant.as_str());
        let fit = fitting(&waiting);
        if fit < tenants {
            self.outbox_cursor.stop_at(&waiting[fit - 1].1);
        }
        waiting.truncate(fit);
        let places: Vec<i64> = waiting.iter().map(|(seq, ..)| *seq).collect();
        let kept: Vec<(i64, String)> = read.query(BODIES).bind(document(&places)?).all().await?;
        read.end().await?;
        Ok(kept)
    }

    /// Forgets what was forwarded.
    pub async fn forget_kept_events(&self, seqs: &[i64]) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        delete_by_seq(&mut write.tx(), "delete from bus_outbox where seq in (", seqs).await?;
        write.commit().await?;
        Ok(())
    }
}

/// How many of these events fit: one at least, where there is one.
fn fitting(waiting: &[WaitingRow]) -> usize {
    let together = waiting.iter().scan(0_i64, |bytes, (_, _, of_event)| {
        *bytes = bytes.saturating_add(*of_event);
        Some(*bytes)
    });
    let fit = together.take_while(|bytes| *bytes <= FORWARDED_BYTES).count();
    fit.max(1).min(waiting.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_events_that_wait_are_found_by_their_tenant() {
        for statement in [KEPT_TENANTS, OF_TENANTS, ANY_OF_TENANT, BODIES] {
            let plan = sqlite_plan(statement.sqlite).await;
            let on_kept: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
            let is_search = |step: &&String| {
                step.contains("SEARCH") && (step.contains("bus_outbox_of_tenant") || step.contains("PRIMARY KEY"))
            };
            assert!(!on_kept.is_empty() && on_kept.iter().all(is_search), "{plan:?}");
            assert!(!plan.iter().any(|step| step.contains("SCAN o")), "{plan:?}");
        }
    }
}
