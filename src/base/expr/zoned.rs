//! `getHours('America/Vancouver')` and its siblings, answered from the rules of time zones that schedules go by.
//!
//! The evaluator has functions of these names, which go by rules of its own that may be older. So a call with a zone is
//! turned into one of a name that nobody can write, and that is ours. Without a zone the evaluator's own stand: they
//! need no rules.

use cel::common::ast::{CallExpr, Expr};
use cel::common::types::{CelInt, CelString, CelTimestamp};
use cel::parser::Macro;
use cel::{Env, ExecutionError};
use chrono::{DateTime, Datelike, FixedOffset, Timelike};
use chrono_tz::Tz;

use crate::domain::trigger::zone::{shown_at_offset, shown_in};

/// First character of the names of our functions: no name that is written may begin with it.
pub const OURS: char = '@';
/// Steps to look up a zone and to go through its changes: see [`crate::base::expr::cost`].
pub const LOOKUP: u64 = 1_000;

/// The language in which zones are ours.
pub fn language() -> Env {
    let mut env = Env::stdlib();
    add(&mut env).expect("the language has no functions of these names");
    env
}

fn add(env: &mut Env) -> Result<(), cel::DeclarationError> {
    macro_rules! zoned {
        ($($function:ident = $name:literal),*) => {$(
            env.add_macro(Macro::receiver($name, 1, |helper, target, args| {
                let func_name = concat!("@", $name).to_owned();
                let call = CallExpr { func_name, target: target.take().map(Box::new), args: std::mem::take(args) };
                Ok(Some(helper.next_expr(Expr::Call(call))))
            }))?;
            cel::add_member_overload!(env, fn $function: (CelTimestamp, CelString) -> Result<CelInt>,
                name = concat!("@", $name), id = concat!("zoned_", $name))?;
        )*};
    }
    zoned! {
        full_year = "getFullYear", month = "getMonth", day_of_year = "getDayOfYear", day_of_month = "getDayOfMonth",
        date = "getDate", day_of_week = "getDayOfWeek", hours = "getHours", minutes = "getMinutes",
        seconds = "getSeconds", milliseconds = "getMilliseconds"
    }
    Ok(())
}

macro_rules! parts {
    ($($function:ident = $part:expr),* $(,)?) => {$(
        fn $function(instant: &CelTimestamp, zone: &CelString<'_>) -> Result<CelInt, ExecutionError> {
            let part: fn(DateTime<FixedOffset>) -> i64 = $part;
            Ok(CelInt::from(part(shown(instant, zone.inner())?)))
        }
    )*};
}

parts! {
    full_year = |at| i64::from(at.year()),
    month = |at| i64::from(at.month0()),
    day_of_year = |at| i64::from(at.ordinal0()),
    day_of_month = |at| i64::from(at.day0()),
    date = |at| i64::from(at.day()),
    day_of_week = |at| i64::from(at.weekday().num_days_from_sunday()),
    hours = |at| i64::from(at.hour()),
    minutes = |at| i64::from(at.minute()),
    seconds = |at| i64::from(at.second()),
    milliseconds = |at| i64::from(at.timestamp_subsec_millis()),
}

/// An instant as a clock shows it: of a zone by its IANA name, UTC where that is empty, or so far from UTC, `-08:00`.
fn shown(instant: &CelTimestamp, zone: &str) -> Result<DateTime<FixedOffset>, ExecutionError> {
    let fault = |message: &str| ExecutionError::function_error("timezone", message);
    let at = instant.inner().to_utc();
    match zone.split_once(':') {
        Some((hours, minutes)) => {
            let offset = offset(hours, minutes);
            Ok(shown_at_offset(at, offset.ok_or_else(|| fault("an offset is written such as `-08:00`"))?))
        }
        None if zone.is_empty() => Ok(at.fixed_offset()),
        // the name is not quoted: it may come from data
        None => Ok(shown_in(at, zone.parse::<Tz>().map_err(|_| fault("unknown time zone"))?)),
    }
}

fn offset(hours: &str, minutes: &str) -> Option<FixedOffset> {
    let west = hours.starts_with('-');
    let hours: i32 = hours.parse().ok().filter(|hours| (-23..=23).contains(hours))?;
    let minutes: i32 = minutes.parse().ok().filter(|minutes| (0..=59).contains(minutes))?;
    FixedOffset::east_opt((hours * 60 + if west { -minutes } else { minutes }) * 60)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::base::expr::{ExpressionError, Language, MOST_STEPS, Variables};
    use crate::domain::trigger::zone::{ZoneTable, Zones};

    fn value(text: &str) -> Result<Value, ExpressionError> {
        Language::default().read(text, &["l"]).unwrap().value(&Variables::new())
    }

    #[test]
    fn zones_of_expressions_go_by_the_rules_of_schedules() {
        // permanent daylight time in Vancouver is in no database of 2025
        let at = "timestamp('2026-12-24T15:30:00Z')";
        assert_eq!(value(&format!("{at}.getHours('America/Vancouver')")), Ok(json!(8)));
        let zone = "America/Vancouver".parse().unwrap();
        let former = ZoneTable::legacy().zone(zone).shows("2026-12-24T15:30:00Z".parse().unwrap());
        assert_eq!(former.format("%H").to_string(), "07", "the rules differ");
        let current = Zones::of_process().get().zone(zone).shows("2026-12-24T15:30:00Z".parse().unwrap());
        assert_eq!(current.format("%H").to_string(), "08");
    }

    #[test]
    fn every_part_of_an_instant_is_told_by_zone_and_by_offset() {
        let of = |zone: &str, part: &str| value(&format!("timestamp('2026-12-31T23:59:58.123Z').{part}('{zone}')"));
        for (part, tokyo, offset, utc) in [
            ("getFullYear", 2027, 2026, 2026),
            ("getMonth", 0, 11, 11),
            ("getDayOfYear", 0, 364, 364),
            ("getDayOfMonth", 0, 30, 30),
            ("getDate", 1, 31, 31),
            ("getDayOfWeek", 5, 4, 4),
            ("getHours", 8, 18, 23),
            ("getMinutes", 59, 29, 59),
            ("getSeconds", 58, 58, 58),
            ("getMilliseconds", 123, 123, 123),
        ] {
            assert_eq!(of("Asia/Tokyo", part), Ok(json!(tokyo)), "{part}");
            assert_eq!(of("-05:30", part), Ok(json!(offset)), "{part}");
            assert_eq!(of("", part), Ok(json!(utc)), "{part}");
            assert_eq!(value(&format!("timestamp('2026-12-31T23:59:58.123Z').{part}()")), Ok(json!(utc)), "{part}");
        }
        assert_eq!(value("duration('90m').getHours()"), Ok(json!(1)));
    }

    #[test]
    fn unknown_zone_and_broken_instant_are_told() {
        let told = |text: &str| value(text).unwrap_err().to_string();
        let at = "timestamp('2026-12-31T23:00:00Z')";
        assert_eq!(told(&format!("{at}.getHours('Mars/Base')")), "`timezone`: unknown time zone");
        for odd in ["24:00", "01:60", "ab:00", "-24:00", "1:"] {
            let why = "`timezone`: an offset is written such as `-08:00`";
            assert_eq!(told(&format!("{at}.getHours('{odd}')")), why, "{odd}");
        }
        assert!(told(&format!("{at}.getHours(1)")).contains("'getHours'"), "{}", told(&format!("{at}.getHours(1)")));
        assert!(told("'noon'.getHours('UTC')").contains("'getHours'"));
        assert!(Language::default().read("1.@getHours('UTC')", &[]).is_err(), "nobody can write ours");
    }

    #[test]
    fn lookups_of_zones_are_counted_as_work() {
        let read = Language::default().read("l.all(t, timestamp(t).getHours('Asia/Tokyo') > 0)", &["l"]).unwrap();
        let cost = |length: usize| read.cost(&Variables::new().with("l", &json!(vec![0; length])));
        assert!(cost(10_000) > 10_000 * super::LOOKUP);
        assert!(cost(10_000) <= MOST_STEPS && cost(100_000) > MOST_STEPS);
    }
}
