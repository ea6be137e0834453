//! An event trigger as its owner wrote it: which events fire the task, and what becomes of many at once.
//!
//! It holds words, not compiled patterns, like a schedule; [`CompiledEventTrigger`] is the compiled form that judges
//! events. What becomes of an event that matches is decided in this order: its age, `dedup`, `throttle`, `debounce` or
//! `batch`. While the task is paused, `buffer_while_paused` collects instead. Nothing here knows the present time or
//! keeps anything.

mod arrival;
mod compiled;
pub mod examine;
pub mod form;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::trigger::policy::Overlap;

pub use arrival::Arrival;
pub use compiled::{
    CompiledEventTrigger, EventVerdict, EventWindow, MatchPath, MissedEventField, Pattern, WindowKind, reason,
};

/// Most events of one debounced or batched fire; a window that has as many closes at once.
pub const WINDOW_EVENTS: u64 = 1000;
/// Most bytes of events in one window; a window that would have more closes first.
pub const WINDOW_BYTES: usize = 1024 * 1024;
/// Most events that a paused task holds; those that follow are recorded as skipped.
pub const HELD_EVENTS: u64 = 10_000;
/// Most runs of one event; the tasks that it would fire beyond are recorded as skipped.
pub const EVENT_RUNS: usize = 1000;
/// The names that expressions of event triggers know.
pub const VARIABLES: &[&str] = &["event", "task"];
/// Members of `task` in expressions of triggers.
pub const TASK_MEMBERS: &[&str] = &["id", "name", "metadata"];

// made by `Trigger::parse` alone
/// When a task fires by events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventTrigger {
    /// Exact, or with a trailing `*`; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Exact, or with a trailing `*`; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Keys of the event's data (`a.b` goes down) with what they must be: texts contain it, whatever the case; all else
    /// is equal. A key that is not there does not match.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub filters: Map<String, Value>,
    /// CEL over `event` and `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// One fire when the events of a key have been quiet for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Debounce>,
    /// One fire for many events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchOptions>,
    /// No more fires than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// The first event of a key fires, those that follow within the window do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<Dedup>,
    /// An event that happened longer ago is recorded as `too_old` and does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<String>,
    /// Whether events that come while the task is paused are kept for its resume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub buffer_while_paused: bool,
    /// `allow` unless it says otherwise: each event is a fact of its own.
    #[serde(default = "default_overlap")]
    pub overlap: Overlap,
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap_counts_waiting: bool,
}

impl EventTrigger {
    /// Whether it has an expression, which may look for a field of events.
    pub fn has_expressions(&self) -> bool {
        let debounced = self.debounce.as_ref().is_some_and(|debounce| debounce.key.is_some());
        let batched = self.batch.as_ref().is_some_and(|batch| batch.key.is_some());
        let throttled = self.throttle.as_ref().is_some_and(|throttle| throttle.key.is_some());
        self.filter.is_some() || self.dedup.is_some() || debounced || batched || throttled
    }
}

fn default_overlap() -> Overlap {
    Overlap::Allow
}

/// Lengths are as in schedules: `30s`, `5m`, `PT1H`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Debounce {
    /// How long no event of the key may come before it fires.
    pub quiet: String,
    /// It fires this long after the first event whatever comes; absent: ten times `quiet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<String>,
    /// CEL; events of different keys are debounced apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Several events that make one run, by number and time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchOptions {
    /// It fires with this many events, 2 to 1,000.
    #[schema(minimum = 2, maximum = 1000)]
    pub size: u64,
    /// Or this long after the first.
    pub wait: String,
    /// CEL; events of different keys are in different batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Most fires within a time; further events are skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Throttle {
    /// Fires at most, evenly refilled; a burst of as many is let through.
    #[schema(minimum = 1, maximum = 1000000)]
    pub limit: u64,
    /// Length of that time, such as `1h`.
    pub per: String,
    /// CEL; events of different keys are throttled apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Events with one key within a time count once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Dedup {
    /// CEL.
    pub key: String,
    /// How long a key is remembered.
    pub window: String,
}
