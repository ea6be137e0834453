//! The outcome with which an executor stops executing a run.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::approval::{Approval, OpenQuestion};
use crate::domain::credential::CredentialIssue;
use crate::domain::run::{RunFinish, Usage};

/// The fault's code, and the reason, of a run that ends because its model went round in circles.
pub const LOOP: &str = "loop";
/// The code of a run whose agent takes other fields than when a person was asked, or than when it was called.
pub const SCHEMA_CHANGED: &str = "schema_changed";
/// Why a run is skipped, or has failed, for which no budget was left.
pub const REASON_BUDGET: &str = "budget";
/// The beginning of the codes of runs that a budget has ended.
pub const BUDGET_CODES: &str = "budget_";

/// An execution that came to an end by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    /// Done. `output` is the answer that is told to the recipient.
    Succeeded {
        /// The answer.
        output: String,
        /// How an agent came to it; `None`: it is no agent's.
        finish: Option<RunFinish>,
        /// Usage of this execution.
        usage: Usage,
    },
    /// Done as far as it was to be done, and nobody is told; `reason` is recorded (`filtered`, `stopped`, `told`).
    Quiet {
        /// The reason for which nothing is told.
        reason: String,
        /// How an agent came to its answer, where a limit stopped it.
        finish: Option<RunFinish>,
        /// Usage of this execution.
        usage: Usage,
    },
    /// A foreign runtime goes on with it and reports, at the latest at `until`.
    Waits {
        /// The instant until which it waits.
        until: DateTime<Utc>,
        /// Usage of this execution.
        usage: Usage,
    },
    /// People have to be heard before it goes on: about these calls, each with the question that it replaces, and about
    /// those that were asked about before and are open.
    Asks {
        /// New questions, each with the one that it replaces.
        asks: Vec<(Approval, Option<Uuid>)>,
        /// Earlier questions that stay open.
        open: Vec<OpenQuestion>,
        /// Usage of this execution.
        usage: Usage,
    },
    /// Refused before anything was done (quota, rate limit, safety); `reason` is recorded.
    Skipped {
        /// The word for the reason.
        reason: String,
        /// Usage of this execution.
        usage: Usage,
    },
}

/// An execution that did not. Serialisable, because it is read after a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RunError {
    /// May work later: another attempt follows if the task's retry policy has one left.
    Retry {
        /// The error of the attempt.
        fault: RunFault,
        /// The wait before the next attempt; `None`: by the task's backoff.
        #[serde(default)]
        after: Option<Duration>,
    },
    /// The store, or another part of the infrastructure, is away: the run goes back to the queue and uses no attempt, a
    /// limited number of times.
    Infrastructure {
        /// The error.
        fault: RunFault,
    },
    /// Will not work later: the run fails now.
    Fail {
        /// The error.
        fault: RunFault,
    },
    /// The worker asked for a checkpoint and got one: hand the run back, no attempt is used up.
    HandBack,
    /// Someone asked for its end, and it ended; `reason` is recorded.
    Cancelled {
        /// The reason of the stop.
        reason: String,
    },
    /// The lease is gone: whoever holds it now goes on, and nothing more may be written or done here.
    LeaseLost,
}

impl RunError {
    /// An error that another attempt may heal, with a stable code and a sentence.
    pub fn retry(code: impl Into<String>, message: impl Into<String>) -> RunError {
        RunError::Retry { fault: RunFault::new(code, message), after: None }
    }

    /// An error that ends the run, with a stable code and a sentence.
    pub fn fail(code: impl Into<String>, message: impl Into<String>) -> RunError {
        RunError::Fail { fault: RunFault::new(code, message) }
    }

    /// The code of the fault, for programs; where there is none, a word for how it ended.
    pub fn code(&self) -> &str {
        match self {
            RunError::Fail { fault } | RunError::Retry { fault, .. } | RunError::Infrastructure { fault } => {
                &fault.code
            }
            RunError::Cancelled { .. } => "cancelled",
            RunError::HandBack => "handed_back",
            RunError::LeaseLost => "lease_lost",
        }
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
    pub credential_issue: Option<Box<CredentialIssue>>,
}

impl RunFault {
    /// A fault with a stable code for programs and a sentence for people.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> RunFault {
        RunFault { code: code.into(), message: message.into(), credential_issue: None }
    }

    /// The word for why a run failed that something of ours ended: its budget, or the detector of loops.
    pub fn end_reason(&self) -> Option<&'static str> {
        match self.code.as_str() {
            LOOP => Some(LOOP),
            code if code.starts_with(BUDGET_CODES) => Some(REASON_BUDGET),
            _ => None,
        }
    }
}
