//! Lengths of time as people write them, and instants that are whole multiples of one from an anchor.
//!
//! Instants are computed as `anchor + k × every`, never from the previous run or from now, so they do not drift over
//! restarts, late runs or edits. A day is 24 hours; months and years have no fixed length and are refused.

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::invalid::bounded;

/// Longest text that may stand for a length, in bytes.
const LENGTH_BYTES: usize = 100;
/// The longest length, in days.
const LONGEST_DAYS: i64 = 3650;

/// Reads a length in whole seconds: ISO 8601 (`PT5M`, `P1D`) or `5m`, `1h30m`, `90s`. Never zero, at most ten years.
pub fn parse_length(text: &str) -> Result<TimeDelta, String> {
    let trimmed = bounded(text, LENGTH_BYTES)?.trim();
    if trimmed.starts_with('-') {
        return Err(format!("`{text}` is negative; write a length such as `5m`"));
    }
    let parts = match trimmed.strip_prefix(['P', 'p']) {
        Some(rest) => read_iso(rest),
        None => read_short(trimmed),
    };
    let seconds = match parts {
        Ok(seconds) => seconds,
        Err(UnreadableInterval::Calendar) => {
            return Err(format!(
                "`{text}` has months or years, which have no fixed length; use `rrule`, such as `FREQ=MONTHLY`, or days"
            ));
        }
        Err(UnreadableInterval::Fraction) => {
            return Err(format!("`{text}` has a fraction; write whole numbers, such as `90s`"));
        }
        Err(UnreadableInterval::NoUnit) => {
            return Err(format!("`{text}` has no unit; write `{trimmed}s` for seconds or `{trimmed}m` for minutes"));
        }
        Err(UnreadableInterval::Other) => {
            return Err(format!(
                "can't read `{text}` as a length; write `5m`, `1h30m`, `90s`, or ISO 8601 such as `PT5M`"
            ));
        }
    };
    match seconds {
        0 => Err(format!("`{text}` is no time at all; the least is `1s`")),
        s if s > LONGEST_DAYS * 86_400 => Err(format!("`{text}` is longer than {LONGEST_DAYS} days")),
        s => Ok(TimeDelta::seconds(s)),
    }
}

enum UnreadableInterval {
    /// Months or years.
    Calendar,
    Fraction,
    /// A bare number.
    NoUnit,
    Other,
}

/// After the `P`: weeks and days, then `T`, then hours, minutes and seconds, each at most once and in this order.
fn read_iso(text: &str) -> Result<i64, UnreadableInterval> {
    let upper = text.to_ascii_uppercase();
    let (date, time) = match upper.split_once('T') {
        Some((_, "")) => return Err(UnreadableInterval::Other),
        Some((date, time)) => (date, time),
        None => (upper.as_str(), ""),
    };
    if date.contains(['Y', 'M']) {
        return Err(UnreadableInterval::Calendar);
    }
    if date.is_empty() && time.is_empty() {
        return Err(UnreadableInterval::Other);
    }
    let date = read_units(date, &[("W", 604_800), ("D", 86_400)])?;
    let time = read_units(time, &[("H", 3600), ("M", 60), ("S", 1)])?;
    date.checked_add(time).ok_or(UnreadableInterval::Other)
}

fn read_short(text: &str) -> Result<i64, UnreadableInterval> {
    const UNITS: [(&str, i64); 5] = [("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let lower: String = text.to_lowercase().split_whitespace().collect();
    if !lower.is_empty() && lower.bytes().all(|b| b.is_ascii_digit()) {
        return Err(UnreadableInterval::NoUnit);
    }
    let mut letters = String::with_capacity(lower.len());
    for (word, is_word) in words(&lower) {
        letters.push_str(match (is_word, word) {
            (false, number) => number,
            (true, "s" | "sec" | "secs" | "second" | "seconds") => "s",
            (true, "m" | "min" | "mins" | "minute" | "minutes") => "m",
            (true, "h" | "hr" | "hrs" | "hour" | "hours") => "h",
            (true, "d" | "day" | "days") => "d",
            (true, "w" | "week" | "weeks") => "w",
            (true, "mo" | "month" | "months" | "y" | "yr" | "year" | "years") => {
                return Err(UnreadableInterval::Calendar);
            }
            (true, _) => return Err(UnreadableInterval::Other),
        });
    }
    match letters.is_empty() {
        true => Err(UnreadableInterval::Other),
        false => read_units(&letters, &UNITS),
    }
}

/// The stretches of letters and of anything else, in turn.
fn words(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_word = rest.chars().next()?.is_alphabetic();
        let end = rest.find(|c: char| c.is_alphabetic() != is_word).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        rest = tail;
        Some((word, is_word))
    })
}

/// The sum of `<number><unit>` pairs, the units in the given order, each at most once.
fn read_units(text: &str, units: &[(&str, i64)]) -> Result<i64, UnreadableInterval> {
    let mut rest = text;
    let mut sum = 0_i64;
    for (unit, seconds) in units {
        let Some((number, tail)) = rest.split_once(unit) else { continue };
        if number.contains(['.', ',']) {
            return Err(UnreadableInterval::Fraction);
        }
        if number.is_empty() || number.len() > 12 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(UnreadableInterval::Other);
        }
        let number: i64 = number.parse().map_err(|_| UnreadableInterval::Other)?;
        sum = number.checked_mul(*seconds).and_then(|s| sum.checked_add(s)).ok_or(UnreadableInterval::Other)?;
        rest = tail;
    }
    if rest.is_empty() { Ok(sum) } else { Err(UnreadableInterval::Other) }
}

/// The instants `anchor + k × every`, for every whole `k`; who wants a beginning bounds it from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    anchor: i64,
    every: i64,
}

impl Interval {
    /// Instants every `every` (at least a second) around `anchor`.
    pub fn new(anchor: DateTime<Utc>, every: TimeDelta) -> Interval {
        Interval { anchor: anchor.timestamp_millis(), every: every.num_milliseconds().max(1000) }
    }

    /// The first instant strictly after `after`.
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // a part of a millisecond past an instant is after it, and flooring to milliseconds says so
        let steps = (after.timestamp_millis().checked_sub(self.anchor)?).div_euclid(self.every) + 1;
        let next = steps.checked_mul(self.every)?.checked_add(self.anchor)?;
        DateTime::from_timestamp_millis(next)
    }

    /// How many instants there are from one to another of them, both counted.
    pub fn count(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> u64 {
        ((to.timestamp_millis() - from.timestamp_millis()) / self.every + 1).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_in_both_notations() {
        for (text, seconds) in [
            ("5m", 300),
            ("1h30m", 5400),
            ("1h 30m", 5400),
            ("90s", 90),
            ("1d", 86_400),
            ("2w", 1_209_600),
            ("5 minutes", 300),
            ("1 hour 1 second", 3601),
            ("PT5M", 300),
            ("P1D", 86_400),
            ("P1W", 604_800),
            ("P1DT12H", 129_600),
            ("pt1h1m1s", 3661),
            ("3650d", 315_360_000),
        ] {
            assert_eq!(parse_length(text), Ok(TimeDelta::seconds(seconds)), "{text}");
        }
    }

    #[test]
    fn invalid_interval_is_refused_with_a_valid_example() {
        for (text, part) in [
            ("P1M", "use `rrule`"),
            ("P1Y", "use `rrule`"),
            ("1mo", "use `rrule`"),
            ("2 years", "use `rrule`"),
            ("0s", "the least is `1s`"),
            ("PT0S", "the least is `1s`"),
            ("-5m", "is negative"),
            ("300", "write `300s`"),
            ("PT0.5S", "whole numbers"),
            ("1.5h", "whole numbers"),
            ("3651d", "longer than 3650 days"),
            ("999999999999w", "longer than 3650 days"),
            ("", "can't read"),
            ("P", "can't read"),
            ("PT", "can't read"),
            ("P1DT", "can't read"),
            ("5m5m", "can't read"),
            ("5s1m", "can't read"),
            ("m5", "can't read"),
            ("500ms", "can't read"),
            ("five minutes", "can't read"),
            ("٥m", "can't read"),
        ] {
            let why = parse_length(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn instants_stand_on_the_anchor_s_grid_on_both_sides_of_it() {
        let anchor: DateTime<Utc> = "2026-01-01T00:00:00.250Z".parse().unwrap();
        let interval = Interval::new(anchor, TimeDelta::minutes(7));
        let next = |after: &str| interval.next_after(after.parse().unwrap()).unwrap().to_rfc3339();
        assert_eq!(next("2026-01-01T00:00:00.250Z"), "2026-01-01T00:07:00.250+00:00");
        assert_eq!(next("2026-01-01T00:00:00.249Z"), "2026-01-01T00:00:00.250+00:00");
        assert_eq!(next("2025-12-31T23:59:00Z"), "2026-01-01T00:00:00.250+00:00");
        assert_eq!(next("2025-12-31T23:00:00Z"), "2025-12-31T23:04:00.250+00:00");
        assert_eq!(next("2026-01-01T00:07:00.2509Z"), "2026-01-01T00:14:00.250+00:00");
        assert_eq!(interval.count(anchor, anchor + TimeDelta::minutes(70)), 11);
    }

    #[test]
    fn length_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let length = |bytes: usize| parse_length(&format!("1{}h", " ".repeat(bytes - 2)));
        assert_eq!(length(LENGTH_BYTES), Ok(TimeDelta::hours(1)));
        assert_eq!(length(LENGTH_BYTES + 1), Err("must be at most 100 bytes, has 101".into()));
    }
}
