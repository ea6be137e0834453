//! Runs that a caller's write starts with their record: the starter of this process gives such a run a slot of the
//! instance before it is written, and executes it after that. There is a starter while the services of the engine run.

use std::sync::{Arc, Weak};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use uuid::Uuid;

use crate::store::runs::lease::StartedRows;
use crate::store::runs::starting::StartedRun;
use crate::store::runs::starting::immediate_start::{ImmediateStart, LeaseTerms, RemainingCapacity};
use crate::store::{Store, StoreError};

/// Executes runs in this process that are recorded as started.
pub trait LocalStarter: Send + Sync {
    /// Slots for a run of each of these tenants, as far as this instance has them; `None`: it has none for any of them.
    fn reserve<'a>(&'a self, tenants: &'a [&'a str], now: DateTime<Utc>) -> BoxFuture<'a, Option<ReservedStart>>;

    /// Executes a run that has started in one of them.
    fn execute(&self, started: StartedRun);
}

/// Slots of an instance for runs that are about to be recorded as started.
pub struct ReservedStart {
    /// The worker that leases the runs.
    pub worker: Uuid,
    /// Runs that may be leased.
    pub room: usize,
    /// The slots, the tenants that may have them, and the end of the leases.
    pub start: ImmediateStart,
    /// Gives the slots back when it is dropped: once the runs are executed, or were not recorded.
    pub permit: Box<dyn Send + Sync>,
}

/// The starter of this process, while there is one. The guard of a reader keeps it from going.
type Serving = Option<Weak<dyn LocalStarter>>;

/// The starter of a store. Cheap to clone; all clones share it.
#[derive(Clone, Default)]
pub(in crate::store) struct LocalStarts(Arc<RwLock<Serving>>);

/// Slots of this instance, and the starter that they are from.
pub(in crate::store) struct LocalStart {
    /// The terms on which runs start in these slots.
    pub terms: LeaseTerms,
    /// The end of their leases.
    pub lease_until: DateTime<Utc>,
    capacity: RemainingCapacity,
    /// Tenants of which nothing may begin.
    halted: Vec<String>,
    _permit: Box<dyn Send + Sync>,
    starter: Arc<dyn LocalStarter>,
    _serving: OwnedRwLockReadGuard<Serving>,
}

impl LocalStart {
    /// Takes a slot for a run of this tenant; answers whether there was one for it.
    pub fn take(&mut self, tenant: &str) -> bool {
        !self.halted.iter().any(|halted| halted == tenant) && self.capacity.take_share(tenant, true) == (true, true)
    }

    /// Executes the runs of these rows, which have started on the record.
    pub async fn execute(&self, store: &Store, rows: StartedRows) {
        for started in store.read_committed_starts(rows, self.lease_until).await {
            self.starter.execute(started);
        }
    }
}

impl Store {
    /// From now on messages and requests for runs start here with their records, as far as this starter has slots for
    /// them, and for as long as it is there.
    pub async fn begin_local_starts(&self, starter: Weak<dyn LocalStarter>) {
        *self.local_starts.0.write().await = Some(starter);
    }

    /// From now on nothing starts here with its record by a caller's write. Returns once each run that is being
    /// recorded is executed, or was not recorded as started.
    pub async fn end_local_starts(&self) {
        *self.local_starts.0.write().await = None;
    }

    /// Slots of this instance for a run of each of these tenants, as far as there are any. `None`: there is none,
    /// nothing of these tenants may begin, or the clock is not to be believed.
    pub(in crate::store) async fn reserve_starts(&self, tenants: &[&str]) -> Result<Option<LocalStart>, StoreError> {
        let Ok(serving) = Arc::clone(&self.local_starts.0).try_read_owned() else { return Ok(None) };
        let Some(starter) = serving.as_ref().and_then(Weak::upgrade) else { return Ok(None) };
        if !self.clock.is_trusted() {
            return Ok(None);
        }
        let halts = self.halts().await?;
        let (halted, startable): (Vec<&str>, Vec<&str>) =
            tenants.iter().partition(|tenant| halts.halt_of(tenant).is_some());
        if startable.is_empty() {
            return Ok(None);
        }
        let now = self.clock.now();
        let reserved = starter.reserve(&startable, now).await;
        Ok(reserved.map(|ReservedStart { worker, room, start, permit }| LocalStart {
            terms: LeaseTerms { now, worker, started_until: Some(start.lease_until) },
            lease_until: start.lease_until,
            capacity: RemainingCapacity::new(room, Some(&start)),
            halted: halted.into_iter().map(str::to_owned).collect(),
            _permit: permit,
            starter,
            _serving: serving,
        }))
    }
}
