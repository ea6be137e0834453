//! The release of a zone database: `2026f`, which is the sixth of its year.

use std::fmt;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};

/// A release that is older than this is likely to lack a change of rules: there are several releases a year.
const STALE_AFTER: TimeDelta = TimeDelta::days(274);

/// When releases came out, as their own notes say; oldest first.
const DATES: [(&str, i32, u32, u32); 12] = [
    ("2023d", 2023, 12, 21),
    ("2024a", 2024, 2, 1),
    ("2024b", 2024, 9, 4),
    ("2025a", 2025, 1, 15),
    ("2025b", 2025, 3, 22),
    ("2025c", 2025, 12, 10),
    ("2026a", 2026, 3, 1),
    ("2026b", 2026, 4, 22),
    ("2026c", 2026, 7, 8),
    ("2026d", 2026, 9, 11),
    ("2026e", 2026, 9, 29),
    ("2026f", 2026, 10, 27),
];

/// The name of a release; the order of names is that of the releases (`2026z` comes before `2026za`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneRelease(String);

impl ZoneRelease {
    /// Reads `2026f`: four digits, then one letter or two. A development version (`2026f-3-g1234`) is no release.
    pub fn parse(text: &str) -> Option<ZoneRelease> {
        let (year, letters) = text.split_at_checked(4)?;
        let is_year = year.bytes().all(|b| b.is_ascii_digit());
        let are_letters = (1..=2).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_lowercase());
        (is_year && are_letters).then(|| ZoneRelease(text.to_owned()))
    }

    /// The name, such as `2026a`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The earliest day on which it can have come out. Of a release that is newer than this build, the name tells the
    /// year alone: it is no older than that year, and than the last release before it that is known.
    pub fn released(&self) -> NaiveDate {
        let known = DATES.iter().rev().find(|(name, ..)| *name <= self.as_str());
        let dated = known.and_then(|(_, year, month, day)| NaiveDate::from_ymd_opt(*year, *month, *day));
        if known.is_some_and(|(name, ..)| *name == self.as_str()) {
            return dated.unwrap_or_default();
        }
        let year = self.0.get(..4).and_then(|year| year.parse().ok()).unwrap_or(1970);
        let begins = NaiveDate::from_ymd_opt(year, 1, 1).unwrap_or_default();
        dated.map_or(begins, |dated| dated.max(begins))
    }

    /// Whether it came out more than nine months before `now`, or may have.
    pub fn is_stale(&self, now: DateTime<Utc>) -> bool {
        now.date_naive() - self.released() > STALE_AFTER
    }
}

impl fmt::Display for ZoneRelease {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(text: &str) -> ZoneRelease {
        ZoneRelease::parse(text).unwrap()
    }

    #[test]
    fn release_names_are_read_strictly_and_ordered() {
        for bad in ["", "2026", "2026F", "26f", "2026fff", "2026f-dirty", "202éa", "2026f\n"] {
            assert_eq!(ZoneRelease::parse(bad), None, "{bad:?}");
        }
        let mut names = ["2026za", "2025c", "2026f", "2026z", "2026a"].map(release);
        names.sort();
        assert_eq!(names.map(|r| r.to_string()), ["2025c", "2026a", "2026f", "2026z", "2026za"]);
    }

    #[test]
    fn release_age_counts_from_the_earliest_day_that_is_possible() {
        let day = |text: &str| text.parse::<NaiveDate>().unwrap();
        assert_eq!(release("2026f").released(), day("2026-10-27"));
        assert_eq!(release("2026g").released(), day("2026-10-27"), "not before the last one that is known");
        assert_eq!(release("2027b").released(), day("2027-01-01"), "not before its year");
        assert_eq!(release("2016c").released(), day("2016-01-01"));
        let stale = |at: &str| release("2026f").is_stale(at.parse().unwrap());
        assert!(!stale("2027-07-28T00:00:00Z"));
        assert!(stale("2027-07-29T00:00:00Z"));
        assert!(!stale("2020-01-01T00:00:00Z"), "a clock that is wrong makes nothing stale");
    }
}
