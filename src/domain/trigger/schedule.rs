//! A schedule as its owner wrote it: one of cron, interval, at or rrule, and the rules around it.
//!
//! It holds words, not compiled patterns: what is stored can always be read back, even if a later release or zone
//! database no longer understands it; that shows as a [`FieldError`](crate::base::invalid::FieldError) when it is
//! compiled. Every question is answered by a [`Timetable`](crate::domain::trigger::Timetable), which is compiled once
//! for a task's anchor. Nothing here knows the present time.

use serde::{Deserialize, Serialize};

use crate::base::field::one_of;
use crate::base::words::is_default;
use crate::domain::trigger::policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};

one_of! {
    /// The instants, as written in exactly one of four fields.
    pub enum When as "When" {
        /// Five fields, six with seconds first, or `@daily` and its kin.
        #[schema(example = "0 8 * * *")]
        Cron(String) = cron,
        /// ISO 8601, or `5m`; counted from the task's creation, or `start_at`.
        #[schema(example = "5m")]
        Interval(String) = interval,
        /// One instant: RFC 3339, or local time in `timezone`.
        #[schema(example = "2026-12-24T15:00:00")]
        At(String) = at,
        /// An RFC 5545 recurrence rule, daily or coarser.
        #[schema(example = "FREQ=MONTHLY;BYDAY=-1FR")]
        Rrule(String) = rrule,
    }
}

impl When {
    /// The text as it was written.
    pub fn text(&self) -> &str {
        match self {
            When::Cron(text) | When::Interval(text) | When::At(text) | When::Rrule(text) => text,
        }
    }
}

// made by `Trigger::parse` alone
/// Exactly one of `cron`, `interval`, `at` and `rrule`, and the rules around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({"type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai"}))]
pub struct Schedule {
    /// The instants.
    #[serde(flatten)]
    pub when: When,
    /// An IANA name; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Berlin")]
    pub timezone: Option<String>,
    /// Nothing fires before it; intervals and rrules are counted from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<String>,
    /// Nothing fires after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<String>,
    /// Fires are spread over this length, by the task's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s")]
    pub jitter: Option<String>,
    /// Dates (the whole local day), or cron expressions, at which nothing fires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// The fate of missed instants.
    #[serde(default)]
    pub catch_up: CatchUp,
    /// How late a fire may still start; one hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1h")]
    pub catch_up_window: Option<String>,
    /// The fate of runs that would overlap.
    #[serde(default)]
    pub overlap: Overlap,
    /// The fate of wall times that the clock jumps over.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dst_gap: DstGap,
    /// The pass of wall times that the clock shows twice.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dst_fold: DstFold,
    /// The fate of instants that passed while the task was paused.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_resume: OnResume,
    /// Whether a run that waits for a person, or for its completion, counts as running for `overlap`: the next run is
    /// skipped, waits behind it or ends it as `overlap` says, rather than running beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap_counts_waiting: bool,
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
            overlap_counts_waiting: false,
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
}
