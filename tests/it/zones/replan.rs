//! Planning anew: what a task waits for when the rules of its zone have changed under it. In each case the clock of
//! Tokyo, nine hours ahead of UTC, has been an hour further ahead, or behind, since the first of November.

use chrono::{DateTime, Utc};
use reveille::domain::trigger::Schedule;
use reveille::domain::trigger::replan::PendingFire;
use reveille::domain::trigger::zone::ZoneTable;
use serde_json::{Value, json};
use uuid::Uuid;

use super::at;
use crate::support::binary::TempDir;
use crate::support::zoneinfo;

const HOUR: i32 = 3600;

/// Rules under which the clock of Tokyo is so far ahead of UTC since the first of November 2026.
fn tokyo(hours: i32) -> ZoneTable {
    let dir = TempDir::new();
    let change = at("2026-11-01T00:00:00Z").timestamp();
    zoneinfo::write(dir.path(), "2027a", &[("Asia/Tokyo", zoneinfo::tzif(9 * HOUR, &[(change, hours * HOUR)]))]);
    ZoneTable::of_folder(dir.path()).unwrap().0
}

struct Case {
    schedule: Schedule,
    pending: PendingFire,
}

impl Case {
    /// A task that was made in October and waits for `nominal`.
    fn new(schedule: Value, nominal: &str) -> Case {
        let mut schedule: Schedule = serde_json::from_value(schedule).unwrap();
        schedule.timezone = Some("Asia/Tokyo".into());
        let made = at("2026-10-01T00:00:00Z");
        let pending = PendingFire { task_id: Uuid::nil(), anchor: made, active_since: made, nominal: at(nominal) };
        Case { schedule, pending }
    }

    fn active_since(mut self, instant: &str) -> Case {
        self.pending.active_since = at(instant);
        self
    }

    /// The instant it waits for where the clock was nine hours ahead and is `hours` ahead.
    fn waits_for(&self, hours: i32) -> Option<DateTime<Utc>> {
        let next = self.schedule.replan(&self.pending, &ZoneTable::bundled(), &tokyo(hours)).unwrap();
        next.map(|next| next.nominal)
    }

    fn moves(&self, ahead: &str, behind: &str) {
        assert_eq!(self.waits_for(10), Some(at(ahead)), "{:?} with a clock further ahead", self.schedule.when);
        assert_eq!(self.waits_for(8), Some(at(behind)), "{:?} with a clock further behind", self.schedule.when);
        assert_eq!(self.waits_for(9), Some(self.pending.nominal), "{:?} with the same clock", self.schedule.when);
    }
}

fn cron(expression: &str, nominal: &str) -> Case {
    Case::new(json!({"cron": expression}), nominal)
}

#[test]
fn replanned_task_keeps_its_wall_time_and_fires_no_day_twice() {
    // the 24th has fired at 2026-11-23T23:00Z; with the clock behind that day's eight o'clock is still to come, and is
    // not fired again
    cron("0 8 * * *", "2026-11-24T23:00:00Z").moves("2026-11-24T22:00:00Z", "2026-11-25T00:00:00Z");
    let rule = json!({"rrule": "FREQ=DAILY;BYHOUR=8;BYMINUTE=0;BYSECOND=0"});
    Case::new(rule, "2026-11-24T23:00:00Z").moves("2026-11-24T22:00:00Z", "2026-11-25T00:00:00Z");
}

#[test]
fn replanned_task_loses_no_wall_time_that_has_not_fired() {
    // 08:00 has fired, 08:30 has not, though it is past by the new rules
    cron("0,30 8 * * *", "2026-11-24T23:30:00Z").moves("2026-11-24T22:30:00Z", "2026-11-25T00:30:00Z");
}

#[test]
fn replanned_task_does_not_fire_an_instant_again_that_has_its_record() {
    // 09:00 is now at the instant at which 08:00 has fired
    cron("0 8,9 * * *", "2026-11-25T00:00:00Z").moves("2026-11-25T22:00:00Z", "2026-11-25T01:00:00Z");
}

#[test]
fn replanned_task_that_follows_elapsed_time_goes_on_without_a_gap() {
    cron("*/15 * * * *", "2026-11-24T23:15:00Z").moves("2026-11-24T23:15:00Z", "2026-11-24T23:15:00Z");
    Case::new(json!({"interval": "7h"}), "2026-11-24T20:00:00Z").moves("2026-11-24T20:00:00Z", "2026-11-24T20:00:00Z");
}

#[test]
fn replanned_one_shot_fires_at_its_wall_time_even_if_that_is_past() {
    let once = Case::new(json!({"at": "2026-11-25T08:00:00"}), "2026-11-24T23:00:00Z");
    once.moves("2026-11-24T22:00:00Z", "2026-11-25T00:00:00Z");
}

#[test]
fn replanned_task_does_not_fire_before_it_was_made() {
    let fresh = || cron("0 8 * * *", "2026-11-24T23:00:00Z");
    fresh().active_since("2026-11-24T12:00:00Z").moves("2026-11-24T22:00:00Z", "2026-11-25T00:00:00Z");
    fresh().active_since("2026-11-24T22:30:00Z").moves("2026-11-25T22:00:00Z", "2026-11-25T00:00:00Z");
}

#[test]
fn replanned_task_whose_end_is_past_by_the_new_rules_has_no_further_fire() {
    let ends = json!({"cron": "0 8 * * *", "end_at": "2026-11-24T23:30:00Z"});
    let case = Case::new(ends, "2026-11-24T23:00:00Z");
    assert_eq!(case.waits_for(8), None);
    assert_eq!(case.waits_for(10), Some(at("2026-11-24T22:00:00Z")));
}
