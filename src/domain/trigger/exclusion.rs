//! Times at which a schedule does not fire: whole days, or whatever a cron expression matches, on the zone's wall
//! clock.

use std::collections::HashSet;

use chrono::{NaiveDate, NaiveDateTime};

use crate::domain::trigger::cron::Cron;
use crate::domain::trigger::steps::StepBudget;

/// The most exclusions of one schedule.
pub const MOST: usize = 200;
/// The most characters that the exclusions of one schedule have together.
pub const MOST_TEXT: usize = 20_000;
/// Longest exclusion, in characters: that of a cron expression.
const LENGTH: usize = 1000;
/// Steps that it takes to read one.
const READING: u64 = 50;

/// The exclusions of one schedule. A date is found without a look at the others.
#[derive(Debug, Clone, Default)]
pub struct Exclusions {
    days: HashSet<NaiveDate>,
    crons: Vec<Cron>,
}

impl Exclusions {
    /// Reads those of a schedule; faults are told with their places.
    pub fn read(written: &[String], fault: &mut impl FnMut(&str, String)) -> Exclusions {
        if written.len() > MOST {
            fault("exclude", format!("has {} entries; at most {MOST} are possible", written.len()));
            return Exclusions::default();
        }
        let length: usize = written.iter().map(|text| text.chars().count()).sum();
        if length > MOST_TEXT {
            fault("exclude", format!("has {length} characters; at most {MOST_TEXT} are possible"));
            return Exclusions::default();
        }
        let read = |(index, text): (usize, &String)| match Exclusion::parse(text) {
            Ok(exclusion) => Some(exclusion),
            Err(why) => {
                fault(&format!("exclude/{index}"), why);
                None
            }
        };
        Exclusions::new(written.iter().enumerate().filter_map(read).collect())
    }

    /// A set of exclusions, days and cron expressions apart.
    pub fn new(all: Vec<Exclusion>) -> Exclusions {
        let mut exclusions = Exclusions::default();
        for exclusion in all {
            match exclusion {
                Exclusion::Day(date) => drop(exclusions.days.insert(date)),
                Exclusion::Cron(cron) => exclusions.crons.push(*cron),
            }
        }
        exclusions
    }

    /// Whether nothing is excluded.
    pub fn is_empty(&self) -> bool {
        self.days.is_empty() && self.crons.is_empty()
    }

    /// The steps that reading them took.
    pub fn cost(&self) -> u64 {
        self.crons.len() as u64 * READING
    }

    /// Whether one of them covers a wall time; as if none did where the steps are used up.
    pub fn covers_any(&self, local: NaiveDateTime, steps: &StepBudget) -> bool {
        if self.is_empty() || steps.exclude(1 + self.crons.len() as u64).is_none() {
            return false;
        }
        self.days.contains(&local.date()) || self.crons.iter().any(|cron| cron.matches(local))
    }
}

/// One exclusion.
#[derive(Debug, Clone)]
pub enum Exclusion {
    /// The whole local day.
    Day(NaiveDate),
    /// Every wall time that matches; five fields exclude whole minutes.
    Cron(Box<Cron>),
}

impl Exclusion {
    /// Reads a date such as `2026-12-25`, or a cron expression such as `* * * * SUN`.
    pub fn parse(text: &str) -> Result<Exclusion, String> {
        let trimmed = text.trim();
        if trimmed.chars().count() > LENGTH {
            return Err(format!("is longer than {LENGTH} characters"));
        }
        if trimmed.len() >= 8 && !trimmed.contains(' ') && trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
            return trimmed
                .parse()
                .map(Exclusion::Day)
                .map_err(|_| format!("`{text}` is not a date; write `2026-12-25`, or a cron expression"));
        }
        Cron::parse(text)
            .map(|cron| Exclusion::Cron(Box::new(cron)))
            .map_err(|why| format!("write a date such as `2026-12-25`, or a cron expression; as cron: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(exclusion: &str, local: &str) -> bool {
        let exclusions = Exclusions::new(vec![Exclusion::parse(exclusion).unwrap()]);
        exclusions.covers_any(local.parse().unwrap(), &StepBudget::unlimited())
    }

    #[test]
    fn date_covers_its_whole_day() {
        assert!(covers("2026-12-25", "2026-12-25T00:00:00"));
        assert!(covers("2026-12-25", "2026-12-25T23:59:59"));
        assert!(!covers("2026-12-25", "2026-12-26T00:00:00"));
    }

    #[test]
    fn expression_covers_what_it_matches() {
        assert!(covers("* * * * SUN", "2026-11-22T13:37:42"));
        assert!(!covers("* * * * SUN", "2026-11-23T13:37:42"));
        assert!(covers("* 12-13 * * *", "2026-11-23T13:59:59"));
    }

    #[test]
    fn exclusion_that_is_neither_date_nor_cron_is_refused() {
        assert_eq!(
            Exclusion::parse("2026-02-30").unwrap_err(),
            "`2026-02-30` is not a date; write `2026-12-25`, or a cron expression"
        );
        assert!(Exclusion::parse("christmas").is_err());
    }

    #[test]
    fn exclusions_are_taken_at_each_bound_and_refused_one_beyond_it() {
        let hour = |length: usize| format!("0{}9 * * *", " ".repeat(length - "09 * * *".len()));
        let places = |written: Vec<String>| {
            let mut places = Vec::new();
            Exclusions::read(&written, &mut |place, _| places.push(place.to_owned()));
            places
        };
        // so long that one more character is one too many
        let together = |last: usize| [vec![hour(MOST_TEXT / 20 - 1); 20], vec![hour(last)]].concat();
        for (most, beyond, place) in [
            (vec![hour(9); MOST], vec![hour(9); MOST + 1], "exclude"),
            (vec![hour(LENGTH)], vec![hour(LENGTH + 1)], "exclude/0"),
            (together(20), together(21), "exclude"),
        ] {
            assert_eq!(places(most), [""; 0]);
            assert_eq!(places(beyond), [place]);
        }
    }
}
