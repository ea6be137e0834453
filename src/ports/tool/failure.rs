//! Kinds of failures that a model is told.

use crate::base::words::words;

words! {
    /// The kinds of failure that a model is told of.
    pub enum ToolFailure {
        /// It took too long.
        Timeout = "timeout",
        /// The other side asks to come later.
        RateLimit = "rate_limit",
        /// A resource is busy or away.
        ResourceError = "resource_error",
        /// A failure that may pass by itself.
        TransientError = "transient_error",
        /// The other side does not allow it.
        PermissionDenied = "permission_denied",
        /// The arguments do not fit.
        InvalidParameters = "invalid_parameters",
        /// The thing does not exist.
        NotFound = "not_found",
        /// The other side refuses the data.
        ValidationError = "validation_error",
        /// The tool failed while it worked.
        ExecutionError = "execution_error",
        /// A fault of the service.
        InternalError = "internal_error",
        /// A part that the tool depends on has failed.
        DependencyError = "dependency_error",
    }
}
