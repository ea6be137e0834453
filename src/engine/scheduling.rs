//! From instants to claimed runs: scheduler, prefetch, worker, leases.

pub mod active;
mod cancel_watch;
mod claim_pace;
pub mod halt_keeper;
pub mod heartbeat;
pub(super) mod other_tenants;
pub mod prefetch;
pub mod rescuer;
pub mod run_slots;
pub mod run_starter;
pub mod scheduler;
mod start_ahead;
mod tenant_queues;
pub mod worker;
