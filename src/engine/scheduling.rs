//! From instants to claimed runs: scheduler, prefetch, worker, leases.

pub mod active;
pub mod heartbeat;
pub(super) mod other_tenants;
pub mod prefetch;
pub mod rescuer;
pub mod scheduler;
pub mod worker;
