//! How a call fails, and the question to a person in place of an end.

use crate::base::compute::ComputePanic;
use crate::domain::approval::{InputForm, ServerQuestion};
use crate::ports::tool::failure::ToolFailure;
use crate::ports::vault::credentials::{CredentialError, CredentialFault};

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The model is told and goes on.
    #[error("{}: {message}", kind.as_str())]
    Tell {
        /// Kind of the failure, for the model.
        kind: ToolFailure,
        /// Stable, for programs; more exact than the kind.
        code: String,
        /// One sentence. Never a secret.
        message: String,
    },
    /// The call did not reach the tool, so it had no effect, and time may mend what stood in its way.
    #[error("{code}: {message}")]
    Unsent {
        /// Stable, for programs.
        code: String,
        /// One sentence. Never a secret.
        message: String,
    },
    /// A credential was not used, or was refused: the call had no effect. A model is told of it like of anything else;
    /// a step or a poll knows by it what it can't go on without.
    #[error("{0}")]
    Credential(#[from] CredentialError),
    /// The run can't go on: it fails with this code.
    #[error("{code}: {message}")]
    Abort {
        /// Code for programs.
        code: String,
        /// A sentence for people.
        message: String,
    },
    /// The call goes on once a person has answered. Only a call of a model ends so.
    #[error("{}", .0.form.question)]
    NeedsInput(Box<NeededInput>),
}

/// Input that a call needs from a person before it can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededInput {
    /// The form that the person fills in.
    pub form: InputForm,
    /// The question of the server, by which the call goes on.
    pub question: ServerQuestion,
}

impl From<ComputePanic> for ToolError {
    fn from(panicked: ComputePanic) -> ToolError {
        ToolError::for_model(ToolFailure::InternalError, "panicked", panicked.to_string())
    }
}

impl ToolError {
    /// A failure that the model is told.
    pub fn for_model(kind: ToolFailure, code: impl Into<String>, message: impl Into<String>) -> ToolError {
        ToolError::Tell { kind, code: code.into(), message: message.into() }
    }

    /// The error for the model: the kind, the code, and a sentence; `None` where the run can't go on, or waits.
    pub fn model_message(&self) -> Option<(ToolFailure, &str, String)> {
        match self {
            ToolError::Tell { kind, code, message } => Some((*kind, code, message.clone())),
            ToolError::Unsent { code, message } => Some((ToolFailure::ResourceError, code, message.clone())),
            ToolError::Credential(error) => Some((of_credential(error), error.code(), error.to_string())),
            ToolError::Abort { .. } | ToolError::NeedsInput(_) => None,
        }
    }

    /// The code, for programs.
    pub fn code(&self) -> &str {
        match self {
            ToolError::Tell { code, .. } | ToolError::Unsent { code, .. } | ToolError::Abort { code, .. } => code,
            ToolError::Credential(error) => error.code(),
            ToolError::NeedsInput(_) => "mcp_needs_input",
        }
    }

    /// Whether the call had no effect for sure, and time may mend what stood in its way.
    pub fn is_unsent(&self) -> bool {
        match self {
            ToolError::Unsent { .. } => true,
            ToolError::Credential(error) => error.kind == CredentialFault::Busy,
            ToolError::Tell { .. } | ToolError::Abort { .. } | ToolError::NeedsInput(_) => false,
        }
    }

    /// The arguments will not do, and why.
    pub fn arguments(message: impl Into<String>) -> ToolError {
        ToolError::for_model(ToolFailure::InvalidParameters, "invalid_parameters", message)
    }
}

/// The kind of failure that a credential is.
fn of_credential(error: &CredentialError) -> ToolFailure {
    match error.kind {
        CredentialFault::Missing
        | CredentialFault::NeedsConsent
        | CredentialFault::NotForHost
        | CredentialFault::Refused => ToolFailure::PermissionDenied,
        CredentialFault::Taken => ToolFailure::InvalidParameters,
        CredentialFault::NoInject
        | CredentialFault::Unreadable
        | CredentialFault::Misconfigured
        | CredentialFault::TooMany => ToolFailure::ExecutionError,
        CredentialFault::Busy => ToolFailure::ResourceError,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn call_that_did_not_reach_its_tool_is_told_as_what_time_may_mend() {
        let away = ToolError::Unsent { code: "mcp_unavailable".into(), message: "it is away".into() };
        assert!(away.is_unsent());
        let told = (ToolFailure::ResourceError, "mcp_unavailable", "it is away".to_owned());
        assert_eq!((away.model_message(), away.code()), (Some(told), "mcp_unavailable"));
        let failed = ToolError::for_model(ToolFailure::ResourceError, "mcp_unavailable", "it is away");
        assert!(!failed.is_unsent(), "a failure of the tool may have had an effect");
    }

    #[test]
    fn call_that_waits_for_a_person_is_told_to_no_model_and_is_not_tried_again() {
        let form = InputForm {
            question: "Deploy?".into(),
            description: String::new(),
            parameters: json!({}),
            values: json!({}),
            lacks: Vec::new(),
        };
        let question = json!({ "server": "shop", "parts": [], "continuation": { "kind": "continue", "round": 1 } });
        let question = serde_json::from_value(question).unwrap();
        let waits = ToolError::NeedsInput(Box::new(NeededInput { form, question }));
        assert_eq!((waits.model_message(), waits.code(), waits.is_unsent()), (None, "mcp_needs_input", false));
        assert_eq!(waits.to_string(), "Deploy?");
    }
}
