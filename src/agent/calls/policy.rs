//! Whether a tool call may run, and whether a failed one is run again. Decided purely.

use std::time::Duration;

use crate::ports::tool::policy::ToolRetry;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, ToolError, ToolFailure, ToolStatus};

/// Whether a tool is gone.
pub fn is_removed(tool: &RegisteredTool) -> bool {
    tool.definition().status == ToolStatus::Removed
}

/// Refuses what is gone.
pub fn permit(tool: &Definition) -> Result<(), ToolError> {
    if tool.status == ToolStatus::Removed {
        let message = format!("the tool `{}` has been removed", tool.name);
        return Err(ToolError::for_model(ToolFailure::NotFound, "tool_removed", message));
    }
    Ok(())
}

/// One more try of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallRetry {
    pub wait: Duration,
    /// How long the next try may take.
    pub limit: Duration,
}

/// Whether a call that failed `tries` times (at least once), the last time within `limit`, is tried again. Only what
/// time may heal, and never a call that would have its effect twice: one that is not idempotent only where it had none.
pub fn again(
    tool: &Definition,
    retry: &ToolRetry,
    error: &ToolError,
    tries: u32,
    limit: Duration,
) -> Option<CallRetry> {
    let (kind, ..) = error.model_message()?;
    let may_repeat = tool.idempotent || error.is_unsent();
    if !may_repeat || !retry.on.contains(&kind) || tries > retry.max_retries {
        return None;
    }
    Some(CallRetry { wait: retry.wait(tries), limit: retry.next_limit(limit) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::{Category, Consequence};

    fn tool() -> Definition {
        Definition::new("send", "", json!({}), Category::Read, Consequence::Low)
    }

    fn failed(kind: ToolFailure) -> ToolError {
        ToolError::for_model(kind, "x", "x")
    }

    #[test]
    fn removed_tools_are_refused() {
        let refused = |tool: &Definition| permit(tool).unwrap_err().to_string();
        assert_eq!(permit(&tool()), Ok(()));
        let removed = Definition { status: ToolStatus::Removed, ..tool() };
        assert_eq!(refused(&removed), "not_found: the tool `send` has been removed");
        assert_eq!(permit(&Definition { status: ToolStatus::Deprecated, ..tool() }), Ok(()));
    }

    #[test]
    fn call_is_tried_three_times_more_each_after_a_longer_wait_and_with_more_time() {
        let mut limit = Duration::from_secs(60);
        let mut delays = Vec::new();
        for tries in 1.. {
            let Some(next) = again(&tool(), &ToolRetry::default(), &failed(ToolFailure::Timeout), tries, limit) else {
                break;
            };
            delays.push((next.wait.as_millis(), next.limit.as_secs()));
            limit = next.limit;
        }
        assert_eq!(delays, [(1000, 120), (1500, 240), (2250, 300)]);
    }

    #[test]
    fn retry_covers_timeouts_and_missing_resources_where_safe() {
        let all = [
            ToolFailure::Timeout,
            ToolFailure::RateLimit,
            ToolFailure::ResourceError,
            ToolFailure::TransientError,
            ToolFailure::PermissionDenied,
            ToolFailure::InvalidParameters,
            ToolFailure::NotFound,
            ToolFailure::ValidationError,
            ToolFailure::ExecutionError,
            ToolFailure::InternalError,
            ToolFailure::DependencyError,
        ];
        let (limit, usual) = (Duration::from_secs(1), ToolRetry::default());
        let tried: Vec<ToolFailure> =
            all.into_iter().filter(|kind| again(&tool(), &usual, &failed(*kind), 1, limit).is_some()).collect();
        assert_eq!(tried, [ToolFailure::Timeout, ToolFailure::ResourceError]);
        let own = ToolRetry { on: vec![ToolFailure::RateLimit], max_retries: 1, ..ToolRetry::default() };
        let tries = |kind| (1..=3).filter(|tries| again(&tool(), &own, &failed(kind), *tries, limit).is_some()).count();
        assert_eq!((tries(ToolFailure::RateLimit), tries(ToolFailure::Timeout)), (1, 0));
        let once = Definition { idempotent: false, ..tool() };
        assert!(all.into_iter().all(|kind| again(&once, &usual, &failed(kind), 1, limit).is_none()));
        let abort = ToolError::Abort { code: "x".into(), message: "x".into() };
        assert_eq!(again(&tool(), &usual, &abort, 1, limit), None);
    }
}
