//! Collections with bounds and shares.

pub mod bounded_cache;
pub mod fair_queue;
pub mod tenant_cache;
