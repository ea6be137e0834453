//! The timeline of a run: blocks of rows, with waits for people, messages and idle time between them.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::http::ui::frame::filters::took;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::work::run::blocks::{RunFacts, TimelineBlock, blocks, wait_row};
use crate::http::ui::work::run::cut::one_line;
use crate::http::ui::work::run::entry::{RunEntry, list, text};
use crate::http::ui::work::run::row::TimelineRow;
use crate::http::ui::work::run::scale::TimeScale;

/// Idle time that a row of its own tells of.
const IDLE: TimeDelta = TimeDelta::seconds(30);
/// Idle time that tells one attempt from the next, in a run that has had several.
const BETWEEN_ATTEMPTS: TimeDelta = TimeDelta::seconds(1);
/// Entries behind an open block up to which a live page asks for it again.
const ASKED_AGAIN: i64 = 50;
/// Characters of an error or a message that a row shows.
const LINE: usize = 120;

/// A run and the part of its transcript that is shown.
#[derive(Debug, Clone, Copy)]
pub struct TimelineSource<'a> {
    /// The run, as the API answers it.
    pub run: &'a Value,
    /// The number of the first entry that was asked for.
    pub from: u32,
    /// The entries.
    pub entries: &'a [Value],
    /// The number with which the transcript goes on; `None`: it ends here.
    pub next: Option<u32>,
    /// Approvals and questions of the run.
    pub approvals: &'a [Value],
    /// Messages that tell of the run.
    pub deliveries: &'a [Value],
    /// The present.
    pub now: DateTime<Utc>,
    /// The entry whose details are shown.
    pub selected: Option<i64>,
}

/// The timeline, as the template shows it: `{blocks, again, more, failure, models}`. `again` is the entry from which on
/// a live page asks anew, `more` the one with which the next part begins, `failure` the anchor of the first row that
/// tells of a failure.
pub fn timeline(source: &TimelineSource) -> Value {
    let entries: Vec<RunEntry> = source.entries.iter().filter_map(RunEntry::of).collect();
    let course = RunCourse::of(source);
    let facts = RunFacts {
        approvals: source.approvals,
        is_whole: source.next.is_none(),
        is_final: course.end.is_some(),
        now: source.now,
    };
    let (mut all, others) = blocks(&entries, &facts);
    let passing = others.into_iter().map(|approval| wait_row(approval, source.now));
    for row in passing.chain(source.deliveries.iter().filter_map(delivery_row)) {
        insert_by_time(&mut all, row, source);
    }
    add_queue_and_end(&mut all, source, &course);
    add_idle_rows(&mut all, source, &course);
    let scale = TimeScale::new(course.start, course.end.unwrap_or(source.now), &long_waits(source));
    let views: Vec<Value> = all.iter().map(|block| block_view(block, &scale, source)).collect();
    json!({
        "blocks": views,
        "again": again(&all, source),
        "more": source.next,
        "failure": first_failure(&all),
        "models": models(&entries),
    })
}

/// The instants between which a run was executed, and how often.
struct RunCourse {
    start: DateTime<Utc>,
    /// `None`: it has not ended.
    end: Option<DateTime<Utc>>,
    attempts: i64,
}

impl RunCourse {
    fn of(source: &TimelineSource) -> RunCourse {
        let run = source.run;
        let start = instant(&run["started_at"]).or_else(|| instant(&run["created_at"]));
        RunCourse {
            start: start.unwrap_or(source.now),
            end: instant(&run["finished_at"]),
            attempts: run["attempt"].as_i64().unwrap_or_default(),
        }
    }
}

/// Waits for people that a row of its own would tell of.
fn long_waits(source: &TimelineSource) -> Vec<(DateTime<Utc>, DateTime<Utc>)> {
    let waits = source.approvals.iter().map(|approval| wait_row(approval, source.now));
    waits.filter(|wait| wait.end - wait.start > IDLE).map(|wait| (wait.start, wait.end)).collect()
}

fn delivery_row(delivery: &Value) -> Option<TimelineRow> {
    let at = instant(&delivery["created_at"])?;
    let to = format!("{} by {}", text(&delivery["recipient"]), text(&delivery["channel"]));
    let state = text(&delivery["state"]);
    Some(TimelineRow {
        id: Some(format!("delivery-{}", text(&delivery["id"]))),
        label: text(&delivery["kind"]).replace('_', " "),
        line: match delivery["last_error"].as_str() {
            Some(error) if state != "delivered" => format!("{to}: {}", one_line(error, LINE)),
            _ => to,
        },
        has_failed: state == "failed",
        state: Some(state.to_owned()),
        href: Some(format!("/ui/deliveries/{}", text(&delivery["id"]))),
        ..TimelineRow::at("delivery", at)
    })
}

/// Puts a row before the first block that began later, if it belongs to this part of the transcript. It stands in the
/// block of the entry before it, with which a live page asks for it again.
fn insert_by_time(all: &mut Vec<TimelineBlock>, row: TimelineRow, source: &TimelineSource) {
    let began = |block: &TimelineBlock| block.rows.first().map(|first| first.start);
    let is_too_early = source.from > 0 && all.first().and_then(began).is_none_or(|first| row.start < first);
    let place = all.iter().position(|block| began(block).is_some_and(|start| start > row.start));
    if is_too_early || (place.is_none() && source.next.is_some()) {
        return;
    }
    let place = place.unwrap_or(all.len());
    let from = place.checked_sub(1).map_or(i64::from(source.from), |before| all[before].from);
    all.insert(place, TimelineBlock { from, rows: vec![row], calls: Vec::new(), is_open: false });
}

/// Adds the wait for a worker before the first entry, and the end of the run behind the last.
fn add_queue_and_end(all: &mut Vec<TimelineBlock>, source: &TimelineSource, course: &RunCourse) {
    let run = source.run;
    let block = |from, row| TimelineBlock { from, rows: vec![row], calls: Vec::new(), is_open: false };
    let asked = instant(&run["scheduled_for"]).max(instant(&run["created_at"]));
    if let (0, Some(asked), Some(started)) = (source.from, asked, instant(&run["started_at"]))
        && asked < started
    {
        let line = "It waited for a worker".to_owned();
        all.insert(0, block(0, TimelineRow { line, end: started, is_timed: true, ..TimelineRow::at("queue", asked) }));
    }
    if let (None, Some(end)) = (source.next, course.end) {
        let from = all.last().map_or(i64::from(source.from), |last| last.from);
        all.push(block(from, end_row(run, end)));
    }
}

fn end_row(run: &Value, at: DateTime<Utc>) -> TimelineRow {
    let state = text(&run["state"]);
    let error = run["error"]["message"].as_str().or_else(|| run["reason"].as_str()).unwrap_or_default();
    TimelineRow {
        id: Some("row-end".to_owned()),
        line: one_line(error, LINE),
        has_failed: matches!(state, "failed" | "expired"),
        state: Some(state.to_owned()),
        href: Some("#outcome".to_owned()),
        ..TimelineRow::at("end", at)
    }
}

/// Adds a row wherever nothing happened for a while.
fn add_idle_rows(all: &mut [TimelineBlock], source: &TimelineSource, course: &RunCourse) {
    let mut reached = (source.from == 0).then_some(course.start);
    for block in all {
        let mut rows = Vec::with_capacity(block.rows.len());
        for row in block.rows.drain(..) {
            rows.extend(idle_row(reached, row.start, course.attempts));
            reached = reached.max(Some(row.end));
            rows.push(row);
        }
        if let Some(start) = block.calls.iter().map(|call| call.start).min() {
            rows.extend(idle_row(reached, start, course.attempts));
            reached = reached.max(block.calls.iter().map(|call| call.end).max());
        }
        block.rows = rows;
    }
}

/// The row between what ended at `reached` and what began at `start`, if that is long.
fn idle_row(reached: Option<DateTime<Utc>>, start: DateTime<Utc>, attempts: i64) -> Option<TimelineRow> {
    let reached = reached?;
    let idle = start - reached;
    let (kind, line) = match attempts {
        2.. if idle >= BETWEEN_ATTEMPTS => ("attempt", format!("Between two of {attempts} attempts")),
        _ if idle > IDLE => ("idle", "Nothing happened".to_owned()),
        _ => return None,
    };
    let line = format!("{line} for {}", took(idle.num_milliseconds() as f64));
    Some(TimelineRow { line, end: start, ..TimelineRow::at(kind, reached) })
}

fn block_view(block: &TimelineBlock, scale: &TimeScale, source: &TimelineSource) -> Value {
    let view = |row: &TimelineRow| row.view(scale, i64::from(source.from), source.selected);
    let (rows, calls) = (block.rows.iter().map(view), block.calls.iter().map(view));
    json!({
        "from": block.from,
        "rows": rows.collect::<Vec<_>>(),
        "calls": (!block.calls.is_empty()).then(|| fold_view(block, calls.collect(), source)),
    })
}

/// Calls that were made at once: folded, unless one has failed or is selected.
fn fold_view(block: &TimelineBlock, rows: Vec<Value>, source: &TimelineSource) -> Value {
    let calls = &block.calls;
    let failed = calls.iter().filter(|call| call.has_failed).count();
    let pending = calls.iter().filter(|call| call.state.as_deref() == Some("pending")).count();
    let start = calls.iter().map(|call| call.start).min();
    let length = start.zip(calls.iter().map(|call| call.end).max()).map(|(start, end)| end - start);
    let is_selected = source.selected.is_some() && calls.iter().any(|call| call.seq == source.selected);
    json!({
        "count": calls.len(),
        "failed": failed,
        "pending": pending,
        "took": length.map(|length| took(length.num_milliseconds() as f64)),
        "is_open": failed > 0 || pending > 0 || is_selected,
        "rows": rows,
    })
}

/// The entry from which on a live page asks anew: the first block to which something may be added, and the last block
/// in any case.
fn again(all: &[TimelineBlock], source: &TimelineSource) -> i64 {
    let last = all.last().map_or(i64::from(source.from), |last| last.from);
    let near = |block: &&TimelineBlock| block.is_open && last - block.from <= ASKED_AGAIN;
    all.iter().find(near).map_or(last, |open| open.from)
}

/// The anchor of the first row that tells of a failure.
fn first_failure(all: &[TimelineBlock]) -> Option<&str> {
    let rows = all.iter().flat_map(|block| block.rows.iter().chain(&block.calls));
    rows.filter(|row| row.has_failed).find_map(|row| row.id.as_deref())
}

/// The models that answered, each once.
fn models<'a>(entries: &[RunEntry<'a>]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for model in entries.iter().filter_map(|entry| entry.json["model_call"]["model"].as_str()) {
        if !found.contains(&model) {
            found.push(model);
        }
    }
    found
}

/// Approvals or messages as a part of a page has them: `{answer: {items}}`, or none where the reader may not see them.
pub fn items_of(part: &Value) -> &[Value] {
    list(&part["answer"]["items"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Value {
        let start: DateTime<Utc> = "2026-11-21T00:00:00Z".parse().unwrap();
        json!(start + TimeDelta::seconds(seconds))
    }

    fn run(started: i64, finished: Option<i64>, attempt: i64) -> Value {
        json!({ "created_at": at(-5), "scheduled_for": at(-2), "started_at": at(started), "attempt": attempt,
            "finished_at": finished.map(at), "state": if finished.is_some() { "failed" } else { "running" },
            "error": { "code": "timeout", "message": "took too long" } })
    }

    fn asks(seq: i64, turn: i64, second: i64, calls: &[&str]) -> Value {
        let calls: Vec<Value> = calls.iter().map(|id| json!({ "id": id, "name": "look", "args": {} })).collect();
        json!({ "seq": seq, "turn": turn, "at": at(second), "role": "assistant", "tool_calls": calls,
            "duration_ms": 1000, "model_call": { "model": "main" } })
    }

    fn answers(seq: i64, turn: i64, second: i64, call: &str, is_error: bool) -> Value {
        json!({ "seq": seq, "turn": turn, "at": at(second), "role": "tool", "call_id": call, "name": "look",
            "content": "found", "is_error": is_error, "duration_ms": 1000 })
    }

    fn shown(
        run: &Value,
        entries: &[Value],
        approvals: &[Value],
        deliveries: &[Value],
        part: (u32, Option<u32>),
    ) -> Value {
        let (from, next) = part;
        let now = instant(&at(1_000)).unwrap();
        timeline(&TimelineSource { run, from, entries, next, approvals, deliveries, now, selected: None })
    }

    /// The kinds of all rows, those of a fold in brackets.
    fn kinds(timeline: &Value) -> Vec<String> {
        let kind = |row: &Value| text(&row["kind"]).to_owned();
        let of_block = |block: &Value| {
            let folded = list(&block["calls"]["rows"]).iter().map(|row| format!("({})", kind(row)));
            list(&block["rows"]).iter().map(kind).chain(folded).collect::<Vec<_>>()
        };
        list(&timeline["blocks"]).iter().flat_map(of_block).collect()
    }

    #[test]
    fn run_is_told_from_the_queue_to_its_end_with_calls_folded() {
        let entries = [
            asks(0, 1, 1, &["a", "b"]),
            answers(1, 1, 2, "a", false),
            answers(2, 1, 2, "b", false),
            asks(3, 2, 3, &[]),
        ];
        let timeline = shown(&run(0, Some(4), 1), &entries, &[], &[], (0, None));
        assert_eq!(kinds(&timeline), ["queue", "model", "(tool)", "(tool)", "model", "end"]);
        let fold = &timeline["blocks"][1]["calls"];
        assert_eq!((&fold["count"], &fold["took"], &fold["is_open"]), (&json!(2), &json!("1.0 s"), &json!(false)));
        assert_eq!((&timeline["failure"], &timeline["models"]), (&json!("row-end"), &json!(["main"])));
        let queue = &timeline["blocks"][0]["rows"][0];
        assert_eq!(
            (&queue["took"], &queue["offset"], &queue["bar"]),
            (&json!("2.0 s"), &json!("before"), &Value::Null)
        );
    }

    #[test]
    fn long_idle_time_is_one_row_that_says_how_long_it_was() {
        let entries = [asks(0, 1, 1, &["a"]), answers(1, 1, 300, "a", false), asks(2, 2, 329, &[])];
        let timeline = shown(&run(0, None, 1), &entries, &[], &[], (0, None));
        assert_eq!(kinds(&timeline), ["queue", "model", "idle", "tool", "model"], "28 seconds are none");
        assert_eq!(timeline["blocks"][1]["rows"][1]["line"], "Nothing happened for 4 min 58 s");
    }

    #[test]
    fn attempts_are_apart_by_the_waits_between_them() {
        let entries = [asks(0, 1, 1, &[]), asks(1, 2, 12, &[])];
        let timeline = shown(&run(0, None, 2), &entries, &[], &[], (0, None));
        assert_eq!(kinds(&timeline), ["queue", "model", "attempt", "model"]);
        assert_eq!(timeline["blocks"][2]["rows"][0]["line"], "Between two of 2 attempts for 10.0 s");
        assert_eq!(kinds(&shown(&run(0, None, 1), &entries, &[], &[], (0, None))), ["queue", "model", "model"]);
    }

    #[test]
    fn wait_for_a_person_is_no_idle_time() {
        let approval = json!({ "id": "q", "turn": 1, "delegation_chain": [], "status": "approved", "created_at": at(1),
            "decided_at": at(500) });
        let entries = [asks(0, 1, 1, &["a"]), answers(1, 1, 501, "a", true)];
        let timeline = shown(&run(0, None, 1), &entries, std::slice::from_ref(&approval), &[], (0, None));
        assert_eq!(kinds(&timeline), ["queue", "model", "wait", "tool"]);
        assert_eq!(timeline["failure"], "row-1");
        let wait = &timeline["blocks"][1]["rows"][1];
        assert_eq!((&wait["took"], &wait["is_wait"]), (&json!("8 min 19 s"), &json!(true)));
        // of a turn that another part has, it stands where it was in time, or not at all
        let later = [asks(8, 3, 600, &[])];
        assert_eq!(kinds(&shown(&run(0, None, 1), &later, &[approval], &[], (8, None))), ["model"]);
    }

    #[test]
    fn messages_stand_where_they_were_sent_and_only_on_the_part_that_has_the_time() {
        let sent = |second| {
            json!({ "id": "d", "kind": "result", "channel": "email", "recipient": "ann",
            "state": "failed", "last_error": "no such box", "created_at": at(second) })
        };
        let entries = [asks(0, 1, 1, &[]), asks(1, 2, 5, &[])];
        let of = |second, part| kinds(&shown(&run(0, None, 1), &entries, &[], &[sent(second)], part));
        assert_eq!(of(3, (0, None)), ["queue", "model", "delivery", "model"]);
        assert_eq!(of(9, (0, None)), ["queue", "model", "model", "delivery"]);
        assert_eq!(of(9, (0, Some(2))), ["queue", "model", "model"], "it is on the next part");
        assert_eq!(of(-1, (200, None)), ["model", "model"], "it is on the part before");
    }

    #[test]
    fn live_page_asks_again_from_the_first_open_call_on_and_for_the_last_block() {
        let again = |entries: &[Value]| shown(&run(0, None, 1), entries, &[], &[], (0, None))["again"].clone();
        let closed = [asks(0, 1, 1, &["a"]), answers(1, 1, 2, "a", false), asks(2, 2, 3, &[])];
        assert_eq!(again(&closed), 2);
        let mut inner = asks(1, 1, 2, &[]);
        inner["delegation"] = json!({ "chain": ["booker"], "turn": 1, "call_id": "a" });
        assert_eq!(again(&[asks(0, 1, 1, &["a"]), inner]), 0);
        assert_eq!(again(&[]), 0);
        assert_eq!(shown(&run(0, None, 1), &closed, &[], &[], (0, Some(3)))["more"], 3);
    }

    #[test]
    fn first_failure_is_the_first_row_that_tells_of_one() {
        let entries = [
            asks(0, 1, 1, &["a", "b"]),
            answers(1, 1, 2, "a", false),
            answers(2, 1, 2, "b", true),
            json!({ "seq": 3, "turn": 2, "at": at(3), "role": "unusable", "code": "empty" }),
        ];
        let timeline = shown(&run(0, Some(4), 1), &entries, &[], &[], (0, None));
        assert_eq!((&timeline["failure"], &timeline["blocks"][1]["calls"]["is_open"]), (&json!("row-2"), &json!(true)));
        let fine = shown(&run(0, None, 1), &entries[..2], &[], &[], (0, Some(2)));
        assert_eq!(fine["failure"], Value::Null);
    }
}
