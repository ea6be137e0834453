//! Blocks of a timeline: rows that belong together, such as an answer of a model with the calls that it asked for, and
//! the people who were asked about them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::http::ui::frame::instant::instant;
use crate::http::ui::work::run::cut::one_line;
use crate::http::ui::work::run::entry::{CallKey, RunEntry, list, text};
use crate::http::ui::work::run::row::TimelineRow;
use crate::http::ui::work::run::words::{EntryWords, arguments_line, words};

/// Characters of a question that a row shows.
const WAIT_LINE: usize = 70;

/// Rows that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineBlock {
    /// The entry with which it begins.
    pub from: i64,
    /// Its rows, in order.
    pub rows: Vec<TimelineRow>,
    /// Calls that were made at once: more than one, or none.
    pub calls: Vec<TimelineRow>,
    /// Whether the run is about to add to it.
    pub is_open: bool,
}

/// Facts about the run that entries do not have.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    /// Approvals and questions of the run, as the API lists them.
    pub approvals: &'a [Value],
    /// Whether the transcript ends with these entries.
    pub is_whole: bool,
    /// Whether the run has ended.
    pub is_final: bool,
    /// The present.
    pub now: DateTime<Utc>,
}

/// Entries that belong together.
enum EntryGroup<'a> {
    One(RunEntry<'a>),
    /// An answer of a model, and the result of each of its calls.
    Turn(RunEntry<'a>, Vec<Option<RunEntry<'a>>>),
    /// A step of a pipeline that was begun, and its result.
    Step(RunEntry<'a>, Option<RunEntry<'a>>),
}

impl<'a> EntryGroup<'a> {
    /// Adds the result of a call, or of the step.
    fn set_result(&mut self, index: usize, entry: RunEntry<'a>) {
        match self {
            EntryGroup::One(_) => {}
            EntryGroup::Turn(_, results) => results[index] = Some(entry),
            EntryGroup::Step(_, result) => *result = Some(entry),
        }
    }
}

/// The blocks of these entries, and the approvals that belong to none of them.
pub fn blocks<'a>(entries: &[RunEntry<'a>], facts: &RunFacts<'a>) -> (Vec<TimelineBlock>, Vec<&'a Value>) {
    let owners: Vec<Option<i64>> = facts.approvals.iter().map(|approval| asking_entry(approval, entries)).collect();
    let waits_of = |seq: i64| {
        let of_entry = facts.approvals.iter().zip(&owners).filter(move |(_, owner)| **owner == Some(seq));
        of_entry.map(|(approval, _)| wait_row(approval, facts.now)).collect::<Vec<_>>()
    };
    let block = |group: EntryGroup<'a>| match group {
        EntryGroup::One(entry) => single(entry),
        EntryGroup::Turn(entry, results) => turn(entry, &results, waits_of(entry.seq), facts),
        EntryGroup::Step(entry, result) => step(entry, result, facts),
    };
    let made = groups(entries).into_iter().map(block).collect();
    let others = facts.approvals.iter().zip(&owners).filter(|(_, owner)| owner.is_none());
    (made, others.map(|(approval, _)| approval).collect())
}

/// The entries in groups, in the order of their first ones.
fn groups<'a>(entries: &[RunEntry<'a>]) -> Vec<EntryGroup<'a>> {
    let mut found: Vec<EntryGroup<'a>> = Vec::new();
    let mut calls: HashMap<CallKey<'a>, (usize, usize)> = HashMap::new();
    let mut steps: HashMap<(&'a str, Option<u64>), usize> = HashMap::new();
    for &entry in entries {
        let place = found.len();
        match entry.role {
            "assistant" => {
                let ids = entry.calls().iter().map(|call| text(&call["id"]));
                calls.extend(ids.enumerate().map(|(index, id)| (entry.key_of(id), (place, index))));
                found.push(EntryGroup::Turn(entry, vec![None; entry.calls().len()]));
            }
            "tool" => match calls.remove(&entry.key_of(entry.text("call_id"))) {
                Some((asked, index)) => found[asked].set_result(index, entry),
                None => found.push(EntryGroup::One(entry)),
            },
            "step" => {
                steps.insert(step_key(&entry), place);
                found.push(EntryGroup::Step(entry, None));
            }
            "step_result" => match steps.remove(&step_key(&entry)) {
                Some(begun) => found[begun].set_result(0, entry),
                None => found.push(EntryGroup::One(entry)),
            },
            _ => found.push(EntryGroup::One(entry)),
        }
    }
    found
}

fn step_key<'a>(entry: &RunEntry<'a>) -> (&'a str, Option<u64>) {
    (entry.text("name"), entry.json["index"].as_u64())
}

fn single(entry: RunEntry) -> TimelineBlock {
    TimelineBlock { from: entry.seq, rows: vec![row(&entry, None)], calls: Vec::new(), is_open: false }
}

/// An answer of a model, the waits for people about its calls, and the calls.
fn turn(entry: RunEntry, results: &[Option<RunEntry>], waits: Vec<TimelineRow>, facts: &RunFacts) -> TimelineBlock {
    let awaits = facts.is_whole && !facts.is_final && entry.turn > 0;
    let is_open = awaits && results.iter().any(Option::is_none);
    let mut rows = vec![TimelineRow { is_timed: entry.took().is_some(), ..row(&entry, None) }];
    rows.extend(waits);
    let called = entry.calls().iter().zip(results).enumerate();
    let mut calls: Vec<TimelineRow> = called
        .filter_map(|(index, (call, result))| match result {
            Some(result) => Some(answered_call(&entry, call, result)),
            None if facts.is_whole && entry.turn > 0 => Some(open_call(&entry, index, call, facts)),
            // on the next part of the transcript
            None => None,
        })
        .collect();
    if calls.len() == 1 {
        rows.append(&mut calls);
    }
    TimelineBlock { from: entry.seq, rows, calls, is_open }
}

fn answered_call(entry: &RunEntry, call: &Value, result: &RunEntry) -> TimelineRow {
    let row = row(result, Some(entry.at));
    let line = if row.has_failed { row.line.clone() } else { arguments_line(call) };
    TimelineRow { line, is_timed: true, ..row }
}

/// A call that has no result: it is made, or its outcome was never recorded.
fn open_call(entry: &RunEntry, index: usize, call: &Value, facts: &RunFacts) -> TimelineRow {
    let (end, state) = if facts.is_final { (entry.at, "missing") } else { (facts.now.max(entry.at), "pending") };
    TimelineRow {
        id: Some(format!("row-{}-{index}", entry.seq)),
        seq: Some(entry.seq),
        label: text(&call["name"]).to_owned(),
        line: arguments_line(call),
        agent: entry.agent().map(str::to_owned),
        end,
        is_timed: !facts.is_final,
        state: Some(state.to_owned()),
        ..TimelineRow::at("tool", entry.at)
    }
}

/// A step, from its beginning to its result.
fn step(entry: RunEntry, result: Option<RunEntry>, facts: &RunFacts) -> TimelineBlock {
    let is_open = result.is_none() && facts.is_whole && !facts.is_final;
    let end = result.map_or(if is_open { facts.now } else { entry.at }, |result| result.at);
    let told = row(&result.unwrap_or(entry), None);
    let state = is_open.then(|| "pending".to_owned());
    let row = TimelineRow { start: entry.at, end: end.max(entry.at), is_timed: true, state, ..told };
    TimelineBlock { from: entry.seq, rows: vec![row], calls: Vec::new(), is_open }
}

/// The row of an entry by itself.
fn row(entry: &RunEntry, asked: Option<DateTime<Utc>>) -> TimelineRow {
    let EntryWords { kind, label, line } = words(entry);
    let (start, end) = entry.interval(asked);
    TimelineRow {
        id: Some(format!("row-{}", entry.seq)),
        seq: Some(entry.seq),
        label,
        line,
        agent: entry.agent().map(str::to_owned),
        end,
        is_timed: entry.took().is_some(),
        has_failed: entry.is_failure(),
        ..TimelineRow::at(kind, start)
    }
}

/// The answer of a model about whose calls people were asked: the last one before the question, of its turn and agents.
fn asking_entry(approval: &Value, entries: &[RunEntry]) -> Option<i64> {
    let (turn, asked) = (approval["turn"].as_i64()?, instant(&approval["created_at"])?);
    let chain = list(&approval["delegation_chain"]);
    let is_its = |entry: &&RunEntry| {
        entry.role == "assistant" && entry.turn == turn && entry.chain() == chain && entry.at <= asked
    };
    entries.iter().rfind(is_its).map(|entry| entry.seq)
}

/// The wait for a person, until they have decided, or until a call that is held may be made.
pub fn wait_row(approval: &Value, now: DateTime<Utc>) -> TimelineRow {
    let start = instant(&approval["created_at"]).unwrap_or(now);
    let held = instant(&approval["hold_until"]).filter(|_| matches!(text(&approval["status"]), "approved" | "edited"));
    let decided = instant(&approval["decided_at"]).unwrap_or(now);
    let end = held.map_or(decided, |until| decided.max(until.min(now)));
    let id = text(&approval["id"]);
    let is_input = approval["kind"] == "input";
    let by = approval["decided_by"].as_str().map(|by| format!(" · {by}")).unwrap_or_default();
    TimelineRow {
        id: Some(format!("wait-{id}")),
        label: text(&approval["agent_name"]).to_owned(),
        line: one_line(text(&approval["action_summary"]), WAIT_LINE) + &by,
        end: end.max(start),
        is_timed: true,
        state: approval["status"].as_str().map(str::to_owned),
        href: Some(if is_input { "/ui/inbox".to_owned() } else { format!("/ui/approvals/{id}") }),
        ..TimelineRow::at("wait", start)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(seq: i64, turn: i64, second: i64, more: Value) -> Value {
        let mut entry = json!({ "seq": seq, "turn": turn, "at": format!("2026-11-21T00:00:{second:02}Z") });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    }

    fn asks(calls: &[&str]) -> Value {
        let calls: Vec<Value> =
            calls.iter().map(|id| json!({ "id": id, "name": "look", "args": { "id": id } })).collect();
        json!({ "role": "assistant", "tool_calls": calls, "duration_ms": 1000, "model_call": { "model": "main" } })
    }

    fn answers(call: &str, is_error: bool) -> Value {
        json!({ "role": "tool", "call_id": call, "name": "look", "content": "found", "is_error": is_error,
            "duration_ms": 500 })
    }

    fn made(entries: &[Value], approvals: &[Value], is_whole: bool, is_final: bool) -> Vec<TimelineBlock> {
        let now = instant(&json!("2026-11-21T00:01:00Z")).unwrap();
        let entries: Vec<RunEntry> = entries.iter().filter_map(RunEntry::of).collect();
        blocks(&entries, &RunFacts { approvals, is_whole, is_final, now }).0
    }

    fn ids(rows: &[TimelineRow]) -> Vec<&str> {
        rows.iter().map(|row| row.id.as_deref().unwrap_or("-")).collect()
    }

    #[test]
    fn calls_that_were_made_at_once_are_one_fold_and_a_single_call_is_a_row() {
        let entries = [
            entry(1, 1, 1, asks(&["a", "b"])),
            entry(2, 1, 3, answers("b", true)),
            entry(3, 1, 3, answers("a", false)),
            entry(4, 2, 4, asks(&["a"])),
            entry(5, 2, 5, answers("a", false)),
        ];
        let blocks = made(&entries, &[], true, true);
        assert_eq!(blocks.iter().map(|block| block.from).collect::<Vec<_>>(), [1, 4]);
        assert_eq!((ids(&blocks[0].rows), ids(&blocks[0].calls)), (vec!["row-1"], vec!["row-3", "row-2"]));
        assert_eq!(blocks[0].calls.iter().map(|call| call.has_failed).collect::<Vec<_>>(), [false, true]);
        assert_eq!((blocks[0].calls[0].line.as_str(), blocks[0].calls[1].line.as_str()), ("id: a", "found"));
        assert_eq!((ids(&blocks[1].rows), blocks[1].calls.len()), (vec!["row-4", "row-5"], 0));
        assert_eq!((blocks[1].rows[0].length(), blocks[1].rows[1].length()), (1_000, 500));
    }

    #[test]
    fn call_without_a_result_is_pending_in_a_run_that_goes_on_and_missing_in_one_that_has_ended() {
        let entries = [entry(1, 1, 1, asks(&["a"]))];
        let running = made(&entries, &[], true, false);
        assert!(running[0].is_open);
        assert_eq!((running[0].rows[1].state.as_deref(), running[0].rows[1].length()), (Some("pending"), 59_000));
        let ended = made(&entries, &[], true, true);
        assert!(!ended[0].is_open);
        assert_eq!((ended[0].rows[1].state.as_deref(), ended[0].rows[1].is_timed), (Some("missing"), false));
        assert_eq!(made(&entries, &[], false, false)[0].rows.len(), 1, "its result is on the next part");
        let rest = made(&[entry(9, 1, 1, answers("a", false))], &[], true, true);
        assert_eq!(ids(&rest[0].rows), ["row-9"], "its call was on the part before");
    }

    #[test]
    fn agents_that_are_called_have_turns_of_their_own() {
        let by = json!({ "chain": ["booker"], "turn": 1, "call_id": "a" });
        let mut inner = [entry(2, 1, 2, asks(&["a"])), entry(3, 1, 3, answers("a", false))];
        inner.iter_mut().for_each(|entry| entry["delegation"] = by.clone());
        let [asked, answered] = inner;
        let entries = [entry(1, 1, 1, asks(&["a"])), asked, answered, entry(4, 1, 4, answers("a", false))];
        let blocks = made(&entries, &[], true, true);
        assert_eq!((ids(&blocks[0].rows), ids(&blocks[1].rows)), (vec!["row-1", "row-4"], vec!["row-2", "row-3"]));
        assert_eq!(blocks[1].rows[0].agent.as_deref(), Some("booker"));
    }

    #[test]
    fn people_who_were_asked_stand_between_the_answer_and_its_call() {
        let asked = |turn: i64, chain: Value| {
            json!({ "id": "q", "kind": "approval", "turn": turn, "delegation_chain": chain, "agent_name": "look",
                "action_summary": "Look there", "status": "approved", "created_at": "2026-11-21T00:00:02Z",
                "decided_at": "2026-11-21T00:00:42Z", "decided_by": "token:7" })
        };
        let entries = [entry(1, 1, 1, asks(&["a"])), entry(2, 1, 43, answers("a", false))];
        let rows = |approval: Value| made(&entries, &[approval], true, true).remove(0).rows;
        let asking = rows(asked(1, json!([])));
        assert_eq!(ids(&asking), ["row-1", "wait-q", "row-2"]);
        assert_eq!((asking[1].length(), asking[1].line.as_str()), (40_000, "Look there · token:7"));
        assert_eq!(asking[1].href.as_deref(), Some("/ui/approvals/q"));
        assert_eq!((rows(asked(2, json!([]))).len(), rows(asked(1, json!(["booker"]))).len()), (2, 2));
        let held = json!({ "id": "q", "status": "approved", "created_at": "2026-11-21T00:00:02Z",
            "decided_at": "2026-11-21T00:00:02Z", "hold_until": "2026-11-21T00:00:32Z" });
        let now = instant(&json!("2026-11-21T00:00:20Z")).unwrap();
        assert_eq!(wait_row(&held, now).length(), 18_000);
    }

    #[test]
    fn step_lasts_from_its_beginning_to_its_result() {
        let begun = entry(1, 1, 1, json!({ "role": "step", "name": "book", "index": 0 }));
        let done = json!({ "role": "step_result", "name": "book", "index": 0,
            "outcome": { "status": "again", "error": { "code": "x", "message": "No table" } } });
        let blocks = made(&[begun.clone(), entry(2, 1, 4, done)], &[], true, false);
        let row = &blocks[0].rows[0];
        assert_eq!((row.id.as_deref(), row.length(), row.has_failed), (Some("row-2"), 3_000, true));
        assert!(made(&[begun], &[], true, false)[0].is_open);
    }
}
