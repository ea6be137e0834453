//! How far the log of the bus has come, of each scope that streams follow: looked up for all streams of a scope
//! together, so that one more costs the bus nothing while nothing is published.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lru::LruCache;

use crate::base::id::Scope;
use crate::ports::bus::{Bus, BusError};

/// Scopes of which the last look is kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(1_000).expect("more than none");

/// The last look at each scope's end of the log; `None` is that of all tenants.
pub(in crate::http) struct LogEnds(Mutex<LruCache<Option<String>, Arc<ScopeEnd>>>);

/// When a look began, and the position that it found. Held while the next one is made.
type ScopeEnd = tokio::sync::Mutex<Option<(Instant, String)>>;

impl LogEnds {
    /// Before any look.
    pub(in crate::http) fn new() -> LogEnds {
        LogEnds(Mutex::new(LruCache::new(KEPT)))
    }

    /// The end of the log in a scope, by a look that began at this instant or later.
    ///
    /// # Errors
    /// The bus can't be read.
    pub(in crate::http) async fn since(
        &self,
        bus: &dyn Bus,
        scope: &Scope,
        earliest: Instant,
    ) -> Result<String, BusError> {
        let tenant = scope.tenant().map(str::to_owned);
        let last = Arc::clone(self.0.lock().expect("log ends lock").get_or_insert(tenant, Arc::default));
        let mut last = last.lock().await;
        if let Some((began, end)) = &*last
            && *began >= earliest
        {
            return Ok(end.clone());
        }
        let began = Instant::now();
        let end = bus.end(scope).await?;
        *last = Some((began, end.clone()));
        Ok(end)
    }
}
