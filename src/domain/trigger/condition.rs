//! A condition as its owner wrote it: what is polled, how often, and what must be true of it for the task to fire.
//!
//! It holds words, as a schedule does: a stored one can always be read back, and is compiled for each poll. Pure:
//! what a poll sees comes in as a value, what follows from it is a [`ConditionStep`]. What survives is the
//! [`ConditionState`], which the store writes together with the fire that it counted.
//!
//! Reading order: [`poll`] is what is looked at, [`form`] reads both from JSON, [`question`] is the compiled form,
//! [`state`] decides what follows from a poll.

pub mod form;
pub mod poll;
pub mod question;
pub mod state;
mod verdict;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::invalid::FieldError;
use crate::base::words::words;
use crate::domain::trigger::NextFire;
use crate::domain::trigger::interval::parse_length;
use crate::domain::trigger::jitter::spread;
use crate::domain::trigger::policy::Overlap;

pub use poll::{HttpPoll, PollSpec, RedisPoll, SqlPoll, ToolPoll};
pub use question::{CompiledCondition, ConditionSubject};
pub use state::{
    ConditionFire, ConditionNotice, ConditionState, ConditionStep, ConditionView, PollFailures, PollFault, PollResult,
    Validators,
};

/// The time limit of a poll that names none.
pub const DEFAULT_TIMEOUT: TimeDelta = TimeDelta::seconds(10);
/// The longest time limit of a poll. A claim on a poll lasts longer than this.
pub const LONGEST_TIMEOUT: TimeDelta = TimeDelta::seconds(30);
/// Failing polls in a row after which the owner is told, where the task says nothing.
pub const DEFAULT_NOTICE: u32 = 3;
/// The first poll of a new task comes within this, or within its interval where that is shorter.
const SOON: TimeDelta = TimeDelta::seconds(10);

words! {
    /// Which polls fire.
    #[derive(Default, utoipa::ToSchema)]
    pub enum FireOn {
        /// The one at which the expression has become true.
        #[default]
        OnTrue = "on_true",
        /// Each at which the expression is true.
        EveryTime = "every_time",
        /// Each at which `watch` has another value than at the one before.
        OnChange = "on_change",
    }
}

// made by `Trigger::parse` alone
/// Something is polled, and fires by what is seen: exactly one of `http`, `tool`, `sql` and `redis`.
///
/// A condition that is true at its first poll fires, and then not before it was false once. A poll that fails is
/// neither true nor false: it is repeated less and less often, shown in the task, and told to the owner once. Another
/// poll, expression, `watch`, `reset` or `fire` begins anew: what was known is forgotten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({"type": "condition", "poll": {"http": {"url": "https://api.example.org/price"}},
    "interval": "30m", "expression": "value.price < 500", "cooldown": "6h"}))]
pub struct Condition {
    /// The source that is polled.
    pub poll: PollSpec,
    /// How often it is polled, at least `1s`; spread by the task's id, so that many tasks do not poll at once.
    #[schema(example = "30m")]
    pub interval: String,
    /// Condition for a fire, in CEL over `value`, `previous` (the value of the good poll before; at the first one the
    /// same as `value`), `now` and `task` (`id`, `name`, `metadata`). A missing value makes it false, an error makes
    /// the poll fail. `on_change` can do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "value.price < 500")]
    pub expression: Option<String>,
    /// Which results fire.
    #[serde(default)]
    pub fire: FireOn,
    /// With `on_change`: the CEL expression whose value is compared from poll to poll; the whole value when absent. The
    /// first poll is what the second is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "value.status")]
    pub watch: Option<String>,
    /// With `on_true`: it fires again only after a poll of which this is true and the expression is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "value.price > 550")]
    pub reset: Option<String>,
    /// How long the expression must have been true, at every poll. Time in which nothing was seen (failing polls, a
    /// pause) neither counts nor begins it anew. Not with `on_change`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "10m")]
    pub hold_for: Option<String>,
    /// For so long after a fire further ones are recorded as skipped, with the reason `cooldown`; they are not made up
    /// for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "6h")]
    pub cooldown: Option<String>,
    /// Of one poll, at most `30s`; `10s` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "10s")]
    pub timeout: Option<String>,
    /// Failing polls in a row after which the owner is told, once.
    #[serde(default = "default_notice")]
    #[schema(default = default_notice, minimum = 1, maximum = 1000)]
    pub failure_notice_after: u32,
    /// No poll before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<DateTime<Utc>>,
    /// No poll after it; the task is completed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<DateTime<Utc>>,
    // always written out: the database reads it when a run starts
    /// `queue_one` when absent.
    #[serde(default = "default_overlap")]
    pub overlap: Overlap,
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap_counts_waiting: bool,
}

fn default_notice() -> u32 {
    DEFAULT_NOTICE
}

fn default_overlap() -> Overlap {
    Overlap::QueueOne
}

impl Condition {
    /// Which poll comes first after `now`: soon, but not all tasks at once.
    pub fn first(&self, task_id: Uuid, now: DateTime<Utc>) -> Result<Option<NextFire>, FieldError> {
        let from = self.start_at.unwrap_or(now).max(now);
        let run_at = from + spread(task_id, from, self.poll_interval()?.min(SOON));
        Ok(self.before_end(run_at).map(|run_at| NextFire { nominal: run_at, run_at }))
    }

    /// `at`, unless the condition has ended by then.
    pub fn before_end(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.end_at.is_none_or(|end| at <= end).then_some(at)
    }

    /// The time between polls. Fails where `interval` is no length of time.
    pub fn poll_interval(&self) -> Result<TimeDelta, FieldError> {
        length("interval", &self.interval)
    }

    /// The time limit of one poll.
    pub fn time_limit(&self) -> TimeDelta {
        let read = self.timeout.as_deref().and_then(|text| parse_length(text).ok());
        read.unwrap_or(DEFAULT_TIMEOUT).min(LONGEST_TIMEOUT)
    }

    /// Whether `other` has the same poll and asks the same of it, so that the state of one holds for the other. How
    /// often, how long and what comes after a fire may differ.
    pub fn is_same_question(&self, other: &Condition) -> bool {
        let asked = |c: &Condition| (c.poll.clone(), c.expression.clone(), c.fire, c.watch.clone(), c.reset.clone());
        asked(self) == asked(other)
    }
}

/// Reads a stored length; its fault says where it stands in a task.
fn length(field: &str, text: &str) -> Result<TimeDelta, FieldError> {
    parse_length(text).map_err(|message| FieldError { pointer: format!("/trigger/{field}"), message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::expr::Language;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn condition(more: serde_json::Value) -> Condition {
        let mut fields =
            json!({"poll": {"redis": {"source": "s", "key": "k"}}, "interval": "30m", "expression": "true"});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn first_poll_comes_soon_and_ten_thousand_do_not_come_at_once() {
        let now = at("2027-03-01T08:00:00Z");
        let condition = condition(json!({}));
        let mut seconds = [0; 10];
        for task in 0..10_000_u128 {
            let first = condition.first(Uuid::from_u128(task), now).unwrap().unwrap();
            seconds[(first.run_at - now).num_seconds() as usize] += 1;
        }
        assert!(seconds.iter().all(|n| (850..1150).contains(n)), "{seconds:?}");
    }

    #[test]
    fn later_polls_stand_on_a_grid_of_the_task_s_own() {
        let condition = condition(json!({})).compile(&Language::default()).unwrap();
        let task = Uuid::from_u128(7);
        let first = condition.after(task, at("2027-03-01T08:00:00Z"));
        let second = condition.after(task, first);
        assert_eq!(second - first, TimeDelta::minutes(30));
        assert_eq!(condition.after(task, first + TimeDelta::minutes(1)), second, "a late poll does not drift");
        assert_ne!(condition.after(Uuid::from_u128(8), first), second);
    }

    #[test]
    fn condition_polls_only_between_start_and_end() {
        let now = at("2027-03-01T08:00:00Z");
        let later = condition(json!({"start_at": "2027-03-02T00:00:00Z"}));
        let first = later.first(Uuid::from_u128(7), now).unwrap().unwrap().run_at;
        assert!(first >= at("2027-03-02T00:00:00Z") && first < at("2027-03-02T00:00:10Z"));
        let over = condition(json!({"end_at": "2027-03-01T07:00:00Z"}));
        assert_eq!(over.first(Uuid::from_u128(7), now).unwrap(), None);
    }
}
