//! Times at which a schedule does not fire: whole days, or whatever a cron expression matches, on the zone's wall clock.

use chrono::{NaiveDate, NaiveDateTime};

use crate::trigger::cron::Cron;

/// The most exclusions of one schedule.
pub const MOST: usize = 200;

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

    pub fn covers(&self, local: NaiveDateTime) -> bool {
        match self {
            Exclusion::Day(date) => local.date() == *date,
            Exclusion::Cron(cron) => cron.matches(local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(exclusion: &str, local: &str) -> bool {
        Exclusion::parse(exclusion).unwrap().covers(local.parse().unwrap())
    }

    #[test]
    fn a_date_covers_its_whole_day() {
        assert!(covers("2026-12-25", "2026-12-25T00:00:00"));
        assert!(covers("2026-12-25", "2026-12-25T23:59:59"));
        assert!(!covers("2026-12-25", "2026-12-26T00:00:00"));
    }

    #[test]
    fn an_expression_covers_what_it_matches() {
        assert!(covers("* * * * SUN", "2026-11-22T13:37:42"));
        assert!(!covers("* * * * SUN", "2026-11-23T13:37:42"));
        assert!(covers("* 12-13 * * *", "2026-11-23T13:59:59"));
    }

    #[test]
    fn what_is_neither_is_refused() {
        assert_eq!(
            Exclusion::parse("2026-02-30").unwrap_err(),
            "`2026-02-30` is not a date; write `2026-12-25`, or a cron expression"
        );
        assert!(Exclusion::parse("christmas").is_err());
    }
}
