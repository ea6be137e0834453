//! A moment as it is typed: an instant, or how long ago.

use chrono::{DateTime, SecondsFormat, Utc};

use super::failure::CliFailure;
use crate::base::clock::to_delta;

/// `2h`, `30m` or `7d` is that long before `now`; anything else is for the service to read.
///
/// # Errors
/// A length that reaches before the calendar.
pub fn parse_moment(typed: &str, now: DateTime<Utc>) -> anyhow::Result<String> {
    let Ok(length) = humantime::parse_duration(typed) else { return Ok(typed.to_owned()) };
    let earliest = now - DateTime::UNIX_EPOCH;
    match to_delta(length) <= earliest {
        true => Ok((now - to_delta(length)).to_rfc3339_opts(SecondsFormat::Millis, true)),
        false => Err(CliFailure::new(format!("`{typed}` reaches too far back")).hint("such as 2h or 7d").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_back_from_now_and_instants_stay_as_typed() {
        let now: DateTime<Utc> = "2026-11-23T12:00:00Z".parse().unwrap();
        let read = |typed: &str| parse_moment(typed, now).unwrap();
        assert_eq!(read("2h"), "2026-11-23T10:00:00.000Z");
        assert_eq!(read("1d 30m"), "2026-11-22T11:30:00.000Z");
        assert_eq!(read("2026-11-20T00:00:00Z"), "2026-11-20T00:00:00Z");
        assert_eq!(read("yesterday"), "yesterday", "the service says what is wrong with it");
        assert!(parse_moment("9000y", now).is_err());
    }
}
