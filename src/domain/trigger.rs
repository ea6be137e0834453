//! When a task fires. The only place that tells trigger kinds apart.
//!
//! Pure: data and arithmetic, no await, no clock, no storage. The present is an argument. A decision
//! (a [`FirePlan`]) is written by the store in one transaction; nothing in here survives by itself.
//!
//! Reading order: [`schedule`] is what an owner wrote, [`form`] reads it from JSON with all its faults, [`timetable`]
//! is its compiled form over [`cron`], [`interval`], [`once`] and [`rrule`]; [`zone`] turns wall time into instants;
//! [`catch_up`] decides what is recorded for a task that is due, [`replan`] what it waits for when the rules of its
//! zone change. [`condition`] is the kind that polls.

mod answers;
pub mod catch_up;
mod chat;
pub mod condition;
pub mod cron;
pub mod event;
pub mod exclusion;
pub mod form;
pub mod interval;
pub mod jitter;
pub mod listing;
mod next;
pub mod once;
pub mod policy;
pub mod replan;
pub mod rrule;
pub mod schedule;
pub mod steps;
pub mod timetable;
pub mod zone;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::invalid::{FieldError, ValidationErrors, did_you_mean};
use crate::domain::run::MissedInstants;

pub use catch_up::{DueSchedule, FirePlan, PlannedFire, Skip};
pub use chat::ChatTrigger;
pub use condition::Condition;
pub use event::EventTrigger;
pub use listing::InstantListing;
pub use next::NextFire;
pub use policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};
pub use schedule::{Schedule, When};
pub use timetable::Timetable;
pub use zone::zone_database_version;

/// The kinds that a task may have, as written in `type`.
pub const KINDS: &[&str] = &["schedule", "event", "condition"];

/// When a task fires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "what each type says of itself is what the reference shows of its variant")]
pub enum Trigger {
    Schedule(Schedule),
    Event(Box<EventTrigger>),
    Condition(Condition),
    Chat(ChatTrigger),
}

impl Trigger {
    /// Reads and checks a trigger that stands at `pointer` in a request received at `now`. All that is wrong is added
    /// to `faults`; `None` exactly when something was.
    pub fn parse(value: &Value, pointer: &str, now: DateTime<Utc>, faults: &mut ValidationErrors) -> Option<Trigger> {
        let Some(fields) = value.as_object() else {
            faults.add(pointer, "a trigger is an object, such as {\"type\": \"schedule\", \"cron\": \"0 8 * * *\"}");
            return None;
        };
        match fields.get("type").map(Value::as_str) {
            Some(Some("schedule")) => form::read(fields, pointer, now, faults).map(Trigger::Schedule),
            Some(Some("event")) => {
                event::form::read(fields, pointer, faults).map(|read| Trigger::Event(Box::new(read)))
            }
            Some(Some("condition")) => condition::form::read(fields, pointer, now, faults).map(Trigger::Condition),
            Some(Some(other)) => {
                let hint = did_you_mean(other, KINDS.iter().copied());
                faults.add(
                    format!("{pointer}/type"),
                    format!("unknown trigger type `{other}`; supported: {}{hint}", known()),
                );
                None
            }
            Some(None) => {
                faults.add(format!("{pointer}/type"), format!("must be a text, one of {}", known()));
                None
            }
            None => {
                faults.add(format!("{pointer}/type"), format!("is missing; supported: {}", known()));
                None
            }
        }
    }

    /// The word in `type`, which is also the `trigger_type` of its runs.
    pub fn kind(&self) -> &'static str {
        match self {
            Trigger::Schedule(_) => "schedule",
            Trigger::Event(_) => "event",
            Trigger::Condition(_) => "condition",
            Trigger::Chat(_) => ChatTrigger::KIND,
        }
    }

    /// Where this trigger's instants are counted from, for a task made at `created_at`.
    pub fn anchor(&self, created_at: DateTime<Utc>) -> Result<DateTime<Utc>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.anchor(created_at),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Ok(created_at),
        }
    }

    /// The instant that a new, edited or resumed task waits for, a fire or a poll; `None`: no instant.
    pub fn first(
        &self,
        task_id: Uuid,
        anchor: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<NextFire>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.first(task_id, anchor, now),
            Trigger::Event(_) | Trigger::Chat(_) => Ok(None),
            Trigger::Condition(condition) => condition.first(task_id, now),
        }
    }

    /// This nominal instant with its time to run, and whether it is excluded; `None` where the trigger does not have
    /// it.
    pub fn instant(
        &self,
        task_id: Uuid,
        anchor: DateTime<Utc>,
        nominal: DateTime<Utc>,
    ) -> Result<Option<(NextFire, bool)>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.ask(anchor, steps::PLANNED, |timetable| {
                let has = timetable.next_after(nominal - timetable::TICK) == Some(nominal);
                has.then(|| (timetable.with_run_at(task_id, nominal), timetable.excludes(nominal)))
            }),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Ok(None),
        }
    }

    /// Plans the records of all instants that are due by `until`, seen at `now`; and counts the steps that this took.
    pub fn plan(
        &self,
        due: &DueSchedule,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> (Result<FirePlan, FieldError>, u64) {
        match self {
            Trigger::Schedule(schedule) => schedule.plan(due, now, until),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => (Err(no_instants(self.kind())), 0),
        }
    }

    /// The last nominal instant before `edge`, not before `floor`.
    pub fn last_before(
        &self,
        anchor: DateTime<Utc>,
        edge: DateTime<Utc>,
        floor: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => Ok(schedule.compile(anchor)?.last_before(edge, floor)),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Ok(None),
        }
    }

    /// The instants from `from` on and before `now`, as one range; `None` where there is none.
    pub fn instants_before(
        &self,
        from: DateTime<Utc>,
        anchor: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<MissedInstants>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.ask(anchor, steps::PLANNED, |timetable| {
                timetable.last_before(now, from).map(|to| timetable.range(from, to))
            }),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Ok(None),
        }
    }

    /// The next `count` instants strictly after `from` that would fire, jitter aside.
    pub fn preview(
        &self,
        from: DateTime<Utc>,
        anchor: DateTime<Utc>,
        count: usize,
    ) -> Result<InstantListing, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.preview(from, anchor, count),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Err(no_instants(self.kind())),
        }
    }

    /// For a backfill: the first `limit` instants from `from` (inclusive) to `to` (exclusive), exclusions applied.
    pub fn between(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        anchor: DateTime<Utc>,
        limit: usize,
    ) -> Result<Vec<DateTime<Utc>>, FieldError> {
        match self {
            Trigger::Schedule(schedule) => schedule.between(from, to, anchor, limit),
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => Err(no_instants(self.kind())),
        }
    }

    /// Whether what fell due while the task was paused is caught up when it is resumed.
    pub fn catches_up_on_resume(&self) -> bool {
        match self {
            Trigger::Schedule(schedule) => schedule.on_resume == OnResume::CatchUp,
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => false,
        }
    }

    /// Whether a run that waits for a person, or for its completion, counts as running.
    pub fn overlap_counts_waiting(&self) -> bool {
        match self {
            Trigger::Schedule(schedule) => schedule.overlap_counts_waiting,
            Trigger::Event(event) => event.overlap_counts_waiting,
            Trigger::Condition(condition) => condition.overlap_counts_waiting,
            // a message is answered while a call of the one before waits for a person
            Trigger::Chat(_) => false,
        }
    }

    /// The rule for a run while another one of its task is executed.
    pub fn overlap(&self) -> Overlap {
        match self {
            Trigger::Schedule(schedule) => schedule.overlap,
            Trigger::Event(event) => event.overlap,
            Trigger::Condition(condition) => condition.overlap,
            Trigger::Chat(chat) => chat.overlap,
        }
    }

    /// Whether its runs may run beside each other: they need no slot.
    pub fn may_overlap(&self) -> bool {
        self.overlap() == Overlap::Allow
    }

    /// Whether each instant that was missed has a run of its own.
    pub fn catches_all_up(&self) -> bool {
        match self {
            Trigger::Schedule(schedule) => schedule.catch_up == CatchUp::All,
            Trigger::Event(_) | Trigger::Condition(_) | Trigger::Chat(_) => false,
        }
    }

    /// Whether a task without a next instant has come to its end.
    pub fn ends_without_instant(&self) -> bool {
        match self {
            Trigger::Schedule(_) | Trigger::Condition(_) => true,
            Trigger::Event(_) | Trigger::Chat(_) => false,
        }
    }

    /// Whether its `due` row holds instants that fire, which a change of the task must not lose. Those of a condition
    /// are polls: one that is not done is no fire that is missed.
    pub fn fires_by_the_clock(&self) -> bool {
        matches!(self, Trigger::Schedule(_))
    }

    /// The condition, where it is one.
    pub fn condition(&self) -> Option<&Condition> {
        match self {
            Trigger::Condition(condition) => Some(condition),
            _ => None,
        }
    }
}

/// Asked of a trigger that does not go by the clock.
fn no_instants(kind: &str) -> FieldError {
    let message = format!("is `{kind}`: only a schedule has instants that can be told ahead");
    FieldError { pointer: "/trigger/type".into(), message }
}

fn known() -> String {
    KINDS.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
}
