//! When a recipient is not to be interrupted: quiet hours, digests, a budget of interruptions. Rules only.
//!
//! All times are the recipient's own wall clock. A wall time that the clock leaves out counts as the end of the gap; of
//! one that it shows twice, quiet hours take the first to begin and the second to end, so that they are never shorter
//! than they look, and a digest takes the first.

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveTime, Utc, Weekday};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::base::words::words;
use crate::domain::task::Urgency;
use crate::domain::trigger::policy::{DstFold, DstGap};
use crate::domain::trigger::zone::{WallClock, shown_in};

/// Channels that interrupt nobody: programs read them, or sessions that somebody has open.
pub const SILENT: [&str; 2] = ["webhook", "live"];
/// When what went over the budget is told, where the recipient names no time.
const MORNING: WallTime = WallTime(NaiveTime::from_hms_opt(8, 0, 0).expect("a time"));
/// No search looks further ahead: quiet hours that never end hold a message for a week.
const HORIZON: Days = Days::new(8);

/// A time on the wall clock: `22:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(pub NaiveTime);

impl Serialize for WallTime {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.format("%H:%M"))
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<WallTime, D::Error> {
        let text = String::deserialize(from)?;
        let whole = text.len() == 5 && text.is_ascii();
        let time = NaiveTime::parse_from_str(&text, "%H:%M").ok().filter(|_| whole);
        time.map(WallTime).ok_or_else(|| {
            serde::de::Error::custom(format!("`{text}` is not a time such as `22:00`, from 00:00 to 23:59"))
        })
    }
}

words! {
    /// A day of the week.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum Day {
        /// Monday.
        Mon = "mon",
        /// Tuesday.
        Tue = "tue",
        /// Wednesday.
        Wed = "wed",
        /// Thursday.
        Thu = "thu",
        /// Friday.
        Fri = "fri",
        /// Saturday.
        Sat = "sat",
        /// Sunday.
        Sun = "sun",
    }
}

impl Day {
    fn is(self, weekday: Weekday) -> bool {
        self as u32 == weekday.num_days_from_monday()
    }
}

words! {
    /// The least urgency of messages that are told in spite of quiet hours.
    #[derive(Default, utoipa::ToSchema)]
    pub enum BreaksThrough {
        /// Messages of urgency `high` and `urgent`.
        #[default]
        High = "high",
        /// Messages of urgency `urgent` alone.
        Urgent = "urgent",
        /// Nothing does.
        Never = "never",
    }
}

impl BreaksThrough {
    fn lets_through(self, urgency: Urgency) -> bool {
        match self {
            BreaksThrough::High => urgency >= Urgency::High,
            BreaksThrough::Urgent => urgency >= Urgency::Urgent,
            BreaksThrough::Never => false,
        }
    }
}

/// A stretch of the recipient's day in which messages are held that are less urgent than what breaks through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuietHours {
    /// Wall time at which they begin, in the recipient's zone.
    #[schema(value_type = String, example = "22:00", pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    pub from: WallTime,
    /// Not later than `from`: on the next day. The same: a whole day.
    #[schema(value_type = String, example = "07:00", pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    pub to: WallTime,
    /// On which they begin. Absent: every day.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<Day>)]
    pub days: BTreeSet<Day>,
    /// Absent: all but `webhook` and `live`, which interrupt nobody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    /// Urgency from which messages are told all the same. Absent: `high`.
    #[serde(default)]
    pub breaks_through: BreaksThrough,
}

/// When messages that were held are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Digest)]
pub struct DigestTimes {
    /// Wall times of the digest, in the recipient's zone.
    #[schema(value_type = Vec<String>, example = json!(["08:00", "18:00"]))]
    pub at: BTreeSet<WallTime>,
    /// Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
}

/// Most interruptions in a day. Messages over it wait for the digest. Those of urgency `high` and more go through, and
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Budget)]
pub struct InterruptionBudget {
    /// Most interruptions a day.
    #[schema(maximum = 10000)]
    pub per_day: u32,
}

/// How a recipient wants to be told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QuietRules {
    /// Quiet hours; those of one day may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quiet_hours: Vec<QuietHours>,
    /// Times of the digest; `None`: held messages go at the end of quiet hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<DigestTimes>,
    /// Budget of interruptions; `None`: there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<InterruptionBudget>,
}

/// Whether a message on this channel interrupts a person.
pub fn interrupts(channel: &str) -> bool {
    !SILENT.contains(&channel)
}

/// Whether an empty budget lets it through.
pub fn ignores_budget(urgency: Urgency) -> bool {
    urgency >= Urgency::High
}

/// The day of the recipient's calendar, for counting: `2027-03-01`.
pub fn day(zone: Tz, now: DateTime<Utc>) -> String {
    shown_in(now, zone).date_naive().to_string()
}

impl QuietRules {
    /// When the quiet hours end that hold a message now; `None` where it may be told. Hours that follow each other
    /// without a gap are one.
    pub fn until(&self, zone: Tz, channel: &str, urgency: Urgency, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let holding = |hours: &&QuietHours| hours.applies_to(channel) && !hours.breaks_through.lets_through(urgency);
        let hours: Vec<&QuietHours> = self.quiet_hours.iter().filter(holding).collect();
        let end_at = |instant| hours.iter().filter_map(|hours| hours.end_of(zone, instant)).max();
        let horizon = now + HORIZON;
        let mut end = end_at(now)?;
        while let Some(later) = end_at(end).filter(|later| *later > end && end < horizon) {
            end = later;
        }
        Some(end)
    }

    /// When the digest for a message is due that quiet hours hold until `end`: at the first time of a digest that is
    /// not quiet itself, else when the quiet is over.
    pub fn digest_after_quiet(
        &self,
        zone: Tz,
        channel: &str,
        urgency: Urgency,
        (now, end): (DateTime<Utc>, DateTime<Utc>),
    ) -> DateTime<Utc> {
        let Some(digest) = self.digest.as_ref().filter(|digest| digest.applies_to(channel)) else { return end };
        let loud = |at: &DateTime<Utc>| self.until(zone, channel, urgency, *at).is_none();
        digest.instants(zone, now).find(loud).unwrap_or(end)
    }

    /// When the digest for a message is due that is over the budget of today: at the next time of a digest, else the
    /// next morning at 08:00; later where that is quiet.
    pub fn digest_after_budget(&self, zone: Tz, channel: &str, urgency: Urgency, now: DateTime<Utc>) -> DateTime<Utc> {
        let digest = self.digest.as_ref().filter(|digest| digest.applies_to(channel));
        let next = match digest {
            Some(digest) => digest.instants(zone, now).next(),
            None => instants(&[MORNING].into(), zone, now).next(),
        };
        let next = next.unwrap_or(now + Days::new(1));
        self.until(zone, channel, urgency, next).unwrap_or(next)
    }
}

impl QuietHours {
    fn applies_to(&self, channel: &str) -> bool {
        match self.channels.as_slice() {
            [] => interrupts(channel),
            named => named.iter().any(|name| name == channel),
        }
    }

    /// The end of the hours that an instant lies in.
    fn end_of(&self, zone: Tz, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let wall = wall(zone);
        let today = wall.wall_time(now).date();
        // a zone's change of a whole day can put the day before yesterday's hours into today
        let begun = [today - Days::new(2), today - Days::new(1), today, today + Days::new(1)];
        let spans = begun.into_iter().filter_map(|date| self.span(&wall, date));
        spans.filter(|(from, to)| *from <= now && now < *to).map(|(_, to)| to).max()
    }

    /// From and to for the hours that begin on a date.
    fn span(&self, wall: &WallClock, date: NaiveDate) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
        if !self.days.is_empty() && !self.days.iter().any(|day| day.is(date.weekday())) {
            return None;
        }
        let last = if self.to <= self.from { date + Days::new(1) } else { date };
        let from = wall.instant(date.and_time(self.from.0))?;
        Some((from, wall.last_instant(last.and_time(self.to.0))))
    }
}

impl DigestTimes {
    fn applies_to(&self, channel: &str) -> bool {
        self.channels.is_empty() || self.channels.iter().any(|name| name == channel)
    }

    fn instants(&self, zone: Tz, now: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
        instants(&self.at, zone, now)
    }
}

/// The instants of these wall times after `now`, in order, for some days.
fn instants(times: &BTreeSet<WallTime>, zone: Tz, now: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
    let wall = wall(zone);
    let today = wall.wall_time(now).date();
    let dates =
        today.iter_days().take(HORIZON_DAYS).flat_map(|date| times.iter().map(move |time| date.and_time(time.0)));
    let mut found: Vec<DateTime<Utc>> = dates.filter_map(|local| wall.instant(local)).filter(|at| *at > now).collect();
    found.sort_unstable();
    found.into_iter()
}

/// [`HORIZON`] as a number.
const HORIZON_DAYS: usize = 9;

fn wall(zone: Tz) -> WallClock {
    WallClock::new(zone, DstGap::RunAfter, DstFold::First)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn quiet(settings: Value) -> QuietRules {
        serde_json::from_value(settings).unwrap()
    }

    fn night() -> QuietRules {
        quiet(json!({ "quiet_hours": [{ "from": "22:00", "to": "07:00" }] }))
    }

    fn until(quiet: &QuietRules, zone: Tz, now: &str) -> Option<String> {
        quiet.until(zone, "email", Urgency::Normal, at(now)).map(|end| end.to_rfc3339())
    }

    fn some(text: &str) -> Option<String> {
        Some(at(text).to_rfc3339())
    }

    #[test]
    fn quiet_hours_go_over_midnight_and_end_on_the_minute() {
        let night = night();
        let ends = |now| until(&night, Tz::Europe__Berlin, now);
        assert_eq!(ends("2027-01-10T20:59:59.999Z"), None);
        assert_eq!(ends("2027-01-10T21:00:00Z"), some("2027-01-11T06:00:00Z"));
        assert_eq!(ends("2027-01-11T05:59:59.999Z"), some("2027-01-11T06:00:00Z"));
        assert_eq!(ends("2027-01-11T06:00:00Z"), None);
    }

    #[test]
    fn days_are_those_on_which_they_begin_and_a_whole_day_has_equal_ends() {
        let weekend = quiet(json!({ "quiet_hours": [{ "from": "00:00", "to": "00:00", "days": ["sat", "sun"] }] }));
        // 9 January 2027 is a Saturday; its hours and Sunday's are one
        assert_eq!(until(&weekend, Tz::UTC, "2027-01-08T23:59:00Z"), None);
        assert_eq!(until(&weekend, Tz::UTC, "2027-01-09T00:00:00Z"), some("2027-01-11T00:00:00Z"));
        let friday = quiet(json!({ "quiet_hours": [{ "from": "22:00", "to": "07:00", "days": ["fri"] }] }));
        assert_eq!(until(&friday, Tz::UTC, "2027-01-09T06:00:00Z"), some("2027-01-09T07:00:00Z"));
        assert_eq!(until(&friday, Tz::UTC, "2027-01-10T06:00:00Z"), None);
    }

    #[test]
    fn hours_concern_their_channels_and_let_through_what_is_urgent_enough() {
        let now = at("2027-01-10T23:00:00Z");
        let held = |settings: Value, channel: &str| {
            let quiet = quiet(settings);
            Urgency::ALL.map(|urgency| quiet.until(Tz::UTC, channel, urgency, now).is_some())
        };
        let hours = |more: Value| {
            let mut hours = json!({ "from": "22:00", "to": "07:00" });
            hours.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "quiet_hours": [hours] })
        };
        assert_eq!(held(hours(json!({})), "sms"), [true, true, false, false]);
        assert_eq!(held(hours(json!({})), "webhook"), [false; 4]);
        assert_eq!(held(hours(json!({})), "live"), [false; 4]);
        assert_eq!(held(hours(json!({ "channels": ["webhook"] })), "webhook"), [true, true, false, false]);
        assert_eq!(held(hours(json!({ "channels": ["sms"] })), "email"), [false; 4]);
        assert_eq!(held(hours(json!({ "breaks_through": "urgent" })), "sms"), [true, true, true, false]);
        assert_eq!(held(hours(json!({ "breaks_through": "never" })), "sms"), [true; 4]);
    }

    #[test]
    fn quiet_hours_follow_the_wall_over_both_changes_of_the_clock() {
        let early = quiet(json!({ "quiet_hours": [{ "from": "23:30", "to": "02:30" }] }));
        // Berlin leaves out 02:00 to 03:00 on 28 March 2027, and shows it twice on 31 October
        assert_eq!(until(&early, Tz::Europe__Berlin, "2027-03-28T00:59:59Z"), some("2027-03-28T01:00:00Z"));
        assert_eq!(until(&early, Tz::Europe__Berlin, "2027-03-28T01:00:00Z"), None);
        assert_eq!(until(&early, Tz::Europe__Berlin, "2027-10-31T00:45:00Z"), some("2027-10-31T01:30:00Z"));
        assert_eq!(until(&early, Tz::Europe__Berlin, "2027-10-31T01:30:00Z"), None);
        // New York: 14 March and 7 November 2027
        assert_eq!(until(&early, Tz::America__New_York, "2027-03-14T06:59:00Z"), some("2027-03-14T07:00:00Z"));
        assert_eq!(until(&early, Tz::America__New_York, "2027-11-07T05:45:00Z"), some("2027-11-07T07:30:00Z"));
        // Lord Howe moves by half an hour: 3 October and 4 April 2027, at 02:00
        let howe = quiet(json!({ "quiet_hours": [{ "from": "23:30", "to": "02:15" }] }));
        assert_eq!(until(&howe, Tz::Australia__Lord_Howe, "2027-10-02T15:29:00Z"), some("2027-10-02T15:30:00Z"));
        let second = quiet(json!({ "quiet_hours": [{ "from": "23:30", "to": "01:45" }] }));
        assert_eq!(until(&second, Tz::Australia__Lord_Howe, "2027-04-03T14:50:00Z"), some("2027-04-03T15:15:00Z"));
        let night = night();
        assert_eq!(until(&night, Tz::Europe__Berlin, "2027-03-27T21:00:00Z"), some("2027-03-28T05:00:00Z"));
        assert_eq!(until(&night, Tz::Europe__Berlin, "2027-10-30T20:00:00Z"), some("2027-10-31T06:00:00Z"));
    }

    #[test]
    fn quiet_that_never_ends_holds_for_about_a_week() {
        let always = quiet(json!({ "quiet_hours": [{ "from": "00:00", "to": "00:00", "breaks_through": "never" }] }));
        assert_eq!(until(&always, Tz::UTC, "2027-01-01T12:00:00Z"), some("2027-01-10T00:00:00Z"));
    }

    fn after_quiet(quiet: &QuietRules, zone: Tz, now: &str) -> String {
        let now = at(now);
        let end = quiet.until(zone, "email", Urgency::Normal, now).expect("quiet");
        quiet.digest_after_quiet(zone, "email", Urgency::Normal, (now, end)).to_rfc3339()
    }

    #[test]
    fn held_message_goes_at_the_end_of_quiet_hours_or_at_the_next_digest_outside_of_them() {
        assert_eq!(Some(after_quiet(&night(), Tz::UTC, "2027-01-10T23:00:00Z")), some("2027-01-11T07:00:00Z"));
        let with = |at: Value| QuietRules { digest: serde_json::from_value(json!({ "at": at })).unwrap(), ..night() };
        let told = |at: Value| Some(after_quiet(&with(at), Tz::UTC, "2027-01-10T23:00:00Z"));
        assert_eq!(told(json!(["18:00", "08:00"])), some("2027-01-11T08:00:00Z"));
        assert_eq!(told(json!(["03:00", "18:00"])), some("2027-01-11T18:00:00Z"));
        assert_eq!(told(json!(["03:00"])), some("2027-01-11T07:00:00Z"));
    }

    #[test]
    fn digest_follows_the_wall_over_both_changes_of_the_clock() {
        let at_half_past_two = |zone, now: &str| {
            let digest = serde_json::from_value(json!({ "at": ["02:30"] })).unwrap();
            let quiet = QuietRules { digest, ..QuietRules::default() };
            Some(quiet.digest_after_budget(zone, "email", Urgency::Normal, at(now)).to_rfc3339())
        };
        let berlin = Tz::Europe__Berlin;
        assert_eq!(
            at_half_past_two(berlin, "2027-03-27T12:00:00Z"),
            some("2027-03-28T01:00:00Z"),
            "the end of the gap"
        );
        assert_eq!(at_half_past_two(berlin, "2027-03-28T01:00:00Z"), some("2027-03-29T00:30:00Z"));
        assert_eq!(at_half_past_two(berlin, "2027-10-30T12:00:00Z"), some("2027-10-31T00:30:00Z"), "the first of two");
        assert_eq!(at_half_past_two(berlin, "2027-10-31T00:30:00Z"), some("2027-11-01T01:30:00Z"), "and not again");
        let york = Tz::America__New_York;
        assert_eq!(at_half_past_two(york, "2027-03-13T20:00:00Z"), some("2027-03-14T07:00:00Z"));
        assert_eq!(at_half_past_two(york, "2027-11-06T20:00:00Z"), some("2027-11-07T07:30:00Z"));
        let howe = Tz::Australia__Lord_Howe;
        assert_eq!(at_half_past_two(howe, "2027-10-02T00:00:00Z"), some("2027-10-02T15:30:00Z"));
        assert_eq!(at_half_past_two(howe, "2027-04-03T00:00:00Z"), some("2027-04-03T16:00:00Z"));
    }

    #[test]
    fn message_over_the_budget_waits_for_the_morning_and_never_for_a_quiet_one() {
        let told = |quiet: &QuietRules, now: &str| {
            Some(quiet.digest_after_budget(Tz::Europe__Berlin, "email", Urgency::Normal, at(now)).to_rfc3339())
        };
        assert_eq!(told(&QuietRules::default(), "2027-01-10T12:00:00Z"), some("2027-01-11T07:00:00Z"));
        assert_eq!(told(&QuietRules::default(), "2027-01-11T03:00:00Z"), some("2027-01-11T07:00:00Z"));
        let lie_in = quiet(json!({ "quiet_hours": [{ "from": "22:00", "to": "10:00" }] }));
        assert_eq!(told(&lie_in, "2027-01-10T12:00:00Z"), some("2027-01-11T09:00:00Z"));
        assert_eq!(day(Tz::Asia__Tokyo, at("2027-01-10T15:00:00Z")), "2027-01-11");
    }

    #[test]
    fn times_are_hours_and_minutes() {
        for good in ["00:00", "07:05", "23:59"] {
            assert_eq!(json!(serde_json::from_value::<WallTime>(json!(good)).unwrap()), json!(good));
        }
        for bad in ["24:00", "7:00", "07:60", "07:00:00", "", "noon", "+7:00"] {
            assert!(serde_json::from_value::<WallTime>(json!(bad)).is_err(), "{bad}");
        }
    }
}
