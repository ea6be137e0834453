//! What an executor says of a run when it stops executing it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::approval::Approval;
use crate::credential::Lack;
use crate::run::Usage;

/// An execution that came to an end by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done. `output` is the answer that is told to the recipient.
    Succeeded { output: String, usage: Usage },
    /// Done as far as it was to be done, and nobody is told; `reason` is recorded (`filtered`, `stopped`, `told`).
    Quiet { reason: String, usage: Usage },
    /// A foreign runtime goes on with it and reports, at the latest at `until`.
    Waits { until: DateTime<Utc>, usage: Usage },
    /// People have to be heard before it goes on: about these calls, each with the question that it replaces, and about
    /// those that were asked about before and are open.
    Asks { asks: Vec<(Approval, Option<Uuid>)>, open: Vec<Uuid>, usage: Usage },
    /// Refused before anything was done (quota, rate limit, safety); `reason` is recorded.
    Skipped { reason: String, usage: Usage },
}

/// An execution that did not. Serialisable, because it is read after a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RunError {
    /// May work later: another attempt follows if the task's retry policy has one left.
    Retry {
        fault: RunFault,
        #[serde(default)]
        after: Option<Duration>,
    },
    /// The store, or another part of the infrastructure, is away: the run goes back to the queue and uses no attempt, a
    /// limited number of times.
    Infrastructure { fault: RunFault },
    /// Will not work later: the run fails now.
    Fail { fault: RunFault },
    /// The worker asked for a checkpoint and got one: hand the run back, no attempt is used up.
    HandBack,
    /// Someone asked for its end, and it ended; `reason` is recorded.
    Cancelled { reason: String },
    /// The lease is gone: whoever holds it now goes on, and nothing more may be written or done here.
    LeaseLost,
}

impl RunError {
    pub fn retry(code: impl Into<String>, message: impl Into<String>) -> RunError {
        RunError::Retry { fault: RunFault::new(code, message), after: None }
    }

    pub fn fail(code: impl Into<String>, message: impl Into<String>) -> RunError {
        RunError::Fail { fault: RunFault::new(code, message) }
    }
}

/// Why a run failed, as shown to people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunFault {
    /// Stable, for programs: `timeout`, `crashed`, `llm_auth`, …
    pub code: String,
    /// One sentence, for people. Never a secret.
    pub message: String,
    /// The credential that it could not go on without. Only our own door says so; no `code` means it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lack: Option<Box<Lack>>,
}

impl RunFault {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> RunFault {
        RunFault { code: code.into(), message: message.into(), lack: None }
    }
}
