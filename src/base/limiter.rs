//! Limits by key: how many go on at once ([`ConcurrencyLimiter`]), and how often something happens ([`RateLimiter`]).
//!
//! Counts of this process, in memory only: a restart begins anew. A limiter knows keys and numbers; which keys somebody
//! counts for, and what a caller is told when a limit is reached, is up to the module that has the limiter.

mod concurrency;
mod rate;

pub use concurrency::{ConcurrencyLimiter, Limit, LimitReached, Permit};
pub use rate::{Cadence, RateLimiter, RateState, Window};
