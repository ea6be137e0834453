//! Kinds of failures that a model is told.

use serde::Serialize;

/// The kinds of failure that a model is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It took too long.
    Timeout,
    /// The other side asks to come later.
    RateLimit,
    /// A resource is busy or away.
    ResourceError,
    /// A failure that may pass by itself.
    TransientError,
    /// The other side does not allow it.
    PermissionDenied,
    /// The arguments do not fit.
    InvalidParameters,
    /// The thing does not exist.
    NotFound,
    /// The other side refuses the data.
    ValidationError,
    /// The tool failed while it worked.
    ExecutionError,
    /// A fault of the service.
    InternalError,
    /// A part that the tool depends on has failed.
    DependencyError,
}

impl Failure {
    /// The word, as told to the model.
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::RateLimit => "rate_limit",
            Failure::ResourceError => "resource_error",
            Failure::TransientError => "transient_error",
            Failure::PermissionDenied => "permission_denied",
            Failure::InvalidParameters => "invalid_parameters",
            Failure::NotFound => "not_found",
            Failure::ValidationError => "validation_error",
            Failure::ExecutionError => "execution_error",
            Failure::InternalError => "internal_error",
            Failure::DependencyError => "dependency_error",
        }
    }
}
