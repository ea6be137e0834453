//! Turns of tenants: where more is due than a batch has, each tenant with something due has a part of the batch.
//!
//! Tenants are looked at in the order of their names, a bounded number at a time, from behind the one that had the last
//! turn. So what waits of a tenant waits for a number of batches that grows with the tenants beside it, and not with
//! what these have due. A restart begins with the first tenant.

use std::collections::HashMap;
use std::sync::Mutex;

use chrono::{DateTime, Utc};

use crate::store::sql::sql;
use crate::store::tx::{SqlRecord, TxQuery};
use crate::store::{Split, Store, StoreError};

/// Tenants that are looked at for one batch.
const PAGE: i64 = 200;

/// A tenant that was looked at, and whether it has something due.
type TenantDue = (String, bool);

/// The tenant that had the last turn.
#[derive(Default)]
pub(in crate::store) struct TenantCursor(Mutex<String>);

impl TenantCursor {
    /// The search goes on behind this name.
    fn after(&self) -> String {
        self.0.lock().expect("tenant cursor").clone()
    }

    /// Whether the next search begins with the first tenant: the last one was looked at.
    pub fn is_at_start(&self) -> bool {
        self.0.lock().expect("tenant cursor").is_empty()
    }

    /// Of a [`PAGE`] of tenants in their order those that have a turn: as many as `most` with something due. The next
    /// search goes on behind the last one of them, or with the first tenant.
    fn turn(&self, looked: Vec<TenantDue>, most: usize) -> Vec<String> {
        let all = looked.len();
        let last = looked.last().map(|(tenant, _)| tenant.clone());
        let due = looked.into_iter().filter_map(|(tenant, due)| due.then_some(tenant));
        let turn: Vec<String> = due.take(most).collect();
        let next = match turn.last() {
            Some(tenant) if turn.len() == most => Some(tenant.clone()),
            _ => last.filter(|_| all as i64 == PAGE),
        };
        *self.0.lock().expect("tenant cursor") = next.unwrap_or_default();
        turn
    }

    /// The turn had no room behind this tenant: the next search goes on there.
    pub fn stop_at(&self, tenant: &str) {
        tenant.clone_into(&mut self.0.lock().expect("tenant cursor"));
    }
}

/// Puts what is due in rounds: the first of each tenant in the order of the turn, then the second of each. Answers how
/// many tenants there are, too: so many has the first round.
pub(in crate::store) fn in_rounds<T>(due: Vec<T>, turn: &[String], tenant_of: impl Fn(&T) -> &str) -> (Vec<T>, usize) {
    let places: HashMap<&str, usize> = turn.iter().enumerate().map(|(place, of)| (of.as_str(), place)).collect();
    let mut rounds: HashMap<usize, usize> = HashMap::new();
    let mut ranked: Vec<((usize, usize), T)> = Vec::with_capacity(due.len());
    for one in due {
        let place = places.get(tenant_of(&one)).copied().unwrap_or_default();
        let round = rounds.entry(place).or_default();
        *round += 1;
        ranked.push(((*round, place), one));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    (ranked.into_iter().map(|(_, one)| one).collect(), rounds.len())
}

/// How many of `rows` each of so many tenants has.
pub(in crate::store) fn rows_per_tenant(rows: i64, tenants: usize) -> i64 {
    (rows / (tenants as i64).max(1)).max(1)
}

/// From tenant to tenant of a table by one look into the index each: the tenants behind `$1`, `$2` of them at most.
/// Each has with it what `{found}` says, and its place in the order in which the database compares names. `{having}` is
/// the condition of the index: Postgres has no other one that is in this order.
const WALK: &str = "
    with recursive tenants (tenant_id, place) as (
        select (select d.tenant_id from {table} d {index}
                 where {having} and d.tenant_id > $1
                 order by d.tenant_id limit 1), cast(1 as bigint)
        union all
        select (select d.tenant_id from {table} d {index}
                 where {having} and d.tenant_id > t.tenant_id
                 order by d.tenant_id limit 1), t.place + 1
          from tenants t where t.tenant_id is not null and t.place < $2
    )
    select t.tenant_id, {found}, t.place from tenants t where t.tenant_id is not null";

/// The `{value}` of the first row of a tenant for which `{due}` holds. How a tenant is compared leaves Postgres no
/// other index.
const FIRST_ROW: &str = "(select {value} from {table} d {index}
             where {having} and d.tenant_id between t.tenant_id and t.tenant_id and {due}
             order by d.tenant_id, {order} limit 1)";

/// Tenants in their order.
pub(in crate::store) const TENANTS: &str = sql!(WALK; "{found}" = "true");
/// Tenants in their order, each with the value of its first row.
pub(in crate::store) const TENANTS_WITH_FIRST: &str = sql!(WALK; "{found}" = FIRST_ROW);
/// Tenants in their order, and whether each has something that is due at `$3`.
pub(in crate::store) const TENANTS_WITH_DUE: &str =
    sql!(WALK; "{found}" = sql!(FIRST_ROW, " is not null"); "{value}" = "true");

/// The tenants that one of these statements finds, with what it says of them, in their order.
pub(in crate::store) async fn tenants_in_order<T>(walk: TxQuery<'_>) -> Result<Vec<(String, T)>, sqlx::Error>
where
    (String, T, i64): SqlRecord,
{
    let mut tenants: Vec<(String, T, i64)> = walk.all().await?;
    tenants.sort_unstable_by_key(|(_, _, place)| *place);
    Ok(tenants.into_iter().map(|(tenant, found, _)| (tenant, found)).collect())
}

impl Store {
    /// Up to `most` tenants that have something due at `now` ([`TENANTS_WITH_DUE`]), or that are there at all
    /// ([`TENANTS`], which has no use for `now`): of those behind the one that had the last turn, and of the first
    /// where that was the last.
    pub(in crate::store) async fn next_turn(
        &self,
        cursor: &TenantCursor,
        tenants: Split,
        now: DateTime<Utc>,
        most: i64,
    ) -> Result<Vec<String>, StoreError> {
        let were_first = cursor.is_at_start();
        let turn = self.turn_on_page(cursor, tenants, now, most).await?;
        match turn.is_empty() && !were_first && cursor.is_at_start() {
            true => self.turn_on_page(cursor, tenants, now, most).await,
            false => Ok(turn),
        }
    }

    async fn turn_on_page(
        &self,
        cursor: &TenantCursor,
        tenants: Split,
        now: DateTime<Utc>,
        most: i64,
    ) -> Result<Vec<String>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let walk = read.query(tenants).bind(cursor.after()).bind(PAGE).bind(now);
        let looked: Vec<TenantDue> = tenants_in_order(walk).await?;
        read.end().await?;
        Ok(cursor.turn(looked, most.max(1) as usize))
    }
}

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
        assert!(!cursor.is_at_start());
        assert_eq!(cursor.turn(looked(3..5, |n| n % 2 == 0), 2), ["004"]);
        assert_eq!((cursor.after().as_str(), cursor.is_at_start()), ("", true));
        cursor.turn(looked(0..5, |_| true), 5);
        cursor.stop_at("001");
        assert_eq!(cursor.after(), "001");
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
    fn each_tenant_of_a_turn_has_its_first_before_another_has_its_second() {
        let due = vec!["b", "b", "a", "c", "b", "a"];
        let (due, tenants) = in_rounds(due, &["a", "b", "c"].map(str::to_owned), |tenant| tenant);
        assert_eq!((due, tenants), (vec!["a", "b", "c", "a", "b", "b"], 3));
    }

    #[test]
    fn each_tenant_of_a_turn_has_one_row_at_least() {
        assert_eq!(
            [rows_per_tenant(50, 1), rows_per_tenant(50, 3), rows_per_tenant(5, 50), rows_per_tenant(0, 0)],
            [50, 16, 1, 1]
        );
    }
}
