//! Instants of a schedule that would fire, one after another: for previews and backfills.

use chrono::{DateTime, Utc};

use crate::domain::trigger::timetable::{TICK, Timetable, first_instant};

/// A search for instants that fire gives up after this many excluded ones: more than a day has seconds.
const MOST_EXCLUDED: usize = 100_000;

/// Instants that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstantListing {
    /// Oldest first.
    pub instants: Vec<DateTime<Utc>>,
    /// They are fewer than were asked for though the schedule may have more: these take too many steps to compute.
    pub truncated: bool,
}

impl Timetable {
    /// The next `count` instants strictly after `from` that would fire, jitter aside. Fewer where the schedule ends;
    /// cut where 100,000 excluded ones lie between, or its budget is used up.
    pub fn preview(&self, from: DateTime<Utc>, count: usize) -> InstantListing {
        let mut firing = self.firing_after(from);
        let instants: Vec<DateTime<Utc>> = firing.by_ref().take(count).collect();
        let truncated = instants.len() < count && firing.hit_limit();
        InstantListing { instants, truncated }
    }

    /// The first `limit` instants from `from` (inclusive) to `to` (exclusive), exclusions applied.
    pub fn between(&self, from: DateTime<Utc>, to: DateTime<Utc>, limit: usize) -> Vec<DateTime<Utc>> {
        let from = from.max(first_instant()) - TICK;
        self.firing_after(from).take_while(|instant| *instant < to).take(limit).collect()
    }

    fn firing_after(&self, from: DateTime<Utc>) -> FiringInstants<'_> {
        FiringInstants { timetable: self, last: from, excluded: 0 }
    }
}

struct FiringInstants<'a> {
    timetable: &'a Timetable,
    last: DateTime<Utc>,
    /// Excluded ones that were met.
    excluded: usize,
}

impl FiringInstants<'_> {
    /// Whether it ended for what it takes, and not with the schedule.
    fn hit_limit(&self) -> bool {
        self.excluded == MOST_EXCLUDED || self.timetable.exceeded().is_some()
    }
}

impl Iterator for FiringInstants<'_> {
    type Item = DateTime<Utc>;

    fn next(&mut self) -> Option<DateTime<Utc>> {
        while self.excluded < MOST_EXCLUDED {
            self.last = self.timetable.next_after(self.last)?;
            let is_excluded = self.timetable.excludes(self.last);
            // with the last step the verdict of an exclusion is void
            if self.timetable.exceeded().is_some() {
                return None;
            }
            if !is_excluded {
                return Some(self.last);
            }
            self.excluded += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::trigger::Schedule;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn timetable(schedule: serde_json::Value) -> Timetable {
        let schedule: Schedule = serde_json::from_value(schedule).unwrap();
        schedule.compile(at("2026-01-01T00:00:00Z")).unwrap()
    }

    #[test]
    fn preview_says_where_its_budget_is_used_up_and_shows_no_excluded_instant() {
        let daily = timetable(serde_json::json!({ "cron": "0 8 * * *", "exclude": ["* * 2-31 * *"] }));
        let from = at("2026-01-01T00:00:00Z");
        let whole = daily.clone().with_budget(1_000_000).preview(from, 12);
        assert_eq!((whole.instants.len(), whole.truncated), (12, false));
        for steps in 0..2_000 {
            let InstantListing { instants, truncated } = daily.clone().with_budget(steps).preview(from, 12);
            assert_eq!(instants, whole.instants[..instants.len()], "{steps} steps");
            assert_eq!(truncated, instants.len() < 12, "{steps} steps");
        }
    }

    #[test]
    fn preview_is_cut_where_too_many_excluded_instants_lie_between() {
        let secondly = timetable(serde_json::json!({ "cron": "* * * * * *", "exclude": ["* * * * 1-6"] }));
        // a Sunday, and six days after it
        let preview = secondly.preview(at("2026-11-22T23:59:50Z"), 100);
        assert_eq!((preview.instants.len(), preview.truncated), (9, true));
        let hourly = timetable(serde_json::json!({ "cron": "0 * * * *", "exclude": ["* * * * 1-6"] }));
        let preview = hourly.preview(at("2026-11-22T22:30:00Z"), 100);
        assert_eq!((preview.instants.len(), preview.truncated), (100, false));
    }

    #[test]
    fn preview_of_a_schedule_that_ends_is_not_cut() {
        let once = timetable(serde_json::json!({ "at": "2026-02-01T09:00:00Z" }));
        let preview = once.with_budget(1_000).preview(at("2026-01-01T00:00:00Z"), 5);
        assert_eq!(preview, InstantListing { instants: vec![at("2026-02-01T09:00:00Z")], truncated: false });
    }
}
