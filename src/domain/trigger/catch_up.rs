//! The records of a schedule that has come due, decided purely: which instants run, which are coalesced into a run,
//! which are skipped and why.
//!
//! Every instant that is considered ends in exactly one of the three. A range (a skip's, or a run's `missed`) stands
//! for those instants in it that have no record of their own, and its count counts just those. An outage of a year
//! costs what one of an hour does: boundaries are found by halving, and at most [`EXAMINED`] instants are looked at one
//! by one.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::domain::run::MissedInstants;
use crate::domain::trigger::next::NextFire;
use crate::domain::trigger::policy::CatchUp;
use crate::domain::trigger::timetable::{EXAMINED, TICK, Timetable};

/// The newest of the instants that have passed is on time if it is this little late; older ones never are.
pub const MISFIRE_GRACE: TimeDelta = TimeDelta::seconds(30);
/// The most missed instants that `catch_up: all` runs.
pub const MOST_CAUGHT_UP: usize = 100;
/// The outage that a schedule is tried with when it is made: as many days as are looked at one by one.
const LONG_OUTAGE: TimeDelta = TimeDelta::days(3 * 366);

/// Why instants were skipped, as recorded.
pub mod reason {
    /// Older than the catch-up window.
    pub const MISSED_WINDOW: &str = "missed_window";
    /// Missed, and the task does not catch up.
    pub const CATCH_UP_SKIP: &str = "catch_up_skip";
    /// Missed, and more recent ones used up the limit.
    pub const CATCH_UP_LIMIT: &str = "catch_up_limit";
    /// Missed, and the task had used up its `max_runs`.
    pub const MAX_RUNS: &str = "max_runs";
    /// Excluded by the schedule.
    pub const EXCLUDED: &str = "excluded";
}

/// The facts of the `due` row and its task about a schedule that has come due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedule {
    /// The task, for its jitter and its errors.
    pub task_id: Uuid,
    /// Where intervals are counted from.
    pub anchor: DateTime<Utc>,
    /// Nothing before this is caught up: creation, last edit, last resume.
    pub active_since: DateTime<Utc>,
    /// The first nominal instant that has not been considered yet (`due.nominal_at`).
    pub nominal: DateTime<Utc>,
    /// Automatic fires so far, and how many there may be.
    pub fire_count: u64,
    /// Automatic fires that the task may have in all; `None`: no limit.
    pub max_runs: Option<u64>,
}

/// The records of a due task, decided purely.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FirePlan {
    /// Oldest first.
    pub fires: Vec<PlannedFire>,
    /// Oldest first.
    pub skips: Vec<Skip>,
    /// The next instant to consider; `None`: the schedule has ended and the task is completed.
    pub next: Option<NextFire>,
}

/// An instant that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedFire {
    /// The instant by the schedule.
    pub nominal: DateTime<Utc>,
    /// Nominal plus jitter.
    pub run_at: DateTime<Utc>,
    /// Earlier instants that this run stands for, too.
    pub missed: Option<MissedInstants>,
}

/// Instants that do not run, and why: one of [`reason`].
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    /// The instants that are skipped.
    pub missed: MissedInstants,
    /// The word for the reason, as it is recorded.
    pub reason: &'static str,
}

impl Timetable {
    /// The records of all instants from `due.nominal` on that run by `until` (a little after `now`, so that fires are
    /// recorded ahead of their time). Instants that have passed when `max_runs` is used up are skipped in one range;
    /// nothing after that is considered.
    pub fn plan(&self, due: &DueSchedule, now: DateTime<Utc>, until: DateTime<Utc>) -> FirePlan {
        let room = due.max_runs.map_or(u64::MAX, |most| most.saturating_sub(due.fire_count));
        if room == 0 {
            return FirePlan::default();
        }
        let mut planning = PlanBuilder { timetable: self, task_id: due.task_id, now, plan: FirePlan::default() };
        let first = match due.nominal < due.active_since {
            true => self.next_after(due.active_since - TICK),
            false => Some(due.nominal),
        };
        let expired_end = planning.first_running_after(first, now - self.window - TICK);
        let missed_end = planning.on_time(expired_end);
        let coalesced = planning.catch_up(first, expired_end, missed_end);
        planning.take_on_time(missed_end, until);
        planning.finish(coalesced, room)
    }
}

impl Timetable {
    /// Plans as after an outage of three years and the catch-up window, from the first instant after `now` on: what
    /// planning costs at most is taken from the budget.
    pub fn charge_worst_case(&self, now: DateTime<Utc>) {
        let Some(nominal) = self.next_after(now) else { return };
        let due = DueSchedule {
            task_id: Uuid::nil(),
            anchor: self.anchor(),
            active_since: nominal,
            nominal,
            fire_count: 0,
            max_runs: None,
        };
        let later = nominal + LONG_OUTAGE + self.window;
        self.plan(&due, later, later + TICK);
    }
}

/// A plan in the making.
struct PlanBuilder<'a> {
    timetable: &'a Timetable,
    task_id: Uuid,
    now: DateTime<Utc>,
    plan: FirePlan,
}

/// Missed instants, oldest first: those that were looked at, and the older ones that were too many for that.
struct RecentInstants {
    older: Option<MissedInstants>,
    listed: Vec<DateTime<Utc>>,
}

/// Missed instants that one run will stand for.
struct CoalescedInstants {
    /// The one that runs, if no later instant does in its place.
    latest: DateTime<Utc>,
    before: Option<MissedInstants>,
}

impl PlanBuilder<'_> {
    fn at(&self, nominal: DateTime<Utc>) -> NextFire {
        self.timetable.with_run_at(self.task_id, nominal)
    }

    /// The first instant, from `first` on, that runs strictly after `time`. An instant runs before the next nominal one
    /// comes, so only the last one up to `time` is in doubt.
    fn first_running_after(&self, first: Option<DateTime<Utc>>, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let first = first?;
        if self.at(first).run_at > time {
            return Some(first);
        }
        match self.timetable.last_before(time + TICK, first) {
            Some(last) if self.at(last).run_at > time => Some(last),
            _ => self.timetable.next_after(time.max(first)),
        }
    }

    /// The newest instant that fires, of those that have passed from `first` on, if it is on time; else the first that
    /// has not passed. The excluded ones behind it are few: none is older than the grace.
    fn on_time(&self, first: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
        let to_come = self.first_running_after(first, self.now);
        let mut edge = self.late_until(to_come);
        while let Some(last) = self.timetable.last_before(edge, first?)
            && self.at(last).run_at > self.now - MISFIRE_GRACE
        {
            if !self.timetable.excludes(last) {
                return Some(last);
            }
            edge = last;
        }
        to_come
    }

    /// Decides about the instants that are late: from `first` those outside the window, from `in_window` those inside,
    /// up to `on_time`.
    fn catch_up(
        &mut self,
        first: Option<DateTime<Utc>>,
        in_window: Option<DateTime<Utc>>,
        on_time: Option<DateTime<Utc>>,
    ) -> Option<CoalescedInstants> {
        if self.timetable.catch_up == CatchUp::Skip {
            self.skip_range(first, on_time, reason::CATCH_UP_SKIP);
            return None;
        }
        self.skip_range(first, in_window, reason::MISSED_WINDOW);
        let from = in_window.filter(|from| Some(*from) != on_time)?;
        match self.timetable.catch_up {
            CatchUp::All => {
                let recent = self.newest(from, on_time, MOST_CAUGHT_UP);
                self.run_newest(recent);
                None
            }
            _ => {
                let recent = self.newest(from, on_time, 1);
                self.coalesce(recent)
            }
        }
    }

    /// Skips the instants from `from` to `end` (exclusive; `None`: all there are) in one range.
    fn skip_range(&mut self, from: Option<DateTime<Utc>>, end: Option<DateTime<Utc>>, reason: &'static str) {
        let Some(from) = from.filter(|from| Some(*from) != end) else { return };
        let to = self.timetable.last_before(self.late_until(end), from).unwrap_or(from);
        let missed = self.timetable.range(from, to);
        self.plan.skips.push(Skip { missed, reason });
    }

    /// Where late instants end: all of them have passed.
    fn late_until(&self, end: Option<DateTime<Utc>>) -> DateTime<Utc> {
        end.unwrap_or(self.now + TICK)
    }

    /// Lists all instants from `from` to `end`, or where they are too many the newest, until `wanted` of them could
    /// run.
    fn newest(&self, from: DateTime<Utc>, end: Option<DateTime<Utc>>, wanted: usize) -> RecentInstants {
        let edge = self.late_until(end);
        let listed = self.timetable.walk(from, edge);
        if listed.len() <= EXAMINED {
            return RecentInstants { older: None, listed };
        }
        let mut listed = Vec::new();
        let (mut edge, mut found) = (edge, 0);
        while found < wanted
            && listed.len() < EXAMINED
            && let Some(instant) = self.timetable.last_before(edge, from)
        {
            found += usize::from(!self.timetable.excludes(instant));
            listed.push(instant);
            edge = instant;
        }
        listed.reverse();
        let older = self.timetable.last_before(edge, from).map(|to| self.timetable.range(from, to));
        RecentInstants { older, listed }
    }

    /// Skips the excluded ones, a range for each group without another instant between; answers the others.
    fn skip_excluded(&mut self, listed: &[DateTime<Utc>]) -> Vec<DateTime<Utc>> {
        let marked: Vec<_> = listed.iter().map(|instant| (*instant, self.timetable.excludes(*instant))).collect();
        let mut kept = Vec::new();
        for group in marked.chunk_by(|(_, one), (_, other)| one == other) {
            let instants: Vec<_> = group.iter().map(|(instant, _)| *instant).collect();
            match group.first() {
                Some((_, true)) => {
                    let missed = merge_range(None, &instants);
                    self.plan.skips.extend(missed.map(|missed| Skip { missed, reason: reason::EXCLUDED }));
                }
                _ => kept.extend(instants),
            }
        }
        kept
    }

    /// `catch_up: all`: the newest run, the older ones are skipped in one range.
    fn run_newest(&mut self, recent: RecentInstants) {
        let kept = self.skip_excluded(&recent.listed);
        let (too_old, caught_up) = kept.split_at(kept.len().saturating_sub(MOST_CAUGHT_UP));
        if let Some(missed) = merge_range(recent.older, too_old) {
            self.plan.skips.push(Skip { missed, reason: reason::CATCH_UP_LIMIT });
        }
        for nominal in caught_up {
            self.fire(self.at(*nominal));
        }
    }

    /// `catch_up: latest`: one run stands for all.
    fn coalesce(&mut self, recent: RecentInstants) -> Option<CoalescedInstants> {
        let kept = self.skip_excluded(&recent.listed);
        match kept.split_last() {
            Some((latest, earlier)) => {
                Some(CoalescedInstants { latest: *latest, before: merge_range(recent.older, earlier) })
            }
            None => {
                let too_old = recent.older.map(|missed| Skip { missed, reason: reason::CATCH_UP_LIMIT });
                self.plan.skips.extend(too_old);
                None
            }
        }
    }

    /// Takes the instants that are on time, each by itself, and finds the next one.
    fn take_on_time(&mut self, from: Option<DateTime<Utc>>, until: DateTime<Utc>) {
        let mut nominal = from;
        while let Some(instant) = nominal {
            let next = self.at(instant);
            if next.run_at > until {
                self.plan.next = Some(next);
                return;
            }
            if self.timetable.excludes(instant) {
                let missed = MissedInstants { from: instant, to: instant, count: Some(1) };
                self.plan.skips.push(Skip { missed, reason: reason::EXCLUDED });
            } else {
                self.fire(next);
            }
            nominal = self.timetable.next_after(instant);
        }
    }

    fn fire(&mut self, NextFire { nominal, run_at }: NextFire) {
        self.plan.fires.push(PlannedFire { nominal, run_at, missed: None });
    }

    /// Gives the coalesced instants their run, and keeps to what `max_runs` leaves.
    fn finish(mut self, coalesced: Option<CoalescedInstants>, room: u64) -> FirePlan {
        let has_passed = |fire: &PlannedFire| fire.run_at <= self.now;
        if let Some(CoalescedInstants { latest, before }) = coalesced {
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let own = self.at(latest);
            match self.plan.fires.iter_mut().take(room).rfind(|fire| has_passed(fire)) {
                Some(fire) => fire.missed = merge_range(before, &[latest]),
                None => {
                    let fire = PlannedFire { nominal: own.nominal, run_at: own.run_at, missed: before };
                    self.plan.fires.insert(0, fire);
                }
            }
        }
        if self.plan.fires.len() as u64 >= room {
            let cut = self.plan.fires.split_off(room as usize);
            self.plan.next = None;
            let missed: Vec<_> = cut.iter().filter(|fire| has_passed(fire)).map(|fire| fire.nominal).collect();
            let last = missed.last().copied().or(self.plan.fires.last().map(|fire| fire.nominal));
            self.plan.skips.retain(|skip| Some(skip.missed.from) < last);
            let spent = merge_range(None, &missed).map(|missed| Skip { missed, reason: reason::MAX_RUNS });
            self.plan.skips.extend(spent);
        }
        self.plan.skips.sort_by_key(|skip| skip.missed.from);
        self.plan
    }
}

/// The range of older instants and these; `None` if there are neither.
fn merge_range(older: Option<MissedInstants>, instants: &[DateTime<Utc>]) -> Option<MissedInstants> {
    let (Some(first), Some(last)) = (instants.first(), instants.last()) else { return older };
    let here = instants.len() as u64;
    Some(match older {
        None => MissedInstants { from: *first, to: *last, count: Some(here) },
        Some(older) => MissedInstants { from: older.from, to: *last, count: older.count.map(|count| count + here) },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::trigger::Schedule;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn due(nominal: &str) -> DueSchedule {
        DueSchedule {
            task_id: Uuid::nil(),
            anchor: at("2026-01-01T00:00:00Z"),
            active_since: at("2026-01-01T00:00:00Z"),
            nominal: at(nominal),
            fire_count: 0,
            max_runs: None,
        }
    }

    /// The plan, seen at `now` with a horizon of a second, as lines.
    fn plan(schedule: Value, due: &DueSchedule, now: &str) -> Vec<String> {
        let schedule: Schedule = serde_json::from_value(schedule).unwrap();
        let time = |instant: DateTime<Utc>| instant.format("%d %H:%M:%S").to_string();
        let range = |missed: &MissedInstants| {
            let count = missed.count.map_or("?".into(), |count| count.to_string());
            format!("{} to {} ({count})", time(missed.from), time(missed.to))
        };
        let plan = schedule.plan(due, at(now), at(now) + TimeDelta::seconds(1)).0.unwrap();
        let fires = plan.fires.iter().map(|fire| match &fire.missed {
            None => format!("fire {}", time(fire.nominal)),
            Some(missed) => format!("fire {} for {}", time(fire.nominal), range(missed)),
        });
        let skips = plan.skips.iter().map(|skip| format!("{} {}", skip.reason, range(&skip.missed)));
        let next = plan.next.map_or("end".into(), |next| format!("next {}", time(next.nominal)));
        fires.chain(skips).chain([next]).collect()
    }

    #[test]
    fn instant_on_time_fires_and_a_coming_one_fires_a_little_ahead() {
        let hourly = || json!({"cron": "0 * * * *"});
        let due_at_ten = due("2026-01-01T10:00:00Z");
        assert_eq!(plan(hourly(), &due_at_ten, "2026-01-01T09:59:59Z"), ["fire 01 10:00:00", "next 01 11:00:00"]);
        assert_eq!(plan(hourly(), &due_at_ten, "2026-01-01T10:00:29Z"), ["fire 01 10:00:00", "next 01 11:00:00"]);
        assert_eq!(plan(hourly(), &due_at_ten, "2026-01-01T09:59:58Z"), ["next 01 10:00:00"]);
        let often = json!({"interval": "10s"});
        assert_eq!(
            plan(often, &due("2026-01-01T10:00:00Z"), "2026-01-01T10:00:25Z"),
            ["fire 01 10:00:20 for 01 10:00:00 to 01 10:00:10 (2)", "next 01 10:00:30"]
        );
    }

    #[test]
    fn latest_runs_once_for_all_that_was_missed_in_the_window() {
        let every_ten = |window: &str| json!({"cron": "*/10 * * * *", "catch_up_window": window});
        assert_eq!(
            plan(every_ten("1h"), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:35:00Z"),
            ["fire 01 10:30:00 for 01 10:00:00 to 01 10:20:00 (3)", "next 01 10:40:00"]
        );
        assert_eq!(
            plan(every_ten("15m"), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:35:00Z"),
            [
                "fire 01 10:30:00 for 01 10:20:00 to 01 10:20:00 (1)",
                "missed_window 01 10:00:00 to 01 10:10:00 (2)",
                "next 01 10:40:00"
            ]
        );
        // where one of them is on time, it is that one which runs for the others
        assert_eq!(
            plan(every_ten("1h"), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:30:10Z"),
            ["fire 01 10:30:00 for 01 10:00:00 to 01 10:20:00 (3)", "next 01 10:40:00"]
        );
        // one that is only about to come does not stand for what has passed
        assert_eq!(
            plan(every_ten("1h"), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:29:59.500Z"),
            ["fire 01 10:20:00 for 01 10:00:00 to 01 10:10:00 (2)", "fire 01 10:30:00", "next 01 10:40:00"]
        );
    }

    #[test]
    fn all_runs_each_and_at_most_the_newest_hundred() {
        let all = |when: &str, window: &str| json!({"cron": when, "catch_up": "all", "catch_up_window": window});
        assert_eq!(
            plan(all("0 * * * *", "1d"), &due("2026-01-01T10:00:00Z"), "2026-01-01T12:30:00Z"),
            ["fire 01 10:00:00", "fire 01 11:00:00", "fire 01 12:00:00", "next 01 13:00:00"]
        );
        let many = plan(all("* * * * *", "1d"), &due("2026-01-01T10:00:00Z"), "2026-01-01T12:00:45Z");
        assert_eq!(many.len(), 102);
        assert_eq!((many[0].as_str(), many[99].as_str()), ("fire 01 10:21:00", "fire 01 12:00:00"));
        assert_eq!(many[100], "catch_up_limit 01 10:00:00 to 01 10:20:00 (21)");
        let more = plan(all("* * * * *", "2d"), &due("2026-01-01T10:00:00Z"), "2026-01-02T10:00:45Z");
        assert_eq!(more[0], "fire 02 08:21:00");
        assert_eq!(more[100], "catch_up_limit 01 10:00:00 to 02 08:20:00 (?)");
    }

    #[test]
    fn skip_runs_nothing_late_and_says_so_in_one_range() {
        let schedule = json!({"cron": "0 * * * *", "catch_up": "skip"});
        assert_eq!(
            plan(schedule, &due("2026-01-01T10:00:00Z"), "2026-01-02T10:00:10Z"),
            ["fire 02 10:00:00", "catch_up_skip 01 10:00:00 to 02 09:00:00 (24)", "next 02 11:00:00"]
        );
    }

    #[test]
    fn catch_up_after_a_short_stop_has_only_the_newest_instant_on_time() {
        let every_second =
            |catch_up: &str| json!({"interval": "1s", "catch_up": catch_up, "exclude": ["20 0 10 * * *"]});
        let seen = |catch_up| plan(every_second(catch_up), &due("2026-01-01T10:00:01Z"), "2026-01-01T10:00:20Z");
        assert_eq!(
            seen("latest"),
            [
                "fire 01 10:00:19 for 01 10:00:01 to 01 10:00:18 (18)",
                "fire 01 10:00:21",
                "excluded 01 10:00:20 to 01 10:00:20 (1)",
                "next 01 10:00:22"
            ]
        );
        assert_eq!(
            seen("skip"),
            [
                "fire 01 10:00:19",
                "fire 01 10:00:21",
                "catch_up_skip 01 10:00:01 to 01 10:00:18 (18)",
                "excluded 01 10:00:20 to 01 10:00:20 (1)",
                "next 01 10:00:22"
            ]
        );
        assert_eq!(seen("all").len(), 22);
    }

    #[test]
    fn excluded_instant_has_its_own_record_and_is_never_the_one_that_runs() {
        let schedule = json!({"cron": "*/10 * * * *", "exclude": ["20-30 * * * *"]});
        assert_eq!(
            plan(schedule.clone(), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:35:00Z"),
            [
                "fire 01 10:10:00 for 01 10:00:00 to 01 10:00:00 (1)",
                "excluded 01 10:20:00 to 01 10:30:00 (2)",
                "next 01 10:40:00"
            ]
        );
        assert_eq!(
            plan(schedule, &due("2026-01-01T10:20:00Z"), "2026-01-01T10:20:00Z"),
            ["excluded 01 10:20:00 to 01 10:20:00 (1)", "next 01 10:30:00"]
        );
    }

    #[test]
    fn last_run_that_is_allowed_ends_the_schedule() {
        let limited =
            |fire_count, max_runs| DueSchedule { fire_count, max_runs: Some(max_runs), ..due("2026-01-01T10:00:00Z") };
        let all = || json!({"cron": "0 * * * *", "catch_up": "all", "catch_up_window": "1d"});
        assert_eq!(
            plan(all(), &limited(3, 5), "2026-01-01T20:30:00Z"),
            ["fire 01 10:00:00", "fire 01 11:00:00", "max_runs 01 12:00:00 to 01 20:00:00 (9)", "end"]
        );
        assert_eq!(plan(all(), &limited(5, 5), "2026-01-01T20:30:00Z"), ["end"]);
        let latest = json!({"interval": "10s"});
        assert_eq!(
            plan(latest, &limited(4, 5), "2026-01-01T10:01:00Z"),
            ["fire 01 10:01:00 for 01 10:00:00 to 01 10:00:50 (6)", "end"]
        );
    }

    #[test]
    fn one_shot_runs_late_within_its_window_and_is_recorded_as_missed_after_it() {
        let once = || json!({"at": "2026-01-01T10:00:00Z"});
        assert_eq!(plan(once(), &due("2026-01-01T10:00:00Z"), "2026-01-01T10:59:00Z"), ["fire 01 10:00:00", "end"]);
        assert_eq!(
            plan(once(), &due("2026-01-01T10:00:00Z"), "2026-01-01T11:00:01Z"),
            ["missed_window 01 10:00:00 to 01 10:00:00 (1)", "end"]
        );
    }

    #[test]
    fn catch_up_begins_when_the_task_became_active() {
        let resumed = DueSchedule { active_since: at("2026-01-01T12:00:00Z"), ..due("2026-01-01T10:00:00Z") };
        assert_eq!(
            plan(json!({"cron": "0 * * * *", "catch_up_window": "1d"}), &resumed, "2026-01-01T13:30:00Z"),
            ["fire 01 13:00:00 for 01 12:00:00 to 01 12:00:00 (1)", "next 01 14:00:00"]
        );
    }

    #[test]
    fn end_of_a_schedule_ends_the_task_once_its_last_instant_has_its_record() {
        let ending = json!({"interval": "1h", "end_at": "2026-01-01T11:30:00Z", "catch_up_window": "2h"});
        assert_eq!(
            plan(ending.clone(), &due("2026-01-01T10:00:00Z"), "2026-01-01T12:45:00Z"),
            ["fire 01 11:00:00", "missed_window 01 10:00:00 to 01 10:00:00 (1)", "end"]
        );
        assert_eq!(
            plan(ending, &due("2026-01-01T10:00:00Z"), "2026-01-05T00:00:00Z"),
            ["missed_window 01 10:00:00 to 01 11:00:00 (2)", "end"]
        );
    }
}
