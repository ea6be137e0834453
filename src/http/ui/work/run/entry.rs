//! An entry of a transcript as the API answers it, read for a timeline.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::http::ui::frame::instant::instant;

/// An entry of a transcript.
#[derive(Debug, Clone, Copy)]
pub struct RunEntry<'a> {
    /// The entry as it is.
    pub json: &'a Value,
    /// Counts from 0 within the run.
    pub seq: i64,
    /// The turn that it belongs to.
    pub turn: i64,
    /// Kind of the entry: `assistant`, `tool`, …
    pub role: &'a str,
    /// The instant at which it was written.
    pub at: DateTime<Utc>,
}

/// A call within a run: the conversation that it is part of, its turn, and the model's id of it.
pub type CallKey<'a> = (i64, &'a str, i64, &'a str);

impl<'a> RunEntry<'a> {
    /// Reads an entry; `None` where it has neither number nor instant.
    pub fn of(json: &'a Value) -> Option<RunEntry<'a>> {
        let (seq, at) = (json["seq"].as_i64()?, instant(&json["at"])?);
        Some(RunEntry { json, seq, turn: json["turn"].as_i64().unwrap_or_default(), role: text(&json["role"]), at })
    }

    /// The text of a field; empty where there is none.
    pub fn text(&self, field: &str) -> &'a str {
        text(&self.json[field])
    }

    /// The configured agent that speaks, where it is not the run's own.
    pub fn agent(&self) -> Option<&'a str> {
        self.chain().last().and_then(Value::as_str)
    }

    /// The agents through which it speaks, outermost first.
    pub fn chain(&self) -> &'a [Value] {
        list(&self.json["delegation"]["chain"])
    }

    /// The calls that an answer of the model asks for.
    pub fn calls(&self) -> &'a [Value] {
        list(&self.json["tool_calls"])
    }

    /// The key of a call of this id, in the conversation and the turn of this entry.
    pub fn key_of(&self, call: &'a str) -> CallKey<'a> {
        let by = &self.json["delegation"];
        (by["turn"].as_i64().unwrap_or_default(), text(&by["call_id"]), self.turn, call)
    }

    /// How long the tool or the model took, in milliseconds; `None` where none was asked.
    pub fn took(&self) -> Option<i64> {
        self.json["duration_ms"].as_i64()
    }

    /// When its work began and ended. The results of calls that were made at once are written together, so that one of
    /// a call that was asked for at `asked` ended when it came from its tool, unless it was kept from an earlier call.
    pub fn interval(&self, asked: Option<DateTime<Utc>>) -> (DateTime<Utc>, DateTime<Utc>) {
        let fetched = instant(&self.json["fetched_at"]);
        let end = fetched.filter(|fetched| asked.is_some_and(|asked| asked <= *fetched && *fetched <= self.at));
        let end = end.unwrap_or(self.at);
        (end - TimeDelta::milliseconds(self.took().unwrap_or_default().max(0)), end)
    }

    /// Whether it tells that something went wrong.
    pub fn is_failure(&self) -> bool {
        match self.role {
            "tool" => self.json["is_error"] == true,
            "unusable" => true,
            "verdict" => self.json["pass"] == false || !list(&self.json["flags"]).is_empty(),
            "step_result" => matches!(self.json["outcome"]["status"].as_str(), Some("failed" | "again")),
            _ => false,
        }
    }
}

/// A text of the API; empty where it is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A list of the API; empty where it is none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn result_ended_when_it_came_from_its_tool_unless_it_was_kept() {
        let asked = instant(&json!("2026-11-21T00:00:10Z"));
        let ended = |fetched: Value| {
            let entry = json!({ "seq": 2, "turn": 1, "at": "2026-11-21T00:00:20Z", "role": "tool", "duration_ms": 2000,
                "fetched_at": fetched });
            let (start, end) = RunEntry::of(&entry).unwrap().interval(asked);
            [start, end].map(|at| at.format("%S").to_string())
        };
        assert_eq!(ended(json!("2026-11-21T00:00:14Z")), ["12", "14"]);
        assert_eq!(ended(json!("2026-11-20T00:00:14Z")), ["18", "20"], "the result of an earlier call");
        assert_eq!(ended(Value::Null), ["18", "20"]);
    }

    #[test]
    fn failures_are_those_that_the_record_says_are_ones() {
        let fails = |more: Value| {
            let mut entry = json!({ "seq": 0, "turn": 1, "at": "2026-11-21T00:00:20Z" });
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            RunEntry::of(&entry).unwrap().is_failure()
        };
        for failed in [
            json!({ "role": "tool", "is_error": true }),
            json!({ "role": "unusable", "code": "empty" }),
            json!({ "role": "verdict", "pass": false, "flags": ["R-0001: a secret"] }),
            json!({ "role": "step_result", "outcome": { "status": "again" } }),
        ] {
            assert!(fails(failed.clone()), "{failed}");
        }
        for good in [
            json!({ "role": "tool", "is_error": false }),
            json!({ "role": "verdict", "pass": true, "warnings": ["I-0001: long"] }),
            json!({ "role": "step_result", "outcome": { "status": "done" } }),
            json!({ "role": "assistant", "text": "it failed" }),
        ] {
            assert!(!fails(good.clone()), "{good}");
        }
        assert!(RunEntry::of(&json!({ "role": "tool" })).is_none());
    }
}
