//! The gate's check of quotas: no message of a tenant that has stored all that it may begins a run, and none of its
//! chats in a minute whose fires are used up. They are skipped before a model is asked.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};

use futures::future::BoxFuture;
use lru::LruCache;
use uuid::Uuid;

use crate::agent::gate::{GateCheck, GateMessage, GateRefusal};
use crate::agent::{CHAT, FROM_AGENT, STEP};
use crate::domain::quota::REASON_QUOTA;
use crate::store::Store;

/// Runs of chats that are remembered as counted.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Counts by the quotas of tenants.
pub struct QuotaCheck {
    store: Store,
    /// Runs of chats that were counted here lately. One that comes back before it has begun, because a model was away
    /// for instance, is the same message.
    counted: Mutex<LruCache<Uuid, ()>>,
}

impl QuotaCheck {
    /// Nothing is counted yet.
    pub fn new(store: Store) -> QuotaCheck {
        QuotaCheck { store, counted: Mutex::new(LruCache::new(REMEMBERED)) }
    }

    fn counted(&self) -> MutexGuard<'_, LruCache<Uuid, ()>> {
        self.counted.lock().expect("counted runs lock")
    }

    fn was_counted(&self, run_id: Uuid) -> bool {
        self.counted().contains(&run_id)
    }

    fn note_counted(&self, run_id: Uuid) {
        self.counted().put(run_id, ());
    }
}

impl GateCheck for QuotaCheck {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(async move {
            // they are parts of runs that have begun, and those come to their end
            if [FROM_AGENT, STEP].contains(&message.source) {
                return Ok(());
            }
            let is_counted = message.source == CHAT && !self.was_counted(message.run_id);
            match self.store.admit_message(message.tenant, is_counted).await {
                Ok(true) => {
                    if is_counted {
                        self.note_counted(message.run_id);
                    }
                    Ok(())
                }
                Ok(false) => Err(GateRefusal::Skip(REASON_QUOTA.into())),
                // where it is not known, it may be later
                Err(_) => Err(GateRefusal::NotNow),
            }
        })
    }
}
