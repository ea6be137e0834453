//! Reveille wakes AI agents: it decides when, runs what, asks a person first, tells what came of it, and never loses
//! or doubles a fire.
//!
//! # The way of a fire
//!
//! One direction, and every arrow is a committed row:
//!
//! ```text
//! clock ──▶ scheduler ─┐
//! bus ────▶ matcher ───┼─▶ run: queued ──▶ worker ──▶ executor ──▶ run: ended ──▶ delivery ──▶ notifier ──▶ channel
//! poll ───▶ watcher ───┘                                 │  ▲
//!                                                        ▼  │
//!                                              approval: asked, answered
//! ```
//!
//! Nothing calls backwards. HTTP and the engine never import each other; they meet in [`store`]. `docs/architecture.md`
//! follows one fire from file to file.
//!
//! # Layers, each importing only what stands above it
//!
//! Twelve imports are excepted; `docs/architecture.md` gives their reasons.
//!
//! - [`base`], without I/O of the product: [`backoff`], [`clock`], [`collections`], [`compute`], [`expr`],
//!   [`failpoint`], [`field`], [`id`], [`invalid`], [`json`], [`limiter`], [`metrics`], [`redact`], [`secret`],
//!   [`signature`], [`template`], [`threads`], [`token`], [`unicode_safety`], [`words`].
//! - [`domain`], data and transitions, no `await`: [`actor`], [`approval`], [`budget`], [`conversation`],
//!   [`credential`], [`data_file`], [`event`], [`halt`], [`memory`], [`notification`], [`quota`], [`run`], [`task`],
//!   [`trigger`].
//! - [`store`]: the only place that knows a database.
//! - [`ports`], a trait and a list each, one file per adapter: [`egress`], [`skill`], [`vault`]; then [`bus`],
//!   [`channel`], [`llm`], [`poll`], [`tool`].
//! - [`agent`]: reasoning, no storage.
//! - [`executor`]: how a run is executed.
//! - [`engine`] and [`http`]: services, and the API.
//! - [`app`], [`bench`], [`cli`], [`config`], [`telemetry`]: composition and command line.
//!
//! # What always holds
//!
//! - Every instant that was due has exactly one record: a run, a run that stands for it, or `skipped` with its reason.
//! - A run is written by who holds its lease; every write is fenced by a token that is never given twice.
//! - A state changes by the table in [`domain::run::RunState::on`] only, and a final one never.
//! - An acknowledged change is committed.
//! - A tenant is a typed argument of every store call that is made for a caller.
//!
//! [`backoff`]: base::backoff
//! [`clock`]: base::clock
//! [`collections`]: base::collections
//! [`compute`]: base::compute
//! [`expr`]: base::expr
//! [`failpoint`]: base::failpoint
//! [`field`]: base::field
//! [`id`]: base::id
//! [`invalid`]: base::invalid
//! [`json`]: base::json
//! [`limiter`]: base::limiter
//! [`metrics`]: base::metrics
//! [`redact`]: base::redact
//! [`secret`]: base::secret
//! [`signature`]: base::signature
//! [`template`]: base::template
//! [`threads`]: base::threads
//! [`token`]: base::token
//! [`unicode_safety`]: base::unicode_safety
//! [`words`]: base::words
//! [`actor`]: domain::actor
//! [`approval`]: domain::approval
//! [`budget`]: domain::budget
//! [`conversation`]: domain::conversation
//! [`credential`]: domain::credential
//! [`data_file`]: domain::data_file
//! [`event`]: domain::event
//! [`halt`]: domain::halt
//! [`memory`]: domain::memory
//! [`notification`]: domain::notification
//! [`quota`]: domain::quota
//! [`run`]: domain::run
//! [`task`]: domain::task
//! [`trigger`]: domain::trigger
//! [`bench`]: mod@bench
//! [`bus`]: ports::bus
//! [`channel`]: ports::channel
//! [`egress`]: ports::egress
//! [`llm`]: ports::llm
//! [`poll`]: ports::poll
//! [`skill`]: ports::skill
//! [`tool`]: ports::tool
//! [`vault`]: ports::vault

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
