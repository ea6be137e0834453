//! Quotas of tenants: what is said for all and for one, and how much of it is used.
//!
//! What is said is rows: that of `*` is `[quotas]`, each other one the overrides of a tenant. Tasks are counted by
//! triggers of the database, which read those rows in the transaction that adds a task; so two creators at the bound can't
//! pass it together, and an override holds from its commit, everywhere. What is asked more often is remembered for
//! [`MEMORY`]: so long an override of another kind may take to reach an instance.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use sqlx::QueryBuilder;
use uuid::Uuid;

use crate::quota::{Overrides, Quota, Quotas, Standing};
use crate::store::audit::{Act, write_audit};
use crate::store::text::text;
use crate::store::{Store, StoreError};

/// How long the quotas of a tenant are remembered.
const MEMORY: TimeDelta = TimeDelta::seconds(5);
/// Tenants whose quotas are remembered, at most; a few bytes each.
const REMEMBERED: usize = 10_000;
/// The row of `[quotas]`. No tenant can be called so.
const EVERYBODY: &str = "*";

/// Quotas that were read lately, each with its instant.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<Mutex<QuotasRead>>);

/// By tenant, with the instant at which they were read.
type QuotasRead = HashMap<String, (Quotas, DateTime<Utc>)>;

impl Known {
    fn lately(&self, tenant: &str, now: DateTime<Utc>) -> Option<Quotas> {
        let known = self.0.lock().expect("quotas lock");
        known.get(tenant).filter(|(_, read)| (now - *read).abs() < MEMORY).map(|(quotas, _)| *quotas)
    }

    fn remember(&self, tenant: &str, quotas: Quotas, now: DateTime<Utc>) {
        let mut known = self.0.lock().expect("quotas lock");
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(tenant.to_owned(), (quotas, now));
    }

    fn forget(&self) {
        self.0.lock().expect("quotas lock").clear();
    }
}

/// What a tenant may have, what is said of it alone, and how much it has.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaUsage {
    pub overrides: Overrides,
    pub standings: BTreeMap<Quota, Standing>,
}

#[derive(Default, sqlx::FromRow)]
struct QuotaRow {
    tasks: Option<i64>,
    event_tasks_per_source: Option<i64>,
    events_per_minute: Option<i64>,
    fires_per_minute: Option<i64>,
    polls: Option<i64>,
    streams: Option<i64>,
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
            streams: number(self.streams),
        }
    }
}

#[derive(sqlx::FromRow)]
struct TenantRow {
    tenant_id: String,
    #[sqlx(flatten)]
    said: QuotaRow,
}

const READ_SOME: &str = "
    select tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls, streams
      from tenant_quotas where tenant_id in (";

const READ: &str = "select tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls, streams
                      from tenant_quotas where tenant_id = $1";

const WRITE: &str = "
    insert into tenant_quotas (tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls,
                               streams, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (tenant_id) do update
       set tasks = excluded.tasks, event_tasks_per_source = excluded.event_tasks_per_source,
           events_per_minute = excluded.events_per_minute, fires_per_minute = excluded.fires_per_minute,
           polls = excluded.polls, streams = excluded.streams, updated_at = excluded.updated_at";

/// In a transaction: what is said for this row.
macro_rules! write_quotas {
    ($conn:ident, $tenant:expr, $said:expr, $now:expr) => {{
        let mut write = sqlx::query(WRITE).bind($tenant);
        for quota in Quota::ALL {
            write = write.bind($said(quota).map(|number: u64| number as i64));
        }
        write.bind($now).execute(&mut *$conn).await?;
    }};
}

impl Store {
    /// Writes what `[quotas]` says, for every instance on this database.
    pub async fn set_default_quotas(&self, quotas: &Quotas) -> Result<(), StoreError> {
        let now = self.clock.now();
        on_write!(self.db, |conn| write_quotas!(conn, EVERYBODY, |quota| quotas.of(quota), now));
        self.quotas.forget();
        Ok(())
    }

    /// What holds for a tenant, not older than a few seconds.
    pub async fn quotas_of(&self, tenant: &str) -> Result<Quotas, StoreError> {
        let now = self.clock.now();
        match self.quotas.lately(tenant, now) {
            Some(quotas) => Ok(quotas),
            None => Ok(self.quotas_of_all(&[tenant]).await?.remove(tenant).unwrap_or_default()),
        }
    }

    /// The quotas of several tenants, by one question at most.
    pub(super) async fn quotas_of_all(&self, tenants: &[&str]) -> Result<HashMap<String, Quotas>, StoreError> {
        let now = self.clock.now();
        let mut found = HashMap::with_capacity(tenants.len());
        let mut unknown = Vec::new();
        for tenant in tenants {
            match self.quotas.lately(tenant, now) {
                Some(quotas) => drop(found.insert((*tenant).to_owned(), quotas)),
                None => unknown.push(*tenant),
            }
        }
        if unknown.is_empty() {
            return Ok(found);
        }
        let rows: Vec<TenantRow> = on_read!(quick self.db, |conn| {
            let mut query = QueryBuilder::new(READ_SOME);
            let mut listed = query.separated(", ");
            listed.push_bind(EVERYBODY);
            for tenant in &unknown {
                listed.push_bind(text(tenant).into_owned());
            }
            query.push(")");
            query.build_query_as().fetch_all(conn).await?
        });
        let said: HashMap<String, Overrides> =
            rows.into_iter().map(|row| (row.tenant_id, row.said.overrides())).collect();
        let of = |tenant: &str| said.get(tenant).copied().unwrap_or_default();
        let usual = Quotas::default().with(&of(EVERYBODY));
        for tenant in unknown {
            let quotas = usual.with(&of(tenant));
            self.quotas.remember(tenant, quotas, now);
            found.insert(tenant.to_owned(), quotas);
        }
        Ok(found)
    }

    /// Says what a tenant may have, and forgets what was said before.
    pub async fn put_quotas(&self, tenant: &str, overrides: &Overrides, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        on_write!(self.db, |conn| {
            write_quotas!(conn, text(tenant), |quota| overrides.of(quota), now);
            write_audit!(conn, act(tenant, by, "quotas.set", json!(overrides)), now);
        });
        self.quotas.forget();
        Ok(())
    }

    /// Forgets what was said for a tenant; it may have what everybody may. Nothing happens where nothing was said.
    pub async fn reset_quotas(&self, tenant: &str, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        on_write!(self.db, |conn| {
            let gone = sqlx::query("delete from tenant_quotas where tenant_id = $1")
                .bind(text(tenant))
                .execute(&mut *conn)
                .await?;
            if gone.rows_affected() == 1 {
                write_audit!(conn, act(tenant, by, "quotas.reset", json!({})), now);
            }
        });
        self.quotas.forget();
        Ok(())
    }

    /// What a tenant may have and has: a look into a few rows, whatever it has stored.
    pub async fn quota_usage(&self, tenant: &str) -> Result<QuotaUsage, StoreError> {
        let (usual, own, amounts, fullest) = on_read!(self.db, |conn| {
            let usual: Option<QuotaRow> = sqlx::query_as(READ).bind(EVERYBODY).fetch_optional(&mut *conn).await?;
            let own: Option<QuotaRow> = sqlx::query_as(READ).bind(text(tenant)).fetch_optional(&mut *conn).await?;
            let amounts: Option<(i64, i64)> =
                sqlx::query_as("select tasks, polls from tenant_usage where tenant_id = $1")
                    .bind(text(tenant))
                    .fetch_optional(&mut *conn)
                    .await?;
            let fullest: Option<i64> = sqlx::query_scalar(
                "select tasks from event_task_counts where tenant_id = $1 order by tasks desc limit 1",
            )
            .bind(text(tenant))
            .fetch_optional(conn)
            .await?;
            (usual.unwrap_or_default(), own.unwrap_or_default(), amounts.unwrap_or_default(), fullest.unwrap_or(0))
        });
        let overrides = own.overrides();
        let quotas = Quotas::default().with(&usual.overrides()).with(&overrides);
        let now = self.clock.now();
        let events = self.used_in_this_minute(tenant, Quota::EventsPerMinute, now).await? as i64;
        let fires = self.used_in_this_minute(tenant, Quota::FiresPerMinute, now).await? as i64;
        let used = |quota| match quota {
            Quota::Tasks => Some(amounts.0),
            Quota::Polls => Some(amounts.1),
            Quota::EventTasksPerSource => Some(fullest),
            Quota::EventsPerMinute => Some(events),
            Quota::FiresPerMinute => Some(fires),
            Quota::Streams => None,
        };
        let standing = |quota: Quota| {
            let usage = used(quota).map(|used: i64| used.max(0) as u64);
            (quota, Standing { limit: quotas.of(quota), usage })
        };
        Ok(QuotaUsage { overrides, standings: Quota::ALL.into_iter().map(standing).collect() })
    }

    /// Counts what a quota has refused.
    pub(super) fn refusal<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Quota(exceeded)) = &result {
            self.counts.refused(exceeded.quota);
        }
        result
    }
}

fn act<'a>(tenant: &'a str, by: &'a str, action: &'a str, body: serde_json::Value) -> Act<'a> {
    Act { tenant, actor: by, via: "api", action, subject_type: "tenant", subject_id: Uuid::nil(), body }
}
