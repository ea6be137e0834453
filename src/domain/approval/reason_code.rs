//! Why a person is asked, or nobody is. The reasons say it to whoever runs the service; from this the page says it in
//! the language of the person who is asked.

use serde::{Deserialize, Serialize};

use crate::domain::approval::ApprovalLevel;

/// One rule that had a part in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReasonCode {
    /// A rule that somebody has set for the tool.
    Rule {
        /// The author of the rule.
        by: RuleBy,
        /// The degree of approval that it sets.
        gate: ApprovalLevel,
    },
    /// The call chooses a credential that the task does not name.
    Credential {
        /// The credential, as `service/account`.
        reference: String,
    },
    /// A rule could not be applied.
    Unjudged,
    /// The tool itself demands it.
    Always,
    /// The tool is not the one that was approved.
    ToolChanged,
    /// The tool's check finds another state than was shown.
    CheckChanged,
    /// A standing grant covers it.
    Grant,
    /// It is held, so that it may be stopped.
    UndoWindow,
}

/// By whom a rule was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleBy {
    /// The operator's settings.
    Operator,
    /// The settings of the tenant.
    Tenant,
    /// The definition of the configured agent.
    Agent,
    /// The task itself.
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
