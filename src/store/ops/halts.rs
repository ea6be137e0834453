//! Halts: the operator's stop switch and disabled tenants, as rows, and as every instance knows them.
//!
//! Rows hold over restarts. An instance looks at their version when it is about to begin something and has not looked
//! for [`FRESH_FOR`], or was woken since; so an order takes effect within a second even where its wake-up is lost. A
//! look that fails is an error, and nothing begins.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio::sync::{Mutex, watch};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::halt::{Halt, HaltKind, Halts};
use crate::store::db::text::{optional, text};
use crate::store::db::wakeup::Wakeups;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic, with_timeout};

/// How long a look at the version is good.
const FRESH_FOR: Duration = Duration::from_millis(500);
/// How long work under way goes on between two looks; with [`FRESH_FOR`], less than a second.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// The name of all tenants. No tenant can be called so.
const EVERYBODY: &str = "*";
/// Halts that are listed at once.
const LISTED: i64 = 200;

/// The knowledge of one process; whoever looks holds it.
pub(in crate::store) type SharedHalts = Arc<Mutex<KnownHalts>>;

/// The halts as they were read last.
pub(in crate::store) struct KnownHalts {
    halts: Arc<Halts>,
    version: Option<i64>,
    /// The version of what is said about budgets of tenants, which is looked at on the same way.
    budget_version: i64,
    /// When the version was looked at, by the clock's running time.
    looked_at: Option<Duration>,
    /// Wakes when another instance, or this one, has changed them.
    changes: watch::Receiver<()>,
}

impl KnownHalts {
    /// Nothing is known yet.
    pub(in crate::store) fn shared(wakeups: &Wakeups) -> SharedHalts {
        let changes = wakeups.subscribe(Topic::Cancels);
        Arc::new(Mutex::new(KnownHalts {
            halts: Arc::default(),
            version: None,
            budget_version: 0,
            looked_at: None,
            changes,
        }))
    }

    fn is_fresh(&self, now: Duration) -> bool {
        let looked = self.looked_at.is_some_and(|at| now.saturating_sub(at) < FRESH_FOR);
        looked && !self.changes.has_changed().unwrap_or(false)
    }
}

#[derive(sqlx_macros::FromRow)]
struct HaltRow {
    tenant_id: String,
    kind: String,
    reason: Option<String>,
    halted_by: String,
    since: DateTime<Utc>,
    hold: i64,
}

/// Halts that hold, as many as are listed at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HaltPage {
    /// That of all tenants first.
    pub halts: Vec<Halt>,
    /// So many more hold.
    pub more: i64,
}

impl HaltRow {
    fn halt(self) -> Halt {
        let kind = kind_of(&self.kind);
        Halt { tenant: named(self.tenant_id), kind, reason: self.reason, by: self.halted_by, since: self.since }
    }
}

/// The kind of a word. One that this release does not know is a stop, too: nothing may begin.
fn kind_of(word: &str) -> HaltKind {
    HaltKind::parse(word).unwrap_or(HaltKind::Stopped)
}

/// The tenant of a row; `None`: every tenant.
fn named(tenant: String) -> Option<String> {
    (tenant != EVERYBODY).then_some(tenant)
}

impl Store {
    /// The halts that hold, as of some moment within the last half second. Concurrent callers share one look.
    pub async fn halts(&self) -> Result<Arc<Halts>, StoreError> {
        Ok(self.halts_and_budget_version().await?.0)
    }

    /// Returns once this tenant is halted, for work under way that is no run: the halt keeper asks runs back.
    pub async fn until_halted(&self, tenant: &str) {
        let mut orders = self.listen(Topic::Cancels);
        loop {
            // a look that fails is made again: what has begun goes on meanwhile
            if self.halts().await.is_ok_and(|halts| halts.halt_of(tenant).is_some()) {
                return;
            }
            tokio::select! {
                _ = orders.changed() => {}
                () = self.clock.sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// As [`Store::halts`], with the version of what is said about budgets.
    pub(in crate::store) async fn halts_and_budget_version(&self) -> Result<(Arc<Halts>, i64), StoreError> {
        let mut known = self.halts.lock().await;
        let now = self.clock.elapsed();
        if known.is_fresh(now) {
            return Ok((Arc::clone(&known.halts), known.budget_version));
        }
        // before the look, so that a change during it is looked at again
        known.changes.mark_unchanged();
        let (version, budget_version) = with_timeout(self.halt_version()).await?;
        if known.version != Some(version) {
            // rows that are younger than the version are read again with the next one
            known.halts = Arc::new(with_timeout(self.read_halts()).await?);
            known.version = Some(version);
        }
        known.budget_version = budget_version;
        known.looked_at = Some(now);
        Ok((Arc::clone(&known.halts), budget_version))
    }

    async fn halt_version(&self) -> Result<(i64, i64), StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read.query("select version, budget_version from halt_version where id = 1").one().await?)
    }

    async fn read_halts(&self) -> Result<Halts, StoreError> {
        let mut read = self.db.read().await?;
        let rows: Vec<(String, String)> = read.query("select tenant_id, kind from halts").all().await?;
        Ok(Halts::of(rows.into_iter().map(|(tenant, kind)| (named(tenant), kind_of(&kind)))))
    }

    /// Those that concern this scope, as they are now; 200 at most.
    pub async fn list_halts(&self, scope: &Scope) -> Result<HaltPage, StoreError> {
        let mut read = self.db.read().await?;
        let rows: Vec<HaltRow> = read
            .query(
                "select tenant_id, kind, reason, halted_by, since, count(*) over () as hold from halts
                  where $1 is null or tenant_id in ('*', $1)
                  order by tenant_id <> '*', tenant_id, kind limit $2",
            )
            .bind(scope.tenant())
            .bind(LISTED)
            .all()
            .await?;
        let more = rows.first().map_or(0, |row| row.hold - rows.len() as i64);
        Ok(HaltPage { halts: rows.into_iter().map(HaltRow::halt).collect(), more })
    }

    /// Halts a tenant, or with `None` every tenant. One that is halted so already stays as it is, with the first
    /// reason.
    pub async fn halt(
        &self,
        kind: HaltKind,
        tenant: Option<&str>,
        reason: Option<&str>,
        by: &str,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let halted = tx
            .query(
                "insert into halts (tenant_id, kind, reason, halted_by, since) values ($1, $2, $3, $4, $5)
                 on conflict (tenant_id, kind) do nothing",
            )
            .bind(text(tenant.unwrap_or(EVERYBODY)))
            .bind(kind.as_str())
            .bind(optional(reason))
            .bind(text(by))
            .bind(now)
            .execute()
            .await?;
        if halted == 1 {
            record(tx, (kind, tenant), (true, reason), by, now).await?;
        }
        write.commit().await?;
        self.notify(Topic::Cancels);
        Ok(())
    }

    /// Lifts what [`Store::halt`] has ordered: what was queued goes on, and what was skipped stays so. Nothing happens
    /// where nothing was ordered.
    pub async fn lift_halt(&self, kind: HaltKind, tenant: Option<&str>, by: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let lifted = tx
            .query("delete from halts where tenant_id = $1 and kind = $2")
            .bind(text(tenant.unwrap_or(EVERYBODY)))
            .bind(kind.as_str())
            .execute()
            .await?;
        if lifted == 1 {
            record(tx, (kind, tenant), (false, None), by, now).await?;
        }
        write.commit().await?;
        for topic in [Topic::Cancels, Topic::Queue, Topic::Due] {
            self.notify_all_instances(topic);
        }
        Ok(())
    }
}

/// In the transaction of an order: instances see another version, and the record has who gave it.
async fn record(
    tx: &mut Tx<'_>,
    (kind, tenant): (HaltKind, Option<&str>),
    (begins, reason): (bool, Option<&str>),
    by: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tx.query("update halt_version set version = version + 1 where id = 1").execute().await?;
    let action = match (kind, begins) {
        (HaltKind::Stopped, true) => "tenant.stopped",
        (HaltKind::Stopped, false) => "tenant.started",
        (HaltKind::TenantDisabled, true) => "tenant.disabled",
        (HaltKind::TenantDisabled, false) => "tenant.enabled",
    };
    let act = AuditAction {
        tenant: tenant.unwrap_or(EVERYBODY),
        actor: by,
        via: "api",
        action,
        subject_type: "tenant",
        subject_id: Uuid::nil(),
        body: json!({ "reason": reason }),
    };
    write_audit(tx, act, now).await
}
