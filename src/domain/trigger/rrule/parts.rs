//! The text of an RFC 5545 recurrence rule (section 3.3.10), read part by part.
//!
//! Only what its grammar allows gets through, and only `FREQ=DAILY` and coarser: below a day a rule of wall times
//! doubles and loses instants at clock changes, and cron or interval says it better.

use chrono::{NaiveDate, NaiveDateTime, Weekday};

use crate::base::invalid::did_you_mean;

/// The most instants a `COUNT` may ask for.
pub const MOST_COUNT: u32 = 10_000;
/// Longest rule, in characters.
pub const LENGTH: usize = 1000;
/// The most values of one part.
pub const MOST_VALUES: usize = 366;

const NAMES: &[&str] = &[
    "FREQ",
    "INTERVAL",
    "COUNT",
    "UNTIL",
    "WKST",
    "BYMONTH",
    "BYWEEKNO",
    "BYYEARDAY",
    "BYMONTHDAY",
    "BYDAY",
    "BYHOUR",
    "BYMINUTE",
    "BYSECOND",
    "BYSETPOS",
];
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("MO", Weekday::Mon),
    ("TU", Weekday::Tue),
    ("WE", Weekday::Wed),
    ("TH", Weekday::Thu),
    ("FR", Weekday::Fri),
    ("SA", Weekday::Sat),
    ("SU", Weekday::Sun),
];

/// The period of a recurrence rule; rules within a day are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frequency {
    /// `DAILY`.
    Daily,
    /// `WEEKLY`.
    Weekly,
    /// `MONTHLY`.
    Monthly,
    /// `YEARLY`.
    Yearly,
}

/// When a rule ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// An instant in UTC, inclusive.
    Utc(NaiveDateTime),
    /// A wall time of the zone, inclusive.
    Local(NaiveDateTime),
}

/// A rule as it was written. Empty lists were not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleParts {
    /// `FREQ`.
    pub frequency: Frequency,
    /// `INTERVAL`, at least 1.
    pub interval: u32,
    /// `COUNT`.
    pub count: Option<u32>,
    /// `UNTIL`.
    pub until: Option<Until>,
    /// `WKST`.
    pub week_start: Weekday,
    /// `BYMONTH`, 1 to 12.
    pub months: Vec<i32>,
    /// `BYWEEKNO`, 1 to 53 or negative from the end of the year.
    pub week_numbers: Vec<i32>,
    /// `BYYEARDAY`, 1 to 366 or negative from the end of the year.
    pub year_days: Vec<i32>,
    /// `BYMONTHDAY`, 1 to 31 or negative from the end of the month.
    pub month_days: Vec<i32>,
    /// With the number before it, where there is one: `-1FR` is the last Friday.
    pub weekdays: Vec<(Option<i32>, Weekday)>,
    /// `BYHOUR`, 0 to 23.
    pub hours: Vec<i32>,
    /// `BYMINUTE`, 0 to 59.
    pub minutes: Vec<i32>,
    /// `BYSECOND`, 0 to 60.
    pub seconds: Vec<i32>,
    /// `BYSETPOS`, counted from 1 or negative from the end of the period.
    pub positions: Vec<i32>,
}

impl RuleParts {
    /// Reads a rule, with or without `RRULE:` before it; an error is a sentence that names the part.
    pub fn parse(text: &str) -> Result<RuleParts, String> {
        if text.trim().chars().count() > LENGTH {
            return Err(format!("is longer than {LENGTH} characters"));
        }
        let upper = text.trim().to_ascii_uppercase();
        if upper.contains("DTSTART") || upper.contains("EXDATE") || upper.contains("RDATE") {
            return Err("give the rule alone; its start is `start_at`, and exceptions are `exclude`".into());
        }
        let rule = upper.strip_prefix("RRULE:").unwrap_or(&upper);
        let mut parts = RuleParts::empty();
        let mut seen: Vec<&str> = Vec::new();
        for part in rule.split(';').filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(format!("`{part}` is not of the form NAME=value, such as `FREQ=MONTHLY;BYDAY=1MO`"));
            };
            if seen.contains(&name) {
                return Err(format!("`{name}` is given twice"));
            }
            if value.split(',').count() > MOST_VALUES {
                return Err(format!("`{name}` has more than {MOST_VALUES} values"));
            }
            parts.take(name, value)?;
            seen.push(name);
        }
        if !seen.contains(&"FREQ") {
            return Err("`FREQ` is missing, such as `FREQ=MONTHLY;BYDAY=1MO`".into());
        }
        parts.agree()?;
        Ok(parts)
    }

    fn empty() -> RuleParts {
        RuleParts {
            frequency: Frequency::Daily,
            interval: 1,
            count: None,
            until: None,
            week_start: Weekday::Mon,
            months: Vec::new(),
            week_numbers: Vec::new(),
            year_days: Vec::new(),
            month_days: Vec::new(),
            weekdays: Vec::new(),
            hours: Vec::new(),
            minutes: Vec::new(),
            seconds: Vec::new(),
            positions: Vec::new(),
        }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "FREQ" => self.frequency = frequency(value)?,
            "INTERVAL" => self.interval = number(name, value, 1..=1000)? as u32,
            "COUNT" => self.count = Some(number(name, value, 1..=MOST_COUNT as i32)? as u32),
            "UNTIL" => self.until = Some(until(value)?),
            "WKST" => self.week_start = weekday(name, value)?,
            "BYMONTH" => self.months = numbers(name, value, 1..=12)?,
            "BYWEEKNO" => self.week_numbers = signed_numbers(name, value, 53)?,
            "BYYEARDAY" => self.year_days = signed_numbers(name, value, 366)?,
            "BYMONTHDAY" => self.month_days = signed_numbers(name, value, 31)?,
            "BYDAY" => self.weekdays = value.split(',').map(numbered_weekday).collect::<Result<_, _>>()?,
            "BYHOUR" => self.hours = numbers(name, value, 0..=23)?,
            "BYMINUTE" => self.minutes = numbers(name, value, 0..=59)?,
            "BYSECOND" => self.seconds = numbers(name, value, 0..=59)?,
            "BYSETPOS" => self.positions = signed_numbers(name, value, 366)?,
            _ => return Err(format!("unknown part `{name}`{}", did_you_mean(name, NAMES.iter().copied()))),
        }
        Ok(())
    }

    /// Refuses combinations that RFC 5545 forbids.
    fn agree(&self) -> Result<(), String> {
        use Frequency::*;
        let forbidden = |what: &str| Err(format!("{what} in RFC 5545"));
        let numbered = self.weekdays.iter().any(|(n, _)| n.is_some());
        if self.count.is_some() && self.until.is_some() {
            return forbidden("`COUNT` and `UNTIL` can't stand together");
        }
        if !self.week_numbers.is_empty() && self.frequency != Yearly {
            return forbidden("`BYWEEKNO` needs `FREQ=YEARLY`");
        }
        if !self.year_days.is_empty() && self.frequency != Yearly {
            return forbidden("`BYYEARDAY` needs `FREQ=YEARLY`");
        }
        if !self.month_days.is_empty() && self.frequency == Weekly {
            return forbidden("`BYMONTHDAY` can't stand with `FREQ=WEEKLY`");
        }
        if numbered && matches!(self.frequency, Daily | Weekly) {
            return forbidden("a numbered weekday needs `FREQ=MONTHLY` or `FREQ=YEARLY`");
        }
        if numbered && !self.week_numbers.is_empty() {
            return forbidden("a numbered weekday can't stand with `BYWEEKNO`");
        }
        let others = [
            &self.months,
            &self.week_numbers,
            &self.year_days,
            &self.month_days,
            &self.hours,
            &self.minutes,
            &self.seconds,
        ];
        if !self.positions.is_empty() && self.weekdays.is_empty() && others.iter().all(|list| list.is_empty()) {
            return forbidden("`BYSETPOS` needs another part that begins with `BY`");
        }
        Ok(())
    }
}

fn frequency(value: &str) -> Result<Frequency, String> {
    Ok(match value {
        "DAILY" => Frequency::Daily,
        "WEEKLY" => Frequency::Weekly,
        "MONTHLY" => Frequency::Monthly,
        "YEARLY" => Frequency::Yearly,
        "HOURLY" | "MINUTELY" | "SECONDLY" => {
            return Err(format!(
                "`FREQ={value}` is finer than a day; use `interval`, such as \"interval\": \"1h\", or `cron`"
            ));
        }
        _ => {
            let hint = did_you_mean(value, ["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]);
            return Err(format!("`FREQ` is one of DAILY, WEEKLY, MONTHLY, YEARLY, not `{value}`{hint}"));
        }
    })
}

fn number(name: &str, value: &str, range: std::ops::RangeInclusive<i32>) -> Result<i32, String> {
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    let valid = !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    match value.parse::<i32>() {
        Ok(number) if valid && range.contains(&number) => Ok(number),
        _ => Err(format!("`{name}` takes numbers from {} to {}, not `{value}`", range.start(), range.end())),
    }
}

fn numbers(name: &str, value: &str, range: std::ops::RangeInclusive<i32>) -> Result<Vec<i32>, String> {
    let mut list =
        value.split(',').map(|one| number(name, one, range.clone())).collect::<Result<Vec<i32>, String>>()?;
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// Numbers from 1 to `most`, or from the end as negative ones.
fn signed_numbers(name: &str, value: &str, most: i32) -> Result<Vec<i32>, String> {
    let list = numbers(name, value, -most..=most)?;
    match list.contains(&0) {
        true => Err(format!("`{name}` counts from 1, or from -1 backwards; 0 is neither")),
        false => Ok(list),
    }
}

fn weekday(name: &str, value: &str) -> Result<Weekday, String> {
    match WEEKDAYS.iter().find(|(word, _)| *word == value) {
        Some((_, weekday)) => Ok(*weekday),
        None => Err(format!("`{name}` takes weekdays MO, TU, WE, TH, FR, SA, SU, not `{value}`")),
    }
}

fn numbered_weekday(value: &str) -> Result<(Option<i32>, Weekday), String> {
    let letters = value.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
    let (which, day) = value.split_at(letters);
    let day = weekday("BYDAY", day)?;
    match which {
        "" => Ok((None, day)),
        _ => match number("BYDAY", which, -53..=53)? {
            0 => Err("`BYDAY` counts weekdays from 1, or from -1 backwards; 0 is neither".into()),
            which => Ok((Some(which), day)),
        },
    }
}

/// A date (its whole day counts), a wall time, or with `Z` an instant in UTC.
fn until(value: &str) -> Result<Until, String> {
    if let Ok(date) = NaiveDate::parse_from_str(value, "%Y%m%d")
        && value.len() == 8
        && let Some(end) = date.and_hms_opt(23, 59, 59)
    {
        return Ok(Until::Local(end));
    }
    let (time, utc) = match value.strip_suffix('Z') {
        Some(time) => (time, true),
        None => (value, false),
    };
    match NaiveDateTime::parse_from_str(time, "%Y%m%dT%H%M%S") {
        Ok(at) if time.len() == 15 => Ok(if utc { Until::Utc(at) } else { Until::Local(at) }),
        _ => Err(format!("`UNTIL` is a time such as `20271231T235959Z` or a date such as `20271231`, not `{value}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_read_part_by_part() {
        let parts = RuleParts::parse("rrule:freq=monthly;interval=2;byday=1mo,-1FR;bysetpos=-1;until=20271231t235959z")
            .unwrap();
        let until = "2027-12-31T23:59:59".parse().unwrap();
        let expected = RuleParts {
            frequency: Frequency::Monthly,
            interval: 2,
            weekdays: vec![(Some(1), Weekday::Mon), (Some(-1), Weekday::Fri)],
            positions: vec![-1],
            until: Some(Until::Utc(until)),
            ..RuleParts::empty()
        };
        assert_eq!(parts, expected);
    }

    #[test]
    fn fault_names_the_part() {
        for (rule, why) in [
            ("", "`FREQ` is missing"),
            ("BYDAY=MO", "`FREQ` is missing"),
            ("FREQ=HOURLY", "finer than a day"),
            ("FREQ=DAYLY", "did you mean `DAILY`?"),
            ("FREQ=DAILY;BYDAYS=MO", "unknown part `BYDAYS`; did you mean `BYDAY`?"),
            ("FREQ=DAILY;BYEASTER=0", "unknown part `BYEASTER`"),
            ("FREQ=DAILY;FREQ=DAILY", "`FREQ` is given twice"),
            ("FREQ=DAILY;INTERVAL=0", "`INTERVAL` takes numbers from 1 to 1000, not `0`"),
            ("FREQ=DAILY;COUNT=3;UNTIL=20270101", "can't stand together"),
            ("FREQ=DAILY;COUNT=10001", "from 1 to 10000"),
            ("FREQ=WEEKLY;BYMONTHDAY=1", "can't stand with `FREQ=WEEKLY`"),
            ("FREQ=MONTHLY;BYWEEKNO=1", "needs `FREQ=YEARLY`"),
            ("FREQ=WEEKLY;BYDAY=1MO", "a numbered weekday needs"),
            ("FREQ=YEARLY;BYWEEKNO=3;BYDAY=1MO", "can't stand with `BYWEEKNO`"),
            ("FREQ=MONTHLY;BYSETPOS=1", "needs another part"),
            ("FREQ=MONTHLY;BYMONTHDAY=0", "0 is neither"),
            ("FREQ=MONTHLY;BYDAY=0MO", "0 is neither"),
            ("FREQ=MONTHLY;BYDAY=XX", "takes weekdays"),
            ("FREQ=MONTHLY;BYDAY=1", "takes weekdays"),
            ("FREQ=DAILY;UNTIL=2027-12-31", "`UNTIL` is a time such as"),
            ("FREQ=DAILY;BYHOUR=24", "`BYHOUR` takes numbers from 0 to 23, not `24`"),
            ("FREQ=DAILY;BYHOUR=", "`BYHOUR` takes numbers"),
            ("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY", "its start is `start_at`"),
            ("every day", "is not of the form NAME=value"),
        ] {
            let fault = RuleParts::parse(rule).unwrap_err();
            assert!(fault.contains(why), "{rule}: {fault}");
        }
    }

    #[test]
    fn rule_is_taken_at_each_bound_and_refused_one_beyond_it() {
        let values = |count: usize| format!("FREQ=YEARLY;BYYEARDAY={}", vec!["1"; count].join(","));
        let count = |count: u32| format!("FREQ=DAILY;COUNT={count}");
        let long = |characters: usize| format!("FREQ=DAILY{}", ";".repeat(characters - "FREQ=DAILY".len()));
        for (most, beyond, why) in [
            (values(MOST_VALUES), values(MOST_VALUES + 1), "`BYYEARDAY` has more than 366 values"),
            (count(MOST_COUNT), count(MOST_COUNT + 1), "`COUNT` takes numbers from 1 to 10000, not `10001`"),
            (long(LENGTH), long(LENGTH + 1), "is longer than 1000 characters"),
        ] {
            assert_eq!(RuleParts::parse(&most).map(drop), Ok(()));
            assert_eq!(RuleParts::parse(&beyond).unwrap_err(), why);
        }
    }
}
