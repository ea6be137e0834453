//! State of a condition task between polls, and its change by one poll.
//!
//! The state is stored as JSON with the number of its format, in the transaction that records the fire which it
//! counted: after a crash both are there, or neither, and the poll is done again.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::expr::MissingField;
use crate::domain::credential::CredentialIssue;
use crate::domain::run::Cause;

/// The format in which states are written now.
pub const FORMAT: u32 = 1;
/// Why an edge is recorded and does not run.
pub const REASON_COOLDOWN: &str = "cooldown";

/// The state of a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConditionState {
    /// Version of the stored document.
    pub format: u32,
    /// Fires counted so far, skipped ones included. Kept beside the document, so that no reset can lose it.
    #[serde(skip)]
    pub edges: i64,
    /// Result of the expression at the last good poll; `None` before the first.
    pub verdict: Option<bool>,
    /// Since when it says so.
    pub since: Option<DateTime<Utc>>,
    /// Values of the last good poll, and of the good one before (after the first one, that of the first itself).
    pub value: Value,
    /// The value of the good poll before the last.
    pub previous: Value,
    /// Validators of the last answer.
    #[serde(default)]
    pub validators: Validators,
    /// Value of `watch` at the last good poll, with `on_change`.
    pub watched: Value,
    /// The last poll, and the last good one.
    pub last_poll_at: Option<DateTime<Utc>>,
    /// The instant of the last good poll.
    pub last_good_at: Option<DateTime<Utc>>,
    /// For how long the expression was seen to be true.
    pub true_for_ms: i64,
    /// It has fired, and was not reset since.
    pub latched: bool,
    /// The instant until which it does not fire again.
    pub cooldown_until: Option<DateTime<Utc>>,
    /// The failing polls since the last good one.
    pub failing: Option<PollFailures>,
    /// The owner was told of a field that is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing_notified: bool,
}

/// Validators of an answer, to ask only for a newer one (RFC 9110, section 8.8).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// `ETag` of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// `Last-Modified` of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

/// Polls that fail, in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollFailures {
    /// The instant of the first of them.
    pub since: DateTime<Utc>,
    /// Their number.
    pub count: u32,
    /// The fault of the last.
    pub error: PollFault,
    /// Its owner was told.
    pub notified: bool,
}

/// Why a poll failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[error("{kind}: {message}")]
pub struct PollFault {
    /// Stable, for programs: `denied`, `timeout`, `http_503`, `expression`, ….
    pub kind: String,
    /// One sentence. Never a secret.
    pub message: String,
    /// How long the other side asked to be left alone.
    #[serde(skip)]
    pub retry_after: Option<std::time::Duration>,
    /// The credential that it could not be made without.
    #[serde(skip)]
    pub credential_issue: Option<Box<CredentialIssue>>,
}

impl PollFault {
    /// A fault with a word for programs and a sentence for people.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> PollFault {
        PollFault { kind: kind.into(), message: message.into(), retry_after: None, credential_issue: None }
    }
}

/// Result of a good poll.
#[derive(Debug, Clone, PartialEq)]
pub enum PollResult {
    /// The source answered with a value.
    Value {
        /// The value that expressions see.
        value: Value,
        /// Validators of the answer.
        validators: Validators,
    },
    /// The value is that of the good poll before: the address said so itself.
    Unchanged,
}

/// The effect of one poll on a condition, to be written in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionStep {
    /// The state after the poll.
    pub state: ConditionState,
    /// The fire, if the condition fires.
    pub fire: Option<ConditionFire>,
    /// The instant of the next poll.
    pub next_poll_at: DateTime<Utc>,
    /// The message to the owner, if one is due.
    pub notice: Option<ConditionNotice>,
}

/// An edge.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionFire {
    /// Its number within the task, counted from 1: `c:<number>` is the fire key.
    pub number: i64,
    /// It is recorded and does not run, and why.
    pub skipped: Option<&'static str>,
    /// Cause of the run.
    pub cause: Cause,
}

/// Messages to the owner about polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionNotice {
    /// Polls have failed so often that the owner is told.
    Failing(PollFailures),
    /// They had been failing like this, and are well again.
    Recovered(PollFailures),
    /// A good poll has not seen a field that an expression looks for.
    Missing(MissingField),
}

impl Default for ConditionState {
    fn default() -> ConditionState {
        ConditionState {
            format: FORMAT,
            edges: 0,
            verdict: None,
            since: None,
            value: Value::Null,
            previous: Value::Null,
            validators: Validators::default(),
            watched: Value::Null,
            last_poll_at: None,
            last_good_at: None,
            true_for_ms: 0,
            latched: false,
            cooldown_until: None,
            failing: None,
            missing_notified: false,
        }
    }
}

impl ConditionState {
    /// Reads what is stored. A state of another format is begun anew, but for the number of its edges: fire keys are
    /// never used twice.
    pub fn read(document: &Value, edges: i64) -> ConditionState {
        let read = ConditionState::deserialize(document).ok().filter(|state| state.format == FORMAT);
        ConditionState { edges, ..read.unwrap_or_default() }
    }

    /// The state that stays when another question is asked: the number of edges, and the cooldown of what has fired.
    pub fn reset(&self) -> ConditionState {
        ConditionState { edges: self.edges, cooldown_until: self.cooldown_until, ..ConditionState::default() }
    }

    /// As the task shows it.
    pub fn view(&self, next_poll_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> ConditionView {
        let failing = |failing: &PollFailures| FailingView {
            since: failing.since,
            count: failing.count,
            error: failing.error.clone(),
        };
        ConditionView {
            verdict: self.verdict,
            since: self.since,
            value: self.value.clone(),
            previous: self.previous.clone(),
            last_poll_at: self.last_poll_at,
            next_poll_at,
            edges: self.edges,
            cooldown_until: self.cooldown_until.filter(|until| *until > now),
            failing: self.failing.as_ref().map(failing),
        }
    }

    pub(super) fn true_for(&self) -> TimeDelta {
        TimeDelta::milliseconds(self.true_for_ms)
    }
}

/// Where a condition stands.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ConditionView {
    /// Result of the expression at the last good poll; null before the first. A failing poll leaves it as it was.
    #[schema(required)]
    pub verdict: Option<bool>,
    /// Since when it says so.
    #[schema(required)]
    pub since: Option<DateTime<Utc>>,
    /// Value of the last good poll.
    #[schema(required, value_type = Option<Value>)]
    pub value: Value,
    /// Value of the good poll before it; after the first one, that of the first itself.
    #[schema(required, value_type = Option<Value>)]
    pub previous: Value,
    /// The instant of the last poll, good or failing.
    #[schema(required)]
    pub last_poll_at: Option<DateTime<Utc>>,
    /// Null while the task is not active.
    #[schema(required)]
    pub next_poll_at: Option<DateTime<Utc>>,
    /// Fires so far, those included that were skipped.
    pub edges: i64,
    /// Until when further fires are skipped.
    #[schema(required)]
    pub cooldown_until: Option<DateTime<Utc>>,
    /// Null while polls are well.
    #[schema(required)]
    pub failing: Option<FailingView>,
}

/// Polls that fail, in a row.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FailingView {
    /// The instant of the first failing poll.
    pub since: DateTime<Utc>,
    /// Failing polls in a row.
    pub count: u32,
    /// Of the last one.
    pub error: PollFault,
}
