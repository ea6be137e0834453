//! The owner of statements, by which connections are shared.

use std::panic::Location;

use crate::base::collections::fair_queue::{FairQueue, QueuePermit};

/// One user of connections that are short; each has its part of their time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) enum QueueFlow {
    /// Work for all tenants, by the file that does it.
    Engine(&'static str),
    /// Work that all tenants wait for, by the file and line that does it: it waits for what is under way, and for no
    /// turn.
    First(&'static str, u32),
    Tenant(String),
}

impl QueueFlow {
    /// The flow of a tenant; `None`: of the file that calls, which works for all.
    #[track_caller]
    pub(in crate::store) fn of(tenant: Option<&str>) -> QueueFlow {
        match tenant {
            Some(tenant) => QueueFlow::Tenant(tenant.to_owned()),
            None => QueueFlow::Engine(Location::caller().file()),
        }
    }

    /// A place in the queue, once it is the flow's turn.
    pub(in crate::store) async fn acquire(&self, turns: &FairQueue<QueueFlow>) -> QueuePermit<QueueFlow> {
        match self {
            QueueFlow::First(..) => turns.acquire_first(self).await,
            QueueFlow::Engine(_) | QueueFlow::Tenant(_) => turns.acquire(self).await,
        }
    }
}
