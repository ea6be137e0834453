//! The HTTP face: what it answers, to whom, and what it bears.

mod bodies;
mod bounds;
mod computing;
mod conditions;
mod credentials;
mod dead_letters;
mod deliveries;
mod events;
mod halts;
mod headers;
mod hooks;
mod import;
mod limits;
mod lists;
mod live;
mod matrix;
mod problems;
mod quotas;
mod receipts;
mod recipients;
mod reference;
mod repeats;
mod runs;
pub mod service;
mod stream;
mod tasks;
mod tokens;
