//! Wall time and instants: what a local time means in a zone, where a clock change leaves it out or shows it twice.
//!
//! The rules come from one [`database`]: the newest of the one that is compiled in and the machine's own. Never rounds:
//! a wall time that does not exist is reported with the instant after its gap, and the caller's rule decides.

pub mod database;
mod folder;
pub mod release;

use std::path::Path;

use chrono::{DateTime, Days, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use serde::{Deserialize, Serialize};

use crate::base::clock::truncate_millis;
use crate::base::invalid::{bounded, did_you_mean};
use crate::domain::trigger::policy::{DstFold, DstGap};

use database::Offsets;
pub use database::{Zone, ZoneSource, ZoneTable, Zones, current};
pub use release::ZoneRelease;

/// No search looks further ahead than this many days: 40 years.
const HORIZON: Days = Days::new(40 * 366);
/// No schedule has an instant past this year, so that arithmetic stays far from the limits of the calendar.
const LAST_YEAR: i32 = 9000;
/// Longest text that may name a zone, in bytes.
const NAME_BYTES: usize = 100;
/// Longest text that may stand for an instant, in bytes.
const TIME_BYTES: usize = 100;

/// `[time]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The machine's zone database, used where it names its release and is newer than what is compiled in. Empty:
    /// never.
    pub zoneinfo_dir: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { zoneinfo_dir: "/usr/share/zoneinfo".into() }
    }
}

impl Settings {
    /// The release of the machine's folder, where it has one.
    pub fn release(&self) -> Option<ZoneRelease> {
        folder::release(self.dir()?)
    }

    /// The machine's database, where it is newer than the `present` release; with it what is to be warned of. Reads
    /// files: a few milliseconds, not for the runtime's threads.
    ///
    /// # Errors
    /// It is newer, and can't be read as a whole now.
    pub fn newer_than(&self, present: &ZoneRelease) -> Result<Option<(ZoneTable, Vec<String>)>, String> {
        match (self.dir(), self.release()) {
            (Some(dir), Some(release)) if release > *present => ZoneTable::of_folder(dir).map(Some),
            _ => Ok(None),
        }
    }

    /// Lets `zones` be the machine's database from now on, where that is newer; answers what is to be warned of. Reads
    /// files, as [`Settings::newer_than`].
    pub fn renew(&self, zones: &Zones) -> Vec<String> {
        match self.newer_than(zones.get().release()) {
            Ok(Some((database, warnings))) => {
                zones.adopt(database);
                warnings
            }
            Ok(None) => Vec::new(),
            Err(why) => vec![why],
        }
    }

    fn dir(&self) -> Option<&Path> {
        Some(Path::new(&self.zoneinfo_dir)).filter(|dir| !dir.as_os_str().is_empty())
    }
}

/// The release that this process plans by, such as `2026f`.
pub fn zone_database_version() -> String {
    current().release().to_string()
}

/// An instant as the clock of a zone shows it.
pub fn shown_in(at: DateTime<Utc>, zone: Tz) -> DateTime<FixedOffset> {
    current().zone(zone).shows(at)
}

/// An instant as a clock shows it that is so far from UTC.
pub fn shown_at_offset(at: DateTime<Utc>, offset: FixedOffset) -> DateTime<FixedOffset> {
    at.with_timezone(&offset)
}

/// The abbreviation of a zone's time at an instant: `CET`.
pub fn abbreviation(at: DateTime<Utc>, zone: Tz) -> String {
    current().zone(zone).abbreviation(at)
}

/// The zone of an IANA name, or what is wrong with the name.
pub fn parse_zone(name: &str) -> Result<Tz, String> {
    let name = bounded(name, NAME_BYTES)?;
    name.parse::<Tz>().map_err(|_| {
        let hint = did_you_mean(name, TZ_VARIANTS.iter().map(|zone| zone.name()));
        match hint.is_empty() {
            true => format!("unknown time zone `{name}`; write an IANA name such as `Europe/Berlin` or `UTC`"),
            false => format!("unknown time zone `{name}`{hint}"),
        }
    })
}

/// The instants that a wall time stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalInstants {
    /// The clock shows it once, at this instant.
    Once(DateTime<Utc>),
    /// The clock was put back and shows it twice; wall times up to `until` (exclusive) are doubled.
    Twice {
        /// The first instant.
        first: DateTime<Utc>,
        /// The second instant.
        second: DateTime<Utc>,
        /// The end of the doubled wall times.
        until: NaiveDateTime,
    },
    /// The clock was put forward past it: to `until`, at the instant `after`.
    Never {
        /// The instant of the change.
        after: DateTime<Utc>,
        /// The wall time after the change.
        until: NaiveDateTime,
    },
}

/// Wall times of a rule, in order, whatever the zone.
pub trait WallTimes {
    /// The first wall time at or after `from` and before `horizon`, in whole seconds.
    fn next_from(&self, from: NaiveDateTime, horizon: NaiveDateTime) -> Option<NaiveDateTime>;

    /// Whether the rule follows elapsed time (`*` minutes or hours): nothing is made up for a gap, and both passes of a
    /// doubled hour count.
    fn follows_elapsed(&self) -> bool;
}

/// A zone, and the rule for the times its clock leaves out or shows twice.
#[derive(Debug, Clone)]
pub struct WallClock {
    zone: Zone,
    gap: DstGap,
    fold: DstFold,
}

impl WallClock {
    /// By the rules that this process plans by.
    pub fn new(zone: Tz, gap: DstGap, fold: DstFold) -> WallClock {
        WallClock::under(&current(), zone, gap, fold)
    }

    /// By the rules of a certain database.
    pub fn under(database: &ZoneTable, zone: Tz, gap: DstGap, fold: DstFold) -> WallClock {
        WallClock { zone: database.zone(zone), gap, fold }
    }

    /// The wall time at an instant.
    pub fn wall_time(&self, instant: DateTime<Utc>) -> NaiveDateTime {
        instant.naive_utc() + self.offset(instant)
    }

    /// The instants of a wall time.
    pub fn resolve(&self, local: NaiveDateTime) -> LocalInstants {
        let at = |offset: FixedOffset| (local - length(offset)).and_utc();
        match self.zone.offsets(local) {
            Offsets::One(offset) => LocalInstants::Once(at(offset)),
            Offsets::Two { before, after } => {
                let (first, second) = (at(before), at(after));
                let change = self.change_between(first, second);
                LocalInstants::Twice { first, second, until: change.naive_utc() + length(before) }
            }
            Offsets::None { before, after } => {
                let end = self.change_between(at(after), at(before));
                LocalInstants::Never { after: end, until: end.naive_utc() + length(after) }
            }
        }
    }

    /// The one instant that a wall time stands for by the rule; `None` where it stands for none. Of two, the first.
    pub fn instant(&self, local: NaiveDateTime) -> Option<DateTime<Utc>> {
        match self.resolve(local) {
            LocalInstants::Once(instant) | LocalInstants::Twice { first: instant, .. } => Some(instant),
            LocalInstants::Never { after, .. } => (self.gap == DstGap::RunAfter).then_some(after),
        }
    }

    /// The last instant that a wall time stands for; where it stands for none, the end of the gap.
    pub fn last_instant(&self, local: NaiveDateTime) -> DateTime<Utc> {
        match self.resolve(local) {
            LocalInstants::Once(instant)
            | LocalInstants::Twice { second: instant, .. }
            | LocalInstants::Never { after: instant, .. } => instant,
        }
    }

    /// The first instant strictly after `after` that one of `times` stands for. Looks 40 years ahead.
    pub fn next_after(&self, times: &impl WallTimes, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let after = DateTime::from_timestamp(after.timestamp(), 0)?;
        let here = self.wall_time(after);
        let horizon = here.checked_add_days(HORIZON)?;
        let ahead = self.walk(times, here + TimeDelta::seconds(1), horizon, after);
        let second_pass = self.second_pass(times, here, after);
        ahead.into_iter().chain(second_pass).min()
    }

    /// Walks wall times from `from` on until one stands for an instant after `after`.
    fn walk(
        &self,
        times: &impl WallTimes,
        mut from: NaiveDateTime,
        horizon: NaiveDateTime,
        after: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        loop {
            let local = times.next_from(from, horizon)?;
            match self.resolve(local) {
                LocalInstants::Once(instant) if instant > after => return Some(instant),
                LocalInstants::Once(_) => from = local + TimeDelta::seconds(1),
                LocalInstants::Twice { first, .. } if first > after => return Some(first),
                LocalInstants::Twice { second, .. } if second > after && self.repeats_times(times) => {
                    return Some(second);
                }
                LocalInstants::Twice { until, .. } => from = until,
                LocalInstants::Never { after: end, until } => {
                    if end > after && self.gap == DstGap::RunAfter && !times.follows_elapsed() {
                        return Some(end);
                    }
                    from = until;
                }
            }
        }
    }

    /// If `after` is in the first pass of a doubled stretch, what comes again in its second pass.
    fn second_pass(&self, times: &impl WallTimes, here: NaiveDateTime, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if !self.repeats_times(times) {
            return None;
        }
        match self.resolve(here) {
            LocalInstants::Twice { first, second, until } if first == after => {
                let begins = until + (self.offset(second) - self.offset(first));
                let local = times.next_from(begins, until)?;
                Some((local - self.offset(second)).and_utc())
            }
            _ => None,
        }
    }

    fn repeats_times(&self, times: &impl WallTimes) -> bool {
        times.follows_elapsed() || self.fold == DstFold::Both
    }

    fn offset(&self, instant: DateTime<Utc>) -> TimeDelta {
        length(self.zone.offset(instant))
    }

    /// The instant between two at which the offset leaves that of the earlier one. Both lie around one clock change.
    fn change_between(&self, before: DateTime<Utc>, after: DateTime<Utc>) -> DateTime<Utc> {
        let old = self.offset(before);
        let (mut low, mut high) = (before.timestamp(), after.timestamp());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let at = DateTime::from_timestamp(middle, 0).unwrap_or(after);
            if self.offset(at) == old { low = middle } else { high = middle }
        }
        DateTime::from_timestamp(high, 0).unwrap_or(after)
    }
}

fn length(offset: FixedOffset) -> TimeDelta {
    TimeDelta::seconds(offset.local_minus_utc().into())
}

/// Reads an instant: RFC 3339 with an offset, or a wall time of the zone, which a clock change may leave out.
pub fn parse_instant(text: &str, wall: &WallClock) -> Result<DateTime<Utc>, String> {
    let text = bounded(text, TIME_BYTES)?;
    let instant = match DateTime::parse_from_rfc3339(text) {
        Ok(instant) => instant.to_utc(),
        Err(_) => {
            let local = parse_local(text).ok_or_else(|| {
                format!(
                    "can't read `{text}` as a time; write `2026-12-24T15:00:00Z`, with an offset, or local time as \
                     `2026-12-24T15:00:00` with `timezone`"
                )
            })?;
            wall.instant(local).ok_or_else(|| {
                format!("`{text}` does not exist in {}: the clock is put forward past it", wall.zone.name())
            })?
        }
    };
    match instant.naive_utc().date() {
        date if date < first_date() => Err(format!("`{text}` is before the year 1")),
        date if date > last_date() => Err(format!("`{text}` is after the year {LAST_YEAR}")),
        _ => Ok(truncate_millis(instant)),
    }
}

/// Whether a text says a wall time and thus needs a zone.
pub fn is_local(text: &str) -> bool {
    text.len() <= TIME_BYTES && DateTime::parse_from_rfc3339(text).is_err() && parse_local(text).is_some()
}

fn parse_local(text: &str) -> Option<NaiveDateTime> {
    const FORMS: [&str; 4] = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"];
    FORMS.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
}

/// The first date that a schedule may have an instant on.
pub fn first_date() -> NaiveDate {
    NaiveDate::from_ymd_opt(1, 1, 1).unwrap_or(NaiveDate::MIN)
}

/// The last date that a schedule may have an instant on.
pub fn last_date() -> NaiveDate {
    NaiveDate::from_ymd_opt(LAST_YEAR, 12, 31).unwrap_or(NaiveDate::MAX)
}

/// Midnight at the beginning of a date, on the wall clock.
pub fn midnight(date: NaiveDate) -> NaiveDateTime {
    date.and_time(NaiveTime::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(zone: &str) -> WallClock {
        WallClock::new(parse_zone(zone).unwrap(), DstGap::RunAfter, DstFold::First)
    }

    fn local(text: &str) -> NaiveDateTime {
        parse_local(text).unwrap()
    }

    fn utc(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn gap_tells_the_instant_after_it() {
        let cases = [
            ("Europe/Berlin", "2026-03-29T02:30:00", "2026-03-29T01:00:00Z", "2026-03-29T03:00:00"),
            ("Australia/Lord_Howe", "2026-10-04T02:15:00", "2026-10-03T15:30:00Z", "2026-10-04T02:30:00"),
            ("Antarctica/Troll", "2026-03-29T01:30:00", "2026-03-29T01:00:00Z", "2026-03-29T03:00:00"),
            ("Pacific/Apia", "2011-12-30T08:00:00", "2011-12-30T10:00:00Z", "2011-12-31T00:00:00"),
            ("America/Santiago", "2026-09-06T00:00:00", "2026-09-06T04:00:00Z", "2026-09-06T01:00:00"),
        ];
        for (zone, wall_time, after, until) in cases {
            let expected = LocalInstants::Never { after: utc(after), until: local(until) };
            assert_eq!(wall(zone).resolve(local(wall_time)), expected, "{zone}");
        }
    }

    #[test]
    fn fold_tells_both_instants_and_where_it_ends() {
        let cases = [
            (
                "Europe/Berlin",
                "2026-10-25T02:30:00",
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T03:00:00",
            ),
            (
                "Australia/Lord_Howe",
                "2026-04-05T01:45:00",
                "2026-04-04T14:45:00Z",
                "2026-04-04T15:15:00Z",
                "2026-04-05T02:00:00",
            ),
            (
                "Antarctica/Troll",
                "2026-10-25T01:00:00",
                "2026-10-24T23:00:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T03:00:00",
            ),
        ];
        for (zone, wall_time, first, second, until) in cases {
            let expected = LocalInstants::Twice { first: utc(first), second: utc(second), until: local(until) };
            assert_eq!(wall(zone).resolve(local(wall_time)), expected, "{zone}");
        }
    }

    #[test]
    fn unknown_zone_names_a_near_one() {
        assert_eq!(
            parse_zone("Europe/Berln").unwrap_err(),
            "unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?"
        );
        assert_eq!(
            parse_zone("+02:00").unwrap_err(),
            "unknown time zone `+02:00`; write an IANA name such as `Europe/Berlin` or `UTC`"
        );
    }

    #[test]
    fn instant_is_read_with_an_offset_or_on_the_wall_clock_of_the_zone() {
        let berlin = wall("Europe/Berlin");
        for (text, instant) in [
            ("2026-12-24T15:00:00Z", "2026-12-24T15:00:00Z"),
            ("2026-12-24T15:00:00+05:30", "2026-12-24T09:30:00Z"),
            ("2026-12-24T15:00:00", "2026-12-24T14:00:00Z"),
            ("2026-12-24T15:00", "2026-12-24T14:00:00Z"),
            ("2026-12-24 15:00", "2026-12-24T14:00:00Z"),
            ("2026-03-29T02:30:00", "2026-03-29T01:00:00Z"),
            ("2026-10-25T02:30:00", "2026-10-25T00:30:00Z"),
            ("2026-12-24T15:00:00.123987Z", "2026-12-24T15:00:00.123Z"),
        ] {
            assert_eq!(parse_instant(text, &berlin), Ok(utc(instant)), "{text}");
        }
        let strict = WallClock { gap: DstGap::Skip, ..berlin.clone() };
        assert_eq!(
            parse_instant("2026-03-29T02:30:00", &strict).unwrap_err(),
            "`2026-03-29T02:30:00` does not exist in Europe/Berlin: the clock is put forward past it"
        );
        for bad in ["tomorrow", "2026-02-30T00:00:00Z", "0000-12-31T00:00:00Z", "9001-01-01T00:00:00Z", ""] {
            assert!(parse_instant(bad, &berlin).is_err(), "{bad}");
        }
    }

    #[test]
    fn zone_and_instant_are_read_up_to_their_bounds() {
        let zone = |bytes: usize| parse_zone(&"x".repeat(bytes)).unwrap_err();
        assert!(zone(NAME_BYTES).starts_with("unknown time zone"));
        assert_eq!(zone(NAME_BYTES + 1), "must be at most 100 bytes, has 101");
        let text = |bytes: usize, end: &str| {
            let start = "2026-12-24T15:00:00.";
            format!("{start}{}{end}", "0".repeat(bytes - start.len() - end.len()))
        };
        let instant = |text: &str| parse_instant(text, &wall("UTC"));
        for end in ["Z", ""] {
            assert_eq!(instant(&text(TIME_BYTES, end)), Ok(utc("2026-12-24T15:00:00Z")));
            assert_eq!(instant(&text(TIME_BYTES + 1, end)).unwrap_err(), "must be at most 100 bytes, has 101");
        }
        assert_eq!((is_local(&text(TIME_BYTES, "")), is_local(&text(TIME_BYTES + 1, ""))), (true, false));
    }
}
