//! When a schedule was due: every second is looked at, by no code of the product.
//!
//! It knows the triggers that fault tests use: `interval` with one unit, cron of plain fields (with or without seconds)
//! in any zone, `at`, and exclusions that are cron. Jitter moves no nominal instant. Where a zone's clocks are turned
//! it says what the wall clock shows.

use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;
use serde_json::Value;

/// Wall times at some instants.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// Seconds, minutes, hours, days, months and weekdays.
    fields: [Vec<bool>; 6],
    zone: Tz,
}

impl Pattern {
    fn of(expression: &str, trigger: &Value) -> Pattern {
        let zone = trigger["timezone"].as_str().unwrap_or("UTC");
        Pattern { fields: fields(expression), zone: zone.parse().unwrap_or_else(|_| panic!("no zone: {trigger}")) }
    }

    fn matches(&self, at: DateTime<Utc>) -> bool {
        let at = at.with_timezone(&self.zone);
        let values = [at.second(), at.minute(), at.hour(), at.day(), at.month(), at.weekday().num_days_from_sunday()];
        self.fields.iter().zip(values).all(|(field, value)| field[value as usize])
    }
}

/// The exclusions of a trigger.
pub fn excluded(trigger: &Value) -> Vec<Pattern> {
    let expressions = trigger["exclude"].as_array().into_iter().flatten();
    expressions.map(|text| Pattern::of(text.as_str().expect("an exclusion"), trigger)).collect()
}

pub fn is_excluded(exclusions: &[Pattern], at: DateTime<Utc>) -> bool {
    exclusions.iter().any(|exclusion| exclusion.matches(at))
}

/// By how much an instant may be put off.
pub fn jitter(trigger: &Value) -> Option<TimeDelta> {
    trigger["jitter"].as_str().map(length)
}

/// A trigger, as far as the oracle needs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Due {
    /// Whole multiples of this from the anchor.
    Every(TimeDelta),
    Cron(Box<Pattern>),
    At(DateTime<Utc>),
    /// Nothing of it is due by the clock.
    Event,
}

impl Due {
    /// Reads a stored trigger.
    ///
    /// # Panics
    /// On one that fault tests do not use.
    pub fn of(trigger: &Value) -> Due {
        let word = |name: &str| trigger[name].as_str();
        assert!(word("start_at").is_none() && word("end_at").is_none(), "the oracle knows no limits: {trigger}");
        match (word("interval"), word("cron"), word("at")) {
            (Some(every), _, _) => Due::Every(length(every)),
            (_, Some(expression), _) => Due::Cron(Box::new(Pattern::of(expression, trigger))),
            (_, _, Some(at)) => Due::At(at.parse().unwrap_or_else(|error| panic!("{at}: {error}"))),
            _ => {
                assert_eq!(word("type"), Some("event"), "the oracle does not know {trigger}");
                Due::Event
            }
        }
    }

    /// Every instant after `after` and up to `until`, found by looking at them one by one.
    pub fn instants(&self, anchor: DateTime<Utc>, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let within = |instant: &DateTime<Utc>| *instant > after && *instant <= until;
        match self {
            Due::Event => Vec::new(),
            // an instant that is named may be the one of its task's creation
            Due::At(at) => Some(*at).filter(|at| *at >= after && *at <= until).into_iter().collect(),
            Due::Every(every) => {
                let steps = std::iter::successors(Some(anchor), |at| Some(*at + *every));
                steps.take_while(|at| *at <= until).filter(within).collect()
            }
            Due::Cron(pattern) => {
                let first = DateTime::from_timestamp(after.timestamp(), 0).expect("an instant");
                let seconds = std::iter::successors(Some(first), |at| Some(*at + TimeDelta::seconds(1)));
                seconds.take_while(|at| *at <= until).filter(within).filter(|at| pattern.matches(*at)).collect()
            }
        }
    }
}

fn length(text: &str) -> TimeDelta {
    let (number, unit) = text.split_at(text.len() - 1);
    let number: i64 = number.parse().unwrap_or_else(|_| panic!("the oracle can't read the length {text:?}"));
    match unit {
        "s" => TimeDelta::seconds(number),
        "m" => TimeDelta::minutes(number),
        _ => panic!("the oracle can't read the length {text:?}"),
    }
}

fn fields(expression: &str) -> [Vec<bool>; 6] {
    let with_seconds = match expression.split(' ').count() {
        5 => format!("0 {expression}"),
        _ => expression.to_owned(),
    };
    let bounds = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    let fields: Vec<Vec<bool>> =
        with_seconds.split(' ').zip(bounds).map(|(field, (low, high))| field_numbers(field, low, high)).collect();
    fields.try_into().unwrap_or_else(|_| panic!("the oracle can't read the cron expression {expression:?}"))
}

/// The numbers that a field of a cron expression names, of those from `low` to `high`: whether each index is one of
/// them. Lists, ranges, steps and `*` alone are read.
pub fn field_numbers(field: &str, low: usize, high: usize) -> Vec<bool> {
    let mut set = vec![false; high + 1];
    for item in field.split(',') {
        let (range, step) = item.split_once('/').map_or((item, 1), |(range, step)| (range, step.parse().unwrap()));
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((from, to)) => (from.parse().unwrap(), to.parse().unwrap()),
            None => (range.parse().unwrap(), range.parse().unwrap()),
        };
        (from..=to).step_by(step).for_each(|value| set[value] = true);
    }
    set
}

#[test]
fn oracle_checks_every_second() {
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    let of = |trigger: Value| Due::of(&trigger);
    let from = at("2027-03-01T08:00:00.250Z");
    let every = of(serde_json::json!({ "type": "schedule", "interval": "2s" }));
    assert_eq!(
        every.instants(from, from, at("2027-03-01T08:00:04.250Z")),
        [at("2027-03-01T08:00:02.250Z"), at("2027-03-01T08:00:04.250Z")]
    );
    let cron = of(serde_json::json!({ "type": "schedule", "cron": "*/5 * * * * *" }));
    assert_eq!(
        cron.instants(from, from, at("2027-03-01T08:00:10Z")),
        [at("2027-03-01T08:00:05Z"), at("2027-03-01T08:00:10Z")]
    );
    let minutes = of(serde_json::json!({ "type": "schedule", "cron": "1-2 8 * * 1" }));
    assert_eq!(
        minutes.instants(from, from, at("2027-03-02T08:30:00Z")),
        [at("2027-03-01T08:01:00Z"), at("2027-03-01T08:02:00Z")]
    );
    let kathmandu = serde_json::json!({ "type": "schedule", "cron": "0 45 13 * * *", "timezone": "Asia/Kathmandu",
        "exclude": ["0 45 13 2 * *"] });
    assert_eq!(of(kathmandu.clone()).instants(from, from, at("2027-03-03T00:00:00Z")), [at("2027-03-02T08:00:00Z")]);
    let exclusions = excluded(&kathmandu);
    assert!(is_excluded(&exclusions, at("2027-03-02T08:00:00Z")));
    assert!(!is_excluded(&exclusions, at("2027-03-03T08:00:00Z")) && !is_excluded(&[], from));
}
