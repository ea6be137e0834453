//! When a task fires. The only place that tells trigger kinds apart.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::run::Missed;

/// What makes a task fire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Trigger {
    Schedule(Schedule),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {}

/// What the `due` row and its task say of a schedule that has come due.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    pub task_id: Uuid,
    /// Where intervals are counted from.
    pub anchor: DateTime<Utc>,
    /// Nothing before this is caught up: creation, last edit, last resume.
    pub active_since: DateTime<Utc>,
    /// The first nominal instant that has not been considered yet (`due.nominal_at`).
    pub nominal: DateTime<Utc>,
    /// Automatic fires so far, and how many there may be.
    pub fired: u64,
    pub max_runs: Option<u64>,
}

/// What is to be recorded for a due task, decided purely.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Oldest first.
    pub fires: Vec<PlannedFire>,
    pub skips: Vec<Skip>,
    /// The next instant to consider; `None`: the schedule has ended and the task is completed.
    pub next: Option<Next>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PlannedFire {
    pub nominal: DateTime<Utc>,
    /// Nominal plus jitter.
    pub run_at: DateTime<Utc>,
    /// Earlier instants that this run stands for, too.
    pub missed: Option<Missed>,
}

/// Instants that do not run, and why: `missed_window`, `catch_up_skip`, `excluded`, `max_runs`, …
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    pub missed: Missed,
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    pub nominal: DateTime<Utc>,
    pub run_at: DateTime<Utc>,
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
