//! The end of an execution without the secrets that its run has used: an executor in Rust may have read them itself.

use crate::domain::run::{RunError, RunFault, RunOutcome};
use crate::ports::vault::credentials::UsedSecrets;

/// The end without what is known: its output, its reason, its error. Questions to people are made of what a tool was
/// asked for, and stay as they are.
pub async fn without_secrets(
    ended: Result<RunOutcome, RunError>,
    used_secrets: &UsedSecrets,
) -> Result<RunOutcome, RunError> {
    match ended {
        Ok(RunOutcome::Succeeded { output, finish, usage }) => {
            Ok(RunOutcome::Succeeded { output: used_secrets.cleaned(output).await, finish, usage })
        }
        Ok(RunOutcome::Quiet { reason, finish, usage }) => {
            Ok(RunOutcome::Quiet { reason: used_secrets.cleaned(reason).await, finish, usage })
        }
        Err(RunError::Retry { fault, after }) => {
            Err(RunError::Retry { fault: clean(fault, used_secrets).await, after })
        }
        Err(RunError::Infrastructure { fault }) => {
            Err(RunError::Infrastructure { fault: clean(fault, used_secrets).await })
        }
        Err(RunError::Fail { fault }) => Err(RunError::Fail { fault: clean(fault, used_secrets).await }),
        Err(RunError::Cancelled { reason }) => Err(RunError::Cancelled { reason: used_secrets.cleaned(reason).await }),
        ended => ended,
    }
}

async fn clean(fault: RunFault, used_secrets: &UsedSecrets) -> RunFault {
    let (code, message) = (used_secrets.cleaned(fault.code).await, used_secrets.cleaned(fault.message).await);
    RunFault { code, message, ..fault }
}
