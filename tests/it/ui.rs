//! The dashboard, as a browser without a script sees it.

mod approvals;
mod audit;
mod browser;
mod budgets;
mod conversations;
mod credentials;
mod dead_letters;
mod deliveries;
mod events;
mod inbox;
mod memory;
mod recipients;
mod round_trips;
mod run;
mod runs;
mod session;
mod skills;
mod system;
mod tasks;
mod today;
mod tools;
mod usage;
pub mod visitor;
