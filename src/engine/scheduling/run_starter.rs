//! Runs that this instance leases, and starts, with the commit that records them: what the scheduler, the matcher,
//! requests for runs and the messages of conversations share.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::engine::running::execution::Executions;
use crate::engine::scheduling::other_tenants::OtherTenants;
use crate::engine::scheduling::prefetch::{PrefetchBuffer, PrefetchPermit};
use crate::engine::scheduling::run_slots::RunSlots;
use crate::store::{ImmediateStart, LocalStarter, ReservedStart, RunClaim, StartedRun, Store, count_by_tenant};

/// The capacity of an instance for runs that are about to be recorded. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct RunStarter {
    prefetch: Arc<PrefetchBuffer>,
    /// `None`: nothing is executed here.
    executions: Option<Executions>,
    worker: Uuid,
    other_tenants: Arc<OtherTenants>,
}

impl RunStarter {
    /// Of the instance with this id.
    pub fn new(store: Store, prefetch: Arc<PrefetchBuffer>, executions: Executions, worker: Uuid) -> RunStarter {
        RunStarter::with(store, prefetch, Some(executions), worker)
    }

    /// Of a process that records runs and executes none: all of them are ready for others.
    pub fn recording_only(store: Store, worker: Uuid) -> RunStarter {
        RunStarter::with(store, PrefetchBuffer::new(0, RunSlots::new(0, 0)), None, worker)
    }

    fn with(store: Store, prefetch: Arc<PrefetchBuffer>, executions: Option<Executions>, worker: Uuid) -> RunStarter {
        let other_tenants = Arc::new(OtherTenants::new(store, Arc::clone(&prefetch)));
        RunStarter { prefetch, executions, worker, other_tenants }
    }

    /// The id under which runs are leased.
    pub fn worker(&self) -> Uuid {
        self.worker
    }

    /// Looks up what tenants there are, unless that is known.
    pub async fn refresh_tenants(&self) {
        self.other_tenants.refresh().await;
    }

    /// Room for so many runs of each tenant, by its hash, that are about to be recorded, by the limits and shares of
    /// the tenants there are; see [`PrefetchBuffer::acquire_for_recorded`].
    pub fn acquire(&self, runs: &HashMap<u32, usize>, behind: bool) -> PrefetchPermit {
        self.prefetch.acquire_for_recorded(runs, behind)
    }

    /// As [`RunStarter::acquire`] of a caller that is not behind, for a run of each of these tenants, once it is known
    /// what tenants there are.
    pub async fn acquire_for(&self, tenants: &[&str]) -> PrefetchPermit {
        if !tenants.is_empty() {
            self.refresh_tenants().await;
        }
        self.acquire(&count_by_tenant(tenants.iter().copied()), false)
    }

    /// How runs start that have a slot by this permit; `None`: none does.
    pub fn start(&self, permit: &PrefetchPermit, now: DateTime<Utc>) -> Option<ImmediateStart> {
        let executions = self.executions.as_ref()?;
        let lease_until = now + to_delta(executions.lease());
        Some(ImmediateStart { slots: permit.slots, lease_until, shares: Some(permit.shares.clone()) })
    }

    /// Keeps claims until they start, and executes what has started. The permit is dropped after that.
    pub fn take_in(&self, claims: Vec<RunClaim>, started: Vec<StartedRun>) {
        self.prefetch.add(claims);
        if let Some(executions) = &self.executions {
            started.into_iter().for_each(|started| executions.spawn(started));
        }
    }
}

impl LocalStarter for RunStarter {
    fn reserve<'a>(&'a self, tenants: &'a [&'a str], now: DateTime<Utc>) -> BoxFuture<'a, Option<ReservedStart>> {
        Box::pin(async move {
            let permit = self.acquire_for(tenants).await;
            let (start, room) = (self.start(&permit, now)?, permit.prefetch);
            let has_slot = permit.slots.min(room) > 0;
            has_slot.then(|| ReservedStart { worker: self.worker, room, start, permit: Box::new(permit) })
        })
    }

    fn execute(&self, started: StartedRun) {
        self.take_in(Vec::new(), vec![started]);
    }
}
