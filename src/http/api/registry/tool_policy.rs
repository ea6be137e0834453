//! How calls of a tool are treated: whether a person is asked, how often a failure is repeated, whether results are
//! kept.

use serde::Serialize;

use crate::http::HttpState;
use crate::ports::tool::ToolFailure;
use crate::ports::tool::output::DefaultLevel;
use crate::ports::tool::registry::RegisteredTool;

/// How calls of a tool are treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ToolPolicyView {
    /// Whether the operator's rules let no call run without the consent of a person. Rules of a task or an agent, and
    /// overrides, may say otherwise.
    pub asks: bool,
    /// Repetitions of a call that failed; 0: none.
    pub max_retries: u32,
    /// The failures that are repeated.
    #[schema(value_type = Vec<String>, example = json!(["timeout", "resource_error"]))]
    pub retries_on: Vec<&'static str>,
    /// Whether results are kept for an hour.
    pub cache: bool,
    /// The level at which the model is shown results of a call that names none; absent: they are shown whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_level: Option<DefaultLevel>,
}

impl ToolPolicyView {
    /// The policy of this tool, as the operator has it.
    pub(super) fn of(state: &HttpState, registered: &RegisteredTool) -> ToolPolicyView {
        let policy = &registered.policy;
        ToolPolicyView {
            asks: state.trials.always_asks(registered.definition()),
            max_retries: policy.retry.max_retries,
            retries_on: policy.retry.on.iter().copied().map(ToolFailure::as_str).collect(),
            cache: policy.cache,
            output_level: registered.output_level(),
        }
    }
}
