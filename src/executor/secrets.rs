//! The end of an execution without the secrets that its run has used: an executor in Rust may have read them itself.

use crate::domain::run::{RunError, RunFault, RunOutcome};
use crate::ports::vault::credentials::UsedSecrets;

/// The end without what is known: its output, its reason, its error. Questions to people are made of what a tool was asked for, and
/// stay as they are.
pub async fn without_secrets(ended: Result<RunOutcome, RunError>, known: &UsedSecrets) -> Result<RunOutcome, RunError> {
    match ended {
        Ok(RunOutcome::Succeeded { output, finish, usage }) => {
            Ok(RunOutcome::Succeeded { output: known.cleaned(output).await, finish, usage })
        }
        Ok(RunOutcome::Quiet { reason, usage }) => Ok(RunOutcome::Quiet { reason: known.cleaned(reason).await, usage }),
        Err(RunError::Retry { fault, after }) => Err(RunError::Retry { fault: clean(fault, known).await, after }),
        Err(RunError::Infrastructure { fault }) => Err(RunError::Infrastructure { fault: clean(fault, known).await }),
        Err(RunError::Fail { fault }) => Err(RunError::Fail { fault: clean(fault, known).await }),
        Err(RunError::Cancelled { reason }) => Err(RunError::Cancelled { reason: known.cleaned(reason).await }),
        ended => ended,
    }
}

async fn clean(fault: RunFault, known: &UsedSecrets) -> RunFault {
    let (code, message) = (known.cleaned(fault.code).await, known.cleaned(fault.message).await);
    RunFault { code, message, ..fault }
}
