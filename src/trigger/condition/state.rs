//! What a condition task knows between polls, and what one poll makes of it.
//!
//! The state is stored as JSON with the number of its format, in the transaction that records the fire which it
//! counted: after a crash both are there, or neither, and the poll is done again.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::credential::Lack;
use crate::expr::MissingField;
use crate::run::cause::Cause;

/// The format in which states are written now.
pub const FORMAT: u32 = 1;
/// Why an edge is recorded and does not run.
pub const REASON_COOLDOWN: &str = "cooldown";

/// What is known of a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConditionState {
    pub format: u32,
    /// Fires counted so far, skipped ones included. Kept beside the document, so that no reset can lose it.
    #[serde(skip)]
    pub edges: i64,
    /// What the expression said of the last good poll; `None` before the first.
    pub verdict: Option<bool>,
    /// Since when it says so.
    pub since: Option<DateTime<Utc>>,
    /// What the last good poll saw, and the good one before (after the first one, what that saw itself).
    pub value: Value,
    pub previous: Value,
    #[serde(default)]
    pub validators: Validators,
    /// What `watch` was at the last good poll, with `on_change`.
    pub watched: Value,
    /// The last poll, and the last good one.
    pub last_poll_at: Option<DateTime<Utc>>,
    pub last_good_at: Option<DateTime<Utc>>,
    /// For how long the expression was seen to be true.
    pub held_ms: i64,
    /// It has fired, and was not reset since.
    pub spent: bool,
    pub cooldown_until: Option<DateTime<Utc>>,
    pub failing: Option<Failing>,
    /// The owner was told of a field that is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing_told: bool,
}

/// What an address said of its answer, to ask only for a newer one (RFC 9110, section 8.8).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

/// Polls that fail, in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    pub since: DateTime<Utc>,
    pub count: u32,
    pub error: PollFault,
    /// Its owner was told.
    pub told: bool,
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
    pub lack: Option<Box<Lack>>,
}

impl PollFault {
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> PollFault {
        PollFault { kind: kind.into(), message: message.into(), retry_after: None, lack: None }
    }
}

/// What a good poll saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Value {
        value: Value,
        validators: Validators,
    },
    /// The same as the good poll before: the address said so itself.
    Unchanged,
}

/// What one poll makes of a condition, to be written in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub state: ConditionState,
    pub fire: Option<Fire>,
    pub next_poll_at: DateTime<Utc>,
    pub notice: Option<Notice>,
}

/// An edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Fire {
    /// Its number within the task, counted from 1: `c:<number>` is the fire key.
    pub number: i64,
    /// It is recorded and does not run, and why.
    pub skipped: Option<&'static str>,
    pub cause: Cause,
}

/// What the owner is told of polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Failing(Failing),
    /// They had been failing like this, and are well again.
    Recovered(Failing),
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
            held_ms: 0,
            spent: false,
            cooldown_until: None,
            failing: None,
            missing_told: false,
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

    /// What stays when another question is asked: the number of edges, and the cooldown of what has fired.
    pub fn begun_anew(&self) -> ConditionState {
        ConditionState { edges: self.edges, cooldown_until: self.cooldown_until, ..ConditionState::default() }
    }

    /// As the task shows it.
    pub fn view(&self, next_poll_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> ConditionView {
        let failing = |failing: &Failing| FailingView {
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

    pub(super) fn held(&self) -> TimeDelta {
        TimeDelta::milliseconds(self.held_ms)
    }
}

/// Where a condition stands.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ConditionView {
    /// What the expression said of the last good poll; null before the first. A failing poll leaves it as it was.
    #[schema(required)]
    pub verdict: Option<bool>,
    /// Since when it says so.
    #[schema(required)]
    pub since: Option<DateTime<Utc>>,
    /// What the last good poll saw.
    #[schema(required, value_type = Option<Value>)]
    pub value: Value,
    /// What the good poll before it saw; after the first one, what that saw itself.
    #[schema(required, value_type = Option<Value>)]
    pub previous: Value,
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
    pub since: DateTime<Utc>,
    pub count: u32,
    /// Of the last one.
    pub error: PollFault,
}
