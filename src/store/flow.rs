//! The owner of statements, by which connections are shared.

/// One user of connections that are short; each has its part of their time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Flow {
    /// Work for all tenants, by the module that does it.
    Engine(&'static str),
    Tenant(String),
}

impl Flow {
    /// The flow of a tenant; `None`: of the module, which works for all.
    pub(super) fn of(tenant: Option<&str>, module: &'static str) -> Flow {
        tenant.map_or(Flow::Engine(module), |tenant| Flow::Tenant(tenant.to_owned()))
    }
}
