//! The limits: what the database, Redis and the runtime do by themselves, in a few lines each.

pub mod commits;
pub mod drain;
pub mod fire;
pub mod full_text;
pub mod model;
pub mod notify;
pub mod rows;
pub mod stream;
pub mod timer;

use std::time::Instant;

/// How many a second.
pub fn rate(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64().max(1e-9)
}

/// Milliseconds since then.
pub fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
