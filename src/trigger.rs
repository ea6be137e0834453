//! When a task fires. The only place that tells trigger kinds apart.
//!
//! Pure: data and arithmetic, no await, no clock, no storage. The present is an argument. What is decided here
//! (a [`Plan`]) is written by the store in one transaction; nothing in here survives by itself.
//!
//! Reading order: [`schedule`] is what an owner wrote, [`form`] reads it from JSON with all its faults, [`timetable`]
//! is its compiled form over [`cron`], [`interval`], [`once`] and [`rrule`]; [`zone`] turns wall time into instants;
//! [`catch_up`] decides what is recorded for a task that is due.

pub mod catch_up;
pub mod cron;
pub mod exclusion;
pub mod form;
pub mod interval;
pub mod jitter;
pub mod once;
pub mod policy;
pub mod rrule;
pub mod schedule;
pub mod timetable;
pub mod zone;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::invalid::{Faults, did_you_mean};

pub use catch_up::{Due, Next, Plan, PlannedFire, Skip};
pub use policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};
pub use schedule::{Schedule, When};
pub use timetable::Timetable;

/// The kinds there are, as written in `type`.
pub const KINDS: &[&str] = &["schedule"];

/// What makes a task fire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Trigger {
    Schedule(Schedule),
}

impl Trigger {
    /// Reads and checks a trigger that stands at `pointer` in a request received at `now`. All that is wrong is added
    /// to `faults`; `None` exactly when something was.
    pub fn parse(value: &Value, pointer: &str, now: DateTime<Utc>, faults: &mut Faults) -> Option<Trigger> {
        let Some(fields) = value.as_object() else {
            faults.add(pointer, "a trigger is an object, such as {\"type\": \"schedule\", \"cron\": \"0 8 * * *\"}");
            return None;
        };
        match fields.get("type").map(Value::as_str) {
            Some(Some("schedule")) => form::read(fields, pointer, now, faults).map(Trigger::Schedule),
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
        }
    }
}

fn known() -> String {
    KINDS.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
}

use crate::invalid::InvalidSpec;
pub fn zone_database_version() -> &'static str {
    chrono_tz::IANA_TZDB_VERSION
}
impl Trigger {
    pub fn kind(&self) -> &'static str {
        "schedule"
    }
    pub fn anchor(&self, _created_at: DateTime<Utc>) -> Result<DateTime<Utc>, InvalidSpec> {
        todo!()
    }
    pub fn first(&self, _id: Uuid, _anchor: DateTime<Utc>, _now: DateTime<Utc>) -> Result<Option<Next>, InvalidSpec> {
        todo!()
    }
    pub fn plan(&self, _due: &Due, _now: DateTime<Utc>, _until: DateTime<Utc>) -> Result<Plan, InvalidSpec> {
        todo!()
    }
    pub fn catches_up_on_resume(&self) -> bool {
        todo!()
    }
    pub fn others_wait(&self) -> bool {
        todo!()
    }
    pub fn instants_before(
        &self,
        _from: DateTime<Utc>,
        _anchor: DateTime<Utc>,
        _now: DateTime<Utc>,
    ) -> Result<Option<Missed>, InvalidSpec> {
        todo!()
    }
    pub fn ends_without_instant(&self) -> bool {
        true
    }
}
