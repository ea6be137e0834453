//! Instants and lengths of time in words, in the reader's language and time zone.

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;

use crate::domain::trigger::zone::shown_in;
use crate::ports::channel::templates::phrases::Phrases;

/// The units of a length of time, in minutes, each with its phrases for one and for several.
const UNITS: [(i64, &str, &str); 3] = [(1440, "day", "days"), (60, "hour", "hours"), (1, "minute", "minutes")];

/// An instant as the reader's clock and calendar have it.
pub fn instant(words: &Phrases, at: DateTime<Utc>, zone: Tz) -> String {
    let here = shown_in(at, zone);
    let part = |format: &str| here.format(format).to_string();
    let (day, month, year, time) = (part("%-d"), part("month_%-m"), part("%Y"), part("%H:%M"));
    let parts = [("day", &*day), ("month", words.get(&month)), ("year", &year), ("time", &time), ("zone", zone.name())];
    words.with("instant", &parts)
}

/// How long until then: `2 hours 5 minutes`.
pub fn time_left(words: &Phrases, until: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let mut minutes = (until - now).max(TimeDelta::zero()).num_minutes();
    let mut parts = Vec::new();
    for (length, one, several) in UNITS {
        let count = minutes / length;
        minutes %= length;
        match count {
            0 => {}
            1 => parts.push(words.get(one).to_owned()),
            count => parts.push(words.with(several, &[("count", &count.to_string())])),
        }
    }
    parts.truncate(2);
    if parts.is_empty() { words.get("under_a_minute").to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::channel::templates::MessageTemplates;

    #[test]
    fn time_is_told_in_the_readers_zone_and_in_words() {
        let at: DateTime<Utc> = "2026-11-21T23:30:00Z".parse().unwrap();
        let (english, german) = (Phrases::english(), MessageTemplates::embedded().phrases("de-AT"));
        let zone = chrono_tz::Asia::Shanghai;
        assert_eq!(instant(english, at, zone), "22 November 2026, 07:30 (Asia/Shanghai)");
        assert_eq!(instant(&german, at, zone), "22. November 2026, 07:30 Uhr (Asia/Shanghai)");
        let text = |seconds: i64| time_left(english, at + TimeDelta::seconds(seconds), at);
        assert_eq!(text(-5), "less than a minute");
        assert_eq!(text(60), "1 minute");
        assert_eq!(text(7500), "2 hours 5 minutes");
        assert_eq!(text(90_000), "1 day 1 hour");
        assert_eq!(time_left(&german, at + TimeDelta::seconds(7500), at), "2 Stunden 5 Minuten");
    }
}
