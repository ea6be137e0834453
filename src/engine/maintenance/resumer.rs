//! The resumer: tasks that were paused for want of a credential go on once it is saved. The first few go on with what
//! saves it; where many wait, the others go on here, tenants in turn, each task planned at its own instant.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::engine::service::{IdlePolicy, MAX_IDLE_WAIT, NOW, NextTick, ServiceLoop, TickError};
use crate::store::{Store, Topic};

/// Tasks that are resumed in one tick.
const BATCH: i64 = 20;

/// Resumes the paused tasks whose credential is there again.
pub struct Resumer {
    store: Store,
}

impl Resumer {
    /// The service on this store.
    pub fn new(store: Store) -> Resumer {
        Resumer { store }
    }
}

impl ServiceLoop for Resumer {
    const NAME: &'static str = "resumer";
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: MAX_IDLE_WAIT, next: |_, pending| pending.resumption.then_some(NOW) });

    async fn tick(&self) -> Result<NextTick, TickError> {
        Ok(match self.store.resume_next(BATCH).await? {
            0 => NextTick::OnWake,
            _ => NextTick::Now,
        })
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let mut hints = self.store.listen(Topic::Resumptions);
        Box::pin(async move {
            let _ = hints.changed().await;
        })
    }
}
