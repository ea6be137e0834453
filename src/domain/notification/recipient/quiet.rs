//! Reading when a recipient is not to be told: quiet hours, digests, the budget of a day. Keeps nothing.

use serde_json::{Map, Value};

use crate::base::invalid::ValidationErrors;
use crate::domain::notification::recipient::reading::{given, list, number, object, only_of, texts, unknown, word};
use crate::domain::notification::{
    Addresses, BreaksThrough, Day, DigestTimes, InterruptionBudget, QuietHours, QuietRules, WallTime,
};

/// How many stretches of quiet hours, and times of a digest, a recipient may have.
const QUIET_HOURS: usize = 32;
const DIGEST_TIMES: std::ops::RangeInclusive<usize> = 1..=24;
/// How many interruptions of a day may be allowed.
const PER_DAY: std::ops::RangeInclusive<u32> = 0..=10_000;

/// `quiet_hours`, `digest` and `budget` of a recipient; every fault is named.
pub(super) fn read(fields: &Map<String, Value>, faults: &mut ValidationErrors) -> QuietRules {
    let quiet_hours = given(fields, "quiet_hours").map(|value| {
        let stretches = list(value, "/quiet_hours", faults);
        if stretches.len() > QUIET_HOURS {
            faults.add("/quiet_hours", format!("at most {QUIET_HOURS} stretches"));
        }
        stretches.into_iter().filter_map(|(place, value)| hours(value, &place, faults)).collect()
    });
    QuietRules {
        quiet_hours: quiet_hours.unwrap_or_default(),
        digest: given(fields, "digest").and_then(|value| digest(value, faults)),
        budget: given(fields, "budget").and_then(|value| budget(value, faults)),
    }
}

fn hours(value: &Value, place: &str, faults: &mut ValidationErrors) -> Option<QuietHours> {
    let fields = object(value, place, faults)?;
    only_of::<QuietHours>(fields, place, faults);
    let mut end = |name: &str| {
        let place = format!("{place}/{name}");
        match given(fields, name) {
            Some(value) => time(value, &place, faults),
            None => {
                faults.add(place, "is missing: a time such as `22:00`");
                None
            }
        }
    };
    let (from, to) = (end("from"), end("to"));
    let days = given(fields, "days").map(|value| {
        let (days, known) = (list(value, &format!("{place}/days"), faults), Day::ALL.map(|day| (day.as_str(), day)));
        days.into_iter().filter_map(|(place, value)| word(value, &known, &place, faults)).collect()
    });
    let channels = channels(fields, place, faults);
    let known = BreaksThrough::ALL.map(|least| (least.as_str(), least));
    let breaks_through = given(fields, "breaks_through")
        .and_then(|value| word(value, &known, &format!("{place}/breaks_through"), faults));
    Some(QuietHours {
        from: from?,
        to: to?,
        days: days.unwrap_or_default(),
        channels,
        breaks_through: breaks_through.unwrap_or_default(),
    })
}

fn digest(value: &Value, faults: &mut ValidationErrors) -> Option<DigestTimes> {
    let fields = object(value, "/digest", faults)?;
    only_of::<DigestTimes>(fields, "/digest", faults);
    let channels = channels(fields, "/digest", faults);
    let times = given(fields, "at").map(|value| list(value, "/digest/at", faults)).unwrap_or_default();
    if !DIGEST_TIMES.contains(&times.len()) && given(fields, "at").is_none_or(Value::is_array) {
        faults.add("/digest/at", format!("expected 1 to {} times such as `08:00`", DIGEST_TIMES.end()));
    }
    let at = times.into_iter().filter_map(|(place, value)| time(value, &place, faults)).collect();
    Some(DigestTimes { at, channels })
}

fn budget(value: &Value, faults: &mut ValidationErrors) -> Option<InterruptionBudget> {
    let fields = object(value, "/budget", faults)?;
    only_of::<InterruptionBudget>(fields, "/budget", faults);
    let per_day = given(fields, "per_day").unwrap_or(&Value::Null);
    Some(InterruptionBudget { per_day: number(per_day, PER_DAY, "/budget/per_day", faults)? })
}

fn time(value: &Value, place: &str, faults: &mut ValidationErrors) -> Option<WallTime> {
    match value {
        Value::String(_) => faults.read(value, place),
        _ => {
            faults.add(place, "expected a time such as `22:00`, from 00:00 to 23:59");
            None
        }
    }
}

fn channels(fields: &Map<String, Value>, place: &str, faults: &mut ValidationErrors) -> Vec<String> {
    let Some(value) = given(fields, "channels") else { return vec![] };
    let names = texts(value, &format!("{place}/channels"), faults);
    for (place, name) in names.iter().filter(|(_, name)| !Addresses::KINDS.contains(name)) {
        faults.add(place, unknown("channel", name, &Addresses::KINDS));
    }
    names.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_fault_is_said_in_words_of_ours_at_its_place() {
        let body = json!({
            "quiet_hours": [
                { "from": 22, "to": "25:00", "days": ["monday", 1], "channels": "sms", "breaks_through": "hihg" },
                { "from": "22:00", "untill": "x", "channels": [7] },
                "night",
            ],
            "digest": { "at": "08:00", "chanels": [] }, "budget": { "per_day": 10_001, "per_week": 1 },
        });
        let mut faults = ValidationErrors::new();
        read(body.as_object().unwrap(), &mut faults);
        let found: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        insta::assert_snapshot!(found.join("\n"), @r"
        /quiet_hours/0/from: expected a time such as `22:00`, from 00:00 to 23:59
        /quiet_hours/0/to: `25:00` is not a time such as `22:00`, from 00:00 to 23:59
        /quiet_hours/0/days/0: expected one of mon, tue, wed, thu, fri, sat, sun, not `monday`
        /quiet_hours/0/days/1: expected one of mon, tue, wed, thu, fri, sat, sun
        /quiet_hours/0/channels: expected a list
        /quiet_hours/0/breaks_through: expected one of high, urgent, never, not `hihg`; did you mean `high`?
        /quiet_hours/1/untill: unknown field `untill`; known are breaks_through, channels, days, from, to
        /quiet_hours/1/to: is missing: a time such as `22:00`
        /quiet_hours/1/channels/0: expected a text
        /quiet_hours/2: expected an object
        /digest/chanels: unknown field `chanels`; did you mean `channels`?
        /digest/at: expected a list
        /budget/per_week: unknown field `per_week`; known are per_day
        /budget/per_day: expected a whole number from 0 to 10000
        ");
        for (wrong, said) in [
            (json!({ "quiet_hours": { "from": "22:00" } }), "/quiet_hours: expected a list"),
            (json!({ "budget": 5 }), "/budget: expected an object"),
            (json!({ "budget": {} }), "/budget/per_day: expected a whole number from 0 to 10000"),
            (json!({ "budget": { "per_day": -1 } }), "/budget/per_day: expected a whole number from 0 to 10000"),
            (json!({ "budget": { "per_day": 1.5 } }), "/budget/per_day: expected a whole number from 0 to 10000"),
            (json!({ "budget": { "per_day": "5" } }), "/budget/per_day: expected a whole number from 0 to 10000"),
            (json!({ "digest": {} }), "/digest/at: expected 1 to 24 times such as `08:00`"),
        ] {
            let mut faults = ValidationErrors::new();
            read(wrong.as_object().unwrap(), &mut faults);
            assert_eq!(faults.to_string(), said, "{wrong}");
        }
    }

    #[test]
    fn stretches_and_times_are_taken_up_to_their_numbers_and_refused_one_beyond_them() {
        let places = |body: Value| {
            let mut faults = ValidationErrors::new();
            read(body.as_object().unwrap(), &mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        let hours = |count| places(json!({ "quiet_hours": vec![json!({ "from": "22:00", "to": "07:00" }); count] }));
        assert_eq!((hours(QUIET_HOURS), hours(QUIET_HOURS + 1)), (vec![], vec!["/quiet_hours".to_owned()]));
        let most = *DIGEST_TIMES.end();
        let times = |count| places(json!({ "digest": { "at": vec!["08:00"; count] } }));
        assert_eq!((times(most), times(most + 1)), (vec![], vec!["/digest/at".to_owned()]));
    }
}
