//! Quotas by the minute: what a tenant publishes and fires, over all instances.
//!
//! Counted in memory by [`Meter`]; the database is asked for portions, and only of tenants that do much.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::quota::meter::{Demand, Meter, MeterRequest, MeterVerdict, minute_of};
use crate::domain::quota::{ExceededQuota, Quota};
use crate::store::db::Transaction;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::ops::quotas::Allowance;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

/// The meter of one process. Cheap to clone; all clones count together.
#[derive(Clone, Default)]
pub(in crate::store) struct RateCounters(Arc<Mutex<Meter>>);

impl RateCounters {
    pub(in crate::store) fn meter(&self) -> MutexGuard<'_, Meter> {
        self.0.lock().expect("meter lock")
    }
}

/// Adds what an instance has done without asking; the row is locked until the portion is settled. A clock that is a
/// moment behind another's counts into the minute of that one.
pub(in crate::store) const REPORT: &str = "
    insert into quota_minutes (tenant_id, quota, minute, used, granted) values ($1, $2, $3, $4, 0)
    on conflict (tenant_id, quota) do update
       set used = case when quota_minutes.minute >= $3 then quota_minutes.used else 0 end + excluded.used,
           minute = case when quota_minutes.minute >= $3 then quota_minutes.minute else $3 end
    returning used";

/// Name under which messages to models are counted.
const MODEL_MESSAGES: &str = "model_messages";

/// In a transaction: what of the question is granted, and what is left to all instances then.
async fn grant(tx: &mut Tx<'_>, demand: &Demand<'_>, asked: MeterRequest) -> Result<(u64, u64), StoreError> {
    let used: i64 = tx
        .query(REPORT)
        .bind(text(demand.tenant))
        .bind(demand.quota)
        .bind(asked.minute)
        .bind(asked.report as i64)
        .scalar()
        .await?;
    let (granted, remaining) = asked.answer(demand.limit, used.max(0) as u64);
    tx.query("update quota_minutes set used = used + $3, granted = $3 where tenant_id = $1 and quota = $2")
        .bind(text(demand.tenant))
        .bind(demand.quota)
        .bind(granted as i64)
        .execute()
        .await?;
    Ok((granted, remaining))
}

/// In a transaction: counts fires of these tenants that are about to be recorded, and puts in their place how many of
/// them each may have. The tenants come in the order in which their rows are locked. What holds for them was read
/// before: while rows are locked nothing is asked by another connection.
pub(in crate::store) async fn take_fires(
    store: &Store,
    tx: &mut Tx<'_>,
    fires: &mut BTreeMap<String, usize>,
    allowances: &HashMap<String, Allowance>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (tenant, count) in fires.iter_mut() {
        let allowance = allowances.get(tenant).copied().unwrap_or_default();
        if allowance.is_full() {
            *count = 0;
            continue;
        }
        let demand = fires_of(tenant, allowance.quotas.fires_per_minute, *count);
        let verdict = store.rates.meter().take(&demand, now);
        *count = match verdict {
            MeterVerdict::Allowed(count) => count as usize,
            MeterVerdict::Ask(asked) => {
                let (granted, remaining) = grant(tx, &demand, asked).await?;
                store.rates.meter().settle(&demand, &asked, granted, remaining) as usize
            }
        };
    }
    Ok(())
}

/// Fires that are about to be recorded: as many as there may be.
pub(in crate::store) fn fires_of(tenant: &str, limit: u64, count: usize) -> Demand<'_> {
    Demand { tenant, quota: Quota::FiresPerMinute.as_str(), limit, count: count as u64, whole: false }
}

impl Store {
    /// Counts events that are about to be published: all of them, or none where they are more than the tenant may
    /// publish in this minute.
    pub async fn take_events(&self, tenant: &str, count: usize) -> Result<(), StoreError> {
        let limit = self.quotas_of(tenant).await?.events_per_minute;
        let demand = Demand { tenant, quota: Quota::EventsPerMinute.as_str(), limit, count: count as u64, whole: true };
        // its own requests alone wait for each other
        if self.take(&demand, self.db.write_unconfined(Some(tenant))).await? == demand.count {
            return Ok(());
        }
        let now = self.clock.now();
        let used = self.used_this_minute(tenant, Quota::EventsPerMinute, now).await?;
        let exceeded = ExceededQuota {
            tenant: tenant.to_owned(),
            quota: Quota::EventsPerMinute,
            limit,
            usage: used.min(limit),
            retry_after: Duration::from_secs(60 - now.timestamp().rem_euclid(60) as u64),
        };
        self.refusal(Err(StoreError::Quota(Box::new(exceeded))))
    }

    /// Takes back what was counted and not published.
    pub fn give_events_back(&self, tenant: &str, count: usize) {
        self.rates.meter().give_back(tenant, Quota::EventsPerMinute.as_str(), count as u64, self.clock.now());
    }

    /// Counts fires that are about to be recorded, as many as the tenant may have in this minute; answers how many.
    /// None where it has stored all that it may.
    pub async fn take_fires(&self, tenant: &str, count: usize) -> Result<usize, StoreError> {
        let allowance = self.allowance(tenant).await?;
        if allowance.is_full() {
            return Ok(0);
        }
        let demand = fires_of(tenant, allowance.quotas.fires_per_minute, count);
        Ok(self.take(&demand, self.db.write_for_engine(QueueFlow::of(None))).await? as usize)
    }

    /// Those of these tenants that have stored all that they may.
    pub(in crate::store) async fn full_tenants(&self, tenants: BTreeSet<&str>) -> Result<HashSet<String>, StoreError> {
        let allowances = self.allowances(&tenants.into_iter().collect::<Vec<_>>()).await?;
        let full = allowances.into_iter().filter(|(_, allowance)| allowance.is_full());
        Ok(full.map(|(tenant, _)| tenant).collect())
    }

    /// Whether a message to a model may begin a run: not where its tenant has stored all that it may. One that
    /// `is_counted` is a fire of this minute, and may not where none is left: that of a chat. The fire of a trigger was
    /// counted when it was recorded.
    pub async fn admit_message(&self, tenant: &str, is_counted: bool) -> Result<bool, StoreError> {
        match is_counted {
            true => Ok(self.take_fires(tenant, 1).await? == 1),
            false => Ok(!self.allowance(tenant).await?.is_full()),
        }
    }

    /// Counts one message that is about to go to a model; whether the tenant may send it in this minute.
    pub async fn take_model_message(&self, tenant: &str, limit: u64) -> Result<bool, StoreError> {
        let demand = Demand { tenant, quota: MODEL_MESSAGES, limit, count: 1, whole: true };
        Ok(self.take(&demand, self.db.write_for_engine(QueueFlow::of(None))).await? == 1)
    }

    /// Takes back one message that was counted and does not go to a model now.
    pub fn give_model_message_back(&self, tenant: &str) {
        self.rates.meter().give_back(tenant, MODEL_MESSAGES, 1, self.clock.now());
    }

    /// Takes back fires that were counted and come to nothing now.
    pub fn give_fires_back(&self, tenant: &str, count: usize) {
        self.rates.meter().give_back(tenant, Quota::FiresPerMinute.as_str(), count as u64, self.clock.now());
    }

    /// How much of a quota was used in this minute, as far as this instance knows of others.
    pub(in crate::store) async fn used_this_minute(
        &self,
        tenant: &str,
        quota: Quota,
        now: DateTime<Utc>,
    ) -> Result<u64, StoreError> {
        let told: Option<i64> = self
            .db
            .read_quick()
            .await?
            .query("select used from quota_minutes where tenant_id = $1 and quota = $2 and minute = $3")
            .bind(text(tenant))
            .bind(quota.as_str())
            .bind(minute_of(now))
            .optional_scalar()
            .await?;
        let (untold, left) = self.rates.meter().unsettled(tenant, quota.as_str(), now);
        Ok((told.unwrap_or(0).max(0) as u64 + untold).saturating_sub(left))
    }

    /// Takes what is asked for; `begin` begins the transaction of a portion, if one is needed.
    async fn take(
        &self,
        demand: &Demand<'_>,
        begin: impl Future<Output = Result<Transaction, sqlx::Error>>,
    ) -> Result<u64, StoreError> {
        if demand.count == 0 {
            return Ok(0);
        }
        let question = match self.rates.meter().take(demand, self.clock.now()) {
            MeterVerdict::Allowed(count) => return Ok(count),
            MeterVerdict::Ask(question) => question,
        };
        let mut write = begin.await?;
        let tx = &mut write.tx();
        let (granted, remaining) = grant(tx, demand, question).await?;
        write.commit().await?;
        Ok(self.rates.meter().settle(demand, &question, granted, remaining))
    }
}
