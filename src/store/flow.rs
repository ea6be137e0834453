//! The owner of statements, by which connections are shared.

use std::panic::Location;

/// One user of connections that are short; each has its part of their time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Flow {
    /// Work for all tenants, by the file that does it.
    Engine(&'static str),
    Tenant(String),
}

impl Flow {
    /// The flow of a tenant; `None`: of the file that calls, which works for all.
    #[track_caller]
    pub(super) fn of(tenant: Option<&str>) -> Flow {
        match tenant {
            Some(tenant) => Flow::Tenant(tenant.to_owned()),
            None => Flow::Engine(Location::caller().file()),
        }
    }
}
