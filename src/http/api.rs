//! The calls of the API, a file for each noun.

pub mod approvals;
pub mod audit;
pub mod conditions;
pub mod conversations;
pub mod credentials;
pub mod dead_letters;
pub mod deliveries;
pub mod events;
pub mod explain;
pub mod facts;
pub mod halts;
pub mod pipelines;
pub mod push;
pub mod quotas;
pub mod recipients;
pub mod registry;
pub mod runs;
pub mod schedules;
pub mod tasks;
pub mod tokens;
