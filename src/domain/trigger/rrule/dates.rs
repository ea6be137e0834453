//! The dates of a recurrence rule, a month at a time: its days are the bits of a number, so that a search costs the
//! months that it passes and not their days.

use chrono::{Datelike, Days, NaiveDate, Weekday};

use crate::domain::trigger::rrule::parts::{Frequency, RuleParts};
use crate::domain::trigger::steps::StepBudget;

/// The first, eighth, … twenty-ninth of a month.
const WEEKLY: u32 = 0x1020_4081;

/// Days that are looked at in one step, where bits alone do not tell.
const DAYS: u64 = 8;

/// Which dates pass every part of a rule that speaks of days.
#[derive(Debug, Clone)]
pub struct Dates {
    months: u32,
    month_days: Numbers<1>,
    year_days: Numbers<6>,
    week_numbers: Numbers<1>,
    weekdays: Option<[NumberedWeekdays; 7]>,
    /// Numbered weekdays count in their year, not in their month.
    of_year: bool,
    week_start: Weekday,
}

/// The weekdays of one name: all of them, or those with a number.
#[derive(Debug, Clone, Copy, Default)]
struct NumberedWeekdays {
    any: bool,
    numbers: Numbers<1>,
}

/// Numbers from 1 on, counted from the front or from the back.
#[derive(Debug, Clone, Copy)]
struct Numbers<const WORDS: usize> {
    front: [u64; WORDS],
    back: [u64; WORDS],
}

impl<const WORDS: usize> Default for Numbers<WORDS> {
    fn default() -> Self {
        Numbers { front: [0; WORDS], back: [0; WORDS] }
    }
}

impl<const WORDS: usize> Numbers<WORDS> {
    fn new(list: &[i32]) -> Self {
        let mut numbers = Numbers::default();
        for number in list {
            numbers.add(*number);
        }
        numbers
    }

    fn add(&mut self, number: i32) {
        let words = if number > 0 { &mut self.front } else { &mut self.back };
        let bit = number.unsigned_abs().saturating_sub(1);
        words[bit as usize / 64] |= 1 << (bit % 64);
    }

    fn is_empty(&self) -> bool {
        self.front == [0; WORDS] && self.back == [0; WORDS]
    }

    /// Whether it has the one before which there are `before` of `length`.
    fn has(&self, before: u32, length: u32) -> bool {
        let bit = |words: &[u64; WORDS], bit: u32| words[bit as usize / 64] >> (bit % 64) & 1 == 1;
        bit(&self.front, before) || bit(&self.back, length - 1 - before)
    }
}

impl Dates {
    /// A search over the dates of a rule.
    pub fn new(parts: &RuleParts) -> Dates {
        let mut weekdays = [NumberedWeekdays::default(); 7];
        for (which, weekday) in &parts.weekdays {
            let numbered = &mut weekdays[weekday.num_days_from_monday() as usize];
            match which {
                Some(number) => numbered.numbers.add(*number),
                None => numbered.any = true,
            }
        }
        let months = parts.months.iter().fold(0, |bits, month| bits | 1 << month);
        Dates {
            months: if parts.months.is_empty() { u32::MAX } else { months },
            month_days: Numbers::new(&parts.month_days),
            year_days: Numbers::new(&parts.year_days),
            week_numbers: Numbers::new(&parts.week_numbers),
            weekdays: (!parts.weekdays.is_empty()).then_some(weekdays),
            of_year: parts.frequency == Frequency::Yearly && parts.months.is_empty(),
            week_start: parts.week_start,
        }
    }

    /// The first date at or after `from` and before `end`; `None`, too, where the steps are used up.
    pub fn next(&self, from: NaiveDate, end: NaiveDate, steps: &StepBudget) -> Option<NaiveDate> {
        let mut from = from;
        while from < end {
            let days = self.of_month(from, steps)? >> from.day0();
            if days != 0 {
                return from.checked_add_days(Days::new(days.trailing_zeros().into())).filter(|date| *date < end);
            }
            from = next_month(from)?;
        }
        None
    }

    /// How many dates there are from `from` on and before `end`.
    pub fn count(&self, from: NaiveDate, end: NaiveDate, steps: &StepBudget) -> Option<u32> {
        let (mut from, mut count) = (from, 0);
        while from < end {
            let next = next_month(from)?;
            let mut days = self.of_month(from, steps)? >> from.day0() << from.day0();
            if end < next {
                days &= (1 << end.day0()) - 1;
            }
            count += days.count_ones();
            from = next;
        }
        Some(count)
    }

    /// The date from `from` on before which `index` others are.
    pub fn nth(&self, from: NaiveDate, mut index: u32, steps: &StepBudget) -> Option<NaiveDate> {
        let mut from = from;
        loop {
            let mut days = self.of_month(from, steps)? >> from.day0();
            if index < days.count_ones() {
                for _ in 0..index {
                    days &= days.wrapping_sub(1);
                }
                return from.checked_add_days(Days::new(days.trailing_zeros().into()));
            }
            index -= days.count_ones();
            from = next_month(from)?;
        }
    }

    /// The days of a date's month, the first in the lowest bit.
    fn of_month(&self, date: NaiveDate, steps: &StepBudget) -> Option<u32> {
        steps.search(1)?;
        if self.months >> date.month() & 1 == 0 {
            return Some(0);
        }
        let first = date.with_day(1)?;
        let length = u32::from(date.num_days_in_month());
        let mut days = u32::MAX >> (32 - length);
        if !self.month_days.is_empty() {
            let back = (self.month_days.back[0] as u32).reverse_bits() >> (32 - length);
            days &= self.month_days.front[0] as u32 | back;
        }
        if let Some(weekdays) = &self.weekdays {
            days &= on_weekdays(weekdays, first);
        }
        if !self.looks_at_each() {
            return Some(days);
        }
        steps.search(u64::from(days.count_ones()) / DAYS)?;
        let passes = |day: &u32| {
            days >> day & 1 == 1 && first.checked_add_days(Days::new((*day).into())).is_some_and(|date| self.has(date))
        };
        Some((0..length).filter(passes).fold(0, |passed, day| passed | 1 << day))
    }

    /// Whether bits alone do not tell.
    pub fn looks_at_each(&self) -> bool {
        let numbered = |weekdays: &[NumberedWeekdays; 7]| weekdays.iter().any(|day| !day.numbers.is_empty());
        !self.year_days.is_empty() || !self.week_numbers.is_empty() || self.weekdays.as_ref().is_some_and(numbered)
    }

    /// Whether a date of a day that the bits let through is one of the rule.
    fn has(&self, date: NaiveDate) -> bool {
        (self.year_days.is_empty() || self.year_days.has(date.ordinal0(), year_length(date.year())))
            && self.in_week_number(date)
            && self.is_weekday(date)
    }

    fn in_week_number(&self, date: NaiveDate) -> bool {
        if self.week_numbers.is_empty() {
            return true;
        }
        // the year that has most days of a week owns it, so its fourth day tells (ISO 8601, for any first day)
        let fourth_of = |date: NaiveDate| week_of(date, self.week_start) + Days::new(3);
        let fourth = fourth_of(date);
        let before = fourth.ordinal0() / 7;
        let weeks =
            NaiveDate::from_ymd_opt(fourth.year(), 12, 28).map_or(52, |last| fourth_of(last).ordinal0() / 7 + 1);
        self.week_numbers.has(before, weeks)
    }

    /// Whether a date is a weekday of the rule, the numbered one of its month, or of its year where no month is named.
    fn is_weekday(&self, date: NaiveDate) -> bool {
        let Some(weekdays) = &self.weekdays else { return true };
        let NumberedWeekdays { any, numbers } = weekdays[date.weekday().num_days_from_monday() as usize];
        let (before, length) = match self.of_year {
            true => (date.ordinal0(), year_length(date.year())),
            false => (date.day0(), date.num_days_in_month().into()),
        };
        let (from_front, from_back) = (before / 7, (length - 1 - before) / 7);
        any || numbers.has(from_front, from_front + from_back + 1)
    }
}

/// The first day of the week of a date.
pub fn week_of(date: NaiveDate, week_start: Weekday) -> NaiveDate {
    date.week(week_start).checked_first_day().unwrap_or(date)
}

/// The days of a month that have one of these names, numbers aside.
fn on_weekdays(weekdays: &[NumberedWeekdays; 7], first: NaiveDate) -> u32 {
    let begins = first.weekday().num_days_from_monday() as usize;
    let named = |ahead: &usize| {
        let day = &weekdays[(begins + ahead) % 7];
        day.any || !day.numbers.is_empty()
    };
    (0..7).filter(named).fold(0, |days, ahead| days | WEEKLY << ahead)
}

fn next_month(date: NaiveDate) -> Option<NaiveDate> {
    match date.month() {
        12 => NaiveDate::from_ymd_opt(date.year() + 1, 1, 1),
        month => NaiveDate::from_ymd_opt(date.year(), month + 1, 1),
    }
}

fn year_length(year: i32) -> u32 {
    if NaiveDate::from_ymd_opt(year, 2, 29).is_some() { 366 } else { 365 }
}
