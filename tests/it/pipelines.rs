//! Pipelines and runs of foreign runtimes: every kind of step, what a crash at each point leaves, what is refused when
//! a task is saved, trials, and the life of a run that waits for completion.

mod appends;
mod asking;
mod budgets;
mod configured;
mod counts;
mod dry_run;
mod gate;
pub mod harness;
mod ledger;
mod page;
mod refused;
mod service;
mod steps;
mod webhook;
