//! The wall times of an RFC 5545 recurrence rule, daily or coarser.
//!
//! A rule is a sequence of periods (days, weeks, months, years) counted from its start; a date of a period belongs to it
//! if it passes every `BY…` part, which is how the RFC's tables of "expand" and "limit" read once the parts that follow
//! from the start are written out. The period of any time is found by arithmetic, so a rule that began ten years ago
//! costs what one of today does. Wall times only: zones are [`zone`](super::zone)'s.

pub mod parts;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, Timelike, Weekday};

use crate::trigger::rrule::parts::{Frequency, Parts, Until};
use crate::trigger::zone::WallTimes;

/// A rule with a `COUNT` is written out; what lies further than this many months from its start is not.
const WRITTEN_OUT: Months = Months::new(100 * 12);

/// The wall times of one rule from its start on.
#[derive(Debug, Clone)]
pub struct Rrule {
    parts: Parts,
    start: NaiveDateTime,
    times: Vec<NaiveTime>,
    /// Every wall time of a rule with a `COUNT`.
    written_out: Option<Vec<NaiveDateTime>>,
}

impl Rrule {
    /// Reads a rule that starts at a wall time (`DTSTART`, whole seconds).
    pub fn parse(text: &str, start: NaiveDateTime) -> Result<Rrule, String> {
        let mut parts = Parts::parse(text)?;
        let start = start.with_nanosecond(0).unwrap_or(start);
        follow_from_start(&mut parts, start);
        let times = times_of_day(&parts);
        let mut rule = Rrule { parts, start, times, written_out: None };
        if let Some(count) = rule.parts.count {
            let end = start.checked_add_months(WRITTEN_OUT).unwrap_or(start);
            rule.written_out = Some(rule.from(start, end).take(count as usize).collect());
        }
        Ok(rule)
    }

    /// Whether it has a `COUNT`.
    pub fn is_counted(&self) -> bool {
        self.parts.count.is_some()
    }

    pub fn until(&self) -> Option<Until> {
        self.parts.until
    }

    /// All wall times from `from` on and before `end`, in order, `COUNT` aside.
    fn from(&self, from: NaiveDateTime, end: NaiveDateTime) -> impl Iterator<Item = NaiveDateTime> {
        let from = from.max(self.start);
        let mut period = self.period_of(from.date());
        let mut ready = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(time) = ready.find(|time| *time >= from) {
                    return (time < end).then_some(time);
                }
                let first = self.first_date(period).filter(|first| first.and_time(NaiveTime::MIN) < end)?;
                ready = self.times_in(first).into_iter();
                period += 1;
            }
        })
    }

    /// The number of the period that a date is in or, between two, of the one before; counted from the start's.
    fn period_of(&self, date: NaiveDate) -> i64 {
        let start = self.start.date();
        let months = |date: NaiveDate| i64::from(date.year()) * 12 + i64::from(date.month0());
        let passed = match self.parts.frequency {
            Frequency::Daily => (date - start).num_days(),
            Frequency::Weekly => (self.week_of(date) - self.week_of(start)).num_days().div_euclid(7),
            Frequency::Monthly => months(date) - months(start),
            Frequency::Yearly => i64::from(date.year() - start.year()),
        };
        passed.div_euclid(self.parts.interval.into())
    }

    fn first_date(&self, period: i64) -> Option<NaiveDate> {
        let start = self.start.date();
        let steps = u32::try_from(period).ok()?.checked_mul(self.parts.interval)?;
        match self.parts.frequency {
            Frequency::Daily => start.checked_add_days(Days::new(steps.into())),
            Frequency::Weekly => self.week_of(start).checked_add_days(Days::new(u64::from(steps) * 7)),
            Frequency::Monthly => start.with_day(1)?.checked_add_months(Months::new(steps)),
            Frequency::Yearly => NaiveDate::from_ymd_opt(start.year().checked_add_unsigned(steps)?, 1, 1),
        }
    }

    /// The first day of the week of a date.
    fn week_of(&self, date: NaiveDate) -> NaiveDate {
        date.week(self.parts.week_start).checked_first_day().unwrap_or(date)
    }

    /// The wall times of the period that begins at `first`, in order, positions picked.
    fn times_in(&self, first: NaiveDate) -> Vec<NaiveDateTime> {
        let length = match self.parts.frequency {
            Frequency::Daily => 1,
            Frequency::Weekly => 7,
            Frequency::Monthly => month_length(first),
            Frequency::Yearly => year_length(first.year()),
        };
        let dates = first.iter_days().take(length as usize).filter(|date| self.on_date(*date));
        let all: Vec<NaiveDateTime> =
            dates.flat_map(|date| self.times.iter().map(move |time| date.and_time(*time))).collect();
        if self.parts.positions.is_empty() {
            return all;
        }
        let count = all.len() as i32;
        let picked = |index: i32| self.parts.positions.iter().any(|p| *p == index + 1 || *p == index - count);
        all.iter().zip(0..).filter(|(_, index)| picked(*index)).map(|(time, _)| *time).collect()
    }

    fn on_date(&self, date: NaiveDate) -> bool {
        let parts = &self.parts;
        let (day, month_days) = (date.day() as i32, month_length(date) as i32);
        let (ordinal, year_days) = (date.ordinal() as i32, year_length(date.year()) as i32);
        let passes = |list: &[i32], number: i32, length: i32| {
            list.is_empty() || list.contains(&number) || list.contains(&(number - length - 1))
        };
        (parts.months.is_empty() || parts.months.contains(&(date.month() as i32)))
            && passes(&parts.month_days, day, month_days)
            && passes(&parts.year_days, ordinal, year_days)
            && self.in_week_number(date)
            && (parts.weekdays.is_empty() || parts.weekdays.iter().any(|wanted| self.is_weekday(date, *wanted)))
    }

    fn in_week_number(&self, date: NaiveDate) -> bool {
        if self.parts.week_numbers.is_empty() {
            return true;
        }
        // the year that has most days of a week owns it, so its fourth day tells (ISO 8601, for any first day)
        let fourth_of = |date: NaiveDate| self.week_of(date) + Days::new(3);
        let fourth = fourth_of(date);
        let number = (fourth.ordinal0() / 7 + 1) as i32;
        let weeks = NaiveDate::from_ymd_opt(fourth.year(), 12, 28)
            .map_or(52, |last| (fourth_of(last).ordinal0() / 7 + 1) as i32);
        self.parts.week_numbers.contains(&number) || self.parts.week_numbers.contains(&(number - weeks - 1))
    }

    /// Whether a date is the weekday, and the numbered one of its month, or of its year where no month is named.
    fn is_weekday(&self, date: NaiveDate, (which, weekday): (Option<i32>, Weekday)) -> bool {
        if date.weekday() != weekday {
            return false;
        }
        let Some(which) = which else { return true };
        let of_year = self.parts.frequency == Frequency::Yearly && self.parts.months.is_empty();
        let (before, length) = match of_year {
            true => (date.ordinal0(), year_length(date.year())),
            false => (date.day0(), month_length(date)),
        };
        let from_front = (before / 7 + 1) as i32;
        let from_back = ((length - 1 - before) / 7 + 1) as i32;
        which == from_front || -which == from_back
    }
}

impl WallTimes for Rrule {
    fn next_from(&self, from: NaiveDateTime, horizon: NaiveDateTime) -> Option<NaiveDateTime> {
        match &self.written_out {
            Some(all) => all.get(all.partition_point(|time| *time < from)).copied().filter(|time| *time < horizon),
            None => self.from(from, horizon).next(),
        }
    }

    fn follows_elapsed(&self) -> bool {
        false
    }
}

/// Writes out the parts that follow from the start where nothing else says the day or the time.
fn follow_from_start(parts: &mut Parts, start: NaiveDateTime) {
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

fn only_week_numbers(parts: &Parts) -> bool {
    parts.weekdays.is_empty() && parts.month_days.is_empty() && parts.year_days.is_empty()
}

fn times_of_day(parts: &Parts) -> Vec<NaiveTime> {
    let mut times = Vec::new();
    for hour in &parts.hours {
        for minute in &parts.minutes {
            for second in &parts.seconds {
                times.extend(NaiveTime::from_hms_opt(*hour as u32, *minute as u32, *second as u32));
            }
        }
    }
    times
}

fn month_length(date: NaiveDate) -> u32 {
    date.num_days_in_month().into()
}

fn year_length(year: i32) -> u32 {
    if NaiveDate::from_ymd_opt(year, 2, 29).is_some() { 366 } else { 365 }
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
        while let Some(time) = rule.next_from(from, horizon)
            && found.len() < n
        {
            found.push(time.format("%Y%m%dT%H%M").to_string());
            from = time + chrono::TimeDelta::seconds(1);
        }
        found
    }

    #[test]
    fn the_examples_of_the_rfc_come_out() {
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
    fn the_first_day_of_the_week_decides_which_weeks_count() {
        let start = "1997-08-05T09:00:00";
        let monday = first("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", start, 9);
        let sunday = first("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", start, 9);
        assert_eq!(monday, ["19970805T0900", "19970810T0900", "19970819T0900", "19970824T0900"]);
        assert_eq!(sunday, ["19970805T0900", "19970817T0900", "19970819T0900", "19970831T0900"]);
    }

    #[test]
    fn a_week_of_two_years_belongs_to_the_one_that_has_most_of_its_days() {
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
    fn a_day_that_a_month_lacks_is_left_out() {
        assert_eq!(
            first("FREQ=MONTHLY", "2026-01-31T08:00:00", 3),
            ["20260131T0800", "20260331T0800", "20260531T0800"]
        );
        assert_eq!(first("FREQ=YEARLY", "2024-02-29T08:00:00", 2), ["20240229T0800", "20280229T0800"]);
    }

    #[test]
    fn a_rule_that_never_comes_ends_the_search() {
        for rule in [
            "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
            "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
            "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6",
        ] {
            assert_eq!(first(rule, "2026-01-01T00:00:00", 1), Vec::<String>::new(), "{rule}");
        }
    }
}
