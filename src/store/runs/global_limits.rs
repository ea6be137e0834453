//! How many runs may be under way at once, over all instances: each tenant's, and everybody's.
//!
//! A run counts from the moment it is leased until it has left the queue or is ready again: what is claimed a moment
//! ahead of its instant counts, what waits for people does not. A tenant may have a number of its own: its quota
//! `concurrent_runs`, which every take reads where it is kept. Where a limit is set, takes go one after the other,
//! each counts what is leased, and nothing starts but by a take; so no moment, and no crash, sees more than the limit.
//! Where none is set, none of this costs anything.

use std::collections::{HashMap, HashSet};

use sqlx::{PgConnection, SqliteConnection};

use crate::store::StoreError;
use crate::store::db::sqlite_batch::readable;
use crate::store::runs::lease::{RunLimits, TakeRequest};
use crate::store::runs::shares::TenantShares;

/// One take at a time, so that each counts what those before it took. The lock goes with the transaction.
pub(in crate::store) async fn lock_takes(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('reveille_take_' || current_schema(), 0))")
        .execute(conn)
        .await?;
    Ok(())
}

/// The rest of the limits for one take. SQLite has one writer, so nobody takes in between.
pub(in crate::store) struct RunLimitsLeft {
    limits: RunLimits,
    shares: Option<TenantShares>,
    held: HashMap<String, i64>,
    /// The numbers of tenants that have their own.
    own: HashMap<String, i64>,
    /// Tenants of which nothing may begin; `*` stands for all.
    halted: HashSet<String>,
    /// Runs at most.
    pub all: i64,
}

impl RunLimitsLeft {
    pub(in crate::store) async fn of(
        conn: &mut SqliteConnection,
        take: &TakeRequest,
    ) -> Result<RunLimitsLeft, StoreError> {
        let (limits, shares) = (take.limits, take.shares.clone());
        let halted = sqlx::query("select tenant_id from halts").fetch_all(&mut *conn).await?;
        let halted = readable::<(String,)>(&halted).into_iter().map(|(tenant,)| tenant).collect();
        if !limits.any() {
            let (held, own) = Default::default();
            return Ok(RunLimitsLeft { limits, shares, held, own, halted, all: take.limit });
        }
        let held = sqlx::query(
            "select tenant_id, count(*) from queue indexed by queue_leases where state <> 'ready' group by tenant_id",
        )
        .fetch_all(&mut *conn)
        .await?;
        // of a number that can't be read the usual one takes the place
        let own = sqlx::query(
            "select tenant_id, concurrent_runs from tenant_quotas where concurrent_runs is not null and tenant_id <> '*'",
        )
        .fetch_all(conn)
        .await?;
        let held = readable::<(String, i64)>(&held);
        let own = readable::<(String, i64)>(&own);
        let all = held.iter().map(|(_, runs)| runs).sum::<i64>();
        let all = limits.total.map_or(take.limit, |most| take.limit.min(most - all).max(0));
        let (held, own) = (held.into_iter().collect(), own.into_iter().collect());
        Ok(RunLimitsLeft { limits, shares, held, own, halted, all })
    }

    /// Part of each of so many tenants.
    pub(in crate::store) fn per_tenant(&self, tenants: i64) -> i64 {
        let each = self.all / tenants.max(1);
        self.shares.as_ref().map_or(each, |shares| each.min(shares.each_of(tenants))).max(1)
    }

    /// Rest of a tenant.
    pub(in crate::store) fn of_tenant(&self, tenant: &str) -> i64 {
        if self.halted.contains(tenant) || self.halted.contains("*") {
            return 0;
        }
        let held = self.held.get(tenant).copied().unwrap_or_default();
        let here = self.shares.as_ref().map_or(self.all, |shares| shares.of(tenant));
        let most = self.own.get(tenant).copied().or(self.limits.per_tenant);
        most.map_or(self.all, |most| (most - held).max(0)).min(here)
    }
}
