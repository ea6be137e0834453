//! The heartbeat: all leases of this instance are renewed in one statement, and the database's clock is measured. Once
//! a minute it says as well that the instance lives, which nothing depends on.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::store::{RenewedLease, Store, StoreError};

/// The clock is measured at least this often, well within the time for which a measurement is believed.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How often the instance says that it lives.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
/// Where the system says the machine's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Renews the leases of runs that are executed here.
pub struct Heartbeat {
    store: Store,
    active: ActiveRuns,
    lease: Duration,
    instance: InstanceIdentity,
    /// When the instance last said that it lives, by the clock's running time.
    announced_at: Mutex<Option<Duration>>,
}

/// An instance as it shows itself.
struct InstanceIdentity {
    id: Uuid,
    host: Option<String>,
    started_at: DateTime<Utc>,
}

impl Heartbeat {
    /// The service of this instance, for leases of this length.
    pub fn new(store: Store, active: ActiveRuns, lease: Duration, instance: Uuid) -> Heartbeat {
        let host = std::fs::read_to_string(HOST_NAME).ok().map(|name| name.trim().to_owned());
        let started_at = store.clock().now();
        let instance = InstanceIdentity { id: instance, host: host.filter(|name| !name.is_empty()), started_at };
        Heartbeat { store, active, lease, instance, announced_at: Mutex::default() }
    }

    fn every(&self) -> Duration {
        (self.lease / 3).min(MEASURE_EVERY)
    }

    async fn beat(&self) -> Result<(), StoreError> {
        self.store.measure_clock().await?;
        let leases = self.active.leases();
        let until = self.store.clock().now() + to_delta(self.lease);
        let renewed = self.store.heartbeat(&leases, until).await?;
        let renewed: HashMap<Uuid, &RenewedLease> = renewed.iter().map(|beat| (beat.run_id, beat)).collect();
        for lease in leases {
            match renewed.get(&lease.run_id) {
                None => self.active.revoke(lease),
                Some(beat) => {
                    self.active.renew(lease, until);
                    if let Some(reason) = &beat.cancel_reason {
                        self.active.cancel(lease.run_id, reason);
                    }
                }
            }
        }
        Ok(())
    }

    /// Says that the instance lives, where it is time. What fails is left to the next minute: leases are renewed again
    /// before a third of them has passed twice.
    async fn announce(&self, within: Duration) {
        if !self.is_time_to_announce() {
            return;
        }
        let InstanceIdentity { id, host, started_at } = &self.instance;
        let announcing = self.store.announce_instance(*id, host.as_deref(), *started_at);
        match tokio::time::timeout(within, announcing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the instance could not say that it lives"),
            Err(_) => tracing::debug!(?within, "the instance could not say in time that it lives"),
        }
    }

    fn is_time_to_announce(&self) -> bool {
        let now = self.store.clock().elapsed();
        let mut announced_at = self.announced_at.lock().expect("announcement lock");
        let is_time = announced_at.is_none_or(|at| now.saturating_sub(at) >= ANNOUNCE_EVERY);
        if is_time {
            *announced_at = Some(now);
        }
        is_time
    }
}

impl ServiceLoop for Heartbeat {
    const NAME: &'static str = "heartbeat";
    const POLL_INTERVAL: Duration = MEASURE_EVERY;

    /// A run that is not renewed ends by its own clock: see `execution`.
    async fn tick(&self) -> Result<NextTick, TickError> {
        let patience = self.every();
        match tokio::time::timeout(patience, self.beat()).await {
            Ok(beaten) => beaten?,
            Err(_) => return Err(TickError::Slow(patience)),
        }
        let next = self.store.clock().now() + to_delta(patience);
        self.announce(patience).await;
        Ok(NextTick::At(next))
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
