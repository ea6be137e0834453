//! Instants and lengths of time in words, in the reader's time zone.

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;

use crate::trigger::zone::shown_in;

/// An instant as the reader's clock and calendar have it.
pub fn instant(at: DateTime<Utc>, zone: Tz) -> String {
    format!("{} ({})", shown_in(at, zone).format("%-d %B %Y, %H:%M"), zone.name())
}

/// How long until then: `2 hours 5 minutes`.
pub fn left(until: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let minutes = (until - now).max(TimeDelta::zero()).num_minutes();
    let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
    let parts: Vec<String> = [(days, "day"), (hours, "hour"), (minutes, "minute")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count} {unit}{}", if count == 1 { "" } else { "s" }))
        .take(2)
        .collect();
    if parts.is_empty() { "less than a minute".into() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_in_the_readers_zone_and_in_words() {
        let at: DateTime<Utc> = "2026-11-21T23:30:00Z".parse().unwrap();
        assert_eq!(instant(at, chrono_tz::Asia::Shanghai), "22 November 2026, 07:30 (Asia/Shanghai)");
        let told = |seconds: i64| left(at + TimeDelta::seconds(seconds), at);
        assert_eq!(told(-5), "less than a minute");
        assert_eq!(told(60), "1 minute");
        assert_eq!(told(7500), "2 hours 5 minutes");
        assert_eq!(told(90_000), "1 day 1 hour");
    }
}
