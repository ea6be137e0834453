//! Hands on what was published while the bus was away, once it is back (`bus.outbox`).
//!
//! What waits is in the database; this service holds nothing. Several instances may forward the same event: its
//! identity makes that harmless.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use crate::base::clock::Clock;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::ports::bus::{Bus, BusError};
use crate::store::StoreError;

/// When a bus that is away is tried again.
const TRY_AGAIN: TimeDelta = TimeDelta::seconds(1);

/// Forwards events that were kept while the bus was away.
pub struct Forwarder {
    bus: Arc<dyn Bus>,
    clock: Clock,
}

impl Forwarder {
    /// The service over this bus.
    pub fn new(bus: Arc<dyn Bus>, clock: Clock) -> Forwarder {
        Forwarder { bus, clock }
    }
}

impl ServiceLoop for Forwarder {
    const NAME: &'static str = "forwarder";
    const POLL_INTERVAL: Duration = Duration::from_secs(5);

    async fn tick(&self) -> Result<NextTick, TickError> {
        match self.bus.forward().await {
            Ok(0) => Ok(NextTick::OnWake),
            Ok(_) => Ok(NextTick::Now),
            // that the bus is away is what this service is for
            Err(BusError::Unavailable { why }) => {
                tracing::debug!(why, "events wait in the database until the bus is back");
                Ok(NextTick::At(self.clock.now() + TRY_AGAIN))
            }
            Err(error) => Err(StoreError::Corrupt(error.to_string()).into()),
        }
    }
}
