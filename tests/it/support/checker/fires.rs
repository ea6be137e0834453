//! Every instant that was due has exactly one record, and nothing else is recorded.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::oracle::{excluded, is_excluded, jitter};
use super::{AHEAD, CheckerFacts, Due, PATIENCE, Records, RunRow, TaskRow, Verdict};

/// Why an instant has a row of its own and no run, decided when it fell due.
const PLANNED_SKIPS: [&str; 6] = ["missed_window", "catch_up_skip", "catch_up_limit", "max_runs", "excluded", "paused"];
/// Of these, one whose range may hold excluded instants among others: nothing of it ran.
const WHOLE_SKIPS: [&str; 3] = ["missed_window", "catch_up_skip", "paused"];
/// Why a run that was to start did not.
const LATER_SKIPS: [&str; 1] = ["overlap"];
/// The window of catching up when a task names none.
const WINDOW: TimeDelta = TimeDelta::hours(1);
/// A range of more instants than this need not say how many.
const COUNTED: u64 = 1000;
/// Of a thousand late instants and more, those before the newest that may run (a hundred at most) stand in one range,
/// excluded or not.
const EXAMINED: u64 = 900;

/// A row that stands for several instants.
struct Range<'a> {
    row: &'a RunRow,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    count: Option<u64>,
    stands_for: u64,
}

impl Range<'_> {
    /// Of what is excluded, those tell that nothing of theirs ran, and those of more instants than are looked at.
    fn may_hold(&self, is_excluded: bool) -> bool {
        let whole = || self.row.reason.as_deref().is_some_and(|reason| WHOLE_SKIPS.contains(&reason));
        !is_excluded || self.count.is_none_or(|count| count > EXAMINED) || whole()
    }
}

pub fn judge(records: &Records, task: &TaskRow, known: &CheckerFacts, verdict: &mut Verdict) {
    let trigger = &task.spec.0["trigger"];
    let due = Due::of(trigger);
    let exclusions = excluded(trigger);
    let rows: Vec<&RunRow> = records.runs.iter().filter(|run| run.task_id == Some(task.id)).collect();
    if task.epoch != task.due_epoch {
        verdict.violated("epochs", format!("{}: task {}, due {}", task.id, task.epoch, task.due_epoch));
    }
    if due == Due::Event {
        return events(records, task, &rows, verdict);
    }
    let lags = |alive: DateTime<Utc>| task.next_at.is_none_or(|next| next < alive - PATIENCE);
    if task.status == "active" && known.alive_until.is_some_and(lags) {
        verdict.violated("forgotten", format!("{} waits for {:?}", task.id, task.next_at));
    }
    let until = considered_until(task, &due);
    let instants: BTreeSet<DateTime<Utc>> =
        due.instants(task.anchor_at, task.active_since, until).into_iter().collect();
    verdict.instants += instants.len();

    let mut own: BTreeMap<DateTime<Utc>, Vec<&RunRow>> = BTreeMap::new();
    let mut ranges: Vec<Range> = Vec::new();
    for row in rows {
        match read_key(row) {
            Key::Instant(at) => own.entry(at).or_default().push(row),
            Key::Range => {}
            Key::Asked => continue,
            Key::Unknown => {
                verdict.violated("fire_key", format!("{} has the key {}", row.id, row.fire_key));
                continue;
            }
        }
        ranges.extend(range_of(row));
    }
    for (at, rows) in &own {
        // runs that are recorded ahead of their instant are not judged yet
        if !instants.contains(at) && *at <= until && *at > task.active_since {
            verdict.violated("never_due", format!("{} of {} was not due at {at}", rows[0].id, task.id));
        }
        if *at > until + AHEAD + PATIENCE {
            verdict
                .violated("early", format!("{} of {} is recorded for {at}, which has not come", rows[0].id, task.id));
        }
        if rows.len() > 1 {
            verdict.violated("one_record", format!("{} rows of {} at {at}", rows.len(), task.id));
        }
        if rows.iter().any(|row| row.scheduled_for != *at) {
            verdict.violated("fire_key", format!("{} says another instant than its key", rows[0].id));
        }
    }
    for at in &instants {
        let is_excluded = is_excluded(&exclusions, *at);
        match own.get(at) {
            Some(rows) => {
                verdict.fires += 1;
                for row in rows {
                    if !may_stand_for(row, is_excluded) {
                        verdict.violated("excluded", format!("{} of {at}, excluded: {is_excluded}", row.id));
                    }
                    skipped_for_a_reason(row, trigger, *at, known, verdict);
                }
            }
            None => {
                let covers = |range: &&mut Range| range.from <= *at && *at <= range.to;
                let mut covering: Vec<&mut Range> = ranges.iter_mut().filter(covers).collect();
                let told = is_excluded && covering.iter().any(|range| tells_of_excluded(range.row));
                covering.retain(|range| tells_of_excluded(range.row) == told && (told || range.may_hold(is_excluded)));
                covered(task, trigger, *at, covering, known, verdict);
            }
        }
    }
    for range in ranges.iter().filter(|range| range.to <= until) {
        let uncounted = range.count.is_none() && range.stands_for > COUNTED;
        if range.count != Some(range.stands_for) && !uncounted {
            let Range { row, count, stands_for, .. } = range;
            verdict.violated("range_count", format!("{} says {count:?} of {stands_for} instants", row.id));
        }
    }
    let fired = own.values().flatten().filter(|row| !row.reason.as_deref().is_some_and(|r| PLANNED_SKIPS.contains(&r)));
    let fired = fired.count() as i64;
    // a repeated instant counts no second time, whatever wrote it
    if task.fire_count != fired {
        verdict.violated("counted", format!("{} has counted {} fires of {fired}", task.id, task.fire_count));
    }
}

/// Up to when everything has to be recorded: a task that stands still was planned when it was made to.
fn considered_until(task: &TaskRow, due: &Due) -> DateTime<Utc> {
    let just_before = |next: DateTime<Utc>| next - TimeDelta::milliseconds(1);
    // one that waits out its jitter stays the next one, also while its task stands still
    let waits = task.nominal_at.zip(jitter(&task.spec.0["trigger"]));
    match (task.status.as_str(), due, task.next_at, waits) {
        ("completed", Due::At(at), None, _) => *at,
        ("active", _, Some(next), Some((nominal, jitter))) if next - nominal <= jitter => just_before(nominal),
        ("active", _, Some(next), _) => just_before(next),
        (_, _, _, Some((nominal, jitter))) if nominal > task.updated_at - jitter => {
            just_before(nominal).min(task.updated_at)
        }
        _ => task.updated_at,
    }
}

enum Key {
    Instant(DateTime<Utc>),
    Range,
    /// Run now, a retry, a backfill.
    Asked,
    Unknown,
}

fn read_key(row: &RunRow) -> Key {
    // what makes a key different from another of its instant is not looked at: that it is one too many is
    let key = row.fire_key.split('#').next().unwrap_or_default();
    match key.split_once(':') {
        Some(("s", at)) => at.parse().map_or(Key::Unknown, Key::Instant),
        Some(("r", _)) if row.missed.is_some() => Key::Range,
        Some(("m" | "t" | "b", _)) => Key::Asked,
        _ => Key::Unknown,
    }
}

fn range_of(row: &RunRow) -> Option<Range<'_>> {
    let missed = row.missed.as_ref()?;
    let instant = |name: &str| missed[name].as_str().and_then(|at| at.parse().ok());
    let (from, to) = (instant("from")?, instant("to")?);
    // a skip of one instant tells of itself
    if from == to && from == row.scheduled_for {
        return None;
    }
    Some(Range { row, from, to, count: missed["count"].as_u64(), stands_for: 0 })
}

/// Whether a row may stand for an instant: an excluded one is told apart and never runs; another is never told to be.
fn may_stand_for(row: &RunRow, is_excluded: bool) -> bool {
    let skip = row.reason.as_deref().filter(|_| row.state == "skipped").unwrap_or_default();
    tells_of_excluded(row) == is_excluded || is_excluded && WHOLE_SKIPS.contains(&skip)
}

fn tells_of_excluded(row: &RunRow) -> bool {
    row.state == "skipped" && row.reason.as_deref() == Some("excluded")
}

/// An instant without a row of its own stands in exactly one range, and for a reason that its policy has.
fn covered(
    task: &TaskRow,
    trigger: &Value,
    at: DateTime<Utc>,
    mut covering: Vec<&mut Range>,
    known: &CheckerFacts,
    verdict: &mut Verdict,
) {
    match covering.as_mut_slice() {
        [] => verdict.violated("absent", format!("{} was due at {at}, and nothing tells of it", task.id)),
        [range] => {
            range.stands_for += 1;
            let is_run = range.row.fire_key.starts_with("s:");
            missed_for_a_reason(range.row, is_run, trigger, at, known, verdict);
        }
        several => verdict.violated("one_record", format!("{} ranges of {} tell of {at}", several.len(), task.id)),
    }
}

fn skipped_for_a_reason(row: &RunRow, trigger: &Value, at: DateTime<Utc>, known: &CheckerFacts, verdict: &mut Verdict) {
    if row.state != "skipped" {
        return;
    }
    match row.reason.as_deref() {
        Some(reason) if PLANNED_SKIPS.contains(&reason) => missed_for_a_reason(row, false, trigger, at, known, verdict),
        Some(reason) if LATER_SKIPS.contains(&reason) => {}
        reason => verdict.violated("reason", format!("{} is skipped for {reason:?}", row.id)),
    }
}

/// An instant that did not run by itself was late, because of an outage, and its policy says what became of it.
fn missed_for_a_reason(
    row: &RunRow,
    is_run: bool,
    trigger: &Value,
    at: DateTime<Utc>,
    known: &CheckerFacts,
    verdict: &mut Verdict,
) {
    let policy = trigger["catch_up"].as_str().unwrap_or("latest");
    let reason = row.reason.as_deref();
    if reason == Some("excluded") {
        return;
    }
    let fits = match (policy, is_run) {
        ("latest", true) => true,
        ("latest", false) => reason == Some("missed_window"),
        ("skip", is_run) => !is_run && reason == Some("catch_up_skip"),
        ("all", is_run) => !is_run && matches!(reason, Some("missed_window" | "catch_up_limit")),
        _ => false,
    };
    let ended = matches!(reason, Some("paused" | "max_runs"));
    if !fits && !ended {
        verdict.violated("policy", format!("{at} of a task with catch_up {policy} is in {} for {reason:?}", row.id));
    }
    if known.clock_stepped {
        return;
    }
    let late = row.created_at - at;
    let provoked = known.outages.iter().any(|(from, to)| *from <= row.created_at && *to >= at - AHEAD);
    if late <= TimeDelta::zero() || (late > PATIENCE && !provoked) {
        verdict.violated("missed", format!("{at} was recorded in {} {late} late, and there was no outage", row.id));
    }
    if reason == Some("missed_window") && late < WINDOW {
        verdict.violated("policy", format!("{at} was within the window of {}", row.id));
    }
}

/// One run, or one reason, for each task that an accepted event is for: every event task of its tenant and type.
fn events(records: &Records, task: &TaskRow, rows: &[&RunRow], verdict: &mut Verdict) {
    let wanted = task.spec.0["trigger"]["event_type"].as_str();
    let mut of_event: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        let key = row.fire_key.split('#').next().unwrap_or_default();
        *of_event.entry(key).or_default() += 1;
    }
    for (key, count) in of_event.iter().filter(|(_, count)| **count > 1) {
        verdict.violated("one_record", format!("{count} rows of {} for {key}", task.id));
    }
    let is_for_it = |event_type: &str| wanted.is_none_or(|wanted| wanted == event_type);
    for event in records.events.iter().filter(|event| is_for_it(&event.event_type) && !event.waits) {
        verdict.instants += 1;
        match of_event.get(format!("e:{}", event.event_key).as_str()) {
            Some(_) => verdict.fires += 1,
            None => verdict.violated("absent", format!("{} has no run of the event {}", task.id, event.event_key)),
        }
    }
}
