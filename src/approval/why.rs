//! Why a person is asked, or nobody is. The reasons say it to whoever runs the service; from this the page says it in the
//! language of the person who is asked.

use serde::{Deserialize, Serialize};

use crate::approval::matrix::Gate;

/// One rule that had a part in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Why {
    /// A rule that somebody has set for the tool.
    Rule { by: RuleBy, gate: Gate },
    /// The call chooses a credential that the task does not name.
    Credential { reference: String },
    /// A rule could not be applied.
    Unjudged,
    /// The tool itself demands it.
    Always,
    /// The tool is not the one that was approved.
    ToolChanged,
    /// What its check finds is not what was shown.
    CheckChanged,
    /// A standing grant covers it.
    Grant,
    /// It is held, so that it may be stopped.
    Held,
}

/// By whom a rule was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleBy {
    Operator,
    Tenant,
    Agent,
    Task,
}

impl RuleBy {
    /// As a reason names them.
    pub fn name(self) -> &'static str {
        match self {
            RuleBy::Operator => "the operator",
            RuleBy::Tenant => "the tenant",
            RuleBy::Agent => "the agent",
            RuleBy::Task => "the task",
        }
    }
}
