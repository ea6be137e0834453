//! The integration tests, one binary: this list is their table of contents. `scripts/test.sh` starts what they need.

mod egress;
mod scheduling;
mod notifications;
#[allow(dead_code)] // the areas take from it what they need
mod support;
mod tidy;
