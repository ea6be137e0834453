//! The engine in the test's own process: each service ticked by hand on a clock that stands still, on both databases;
//! and twice for real.

mod budgets;
mod changes;
mod claims;
mod endings;
mod explain;
mod explain_at;
mod firing;
mod gate;
mod halts;
mod idle;
mod leases;
mod limits;
mod notifier;
mod outbox;
mod overlap;
mod quiet;
mod readiness;
mod retention;
mod shares;
mod stopping;
mod usage;
mod waiting;
