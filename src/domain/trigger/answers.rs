//! Answers of a schedule: when it fires next, which instants it has, which records are due.
//!
//! Each is given by its [`Timetable`] within a budget of steps.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::invalid::{FieldError, ValidationErrors};
use crate::domain::trigger::catch_up::{DueSchedule, FirePlan};
use crate::domain::trigger::listing::InstantListing;
use crate::domain::trigger::next::NextFire;
use crate::domain::trigger::schedule::Schedule;
use crate::domain::trigger::steps::{CostliestPart, LISTED, PLANNED};
use crate::domain::trigger::timetable::Timetable;
use crate::domain::trigger::zone::{self, ZoneTable};

/// Where a schedule stands in a task; faults that are found after its creation point there.
const PLACE: &str = "/trigger";

impl Schedule {
    /// The form that answers questions, for a task whose intervals count from `anchor`.
    /// A few microseconds; do it once for many questions.
    pub fn compile(&self, anchor: DateTime<Utc>) -> Result<Timetable, FieldError> {
        self.compile_under(&zone::current(), anchor)
    }

    /// As [`Schedule::compile`], by the zone rules of `zones`.
    pub fn compile_under(&self, zones: &ZoneTable, anchor: DateTime<Utc>) -> Result<Timetable, FieldError> {
        let mut faults = ValidationErrors::new();
        match Timetable::compile(self, zones, anchor, PLACE, &mut faults) {
            Some(timetable) => Ok(timetable),
            None => Err(faults
                .0
                .into_iter()
                .next()
                .unwrap_or_else(|| FieldError { pointer: PLACE.into(), message: "the schedule can't be read".into() })),
        }
    }

    /// Answers a question within a budget of steps; a fault that names the field where it is used up.
    pub(super) fn ask<T>(
        &self,
        anchor: DateTime<Utc>,
        steps: u64,
        question: impl FnOnce(&Timetable) -> T,
    ) -> Result<T, FieldError> {
        self.ask_counted(anchor, steps, question).0
    }

    /// As [`Schedule::ask`], and how many steps it took.
    fn ask_counted<T>(
        &self,
        anchor: DateTime<Utc>,
        steps: u64,
        question: impl FnOnce(&Timetable) -> T,
    ) -> (Result<T, FieldError>, u64) {
        let timetable = match self.compile(anchor) {
            Ok(timetable) => timetable.with_budget(steps),
            Err(fault) => return (Err(fault), 0),
        };
        let answer = question(&timetable);
        let answer = match timetable.exceeded() {
            None => Ok(answer),
            Some(part) => {
                let (field, message) = self.too_costly(part);
                Err(FieldError { pointer: format!("{PLACE}/{field}"), message })
            }
        };
        (answer, timetable.steps_used())
    }

    /// The field that used up a budget, and what would be right.
    pub(super) fn too_costly(&self, part: CostliestPart) -> (&'static str, String) {
        match part {
            CostliestPart::Search => (
                self.when.field(),
                "takes too many steps to compute; write a rule of fewer values and positions".into(),
            ),
            CostliestPart::Exclusions => {
                ("exclude", "takes too many steps to compute; write dates, or fewer cron expressions".into())
            }
        }
    }

    /// Where intervals and rrules of this schedule are counted from: `start_at`, else the task's creation.
    pub fn anchor(&self, created_at: DateTime<Utc>) -> Result<DateTime<Utc>, FieldError> {
        Ok(self.compile(created_at)?.anchor())
    }

    /// The first nominal instant strictly after `after`, exclusions not applied. `None`: there is none.
    pub fn next_after(&self, after: DateTime<Utc>, anchor: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, FieldError> {
        self.ask(anchor, PLANNED, |timetable| timetable.next_after(after))
    }

    /// The instant that a new, edited or resumed task waits for: strictly after `now`, but for `at` the instant itself,
    /// too.
    pub fn first(
        &self,
        task_id: Uuid,
        anchor: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<NextFire>, FieldError> {
        self.ask(anchor, PLANNED, |timetable| timetable.first(task_id, now))
    }

    /// Plans the records of all instants that are due by `until`, seen at `now`; and counts the steps that this took.
    pub fn plan(
        &self,
        due: &DueSchedule,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> (Result<FirePlan, FieldError>, u64) {
        self.ask_counted(due.anchor, PLANNED, |timetable| timetable.plan(due, now, until))
    }

    /// The next `count` instants strictly after `from` that would fire, jitter aside.
    pub fn preview(
        &self,
        from: DateTime<Utc>,
        anchor: DateTime<Utc>,
        count: usize,
    ) -> Result<InstantListing, FieldError> {
        Ok(self.compile(anchor)?.with_budget(LISTED).preview(from, count))
    }

    /// For a backfill: the first `limit` instants from `from` (inclusive) to `to` (exclusive), exclusions applied.
    pub fn between(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        anchor: DateTime<Utc>,
        limit: usize,
    ) -> Result<Vec<DateTime<Utc>>, FieldError> {
        self.ask(anchor, LISTED, |timetable| timetable.between(from, to, limit))
    }

    /// Nominal plus jitter, where the next nominal instant is `gap_to_next` away.
    pub fn run_at(
        &self,
        task_id: Uuid,
        nominal: DateTime<Utc>,
        gap_to_next: Option<TimeDelta>,
    ) -> Result<DateTime<Utc>, FieldError> {
        Ok(self.compile(nominal)?.run_at(task_id, nominal, gap_to_next))
    }
}
