//! The wall times of an RFC 5545 recurrence rule, daily or coarser.
//!
//! A rule is a sequence of periods (days, weeks, months, years) counted from its start; a date of a period belongs to
//! it if it passes every `BY…` part, which is how the RFC's tables of "expand" and "limit" read once the parts that
//! follow from the start are written out. Nothing is ever listed: the period of any time, the dates of a month, the
//! times of a day and the instant at a position are found by arithmetic, so a rule costs neither its past nor its
//! density. Wall times only: zones are [`zone`](super::zone)'s.

mod dates;
pub mod parts;
mod times;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, TimeDelta, Timelike};

use crate::domain::trigger::rrule::dates::{Dates, week_of};
use crate::domain::trigger::rrule::parts::{Frequency, RuleParts, Until};
use crate::domain::trigger::rrule::times::Times;
use crate::domain::trigger::steps::StepBudget;
use crate::domain::trigger::zone::midnight;

/// The instants of a `COUNT` are counted; what lies further than this many months from the start is not.
const COUNTED: Months = Months::new(100 * 12);
/// Positions that are looked up in one step.
const POSITIONS: u64 = 16;

/// The wall times of one rule from its start on.
#[derive(Debug, Clone)]
pub struct Rrule {
    parts: RuleParts,
    start: NaiveDateTime,
    dates: Dates,
    times: Times,
    /// The period of a search: a rule of all periods without positions does not need its own.
    span: Frequency,
    /// After the last instant of a `COUNT`.
    end: Option<NaiveDateTime>,
    /// Steps that it took to find that end.
    cost: u64,
}

/// The dates of one period: from `first` on and before `end`.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: NaiveDate,
    end: NaiveDate,
}

/// The positions of a period with so many instants, counted from 0, in order; kept while the number stays.
#[derive(Default)]
struct Picks {
    of: u32,
    indexes: Vec<u32>,
}

impl Rrule {
    /// Reads a rule that starts at a wall time (`DTSTART`, whole seconds).
    pub fn parse(text: &str, start: NaiveDateTime) -> Result<Rrule, String> {
        let mut parts = RuleParts::parse(text)?;
        let start = start.with_nanosecond(0).unwrap_or(start);
        follow_from_start(&mut parts, start);
        let (dates, times) = (Dates::new(&parts), Times::new(&parts.hours, &parts.minutes, &parts.seconds));
        let is_whole = parts.positions.is_empty() && parts.interval == 1;
        let span = if is_whole { Frequency::Monthly } else { parts.frequency };
        let mut rule = Rrule { parts, start, dates, times, span, end: None, cost: 0 };
        if let Some(count) = rule.parts.count {
            let steps = StepBudget::unlimited();
            let end = start.checked_add_months(COUNTED).unwrap_or(start);
            rule.end = Some(rule.end_of_count(count, end, &steps).unwrap_or(end));
            rule.cost = steps.used();
        }
        Ok(rule)
    }

    /// Whether it has a `COUNT`.
    pub fn is_counted(&self) -> bool {
        self.parts.count.is_some()
    }

    /// The end of the rule, where it has one.
    pub fn until(&self) -> Option<Until> {
        self.parts.until
    }

    /// Whether a search may look at many dates for each that it finds.
    pub fn is_intricate(&self) -> bool {
        !self.parts.positions.is_empty() || self.dates.looks_at_each()
    }

    /// The steps that reading it took.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The first wall time at or after `from` and before `horizon`, in whole seconds; `None`, too, where the steps are
    /// used up.
    pub fn search(&self, from: NaiveDateTime, horizon: NaiveDateTime, steps: &StepBudget) -> Option<NaiveDateTime> {
        let from = whole_second(from)?.max(self.start);
        let horizon = self.end.map_or(horizon, |end| end.min(horizon));
        let mut picks = Picks::default();
        let mut period = self.period_of(from.date());
        loop {
            steps.search(1)?;
            let span = self.span(period).filter(|span| midnight(span.first) < horizon)?;
            if let Some(found) = self.first_in(span, from, &mut picks, steps) {
                return Some(found).filter(|found| *found < horizon);
            }
            period += 1;
        }
    }

    /// The first wall time of a period that is not before `from`.
    fn first_in(
        &self,
        span: Span,
        from: NaiveDateTime,
        picks: &mut Picks,
        steps: &StepBudget,
    ) -> Option<NaiveDateTime> {
        if !self.parts.positions.is_empty() {
            let passed = self.passed(span, from, steps)?;
            self.pick(span, picks, steps)?;
            let next = picks.indexes.get(picks.indexes.partition_point(|index| *index < passed))?;
            return self.nth(span, *next, steps);
        }
        let date = self.dates.next(span.first.max(from.date()), span.end, steps)?;
        let earlier = if date == from.date() { self.times.before(from.time()) } else { 0 };
        if let Some(time) = self.times.nth(earlier) {
            return Some(date.and_time(time));
        }
        let date = self.dates.next(date.succ_opt()?, span.end, steps)?;
        Some(date.and_time(self.times.nth(0)?))
    }

    /// After the instant that is the last of so many; `None` where they are fewer before `end`.
    fn end_of_count(&self, count: u32, end: NaiveDateTime, steps: &StepBudget) -> Option<NaiveDateTime> {
        let mut picks = Picks::default();
        let mut left = count;
        let mut period = self.period_of(self.start.date());
        loop {
            let span = self.span(period).filter(|span| midnight(span.first) < end)?;
            let passed = self.passed(span, self.start, steps)?;
            let of_span = match self.parts.positions.is_empty() {
                true => self.instants_of(span, steps)? - passed,
                false => {
                    self.pick(span, &mut picks, steps)?;
                    picks.indexes.retain(|index| *index >= passed);
                    picks.indexes.len() as u32
                }
            };
            if of_span >= left {
                let index = picks.indexes.get(left as usize - 1).copied().unwrap_or(passed + left - 1);
                return Some(self.nth(span, index, steps)? + TimeDelta::seconds(1));
            }
            if passed > 0 {
                picks = Picks::default();
            }
            left -= of_span;
            period += 1;
        }
    }

    /// How many instants of a period are before a time, positions aside.
    fn passed(&self, span: Span, time: NaiveDateTime, steps: &StepBudget) -> Option<u32> {
        let date = time.date().min(span.end);
        if date < span.first {
            return Some(0);
        }
        let days = self.dates.count(span.first, date, steps)?;
        let is_one = date < span.end && self.dates.next(date, date.succ_opt()?, steps).is_some();
        let of_day = if is_one { self.times.before(time.time()) } else { 0 };
        Some(days * self.times.count() + of_day)
    }

    fn instants_of(&self, span: Span, steps: &StepBudget) -> Option<u32> {
        Some(self.dates.count(span.first, span.end, steps)? * self.times.count())
    }

    /// The instant of a period before which `index` others are, positions aside.
    fn nth(&self, span: Span, index: u32, steps: &StepBudget) -> Option<NaiveDateTime> {
        let of_day = self.times.count().max(1);
        let date = self.dates.nth(span.first, index / of_day, steps)?;
        Some(date.and_time(self.times.nth(index % of_day)?))
    }

    /// Finds what the positions pick of a period.
    fn pick(&self, span: Span, picks: &mut Picks, steps: &StepBudget) -> Option<()> {
        let of = self.instants_of(span, steps)?;
        if of != picks.of {
            steps.search(self.parts.positions.len() as u64 / POSITIONS)?;
            let index = |position: &i32| match u32::try_from(*position) {
                Ok(front) => front.checked_sub(1).filter(|index| *index < of),
                Err(_) => of.checked_sub(position.unsigned_abs()),
            };
            picks.of = of;
            picks.indexes = self.parts.positions.iter().filter_map(index).collect();
            picks.indexes.sort_unstable();
            picks.indexes.dedup();
        }
        Some(())
    }

    /// The number of the period that a date is in or, between two, of the one before; counted from the start's.
    fn period_of(&self, date: NaiveDate) -> i64 {
        let start = self.start.date();
        let months = |date: NaiveDate| i64::from(date.year()) * 12 + i64::from(date.month0());
        let week_of = |date| week_of(date, self.parts.week_start);
        let passed = match self.span {
            Frequency::Daily => (date - start).num_days(),
            Frequency::Weekly => (week_of(date) - week_of(start)).num_days().div_euclid(7),
            Frequency::Monthly => months(date) - months(start),
            Frequency::Yearly => i64::from(date.year() - start.year()),
        };
        passed.div_euclid(self.parts.interval.into())
    }

    fn span(&self, period: i64) -> Option<Span> {
        let start = self.start.date();
        let steps = u32::try_from(period).ok()?.checked_mul(self.parts.interval)?;
        let days = |first: NaiveDate, days: u64| Some((first, first.checked_add_days(Days::new(days))?));
        let months = |first: NaiveDate, months: u32| Some((first, first.checked_add_months(Months::new(months))?));
        let (first, end) = match self.span {
            Frequency::Daily => days(start.checked_add_days(Days::new(steps.into()))?, 1),
            Frequency::Weekly => {
                let week = week_of(start, self.parts.week_start);
                days(week.checked_add_days(Days::new(u64::from(steps) * 7))?, 7)
            }
            Frequency::Monthly => months(start.with_day(1)?.checked_add_months(Months::new(steps))?, 1),
            Frequency::Yearly => months(NaiveDate::from_ymd_opt(start.year().checked_add_unsigned(steps)?, 1, 1)?, 12),
        }?;
        Some(Span { first, end })
    }
}

/// The first whole second at or after a time.
fn whole_second(time: NaiveDateTime) -> Option<NaiveDateTime> {
    match time.nanosecond() {
        0 => Some(time),
        _ => time.with_nanosecond(0)?.checked_add_signed(TimeDelta::seconds(1)),
    }
}

/// Writes out the parts that follow from the start where nothing else says the day or the time.
fn follow_from_start(parts: &mut RuleParts, start: NaiveDateTime) {
    let no_day = parts.weekdays.is_empty()
        && parts.month_days.is_empty()
        && parts.year_days.is_empty()
        && parts.week_numbers.is_empty();
    match parts.frequency {
        Frequency::Weekly if no_day => parts.weekdays = vec![(None, start.weekday())],
        Frequency::Monthly if no_day => parts.month_days = vec![start.day() as i32],
        Frequency::Yearly if no_day => {
            parts.month_days = vec![start.day() as i32];
            if parts.months.is_empty() {
                parts.months = vec![start.month() as i32];
            }
        }
        // the RFC's table: a week number alone means the start's weekday in those weeks
        Frequency::Yearly if !parts.week_numbers.is_empty() && only_week_numbers(parts) => {
            parts.weekdays = vec![(None, start.weekday())];
        }
        _ => {}
    }
    let fill = |list: &mut Vec<i32>, value: u32| {
        if list.is_empty() {
            list.push(value as i32);
        }
    };
    fill(&mut parts.hours, start.hour());
    fill(&mut parts.minutes, start.minute());
    fill(&mut parts.seconds, start.second());
}

fn only_week_numbers(parts: &RuleParts) -> bool {
    parts.weekdays.is_empty() && parts.month_days.is_empty() && parts.year_days.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(rule: &str, start: &str, n: usize) -> Vec<String> {
        let start: NaiveDateTime = start.parse().unwrap();
        let rule = Rrule::parse(rule, start).unwrap();
        let horizon = start.checked_add_months(Months::new(480)).unwrap();
        let mut from = start;
        let mut found = Vec::new();
        while let Some(time) = rule.search(from, horizon, &StepBudget::unlimited())
            && found.len() < n
        {
            found.push(time.format("%Y%m%dT%H%M").to_string());
            from = time + chrono::TimeDelta::seconds(1);
        }
        found
    }

    #[test]
    fn examples_of_the_rfc_come_out() {
        let start = "1997-09-02T09:00:00"; // a Tuesday, as in RFC 5545, section 3.8.5.3
        for (rule, expected) in [
            ("FREQ=DAILY;COUNT=3", "19970902 19970903 19970904"),
            ("FREQ=DAILY;INTERVAL=10;COUNT=5", "19970902 19970912 19970922 19971002 19971012"),
            ("FREQ=WEEKLY;INTERVAL=2;WKST=SU", "19970902 19970916 19970930 19971014"),
            ("FREQ=WEEKLY;COUNT=4;WKST=SU;BYDAY=TU,TH", "19970902 19970904 19970909 19970911"),
            ("FREQ=MONTHLY;BYDAY=1FR", "19970905 19971003 19971107 19971205"),
            ("FREQ=MONTHLY;INTERVAL=2;BYDAY=1SU,-1SU", "19970907 19970928 19971102 19971130"),
            ("FREQ=MONTHLY;BYDAY=-2MO", "19970922 19971020 19971117 19971222"),
            ("FREQ=MONTHLY;BYMONTHDAY=-3", "19970928 19971029 19971128 19971229"),
            ("FREQ=MONTHLY;BYMONTHDAY=1,-1", "19970930 19971001 19971031 19971101"),
            ("FREQ=YEARLY;BYMONTH=6,7", "19980602 19980702 19990602 19990702"),
            ("FREQ=YEARLY;INTERVAL=3;BYYEARDAY=1,100,200", "20000101 20000409 20000718 20030101"),
            ("FREQ=YEARLY;BYDAY=20MO", "19980518 19990517 20000515"),
            ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "19980511 19990517 20000515"),
            ("FREQ=YEARLY;BYMONTH=3;BYDAY=TH", "19980305 19980312 19980319 19980326 19990304"),
            ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "19980213 19980313 19981113 19990813 20001013"),
            ("FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13", "19970913 19971011 19971108"),
            ("FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8", "19971104 20011106 20051108"),
            ("FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3", "19970904 19971007 19971106"),
            ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2", "19970929 19971030 19971127 19971230"),
        ] {
            let expected: Vec<String> = expected.split(' ').map(|date| format!("{date}T0900")).collect();
            assert_eq!(first(rule, start, expected.len()), expected, "{rule}");
        }
        assert_eq!(first("FREQ=DAILY;BYHOUR=9,10;BYMINUTE=0,30;COUNT=5", start, 9).len(), 5);
    }

    #[test]
    fn first_day_of_the_week_decides_which_weeks_count() {
        let start = "1997-08-05T09:00:00";
        let monday = first("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", start, 9);
        let sunday = first("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", start, 9);
        assert_eq!(monday, ["19970805T0900", "19970810T0900", "19970819T0900", "19970824T0900"]);
        assert_eq!(sunday, ["19970805T0900", "19970817T0900", "19970819T0900", "19970831T0900"]);
    }

    #[test]
    fn week_of_two_years_belongs_to_the_one_that_has_most_of_its_days() {
        let weeks = |rule: &str, start: &str| first(rule, start, 2);
        let start = "2029-06-01T00:00:00";
        // the week from Friday 2030-12-27 is the last of 52, and has its Thursday in January; 2029 has 53 of them
        assert_eq!(weeks("FREQ=YEARLY;BYWEEKNO=52;BYDAY=TH;WKST=FR", start), ["20291227T0000", "20310102T0000"]);
        assert_eq!(weeks("FREQ=YEARLY;BYWEEKNO=-1;BYDAY=TH;WKST=FR", start), ["20300103T0000", "20310102T0000"]);
        // Monday 2029-12-31 is in the first week of 2030, and so is what the year begins with
        assert_eq!(weeks("FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO,TU", start), ["20291231T0000", "20300101T0000"]);
        assert_eq!(
            weeks("FREQ=YEARLY;BYWEEKNO=53;BYDAY=FR", "2020-06-01T00:00:00"),
            ["20210101T0000", "20270101T0000"]
        );
    }

    #[test]
    fn day_that_a_month_lacks_is_left_out() {
        assert_eq!(
            first("FREQ=MONTHLY", "2026-01-31T08:00:00", 3),
            ["20260131T0800", "20260331T0800", "20260531T0800"]
        );
        assert_eq!(first("FREQ=YEARLY", "2024-02-29T08:00:00", 2), ["20240229T0800", "20280229T0800"]);
    }

    /// A rule of every second, written out: 533 characters.
    fn every_second() -> String {
        let list = |from: u32, to: u32| (from..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let (days, hours, sixty) = (list(1, 31), list(0, 23), list(0, 59));
        format!("FREQ=YEARLY;BYMONTHDAY={days};BYHOUR={hours};BYMINUTE={sixty};BYSECOND={sixty}")
    }

    #[test]
    fn dense_rule_costs_what_a_sparse_one_does() {
        let start: NaiveDateTime = "2026-01-01T00:00:00".parse().unwrap();
        let horizon = start + TimeDelta::days(40 * 366);
        let dense = every_second();
        assert_eq!(dense.len(), 533);
        for (parts, from, expected) in [
            ("", "2026-06-15T12:34:56", Some("2026-06-15T12:34:56")),
            (";BYSETPOS=-1", "2026-06-15T12:34:56", Some("2026-12-31T23:59:59")),
            (";BYSETPOS=-1,60", "2026-12-31T23:59:60", Some("2027-01-01T00:00:59")),
            (";COUNT=10000", "2026-01-01T02:46:39", Some("2026-01-01T02:46:39")),
            (";COUNT=10000", "2026-01-01T02:46:40", None),
            (";INTERVAL=2", "2027-01-01T00:00:00", Some("2028-01-01T00:00:00")),
        ] {
            let rule = Rrule::parse(&format!("{dense}{parts}"), start).unwrap();
            let steps = StepBudget::unlimited();
            let from = from.parse::<NaiveDateTime>().unwrap();
            let found = rule.search(from, horizon, &steps);
            assert_eq!(found, expected.map(|time| time.parse().unwrap()), "{parts} from {from}");
            assert!(rule.cost() + steps.used() < 100, "{parts}: {} + {}", rule.cost(), steps.used());
        }
    }

    #[test]
    fn search_ends_with_its_steps_and_costs_no_more_than_the_months_to_its_horizon() {
        let start: NaiveDateTime = "2026-01-01T00:00:00".parse().unwrap();
        let horizon = start + TimeDelta::days(40 * 366);
        for rule in
            ["FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6", "FREQ=YEARLY;BYYEARDAY=366"]
        {
            let never = Rrule::parse(rule, start + TimeDelta::days(1)).unwrap();
            let steps = StepBudget::unlimited();
            let found = never.search(start + TimeDelta::days(3 * 366), horizon, &steps);
            assert_eq!(found.is_some(), rule.ends_with("366"), "{rule}");
            assert!(steps.used() < 5_000, "{rule}: {}", steps.used());
        }
        let daily = Rrule::parse("FREQ=DAILY", start).unwrap();
        assert_eq!(daily.search(start, horizon, &StepBudget::new(1)), None);
    }

    #[test]
    fn rule_that_never_comes_ends_the_search() {
        for rule in [
            "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
            "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
            "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
        ] {
            assert_eq!(first(rule, "2026-01-01T00:00:00", 1), Vec::<String>::new(), "{rule}");
        }
    }
}
