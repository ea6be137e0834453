//! Quotas of tenants: what is said for all and for one, and how much of it is used.
//!
//! Quotas are rows: that of `*` is `[quotas]`, each other one the overrides of a tenant. Tasks are counted by triggers
//! of the database, which read those rows in the transaction that adds a task; so two creators at the bound can't pass
//! it together, and an override holds from its commit, everywhere. Quotas that are asked more often are remembered for
//! [`MEMORY`], and with them how much is stored: an override of another kind takes so long to reach an instance.

mod allowances;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};
use lru::LruCache;
use serde_json::json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::quota::{Overrides, Quota, QuotaStanding, Quotas};
use crate::store::db::text::text;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// How long the quotas of a tenant are remembered.
pub(in crate::store) const MEMORY: TimeDelta = TimeDelta::seconds(5);
/// Tenants whose quotas are remembered, at most; a few bytes each.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// The row of `[quotas]`. No tenant can be called so.
const EVERYBODY: &str = "*";

/// The quotas of a tenant, and its stored bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::store) struct Allowance {
    pub quotas: Quotas,
    /// Bytes, as far as they are counted.
    pub stored: u64,
}

impl Allowance {
    /// Whether the tenant has stored all that it may.
    pub fn is_full(&self) -> bool {
        self.stored >= self.quotas.stored_bytes
    }
}

/// Whether a tenant may store more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Admission {
    Granted,
    /// It may not, by a number that was read then.
    Full {
        limit: u64,
        stored: u64,
        read: DateTime<Utc>,
    },
    /// Nothing is remembered of it.
    Unknown,
}

/// Allowance of a tenant, as it was read.
struct AllowanceReading {
    allowance: Allowance,
    at: DateTime<Utc>,
    /// Bytes that were admitted here since.
    admitted: u64,
}

/// Allowances of tenants that were read lately.
#[derive(Clone)]
pub(in crate::store) struct KnownAllowances(Arc<Mutex<LruCache<String, AllowanceReading>>>);

impl Default for KnownAllowances {
    fn default() -> KnownAllowances {
        KnownAllowances(Arc::new(Mutex::new(LruCache::new(REMEMBERED))))
    }
}

impl KnownAllowances {
    fn cached(&self, tenant: &str, now: DateTime<Utc>) -> Option<Allowance> {
        let mut known = self.lock();
        known.get(tenant).filter(|reading| reading.is_fresh(now)).map(|reading| reading.allowance)
    }

    /// Counts what a tenant is about to store, if there is room for it.
    pub(in crate::store) fn admit(&self, tenant: &str, bytes: u64, now: DateTime<Utc>) -> Admission {
        let mut known = self.lock();
        let Some(reading) = known.get_mut(tenant).filter(|reading| reading.is_fresh(now)) else {
            return Admission::Unknown;
        };
        let Allowance { stored, quotas } = reading.allowance;
        let (limit, admitted) = (quotas.stored_bytes, reading.admitted.saturating_add(bytes));
        if stored.saturating_add(admitted) > limit {
            return Admission::Full { limit, stored, read: reading.at };
        }
        reading.admitted = admitted;
        Admission::Granted
    }

    fn remember(&self, tenant: &str, allowance: Allowance, at: DateTime<Utc>) {
        self.lock().put(tenant.to_owned(), AllowanceReading { allowance, at, admitted: 0 });
    }

    fn forget(&self) {
        self.lock().clear();
    }

    pub(in crate::store) fn forget_tenant(&self, tenant: &str) {
        self.lock().pop(tenant);
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, AllowanceReading>> {
        self.0.lock().expect("quotas lock")
    }
}

impl AllowanceReading {
    fn is_fresh(&self, now: DateTime<Utc>) -> bool {
        (now - self.at).abs() < MEMORY
    }
}

/// Quotas of a tenant, its overrides, and its usage.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaUsage {
    /// Quotas of the tenant alone.
    pub overrides: Overrides,
    /// Limit and usage of each quota.
    pub standings: BTreeMap<Quota, QuotaStanding>,
}

impl QuotaUsage {
    /// With the streams of the tenant that are open on an instance, which the database does not know.
    pub fn with_streams(mut self, open: usize) -> QuotaUsage {
        self.standings.entry(Quota::Streams).and_modify(|streams| streams.usage = Some(open as u64));
        self
    }
}

#[derive(Default, sqlx_macros::FromRow)]
struct QuotaRow {
    tasks: Option<i64>,
    event_tasks_per_source: Option<i64>,
    events_per_minute: Option<i64>,
    fires_per_minute: Option<i64>,
    polls: Option<i64>,
    stored_bytes: Option<i64>,
    streams: Option<i64>,
    concurrent_runs: Option<i64>,
    data_file_bytes: Option<i64>,
    suspended_agents: Option<i64>,
}

impl QuotaRow {
    fn overrides(&self) -> Overrides {
        let number = |stored: Option<i64>| stored.and_then(|number| u64::try_from(number).ok());
        Overrides {
            tasks: number(self.tasks),
            event_tasks_per_source: number(self.event_tasks_per_source),
            events_per_minute: number(self.events_per_minute),
            fires_per_minute: number(self.fires_per_minute),
            polls: number(self.polls),
            stored_bytes: number(self.stored_bytes),
            streams: number(self.streams),
            concurrent_runs: number(self.concurrent_runs),
            data_file_bytes: number(self.data_file_bytes),
            suspended_agents: number(self.suspended_agents),
        }
    }
}

const READ: &str = "
    select tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls, stored_bytes, streams,
           concurrent_runs, data_file_bytes, suspended_agents
      from tenant_quotas where tenant_id = $1";

const WRITE: &str = "
    insert into tenant_quotas (tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls,
                               stored_bytes, streams, concurrent_runs, data_file_bytes, suspended_agents, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    on conflict (tenant_id) do update
       set tasks = excluded.tasks, event_tasks_per_source = excluded.event_tasks_per_source,
           events_per_minute = excluded.events_per_minute, fires_per_minute = excluded.fires_per_minute,
           polls = excluded.polls, stored_bytes = excluded.stored_bytes, streams = excluded.streams,
           concurrent_runs = excluded.concurrent_runs, data_file_bytes = excluded.data_file_bytes,
           suspended_agents = excluded.suspended_agents, updated_at = excluded.updated_at";

/// Usage of a tenant.
#[derive(sqlx_macros::FromRow)]
struct Amounts {
    tasks: i64,
    polls: i64,
    stored_bytes: i64,
    fullest_source: i64,
    concurrent_runs: i64,
    data_file_bytes: i64,
    suspended_agents: i64,
}

/// Counts of a tenant's rows. Runs under way are counted among all that are: no more than the instances execute.
const COUNTED: &str = "
    select coalesce((select tasks from tenant_usage where tenant_id = $1), 0) as tasks,
           coalesce((select polls from tenant_usage where tenant_id = $1), 0) as polls,
           coalesce((select stored_bytes from tenant_usage where tenant_id = $1), 0) as stored_bytes,
           coalesce((select tasks from event_task_counts where tenant_id = $1
                      order by tasks desc limit 1), 0) as fullest_source,
           (select count(*) from queue {leased} where state <> 'ready' and tenant_id = $1) as concurrent_runs,
           (select cast(coalesce(sum(bytes), 0) as bigint) from data_files where tenant_id = $1) as data_file_bytes,
           (select count(*) from parked where tenant_id = $1 and reason = 'approval') as suspended_agents";

const AMOUNTS: Split =
    Split { postgres: sql!(COUNTED; "{leased}" = ""), sqlite: sql!(COUNTED; "{leased}" = "indexed by queue_leases") };

/// In a transaction: what is said for this row.
async fn write_quotas(
    tx: &mut Tx<'_>,
    tenant: &str,
    said: impl Fn(Quota) -> Option<u64>,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let mut write = tx.query(WRITE).bind(text(tenant));
    for quota in Quota::ALL {
        write = write.bind(said(quota).map(|number| number as i64));
    }
    write.bind(now).execute().await?;
    Ok(())
}

impl Store {
    /// Writes what `[quotas]` says, for every instance on this database.
    pub async fn set_default_quotas(&self, quotas: &Quotas) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        write_quotas(tx, EVERYBODY, |quota| quotas.of(quota), now).await?;
        write.commit().await?;
        self.quotas.forget();
        Ok(())
    }

    /// Says what a tenant may have, and forgets what was said before.
    pub async fn put_quotas(&self, tenant: &str, overrides: &Overrides, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        write_quotas(tx, tenant, |quota| overrides.of(quota), now).await?;
        write_audit(tx, act(tenant, by, "quotas.set", json!(overrides)), now).await?;
        write.commit().await?;
        self.quotas.forget();
        // runs that wait may start, and those who start them have another number to go by
        self.notify_all_instances(Topic::Queue);
        Ok(())
    }

    /// Forgets what was said for a tenant; it may have what everybody may. Nothing happens where nothing was said.
    pub async fn reset_quotas(&self, tenant: &str, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let gone = tx.query("delete from tenant_quotas where tenant_id = $1").bind(text(tenant)).execute().await?;
        if gone == 1 {
            write_audit(tx, act(tenant, by, "quotas.reset", json!({})), now).await?;
        }
        write.commit().await?;
        self.quotas.forget();
        self.notify_all_instances(Topic::Queue);
        Ok(())
    }

    /// Quotas and usage of a tenant, but for its streams: a look into a few rows, whatever it has stored.
    pub async fn quota_usage(&self, tenant: &str) -> Result<QuotaUsage, StoreError> {
        let mut read = self.db.read().await?;
        let tx = &mut read.tx();
        let usual: Option<QuotaRow> = tx.query(READ).bind(EVERYBODY).optional().await?;
        let own: Option<QuotaRow> = tx.query(READ).bind(text(tenant)).optional().await?;
        let amounts: Amounts = tx.query(AMOUNTS).bind(text(tenant)).one().await?;
        read.end().await?;
        let (usual, own) = (usual.unwrap_or_default(), own.unwrap_or_default());
        let overrides = own.overrides();
        let quotas = Quotas::default().with(&usual.overrides()).with(&overrides);
        let used = async |quota| self.used_this_minute(tenant, quota, self.clock.now()).await;
        let (events, fires) = (used(Quota::EventsPerMinute).await? as i64, used(Quota::FiresPerMinute).await? as i64);
        let used = |quota| match quota {
            Quota::Tasks => Some(amounts.tasks),
            Quota::Polls => Some(amounts.polls),
            Quota::EventTasksPerSource => Some(amounts.fullest_source),
            Quota::EventsPerMinute => Some(events),
            Quota::FiresPerMinute => Some(fires),
            Quota::StoredBytes => Some(amounts.stored_bytes),
            Quota::ConcurrentRuns => Some(amounts.concurrent_runs),
            Quota::DataFileBytes => Some(amounts.data_file_bytes),
            Quota::SuspendedAgents => Some(amounts.suspended_agents),
            Quota::Streams => None,
        };
        let standing = |quota: Quota| {
            let usage = used(quota).map(|used: i64| used.max(0) as u64);
            (quota, QuotaStanding { limit: quotas.of(quota), usage })
        };
        Ok(QuotaUsage { overrides, standings: Quota::ALL.into_iter().map(standing).collect() })
    }

    /// Whether any tenant has a number of its own of runs that may be under way at once.
    pub async fn tenants_have_own_limits(&self) -> Result<bool, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select exists (select 1 from tenant_quotas where concurrent_runs is not null and tenant_id <> $1)")
            .bind(EVERYBODY)
            .scalar()
            .await?)
    }

    /// Counts a refusal by a quota that the database does not keep.
    pub fn count_refusal(&self, quota: Quota) {
        self.counts.refused(quota);
    }

    /// Counts what a quota has refused.
    pub(in crate::store) fn refusal<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Quota(exceeded)) = &result {
            self.counts.refused(exceeded.quota);
        }
        result
    }
}

fn act<'a>(tenant: &'a str, by: &'a str, action: &'a str, body: serde_json::Value) -> AuditAction<'a> {
    AuditAction { tenant, actor: by, via: "api", action, subject_type: "tenant", subject_id: Uuid::nil(), body }
}
