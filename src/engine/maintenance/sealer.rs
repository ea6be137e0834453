//! The sealer: gives each entry of the audit log its place in the chain and its hash, soon after it was written.
//!
//! Entries are written unchained, with what they record; one row lock of the store lets one sealer at a time. An entry
//! that was sealed can't be changed, taken out or moved without the chain showing it: see [`chain`].

pub mod chain;

use std::time::Duration;

use chrono::TimeDelta;

use crate::engine::service::{IdlePolicy, NOW, NextTick, ServiceLoop, TickError};
use crate::ports::vault::Vault;
use crate::store::Store;

/// Entries sealed in one transaction.
const BATCH: i64 = 500;
/// Between two looks.
const PAUSE: TimeDelta = TimeDelta::seconds(1);

/// Seals audit rows into the hash chain.
pub struct Sealer {
    store: Store,
    vault: Vault,
}

impl Sealer {
    /// The service with the key of the chain.
    pub fn new(store: Store, vault: Vault) -> Sealer {
        Sealer { store, vault }
    }
}

impl ServiceLoop for Sealer {
    const NAME: &'static str = "sealer";
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    const IDLE: Option<IdlePolicy<Self>> =
        Some(IdlePolicy { max_wait: Duration::from_secs(2), next: |_, pending| pending.unsealed.then_some(NOW) });

    async fn tick(&self) -> Result<NextTick, TickError> {
        // most of the time there is nothing, and then nobody is locked out
        if self.store.audit_end().await?.2 == 0 {
            return Ok(NextTick::OnWake);
        }
        let vault = self.vault.clone();
        let sealed = self.store.seal_audit(&move |before, entry| chain::hash(&vault, before, entry), BATCH).await?;
        Ok(match sealed as i64 >= BATCH {
            true => NextTick::Now,
            false => NextTick::At(self.store.clock().now() + PAUSE),
        })
    }
}
