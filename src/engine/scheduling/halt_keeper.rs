//! The halt keeper: runs of tenants that the operator has halted are asked back, wherever they are executed.
//!
//! While runs are under way it looks at least once a second, so that an order takes effect though its wake-up was lost.
//! Whatever begins something looks for itself; this is for what has begun.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::engine::scheduling::active::ActiveRuns;
use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NOW, NextTick, ServiceLoop, TickError};
use crate::store::{Store, Topic};

/// Asks runs of halted tenants back.
pub struct HaltKeeper {
    store: Store,
    active: ActiveRuns,
}

impl HaltKeeper {
    /// The service for the runs that are executed here.
    pub fn new(store: Store, active: ActiveRuns) -> HaltKeeper {
        HaltKeeper { store, active }
    }
}

impl ServiceLoop for HaltKeeper {
    const NAME: &'static str = "halt_keeper";
    /// With the age of what the store knows, less than a second.
    const POLL_INTERVAL: Duration = Duration::from_millis(400);
    // without a run under way there is nothing to ask back; the first one wakes it
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |keeper, _| (!keeper.active.is_empty()).then_some(NOW) });

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.active.is_empty() {
            self.active.halt(&*self.store.halts().await?);
        }
        Ok(NextTick::OnWake)
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut orders = self.store.listen(Topic::Cancels);
        let begun = self.active.begun_wakeup();
        Box::pin(async move {
            tokio::select! {
                _ = orders.changed() => {}
                () = begun.notified() => {}
            }
        })
    }
}
