//! Why a change of a task can't be made.

use crate::base::invalid::FieldError;

/// Why a change can't be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// The task has this version instead of the expected one.
    #[error("the task has version {0} by now")]
    Version(i64),
    /// A completed task does not allow the change, which the word names.
    #[error("the task is completed, so it can't be {0}\nhint: edit its trigger, or create another task")]
    Completed(&'static str),
    /// A disabled task does not allow the change, which the word names.
    #[error("the task is disabled, so it can't be {0}\nhint: edit its trigger, or ask the operator to resume it")]
    Disabled(&'static str),
    /// An agent did not pause the task, so none resumes it.
    #[error("the task was not paused by an agent, so only a person may resume it")]
    PausedByPerson,
    /// The operator has disabled the task, and the change is not the operator's to undo that; the word names the
    /// change.
    #[error("the operator has disabled the task, so it can't be {0}\nhint: ask the operator to enable it")]
    DisabledByOperator(&'static str),
    /// The trigger of the edit can't be planned.
    #[error("{}: {}", .0.pointer, .0.message)]
    Trigger(FieldError),
}
