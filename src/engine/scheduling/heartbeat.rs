//! The heartbeat: all leases of this instance are renewed in one statement, and the database's clock is measured.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::store::{RenewedLease, Store, StoreError};

/// The clock is measured at least this often, well within the time for which a measurement is believed.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// Renews the leases of runs that are executed here.
pub struct Heartbeat {
    store: Store,
    active: ActiveRuns,
    lease: Duration,
}

impl Heartbeat {
    /// The service for leases of this length.
    pub fn new(store: Store, active: ActiveRuns, lease: Duration) -> Heartbeat {
        Heartbeat { store, active, lease }
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
        Ok(NextTick::At(self.store.clock().now() + to_delta(patience)))
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
