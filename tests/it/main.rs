//! The integration tests, one binary: this list is their table of contents. `scripts/test.sh` starts what they need.

mod agent;
mod api;
mod approvals;
mod bus;
mod chat;
mod cli;
mod clients;
mod conditions;
mod conformance;
mod deploy;
mod egress;
mod engine;
mod events;
mod examples;
mod extremes;
mod faults;
mod mcp;
mod mcp_server;
mod metrics;
mod notifications;
mod oauth;
mod pipelines;
mod scheduling;
mod sdk;
mod secrets;
mod spine;
#[allow(dead_code)] // the areas take from it what they need
mod support;
mod tidy;
mod traces;
mod ui;
mod upgrade;
mod vault;
mod zones;
