//! Opening the bus that the settings name.

use std::sync::Arc;

use crate::base::clock::Clock;
use crate::ports::bus::embedded::EmbeddedBus;
use crate::ports::bus::outbox::Outbox;
use crate::ports::bus::redis::Redis;
use crate::ports::bus::{Bus, Settings};
use crate::store::Store;

/// Whether `bus.url` can be an address of a bus; nobody is asked.
///
/// # Errors
/// A sentence on what is wrong with it.
pub fn check_address(settings: &Settings, clock: &Clock) -> Result<(), String> {
    match settings.is_embedded() {
        true => Ok(()),
        false => Redis::new(settings, clock).map(drop),
    }
}

/// The bus of this instance. A server that is away now is no error: it is asked again with each call.
///
/// # Errors
/// A sentence on what is wrong with `bus.url`.
pub fn open(settings: &Settings, store: &Store) -> Result<Arc<dyn Bus>, String> {
    if settings.is_embedded() {
        return Ok(Arc::new(EmbeddedBus::new(store.clone(), settings)));
    }
    let redis = Arc::new(Redis::new(settings, store.clock())?.reading_by(store.computing()));
    Ok(Arc::new(Outbox::new(redis, store.clone(), settings.outbox)))
}
