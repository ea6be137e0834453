//! A schedule as its owner wrote it: one of cron, interval, at or rrule, and the rules around it.
//!
//! It holds words, not compiled patterns: what is stored can always be read back, even if a later release or zone
//! database no longer understands it; that shows as an [`InvalidSpec`] when it is compiled. Every question is answered
//! by a [`Timetable`], which is compiled once for a task's anchor. Nothing here knows the present time.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::invalid::{Faults, InvalidSpec};
use crate::trigger::catch_up::{Due, Next, Plan};
use crate::trigger::listing::Listing;
use crate::trigger::policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};
use crate::trigger::steps::{Costly, LISTED, PLANNED};
use crate::trigger::timetable::Timetable;
use crate::trigger::zone::{self, Database};

/// Where a schedule stands in a task; faults that are found after its creation point there.
const PLACE: &str = "/trigger";

/// The instants, as written in exactly one of four fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Five fields, six with seconds first, or `@daily` and its kin.
    Cron(String),
    /// ISO 8601 or `5m`; counted from the task's anchor.
    Interval(String),
    /// One instant: RFC 3339, or local time in `timezone`.
    At(String),
    /// An RFC 5545 recurrence rule, daily or coarser.
    Rrule(String),
}

impl When {
    /// The name of the field it stands in.
    pub fn field(&self) -> &'static str {
        match self {
            When::Cron(_) => "cron",
            When::Interval(_) => "interval",
            When::At(_) => "at",
            When::Rrule(_) => "rrule",
        }
    }

    /// The text as it was written.
    pub fn text(&self) -> &str {
        match self {
            When::Cron(text) | When::Interval(text) | When::At(text) | When::Rrule(text) => text,
        }
    }
}

/// When a task fires by the clock. Made by `Trigger::parse` alone; its JSON is the one of the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The instants.
    #[serde(flatten)]
    pub when: When,
    /// IANA name; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing fires before it; intervals and rrules are counted from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<String>,
    /// Nothing fires after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<String>,
    /// Fires are spread over this length, by the task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// Dates (the whole local day) or cron expressions at which nothing fires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// The fate of missed instants.
    #[serde(default)]
    pub catch_up: CatchUp,
    /// How late a fire may still start; one hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_window: Option<String>,
    /// The fate of runs that would overlap.
    #[serde(default)]
    pub overlap: Overlap,
    /// The fate of wall times that the clock jumps over.
    #[serde(default, skip_serializing_if = "DstGap::is_default")]
    pub dst_gap: DstGap,
    /// The pass of wall times that the clock shows twice.
    #[serde(default, skip_serializing_if = "DstFold::is_default")]
    pub dst_fold: DstFold,
    /// The fate of instants that passed while the task was paused.
    #[serde(default, skip_serializing_if = "OnResume::is_default")]
    pub on_resume: OnResume,
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting_counts: bool,
}

impl Schedule {
    /// A schedule with the default rules.
    pub fn new(when: When) -> Schedule {
        Schedule {
            when,
            timezone: None,
            start_at: None,
            end_at: None,
            jitter: None,
            exclude: Vec::new(),
            catch_up: CatchUp::default(),
            catch_up_window: None,
            overlap: Overlap::default(),
            dst_gap: DstGap::default(),
            dst_fold: DstFold::default(),
            on_resume: OnResume::default(),
            waiting_counts: false,
        }
    }

    /// The texts that were written, but for the exclusions, with their fields.
    pub(super) fn texts(&self) -> Vec<(&'static str, &str)> {
        let written = [
            (self.when.field(), Some(self.when.text())),
            ("timezone", self.timezone.as_deref()),
            ("start_at", self.start_at.as_deref()),
            ("end_at", self.end_at.as_deref()),
            ("jitter", self.jitter.as_deref()),
            ("catch_up_window", self.catch_up_window.as_deref()),
        ];
        written.into_iter().filter_map(|(field, text)| Some((field, text?))).collect()
    }

    /// The form that answers questions, for a task whose intervals count from `anchor`.
    /// A few microseconds; do it once for many questions.
    pub fn compile(&self, anchor: DateTime<Utc>) -> Result<Timetable, InvalidSpec> {
        self.compile_under(&zone::current(), anchor)
    }

    /// As [`Schedule::compile`], by the zone rules of `zones`.
    pub fn compile_under(&self, zones: &Database, anchor: DateTime<Utc>) -> Result<Timetable, InvalidSpec> {
        let mut faults = Faults::new();
        match Timetable::compile(self, zones, anchor, PLACE, &mut faults) {
            Some(timetable) => Ok(timetable),
            None => Err(faults.0.into_iter().next().unwrap_or_else(|| InvalidSpec {
                pointer: PLACE.into(),
                message: "the schedule can't be read".into(),
            })),
        }
    }

    /// Answers a question within a budget of steps; a fault that names the field where it is used up.
    pub(super) fn ask<T>(
        &self,
        anchor: DateTime<Utc>,
        steps: u64,
        question: impl FnOnce(&Timetable) -> T,
    ) -> Result<T, InvalidSpec> {
        self.ask_counted(anchor, steps, question).0
    }

    /// As [`Schedule::ask`], and how many steps it took.
    fn ask_counted<T>(
        &self,
        anchor: DateTime<Utc>,
        steps: u64,
        question: impl FnOnce(&Timetable) -> T,
    ) -> (Result<T, InvalidSpec>, u64) {
        let timetable = match self.compile(anchor) {
            Ok(timetable) => timetable.within(steps),
            Err(fault) => return (Err(fault), 0),
        };
        let answer = question(&timetable);
        let answer = match timetable.exceeded() {
            None => Ok(answer),
            Some(part) => {
                let (field, message) = self.too_costly(part);
                Err(InvalidSpec { pointer: format!("{PLACE}/{field}"), message })
            }
        };
        (answer, timetable.taken())
    }

    /// The field that used up a budget, and what would be right.
    pub(super) fn too_costly(&self, part: Costly) -> (&'static str, String) {
        match part {
            Costly::Search => (
                self.when.field(),
                "takes too many steps to compute; write a rule of fewer values and positions".into(),
            ),
            Costly::Exclusions => {
                ("exclude", "takes too many steps to compute; write dates, or fewer cron expressions".into())
            }
        }
    }

    /// Where intervals and rrules of this schedule are counted from: `start_at`, else the task's creation.
    pub fn anchor(&self, created_at: DateTime<Utc>) -> Result<DateTime<Utc>, InvalidSpec> {
        Ok(self.compile(created_at)?.anchor())
    }

    /// The first nominal instant strictly after `after`, exclusions not applied. `None`: there is none.
    pub fn next_after(
        &self,
        after: DateTime<Utc>,
        anchor: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, InvalidSpec> {
        self.ask(anchor, PLANNED, |timetable| timetable.next_after(after))
    }

    /// The instant that a new, edited or resumed task waits for: strictly after `now`, but for `at` the instant itself,
    /// too.
    pub fn first(&self, task_id: Uuid, anchor: DateTime<Utc>, now: DateTime<Utc>) -> Result<Option<Next>, InvalidSpec> {
        self.ask(anchor, PLANNED, |timetable| timetable.first(task_id, now))
    }

    /// Plans the records of all instants that are due by `until`, seen at `now`; and counts the steps that this took.
    pub fn plan(&self, due: &Due, now: DateTime<Utc>, until: DateTime<Utc>) -> (Result<Plan, InvalidSpec>, u64) {
        self.ask_counted(due.anchor, PLANNED, |timetable| timetable.plan(due, now, until))
    }

    /// The next `count` instants strictly after `from` that would fire, jitter aside.
    pub fn preview(&self, from: DateTime<Utc>, anchor: DateTime<Utc>, count: usize) -> Result<Listing, InvalidSpec> {
        Ok(self.compile(anchor)?.within(LISTED).preview(from, count))
    }

    /// For a backfill: the first `limit` instants from `from` (inclusive) to `to` (exclusive), exclusions applied.
    pub fn between(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        anchor: DateTime<Utc>,
        limit: usize,
    ) -> Result<Vec<DateTime<Utc>>, InvalidSpec> {
        self.ask(anchor, LISTED, |timetable| timetable.between(from, to, limit))
    }

    /// Nominal plus jitter, where the next nominal instant is `gap_to_next` away.
    pub fn run_at(
        &self,
        task_id: Uuid,
        nominal: DateTime<Utc>,
        gap_to_next: Option<TimeDelta>,
    ) -> Result<DateTime<Utc>, InvalidSpec> {
        Ok(self.compile(nominal)?.run_at(task_id, nominal, gap_to_next))
    }
}
