//! Schedules against facts and oracles that know nothing of their code.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use reveille::trigger::{Schedule, Timetable};

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn compile(json: serde_json::Value, anchor: DateTime<Utc>) -> Timetable {
    serde_json::from_value::<Schedule>(json).unwrap().compile(anchor).unwrap()
}

fn cron(expression: &str, zone: &str) -> Timetable {
    compile(serde_json::json!({"cron": expression, "timezone": zone}), DateTime::UNIX_EPOCH)
}

/// One line of `tests/data/cron_facts.tsv`.
struct Fact<'a> {
    line: &'a str,
    backwards: bool,
    inclusive: bool,
    expression: &'a str,
    zone: &'a str,
    start: DateTime<Utc>,
    expected: Vec<DateTime<Utc>>,
}

fn facts() -> Vec<Fact<'static>> {
    let lines = include_str!("../data/cron_facts.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [_, _, direction, inclusive, expression, zone, start, expected] = columns[..] else { panic!("{line}") };
            Fact {
                line,
                backwards: direction == "prev",
                inclusive: inclusive == "incl",
                expression,
                zone,
                start: at(start),
                expected: expected.split(',').filter(|text| !text.is_empty()).map(at).collect(),
            }
        })
        .collect()
}

#[test]
fn the_facts_of_other_schedulers_come_out() {
    let tick = TimeDelta::nanoseconds(1);
    let mut wrong = Vec::new();
    let facts = facts();
    for fact in &facts {
        let schedule: Schedule =
            serde_json::from_value(serde_json::json!({"cron": fact.expression, "timezone": fact.zone})).unwrap();
        let table = match schedule.compile(DateTime::UNIX_EPOCH) {
            Ok(table) => table,
            Err(fault) => {
                wrong.push(format!("{}\n    {}", fact.line, fault.message));
                continue;
            }
        };
        let mut from = match (fact.inclusive, fact.backwards) {
            (true, false) => fact.start - tick,
            (true, true) => fact.start + tick,
            (false, _) => fact.start,
        };
        let mut found = Vec::new();
        for _ in &fact.expected {
            let next = match fact.backwards {
                true => table.last_before(from, from - TimeDelta::days(40 * 366)),
                false => table.next_after(from),
            };
            let Some(next) = next else { break };
            found.push(next);
            from = next;
        }
        if found != fact.expected {
            wrong.push(format!("{}\n    found {found:?}", fact.line));
        }
    }
    assert!(facts.len() >= 1000, "only {} facts", facts.len());
    assert!(wrong.is_empty(), "{} of {} facts:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
}
