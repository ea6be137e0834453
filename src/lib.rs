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
//! - [`clock`], [`compute`], [`field`], [`id`], [`invalid`], [`json_length`], [`json_schema`], [`limiter`], [`retry`], [`secret`], [`signature`], [`template`], [`threads`], [`token`], [`words`]: no I/O of the product.
//! - [`task`], [`trigger`], [`run`], [`approval`], [`credential`], [`notification`], [`quota`]: pure domain, data and transitions, no await.
//! - [`store`]: the only place that knows a database.
//! - [`egress`], [`vault`]; then [`llm`], [`tool`], [`channel`], [`poll`]: ports, a trait and a list each, one file per adapter.
//! - [`agent`]: reasoning, no storage.
//! - [`executor`]: how a run is executed.
//! - [`engine`] and [`http`]: services, and the face; [`metrics`] beside both.
//! - [`app`], [`config`], [`telemetry`], [`cli`]: composition and command line.
//!
//! # What always holds
//!
//! - Every instant that was due has exactly one record: a run, a run that stands for it, or `skipped` with its reason.
//! - A run is written by who holds its lease; every write is fenced by a token that is never given twice.
//! - A state changes by the table in [`run::RunState::on`] only, and a final one never.
//! - What is acknowledged is committed.
//! - A tenant is a typed argument of every store call that is made for a caller.

#![warn(missing_docs)]

#[macro_use]
pub mod planted;

pub mod agent;
pub mod app;
pub mod approval;
pub mod bench;
pub mod bus;
pub mod channel;
pub mod cli;
pub mod clock;
pub mod compute;
pub mod config;
pub mod credential;
pub mod egress;
pub mod engine;
pub mod event;
pub mod executor;
pub mod expr;
pub mod fair_queue;
pub mod field;
pub mod http;
pub mod id;
pub mod invalid;
pub mod json_length;
pub mod json_schema;
pub mod limiter;
pub mod llm;
pub mod metrics;
pub mod notification;
pub mod poll;
pub mod quota;
pub mod redact;
pub mod retry;
pub mod run;
pub mod secret;
pub mod signature;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod template;
pub mod threads;
pub mod token;
pub mod tool;
pub mod trigger;
pub mod vault;
pub mod visible;
pub mod words;
