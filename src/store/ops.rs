//! Operations: limits, tokens, the audit record, retention and figures.

pub(super) mod audit;
pub(super) mod budgets;
pub(super) mod bulk;
pub(super) mod depths;
pub(super) mod halts;
pub(super) mod idempotency;
pub(super) mod instances;
pub(super) mod login_links;
pub(super) mod pending_work;
pub(super) mod quotas;
pub(super) mod rates;
pub(super) mod retention;
pub(super) mod stored_bytes;
pub(super) mod summaries;
pub(super) mod tokens;
pub(super) mod tool_pins;
pub(super) mod tool_trials;
pub(super) mod ui_sessions;
pub(super) mod unreadable;
pub(super) mod usage;
