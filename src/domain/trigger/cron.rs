//! A compiled cron expression: which wall times match, and the next one.
//!
//! croner reads the canonical form and knows the dates (`L`, `W`, `#`); the search is ours, so that it is bounded,
//! keeps cron's rule for day-of-month and day-of-week, and leaves zones to [`zone`](super::zone). Never fails after
//! parsing.

pub mod expression;

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex};

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use croner::parser::{CronParser, Seconds, Year};
use croner::{CronComponent, CronPattern};
use lru::LruCache;

use crate::domain::trigger::cron::expression::CronExpression;
use crate::domain::trigger::steps::StepBudget;
use crate::domain::trigger::zone::midnight;

/// Expressions that were asked for lately and are kept compiled.
const KEPT: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// One for the process, because a text means one thing in it: nothing is in it that could not be compiled again.
static CACHE: LazyLock<Mutex<CronCache>> = LazyLock::new(|| Mutex::new(LruCache::new(KEPT)));

type CronCache = LruCache<Box<str>, Arc<Cron>>;

/// The wall times of one expression. About 6 KiB of heap: no task keeps its own, see [`Cron::parse_cached`].
#[derive(Debug, Clone)]
pub struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    months: u64,
    dates: CronPattern,
    five_fields: bool,
    follows_elapsed: bool,
}

impl Cron {
    /// Parses like [`Cron::parse`]; an expression that was asked for lately is not read again. Most tasks share theirs
    /// with others.
    pub fn parse_cached(text: &str) -> Result<Arc<Cron>, String> {
        Cron::parse_with_cache(&CACHE, text)
    }

    fn parse_with_cache(cache: &Mutex<CronCache>, text: &str) -> Result<Arc<Cron>, String> {
        if let Some(cron) = cache.lock().expect("cron lock").get(text) {
            return Ok(Arc::clone(cron));
        }
        let cron = Arc::new(Cron::parse(text)?);
        cache.lock().expect("cron lock").put(text.into(), Arc::clone(&cron));
        Ok(cron)
    }

    /// Reads an expression; an error is a sentence that names the place.
    pub fn parse(text: &str) -> Result<Cron, String> {
        let expression = CronExpression::read(text)?;
        let parser = CronParser::builder()
            .seconds(Seconds::Required)
            .year(Year::Required)
            .dom_and_dow(expression.both_days)
            .build();
        // croner keeps a table of years; the search is bounded by its horizon, so one year's entry is enough
        let pattern = parser
            .parse(&format!("{} 1", expression.canonical))
            .map_err(|error| format!("can't read the cron expression `{text}`: {error}"))?
            .pattern;
        Ok(Cron {
            seconds: bits(&pattern.seconds),
            minutes: bits(&pattern.minutes),
            hours: bits(&pattern.hours),
            months: bits(&pattern.months),
            dates: pattern,
            five_fields: expression.five_fields,
            follows_elapsed: expression.follows_elapsed,
        })
    }

    /// Whether a wall time matches; an expression of five fields matches each second of its minutes.
    pub fn matches(&self, local: NaiveDateTime) -> bool {
        has(self.hours, local.hour())
            && has(self.minutes, local.minute())
            && (self.five_fields || has(self.seconds, local.second()))
            && self.on_date(local.date())
    }

    fn on_date(&self, date: NaiveDate) -> bool {
        let weekday = croner::Weekday::from_days_from_sunday(date.weekday().num_days_from_sunday());
        has(self.months, date.month())
            && self.dates.day_match(date.year(), date.month(), date.day(), weekday).unwrap_or(false)
    }

    /// The first matching time of day at or after `from`.
    fn time_from(&self, from: NaiveTime) -> Option<NaiveTime> {
        let (hour, minute, second) = (from.hour(), from.minute(), from.second());
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = next_bit(self.seconds, second)
            {
                return NaiveTime::from_hms_opt(hour, minute, second);
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return NaiveTime::from_hms_opt(hour, minute, next_bit(self.seconds, 0)?);
            }
        }
        let hour = next_bit(self.hours, hour + 1)?;
        NaiveTime::from_hms_opt(hour, next_bit(self.minutes, 0)?, next_bit(self.seconds, 0)?)
    }

    /// The next date to look at after one that did not match; whole months are stepped over.
    fn date_after(&self, date: NaiveDate) -> Option<NaiveDate> {
        if has(self.months, date.month()) {
            return date.succ_opt();
        }
        match next_bit(self.months, date.month() + 1) {
            Some(month) => NaiveDate::from_ymd_opt(date.year(), month, 1),
            None => NaiveDate::from_ymd_opt(date.year() + 1, next_bit(self.months, 1)?, 1),
        }
    }

    /// The first wall time at or after `from` and before `horizon`, in whole seconds; `None`, too, where the steps are
    /// used up.
    pub fn search(&self, from: NaiveDateTime, horizon: NaiveDateTime, steps: &StepBudget) -> Option<NaiveDateTime> {
        let mut at = from;
        while at < horizon {
            steps.search(1)?;
            if self.on_date(at.date()) {
                if let Some(time) = self.time_from(at.time()) {
                    return Some(at.date().and_time(time)).filter(|found| *found < horizon);
                }
                at = midnight(at.date().succ_opt()?);
            } else {
                at = midnight(self.date_after(at.date())?);
            }
        }
        None
    }

    /// Whether it follows elapsed time (`*` minutes or hours) and not fixed times of a day.
    pub fn follows_elapsed(&self) -> bool {
        self.follows_elapsed
    }
}

fn bits(field: &CronComponent) -> u64 {
    field.values().into_iter().filter(|value| *value < 64).fold(0, |bits, value| bits | 1 << value)
}

fn has(bits: u64, value: u32) -> bool {
    value < 64 && bits >> value & 1 == 1
}

fn next_bit(bits: u64, from: u32) -> Option<u32> {
    let rest = if from < 64 { bits >> from << from } else { 0 };
    (rest != 0).then(|| rest.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_keeps_recent_expressions_and_evicts_the_oldest() {
        let cache = Mutex::new(LruCache::new(NonZeroUsize::new(2).unwrap()));
        let read = |text: &str| Cron::parse_with_cache(&cache, text).unwrap();
        let first = read("30 8 * * *");
        read("31 8 * * *");
        assert!(Arc::ptr_eq(&first, &read("30 8 * * *")));
        read("32 8 * * *");
        assert!(Arc::ptr_eq(&first, &read("30 8 * * *")), "it was asked for after the other one");
        read("33 8 * * *");
        read("34 8 * * *");
        assert!(!Arc::ptr_eq(&first, &read("30 8 * * *")));
        assert!(Cron::parse_cached("61 * * * *").is_err());
    }

    fn next(expression: &str, from: &str) -> Option<String> {
        let from: NaiveDateTime = from.parse().unwrap();
        let horizon = from.checked_add_months(chrono::Months::new(480)).unwrap();
        let cron = Cron::parse(expression).unwrap();
        cron.search(from, horizon, &StepBudget::unlimited()).map(|at| at.format("%F %T").to_string())
    }

    #[test]
    fn next_wall_time_is_found_in_each_field() {
        for (expression, from, expected) in [
            ("* * * * *", "2026-01-01T00:00:01", "2026-01-01 00:01:00"),
            ("* * * * * *", "2026-01-01T23:59:59", "2026-01-01 23:59:59"),
            ("30 8 * * *", "2026-01-01T08:30:00", "2026-01-01 08:30:00"),
            ("30 8 * * *", "2026-12-31T08:30:01", "2027-01-01 08:30:00"),
            ("5-59/20 * * * *", "2026-01-01T00:46:00", "2026-01-01 01:05:00"),
            ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29 00:00:00"),
            ("0 0 L * *", "2026-02-01T00:00:00", "2026-02-28 00:00:00"),
            ("0 0 LW * *", "2026-02-01T00:00:00", "2026-02-27 00:00:00"),
            ("0 0 15W * *", "2026-02-01T00:00:00", "2026-02-16 00:00:00"),
            ("0 0 * * FRI#2", "2026-02-01T00:00:00", "2026-02-13 00:00:00"),
            ("0 0 * * 5L", "2026-02-01T00:00:00", "2026-02-27 00:00:00"),
            ("0 0 * * 7", "2026-02-02T00:00:00", "2026-02-08 00:00:00"),
            ("0 0 * * mon-sun", "2026-02-02T00:00:01", "2026-02-03 00:00:00"),
            ("@weekly", "2026-02-02T00:00:00", "2026-02-08 00:00:00"),
        ] {
            assert_eq!(next(expression, from).as_deref(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn day_of_month_and_day_of_week_are_alternatives_unless_one_starts_with_a_star() {
        assert_eq!(next("0 0 13 * 5", "2026-03-01T00:00:00").as_deref(), Some("2026-03-06 00:00:00"));
        assert_eq!(next("0 0 13 * 5", "2026-04-11T00:00:00").as_deref(), Some("2026-04-13 00:00:00"));
        assert_eq!(next("0 0 */2 * 5", "2026-03-01T00:00:00").as_deref(), Some("2026-03-13 00:00:00"));
        assert_eq!(next("0 0 13 * */5", "2026-03-01T00:00:00").as_deref(), Some("2026-03-13 00:00:00"));
    }

    #[test]
    fn date_that_never_comes_ends_the_search() {
        for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * * 2 MON#5"] {
            let found = next(expression, "2026-01-01T00:00:00");
            assert_eq!(found.is_some(), expression.contains('#'), "{expression}: {found:?}");
        }
    }

    #[test]
    fn five_fields_match_whole_minutes_and_six_match_seconds() {
        let at: NaiveDateTime = "2026-01-01T08:30:17".parse().unwrap();
        assert!(Cron::parse("30 8 * * *").unwrap().matches(at));
        assert!(!Cron::parse("0 30 8 * * *").unwrap().matches(at));
        assert!(Cron::parse("17 30 8 * * *").unwrap().matches(at));
        assert!(!Cron::parse("31 8 * * *").unwrap().matches(at));
    }
}
