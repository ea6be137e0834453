//! Facts about other tenants: whether there are any, for where all tasks are of one no slot is kept for others; and
//! whether any has a limit of its own on the runs that are under way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::scheduling::prefetch::PrefetchBuffer;
use crate::store::{Store, with_timeout};

/// How old the answer may be. A tenant whose first task comes later than that is reckoned with.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Facts about other tenants, which are asked for by those that share it, and no more often than once a second.
pub struct OtherTenants {
    store: Store,
    prefetch: Arc<PrefetchBuffer>,
    asked: Mutex<Option<Duration>>,
}

impl OtherTenants {
    /// Of an instance with this buffer, which is told of each answer.
    pub fn new(store: Store, prefetch: Arc<PrefetchBuffer>) -> OtherTenants {
        OtherTenants { store, prefetch, asked: Mutex::default() }
    }

    /// Tells those who share the slots out. A store that is away leaves it as it was.
    pub async fn refresh(&self) {
        let now = self.store.clock().elapsed();
        let is_fresh = |asked: &Duration| now.saturating_sub(*asked) < GOOD_FOR;
        if self.asked.lock().expect("tenants lock").as_ref().is_some_and(is_fresh) {
            return;
        }
        let look = async { tokio::try_join!(self.store.has_single_tenant(), self.store.tenants_have_own_limits()) };
        match with_timeout(look).await {
            Ok((alone, own_limits)) => {
                self.prefetch.set_single_tenant(alone);
                self.prefetch.set_own_limits(own_limits);
                *self.asked.lock().expect("tenants lock") = Some(now);
            }
            Err(error) => tracing::debug!(%error, "what other tenants there are is not known now"),
        }
    }
}
