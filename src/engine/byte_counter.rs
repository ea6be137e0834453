//! The byte counter: adds what was stored and deleted to the numbers of its tenants, soon after it was written.

use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;

use crate::engine::service::{AtRest, NOW, Next, REST, Service, TickError};
use crate::store::Store;

/// Differences that are added up in one transaction.
const BATCH: i64 = 10_000;
/// Between two looks, while something is written.
const PAUSE: TimeDelta = TimeDelta::seconds(2);

pub struct ByteCounter {
    store: Store,
}

impl ByteCounter {
    pub fn new(store: Store) -> ByteCounter {
        ByteCounter { store }
    }
}

impl Service for ByteCounter {
    const NAME: &'static str = "byte_counter";
    const LOOK_AGAIN: Duration = Duration::from_secs(2);
    const AT_REST: Option<AtRest<Self>> =
        Some(AtRest { longest: REST, next: |_, outlook| outlook.uncounted.then_some(NOW) });

    async fn tick(&self) -> Result<Next, TickError> {
        // most of the time there is nothing, and then nothing is written
        if !self.store.has_uncounted_bytes().await? {
            return Ok(Next::OnWake);
        }
        Ok(match self.store.count_stored_bytes(BATCH).await? {
            counted if counted as i64 >= BATCH => Next::Now,
            _ => Next::At(self.store.clock().now() + PAUSE),
        })
    }

    fn hint(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
