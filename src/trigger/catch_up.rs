//! What is recorded for a schedule that has come due, decided purely: which instants run, which are coalesced into a run,
//! which are skipped and why.
//!
//! Every instant that is considered ends in exactly one of the three. A range (a skip's, or a run's `missed`) stands for
//! those instants in it that have no record of their own, and its count counts just those. An outage of a year costs
//! what one of an hour does: boundaries are found by halving, and at most [`EXAMINED`] instants are looked at one by one.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::run::Missed;
use crate::trigger::policy::CatchUp;
use crate::trigger::timetable::{TICK, Timetable};

/// An instant this little late is on time.
pub const MISFIRE_GRACE: TimeDelta = TimeDelta::seconds(30);
/// The most missed instants that `catch_up: all` runs.
pub const MOST_CAUGHT_UP: usize = 100;
/// The most instants of a range that are looked at one by one.
pub const EXAMINED: usize = 1000;

/// Why instants were skipped, as recorded.
pub mod reason {
    /// Older than the catch-up window.
    pub const MISSED_WINDOW: &str = "missed_window";
    /// Missed, and the task does not catch up.
    pub const CATCH_UP_SKIP: &str = "catch_up_skip";
    /// Missed, and more recent ones used up the limit.
    pub const CATCH_UP_LIMIT: &str = "catch_up_limit";
    /// Excluded by the schedule.
    pub const EXCLUDED: &str = "excluded";
}

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
    /// Oldest first.
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

/// Instants that do not run, and why: one of [`reason`].
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    pub missed: Missed,
    pub reason: &'static str,
}

/// An instant to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    pub nominal: DateTime<Utc>,
    pub run_at: DateTime<Utc>,
}

impl Timetable {
    /// What is to be recorded of all instants from `due.nominal` on that run by `until` (a little after `now`, so that
    /// fires are recorded ahead of their time). Once `max_runs` is used up nothing more is considered.
    pub fn plan(&self, due: &Due, now: DateTime<Utc>, until: DateTime<Utc>) -> Plan {
        let room = due.max_runs.map_or(u64::MAX, |most| most.saturating_sub(due.fired));
        if room == 0 {
            return Plan::default();
        }
        let mut planning = Planning { timetable: self, task_id: due.task_id, now, plan: Plan::default() };
        let first = match due.nominal < due.active_since {
            true => self.next_after(due.active_since - TICK),
            false => Some(due.nominal),
        };
        let expired_end = planning.first_running_after(first, now - self.window - TICK);
        let missed_end = planning.first_running_after(expired_end, now - MISFIRE_GRACE);
        let coalesced = planning.catch_up(first, expired_end, missed_end);
        planning.take_live(missed_end, until);
        planning.finish(coalesced, room)
    }
}

/// A plan in the making.
struct Planning<'a> {
    timetable: &'a Timetable,
    task_id: Uuid,
    now: DateTime<Utc>,
    plan: Plan,
}

/// Missed instants, oldest first: those that were looked at, and the older ones that were too many for that.
struct Stretch {
    older: Option<Missed>,
    listed: Vec<DateTime<Utc>>,
}

/// Missed instants that one run will stand for.
struct Coalesced {
    /// The one that runs, if no later instant does in its place.
    latest: DateTime<Utc>,
    before: Option<Missed>,
}

impl Planning<'_> {
    fn at(&self, nominal: DateTime<Utc>) -> Next {
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

    /// Decides about the instants that are late: from `first` those outside the window, from `in_window` those inside,
    /// up to `on_time`.
    fn catch_up(
        &mut self,
        first: Option<DateTime<Utc>>,
        in_window: Option<DateTime<Utc>>,
        on_time: Option<DateTime<Utc>>,
    ) -> Option<Coalesced> {
        if self.timetable.catch_up == CatchUp::Skip {
            self.skip_range(first, on_time, reason::CATCH_UP_SKIP);
            return None;
        }
        self.skip_range(first, in_window, reason::MISSED_WINDOW);
        let from = in_window.filter(|from| Some(*from) != on_time)?;
        match self.timetable.catch_up {
            CatchUp::All => {
                let stretch = self.newest(from, on_time, MOST_CAUGHT_UP);
                self.run_newest(stretch);
                None
            }
            _ => {
                let stretch = self.newest(from, on_time, 1);
                self.coalesce(stretch)
            }
        }
    }

    /// Skips the instants from `from` to `end` (exclusive; `None`: all there are) in one range.
    fn skip_range(&mut self, from: Option<DateTime<Utc>>, end: Option<DateTime<Utc>>, reason: &'static str) {
        let Some(from) = from.filter(|from| Some(*from) != end) else { return };
        let to = self.timetable.last_before(self.edge(end), from).unwrap_or(from);
        let missed = self.range(from, to);
        self.plan.skips.push(Skip { missed, reason });
    }

    /// Where late instants end: all of them have passed.
    fn edge(&self, end: Option<DateTime<Utc>>) -> DateTime<Utc> {
        end.unwrap_or(self.now + TICK)
    }

    fn range(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Missed {
        let count = self.timetable.count(from, to).or_else(|| {
            let walked = self.walk(from, to + TICK);
            (walked.len() <= EXAMINED).then_some(walked.len() as u64)
        });
        Missed { from, to, count }
    }

    /// The instants from `from` to `edge` (exclusive), as far as one more than is examined.
    fn walk(&self, from: DateTime<Utc>, edge: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        std::iter::successors(Some(from), |last| self.timetable.next_after(*last))
            .take_while(|instant| *instant < edge)
            .take(EXAMINED + 1)
            .collect()
    }

    /// Lists all instants from `from` to `end`, or where they are too many the newest, until `wanted` of them could run.
    fn newest(&self, from: DateTime<Utc>, end: Option<DateTime<Utc>>, wanted: usize) -> Stretch {
        let edge = self.edge(end);
        let listed = self.walk(from, edge);
        if listed.len() <= EXAMINED {
            return Stretch { older: None, listed };
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
        let older = self.timetable.last_before(edge, from).map(|to| self.range(from, to));
        Stretch { older, listed }
    }

    /// Skips the excluded ones, a range for each group without another instant between; answers the others.
    fn skip_excluded(&mut self, listed: &[DateTime<Utc>]) -> Vec<DateTime<Utc>> {
        for group in listed.chunk_by(|a, b| self.timetable.excludes(*a) == self.timetable.excludes(*b)) {
            let excluded = group.first().is_some_and(|instant| self.timetable.excludes(*instant));
            let missed = stand_for(None, group).filter(|_| excluded);
            self.plan.skips.extend(missed.map(|missed| Skip { missed, reason: reason::EXCLUDED }));
        }
        listed.iter().copied().filter(|instant| !self.timetable.excludes(*instant)).collect()
    }

    /// `catch_up: all`: the newest run, the older ones are skipped in one range.
    fn run_newest(&mut self, stretch: Stretch) {
        let kept = self.skip_excluded(&stretch.listed);
        let (too_old, caught_up) = kept.split_at(kept.len().saturating_sub(MOST_CAUGHT_UP));
        if let Some(missed) = stand_for(stretch.older, too_old) {
            self.plan.skips.push(Skip { missed, reason: reason::CATCH_UP_LIMIT });
        }
        for nominal in caught_up {
            self.fire(self.at(*nominal));
        }
    }

    /// `catch_up: latest`: one run stands for all.
    fn coalesce(&mut self, stretch: Stretch) -> Option<Coalesced> {
        let kept = self.skip_excluded(&stretch.listed);
        match kept.split_last() {
            Some((latest, earlier)) => Some(Coalesced { latest: *latest, before: stand_for(stretch.older, earlier) }),
            None => {
                let too_old = stretch.older.map(|missed| Skip { missed, reason: reason::CATCH_UP_LIMIT });
                self.plan.skips.extend(too_old);
                None
            }
        }
    }

    /// Takes the instants that are on time, each by itself, and finds the next one.
    fn take_live(&mut self, from: Option<DateTime<Utc>>, until: DateTime<Utc>) {
        let mut nominal = from;
        while let Some(instant) = nominal {
            let next = self.at(instant);
            if next.run_at > until {
                self.plan.next = Some(next);
                return;
            }
            if self.timetable.excludes(instant) {
                let missed = Missed { from: instant, to: instant, count: Some(1) };
                self.plan.skips.push(Skip { missed, reason: reason::EXCLUDED });
            } else {
                self.fire(next);
            }
            nominal = self.timetable.next_after(instant);
        }
    }

    fn fire(&mut self, Next { nominal, run_at }: Next) {
        self.plan.fires.push(PlannedFire { nominal, run_at, missed: None });
    }

    /// Gives the coalesced instants their run, and keeps to what `max_runs` leaves.
    fn finish(mut self, coalesced: Option<Coalesced>, room: u64) -> Plan {
        let has_passed = |fire: &PlannedFire| fire.run_at <= self.now;
        if let Some(Coalesced { latest, before }) = coalesced {
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let own = self.at(latest);
            match self.plan.fires.iter_mut().take(room).rfind(|fire| has_passed(fire)) {
                Some(fire) => fire.missed = stand_for(before, &[latest]),
                None => {
                    let fire = PlannedFire { nominal: own.nominal, run_at: own.run_at, missed: before };
                    self.plan.fires.insert(0, fire);
                }
            }
        }
        if self.plan.fires.len() as u64 >= room {
            self.plan.fires.truncate(room as usize);
            self.plan.next = None;
            let last = self.plan.fires.last().map(|fire| fire.nominal);
            self.plan.skips.retain(|skip| Some(skip.missed.from) < last);
        }
        self.plan.skips.sort_by_key(|skip| skip.missed.from);
        self.plan
    }
}

/// The range of older instants and these; `None` if there are neither.
fn stand_for(older: Option<Missed>, instants: &[DateTime<Utc>]) -> Option<Missed> {
    let (Some(first), Some(last)) = (instants.first(), instants.last()) else { return older };
    let here = instants.len() as u64;
    Some(match older {
        None => Missed { from: *first, to: *last, count: Some(here) },
        Some(older) => Missed { from: older.from, to: *last, count: older.count.map(|count| count + here) },
    })
}
