//! Reveille wakes AI agents: it decides when, runs what, asks a person first, tells what came of it, and never loses
//! or doubles a fire.
//!
//! # The flow
//!
//! One direction, and every arrow is a committed row:
//!
//! ```text
//! clock ──▶ scheduler ──▶ runs: queued ──▶ worker ──▶ executor ──▶ end ──▶ deliveries ──▶ notifier ──▶ channel
//! ```
//!
//! Nothing calls backwards. HTTP and the engine never import each other; they meet in [`store`].
//!
//! # Layers, each importing only what stands above it
//!
//! - [`base::clock`], [`base::compute`], [`base::field`], [`base::id`], [`base::invalid`], [`base::json::length`], [`base::json::schema`], [`base::limiter`], [`base::retry`], [`base::secret`], [`base::signature`], [`base::template`], [`base::threads`], [`base::token`], [`base::words`]: no I/O of the product.
//! - [`domain::task`], [`domain::trigger`], [`domain::run`], [`domain::approval`], [`domain::credential`], [`domain::notification`], [`domain::quota`]: pure domain, data and transitions, no await.
//! - [`store`]: the only place that knows a database.
//! - [`ports::egress`], [`ports::vault`]; then [`ports::llm`], [`ports::tool`], [`ports::channel`], [`ports::poll`]: ports, a trait and a list each, one file per adapter.
//! - [`agent`]: reasoning, no storage.
//! - [`executor`]: how a run is executed.
//! - [`engine`] and [`http`]: services, and the face; [`base::metrics`] beside both.
//! - [`app`], [`config`], [`telemetry`], [`cli`]: composition and command line.
//!
//! # What always holds
//!
//! - Every instant that was due has exactly one record: a run, a run that stands for it, or `skipped` with its reason.
//! - A run is written by who holds its lease; every write is fenced by a token that is never given twice.
//! - A state changes by the table in [`domain::run::RunState::on`] only, and a final one never.
//! - What is acknowledged is committed.
//! - A tenant is a typed argument of every store call that is made for a caller.

#![warn(missing_docs)]

#[macro_use]
pub mod base;

pub mod agent;
pub mod app;
pub mod bench;
pub mod cli;
pub mod config;
pub mod domain;
pub mod engine;
pub mod executor;
pub mod http;
pub mod ports;
pub mod store;
pub mod telemetry;
