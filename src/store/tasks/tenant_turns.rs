//! Turns of tenants: where more is due than a batch has, each tenant with something due has a part of the batch.
//!
//! Tenants are looked at in the order of their names, a bounded number at a time, from behind the one that had the last
//! turn. So what waits of a tenant waits for a number of batches that grows with the tenants beside it, and not with what
//! these have due. A restart begins with the first tenant.

use std::sync::Mutex;

/// Tenants that are looked at for one batch.
pub(in crate::store) const LOOKED_AT: i64 = 200;

/// A tenant that was looked at, and whether it has something due.
pub(in crate::store) type TenantDue = (String, bool);

/// The tenant that had the last turn.
#[derive(Default)]
pub(in crate::store) struct TenantCursor(Mutex<String>);

impl TenantCursor {
    /// The search goes on behind this name.
    pub fn after(&self) -> String {
        self.0.lock().expect("tenant cursor").clone()
    }

    /// Of the tenants that were looked at, up to [`LOOKED_AT`] of them in their order, those that have a turn: as many as
    /// `most` with something due. The next search goes on behind the last one of them, or with the first tenant.
    pub fn turn(&self, looked: Vec<TenantDue>, most: usize) -> Vec<String> {
        let all = looked.len();
        let last = looked.last().map(|(tenant, _)| tenant.clone());
        let due = looked.into_iter().filter_map(|(tenant, due)| due.then_some(tenant));
        let turn: Vec<String> = due.take(most).collect();
        let next = match turn.last() {
            Some(tenant) if turn.len() == most => Some(tenant.clone()),
            _ => last.filter(|_| all as i64 == LOOKED_AT),
        };
        *self.0.lock().expect("tenant cursor") = next.unwrap_or_default();
        turn
    }
}

/// How many of `rows` each of so many tenants has.
pub(in crate::store) fn rows_per_tenant(rows: i64, tenants: usize) -> i64 {
    (rows / (tenants as i64).max(1)).max(1)
}

/// From tenant to tenant by one look into the index each. `$1` is now, `$2` the name that the search goes on behind,
/// `$3` how many tenants are looked at. How a tenant is compared leaves Postgres no other index.
pub(in crate::store) const TENANTS_IN_TURN: &str = "
    with recursive tenants (tenant_id, place) as (
        select (select d.tenant_id from {table} d {index}
                 where {having} and d.tenant_id > $2
                 order by d.tenant_id limit 1), 1
        union all
        select (select d.tenant_id from {table} d {index}
                 where {having} and d.tenant_id > t.tenant_id
                 order by d.tenant_id limit 1), t.place + 1
          from tenants t where t.tenant_id is not null and t.place < $3
    )
    select t.tenant_id,
           (select true from {table} d {index}
             where {having} and d.tenant_id between t.tenant_id and t.tenant_id and {at} <= $1
             order by d.tenant_id, {at} limit 1) is not null
      from tenants t where t.tenant_id is not null order by t.tenant_id";

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(tenants: std::ops::Range<usize>, due: fn(usize) -> bool) -> Vec<TenantDue> {
        tenants.map(|n| (format!("{n:03}"), due(n))).collect()
    }

    #[test]
    fn turns_go_from_tenant_to_tenant_and_begin_with_the_first_again() {
        let cursor = TenantCursor::default();
        assert_eq!(cursor.turn(looked(0..5, |n| n % 2 == 0), 2), ["000", "002"]);
        assert_eq!(cursor.after(), "002");
        assert_eq!(cursor.turn(looked(3..5, |n| n % 2 == 0), 2), ["004"]);
        assert_eq!(cursor.after(), "");
    }

    #[test]
    fn tenants_without_anything_due_are_passed_over_a_bounded_number_at_a_time() {
        let cursor = TenantCursor::default();
        assert_eq!(cursor.turn(looked(0..200, |_| false), 2), [""; 0]);
        assert_eq!(cursor.after(), "199");
        assert_eq!(cursor.turn(looked(200..300, |n| n == 250), 2), ["250"]);
        assert_eq!(cursor.after(), "");
    }

    #[test]
    fn each_tenant_of_a_turn_has_one_row_at_least() {
        assert_eq!(
            [rows_per_tenant(50, 1), rows_per_tenant(50, 3), rows_per_tenant(5, 50), rows_per_tenant(0, 0)],
            [50, 16, 1, 1]
        );
    }
}
