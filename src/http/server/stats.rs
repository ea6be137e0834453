//! How much there is, and how much waits: figures for operators, and for a tenant of its own things.
//!
//! They are counted at most every five seconds for each tenant, by one caller for all who ask meanwhile.

pub mod usage;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lru::LruCache;
use serde::Serialize;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::domain::quota::{Quota, QuotaStanding};
use crate::http::HttpState;
use crate::http::api::halts::HaltView;
use crate::http::error::ApiError;
use crate::http::request::{Call, Json, Query};
use crate::store::{COUNTED_TO, HaltPage};

/// How long figures are good.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// Tenants whose figures are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(1_000).expect("more than none");

/// The figures. A word that is missing counts zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Stats {
    /// When they were counted, up to five seconds ago; halts are those that hold now.
    pub as_of: DateTime<Utc>,
    /// Tasks by status; 10,000 of them are counted at most.
    #[schema(example = json!({"active": 12, "paused": 1}))]
    pub tasks: BTreeMap<String, i64>,
    /// As many tasks were counted as are at most: there may be more of each status.
    pub tasks_at_least: bool,
    /// Runs that are not final: `ready`, `claimed` and `started` in the queue, `parked` while they wait.
    #[schema(example = json!({"ready": 0, "started": 2, "parked": 1}))]
    pub runs: BTreeMap<String, i64>,
    /// Deliveries that are still to be sent.
    pub pending_deliveries: i64,
    /// Halts of these tenants by the operator: of everything, and of tenants that are stopped or disabled; up to 200.
    pub halts: Vec<HaltView>,
    /// So many more halts hold.
    pub more_halts: i64,
    /// Of one tenant: what it may have, and how much of that is used; `null` for all tenants.
    #[schema(required)]
    pub quotas: Option<BTreeMap<Quota, QuotaStanding>>,
}

/// Read figures
#[utoipa::path(get, path = "/v1/stats", tag = "operations", security(("bearer" = ["stats:read"])),
    params(("tenant_id" = Option<String>, Query, description = "This tenant's only")),
    responses((status = 200, body = Stats)))]
pub async fn get_stats(Call(state, caller): Call, mut query: Query) -> Result<Json<Stats>, ApiError> {
    caller.may(Permission::StatsRead)?;
    let tenant = query.text("tenant_id");
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let stats = state.stats.get(&state, &scope).await?;
    // an operator who has just stopped something sees it
    let HaltPage { halts, more } = state.store.list_halts(&scope).await?;
    Ok(Json(Stats { halts: halts.into_iter().map(HaltView::from).collect(), more_halts: more, ..stats }))
}

/// The figures that were counted last, by tenant; `None` has those of all together.
pub struct StatsCache(Mutex<LruCache<Option<String>, Arc<CachedStats>>>);

/// Figures and the time at which they were counted, since the clock's start. Held while they are counted.
type CachedStats = tokio::sync::Mutex<Option<(Duration, Stats)>>;

impl StatsCache {
    /// A cache without figures.
    pub fn new() -> StatsCache {
        StatsCache(Mutex::new(LruCache::new(KEPT)))
    }

    async fn get(&self, state: &HttpState, scope: &Scope) -> Result<Stats, ApiError> {
        let tenant = scope.tenant().map(str::to_owned);
        let cached = Arc::clone(self.0.lock().expect("stats lock").get_or_insert(tenant, Arc::default));
        let mut cached = cached.lock().await;
        let now = state.clock.elapsed();
        if let Some((counted, stats)) = &*cached
            && now.saturating_sub(*counted) < GOOD_FOR
        {
            return Ok(stats.clone());
        }
        let stats = count(state, scope).await?;
        *cached = Some((now, stats.clone()));
        Ok(stats)
    }
}

impl Default for StatsCache {
    fn default() -> StatsCache {
        StatsCache::new()
    }
}

async fn count(state: &HttpState, scope: &Scope) -> Result<Stats, ApiError> {
    let as_of = state.clock.now();
    let quotas = match scope {
        Scope::Only(tenant) => {
            let usage = state.store.quota_usage(tenant.as_str()).await?;
            Some(usage.with_streams(state.streams.open_of(tenant)).standings)
        }
        Scope::Every => None,
    };
    let tasks = state.store.count_tasks(scope).await?;
    Ok(Stats {
        as_of,
        quotas,
        // these are read each time
        halts: Vec::new(),
        more_halts: 0,
        tasks_at_least: tasks.iter().map(|(_, count)| count).sum::<i64>() >= COUNTED_TO,
        tasks: tasks.into_iter().collect(),
        runs: state.store.count_runs(scope).await?.into_iter().collect(),
        pending_deliveries: state.store.count_deliveries(scope).await?,
    })
}
