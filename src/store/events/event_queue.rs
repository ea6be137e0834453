//! Statements of the queue of the embedded bus: whose entries wait, what is leased, and what is removed.

use crate::store::sql::{UNFLUSHED, sql};
use crate::store::tasks::tenant_turns::{TENANTS, tenants_in_order};
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// The tenants of the queue, whatever waits of each.
const QUEUED_TENANTS: Split = Split {
    postgres: sql!(TENANTS; "{table}" = "event_queue"; "{index}" = ""; "{having}" = "true"),
    sqlite: sql!(
        TENANTS; "{table}" = "event_queue"; "{index}" = "indexed by event_queue_of_tenant"; "{having}" = "true"
    ),
};

/// Removes entries, given by their numbers as a list in JSON.
pub(super) const ACKNOWLEDGE: Split = Split {
    postgres: sql!(
        UNFLUSHED,
        " delete from event_queue
           where seq = any (array(select cast(a.seq as bigint)
                                    from unflushed cross join jsonb_array_elements_text($1::jsonb) as a (seq)))"
    ),
    sqlite: "delete from event_queue where seq in (select value from json_each($1))",
};

/// The oldest of each tenant: on Postgres of all tenants at once, on SQLite of one after the other. Of `$6` bytes
/// together at most, or one; on Postgres the first of each tenant stands before the second of any. SQLite measures them
/// in the order in which the innermost query finds them.
pub(super) const LEASE: Split = Split {
    postgres: sql!(
        UNFLUSHED,
        ", due as (
            select q.seq, q.number, t.place
              from unflushed
             cross join jsonb_array_elements_text($5::jsonb) with ordinality as t (tenant_id, place)
             cross join lateral (
                select l.seq, row_number() over (order by l.seq) as number
                  from (select seq from event_queue
                         where tenant_id = any (array[t.tenant_id]) and (lease_until is null or lease_until <= $1)
                         order by tenant_id, seq limit $2 for update skip locked) l) q
        ), measured as (
            select d.seq, row_number() over turns as number,
                   sum(coalesce((select e.stored_bytes from events e where e.seq = d.seq), 0)) over turns as bytes
              from due d
            window turns as (order by d.number, d.place)
        ), leased as (
            update event_queue q set lease_until = $3, consumer = $4, deliveries = q.deliveries + 1
              from measured m
             where q.seq = any (array[m.seq]) and (m.number = 1 or m.bytes <= cast($6 as bigint))
            returning q.seq, q.deliveries, q.tenant_id
        )
        select l.seq, (select cast(e.body as text) from events e where e.seq = l.seq), l.deliveries, l.tenant_id
          from leased l"
    ),
    sqlite:
        "
        update event_queue set lease_until = $3, consumer = $4, deliveries = deliveries + 1
         where seq in (
            select m.seq from (
                select d.seq, count(*) over (rows unbounded preceding) as number,
                       sum(coalesce((select e.stored_bytes from events e where e.seq = d.seq), 0))
                           over (rows unbounded preceding) as bytes
                  from (select seq from event_queue
                         where tenant_id = json_extract($5, '$[0]') and (lease_until is null or lease_until <= $1)
                         order by seq limit $2) d) m
             where m.number = 1 or m.bytes <= $6)
        returning seq, (select cast(e.body as text) from events e where e.seq = event_queue.seq), deliveries, tenant_id",
};

/// Up to so many tenants of the queue behind this one, in their order.
pub(super) async fn queued_tenants(tx: &mut Tx<'_>, after: &str, most: i64) -> Result<Vec<String>, StoreError> {
    let tenants: Vec<(String, bool)> = tenants_in_order(tx.query(QUEUED_TENANTS).bind(after).bind(most)).await?;
    Ok(tenants.into_iter().map(|(tenant, _)| tenant).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn turns_of_tenants_are_found_by_an_index_on_sqlite() {
        for statement in [QUEUED_TENANTS, LEASE, ACKNOWLEDGE] {
            for step in sqlite_plan(statement.sqlite).await {
                let of_queue = step.contains("event_queue") || step.contains(" d ");
                assert!(!of_queue || step.contains("INDEX") || step.contains("PRIMARY KEY"), "{step}");
                assert!(!step.contains("TEMP B-TREE"), "{step}");
            }
        }
    }
}
