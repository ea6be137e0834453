//! When a schedule was due: every second is looked at, by no code of the product.
//!
//! It knows the triggers that fault tests use, in UTC: `interval` with one unit, cron of plain fields (with or without
//! seconds), and `at`.

use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc};
use serde_json::Value;

/// A trigger, as far as the oracle needs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Due {
    /// Whole multiples of this from the anchor.
    Every(TimeDelta),
    /// Seconds, minutes, hours, days, months and weekdays at which it fires.
    Cron(Box<[Vec<bool>; 6]>),
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
        assert!(trigger["exclude"].as_array().is_none_or(Vec::is_empty), "the oracle knows no exclusions: {trigger}");
        assert!(matches!(word("timezone"), None | Some("UTC")), "the oracle knows UTC alone: {trigger}");
        assert!(word("jitter").is_none() && word("start_at").is_none() && word("end_at").is_none(), "{trigger}");
        match (word("interval"), word("cron"), word("at")) {
            (Some(every), _, _) => Due::Every(length(every)),
            (_, Some(expression), _) => Due::Cron(Box::new(fields(expression))),
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
            Due::Cron(fields) => {
                let first = DateTime::from_timestamp(after.timestamp(), 0).expect("an instant");
                let seconds = std::iter::successors(Some(first), |at| Some(*at + TimeDelta::seconds(1)));
                seconds.take_while(|at| *at <= until).filter(within).filter(|at| matches(fields, *at)).collect()
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
        with_seconds.split(' ').zip(bounds).map(|(field, (low, high))| numbers(field, low, high)).collect();
    fields.try_into().unwrap_or_else(|_| panic!("the oracle can't read the cron expression {expression:?}"))
}

fn numbers(field: &str, low: usize, high: usize) -> Vec<bool> {
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

fn matches(fields: &[Vec<bool>; 6], at: DateTime<Utc>) -> bool {
    let values = [at.second(), at.minute(), at.hour(), at.day(), at.month(), at.weekday().num_days_from_sunday()];
    fields.iter().zip(values).all(|(field, value)| field[value as usize])
}

#[test]
fn it_looks_at_every_second() {
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
}
