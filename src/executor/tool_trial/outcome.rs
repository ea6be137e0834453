//! The call that a person wants to make, and what came of it.

use serde::Serialize;
use serde_json::Value;

use crate::base::id::Tenant;
use crate::domain::quota::ExceededQuota;
use crate::ports::tool::{ToolError, ToolFailure};
use crate::store::StoreError;

/// Longest result that is shown whole, in bytes.
const SHOWN_BYTES: usize = 65_536;

/// A call that a person wants to make.
#[derive(Debug, Clone)]
pub struct TrialRequest {
    /// For whom, and with whose credentials.
    pub tenant: Tenant,
    /// Name of the tool.
    pub tool: String,
    /// As a model would give them.
    pub arguments: Value,
    /// Version of the tool that was looked at; `None`: whichever it has.
    pub version: Option<String>,
    /// A person has agreed to this call.
    pub confirmed: bool,
    /// Whether the person may decide approvals.
    pub may_decide: bool,
    /// Their name on the record.
    pub by: String,
}

/// A call that was made. There are no secrets in it that the call has used.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ToolTrial)]
pub struct TrialOutcome {
    /// Name of the tool.
    pub tool: String,
    /// Version of its definition.
    pub version: String,
    /// Arguments of the call.
    pub arguments: Value,
    /// Its request. Of a declared tool: `method`, `address`, the names of its `headers` without that of the credential,
    /// `body` as text, and `credential`, by its name. Of a tool of an MCP server: `server` and `tool`. Of a long one the
    /// beginning, as text; `null`: the arguments say all.
    #[schema(required)]
    pub request: Option<Value>,
    /// Its result; `null`: it has failed.
    #[schema(required)]
    pub result: Option<Value>,
    /// Whether the result is the beginning, as text, of one that is longer than 65,536 bytes.
    pub truncated: bool,
    /// How it has failed; `null`: it has not.
    #[schema(required)]
    pub error: Option<TrialError>,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
}

/// How a call has failed that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = ToolTrialError)]
pub struct TrialError {
    /// Kind of the failure, as a model is told it.
    pub kind: String,
    /// Stable, for programs; more exact than the kind. `outcome_unknown`: the call may have had its effect.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// Why a call was not made.
#[derive(Debug)]
pub enum TrialRefusal {
    /// There is no tool of this name.
    NoSuchTool,
    /// The arguments will not do.
    Invalid(ToolError),
    /// It can't be called so, or not now; the sentence says why.
    Conflict(String),
    /// A person has to agree first; the sentence says why.
    NeedsConfirmation(String),
    /// The rules ask somebody, and this person may not decide.
    NeedsDecider,
    /// As many trials are under way as may be.
    Busy,
    /// A quota of the tenant is used up.
    Quota(Box<ExceededQuota>),
    /// The store has failed.
    Store(StoreError),
}

impl From<StoreError> for TrialRefusal {
    fn from(error: StoreError) -> TrialRefusal {
        match error {
            StoreError::Quota(exceeded) => TrialRefusal::Quota(exceeded),
            error => TrialRefusal::Store(error),
        }
    }
}

impl TrialError {
    /// The failure of a call in words.
    pub(super) fn of(error: &ToolError) -> TrialError {
        let (kind, message) = match error.model_message() {
            Some((kind, _, message)) => (kind, message),
            // what ends a run, and the question of a server
            None => (ToolFailure::ExecutionError, error.to_string()),
        };
        TrialError { kind: kind.as_str().to_owned(), code: error.code().to_owned(), message }
    }
}

/// A value, or the beginning of its text where that is too long.
pub(super) fn beginning(value: Value) -> (Value, bool) {
    let text = match value {
        Value::String(text) if text.len() <= SHOWN_BYTES => return (Value::String(text), false),
        Value::String(text) => text,
        value => {
            let text = value.to_string();
            if text.len() <= SHOWN_BYTES {
                return (value, false);
            }
            text
        }
    };
    (Value::String(text[..text.floor_char_boundary(SHOWN_BYTES)].to_owned()), true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn result_is_shown_whole_up_to_the_bound_and_its_beginning_beyond_it() {
        let text = |bytes: usize| Value::String("x".repeat(bytes));
        assert_eq!(beginning(text(SHOWN_BYTES)), (text(SHOWN_BYTES), false));
        assert_eq!(beginning(text(SHOWN_BYTES + 1)), (text(SHOWN_BYTES), true));
        // `["…"]` has four characters more
        let list = |bytes: usize| json!([text(bytes - 4)]);
        assert_eq!(beginning(list(SHOWN_BYTES)), (list(SHOWN_BYTES), false));
        let (cut, truncated) = beginning(list(SHOWN_BYTES + 1));
        let cut = cut.as_str().unwrap();
        assert!(truncated && cut.len() == SHOWN_BYTES && cut.starts_with(r#"["xxx"#));
        // no character is cut in two
        let (cut, truncated) = beginning(Value::String("ä".repeat(SHOWN_BYTES / 2) + "ä"));
        assert_eq!((cut, truncated), (Value::String("ä".repeat(SHOWN_BYTES / 2)), true));
    }

    #[test]
    fn error_that_would_end_a_run_is_told_here() {
        let error = TrialError::of(&ToolError::Abort { code: "no_way".into(), message: "It ends.".into() });
        assert_eq!((error.kind.as_str(), error.code.as_str()), ("execution_error", "no_way"));
        assert!(error.message.contains("It ends."));
    }
}
