//! A row of a timeline.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::http::ui::frame::filters::took;
use crate::http::ui::work::run::scale::TimeScale;

/// A row of a timeline: something that took its time, or an instant.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineRow {
    /// Its anchor, `row-12`; `None`: nobody chooses it.
    pub id: Option<String>,
    /// The entry whose details it shows.
    pub seq: Option<i64>,
    /// Kind of the row: `model`, `tool`, `wait`, `idle`, …
    pub kind: &'static str,
    /// Name of what it is about.
    pub label: String,
    /// The beginning of its text.
    pub line: String,
    /// The configured agent that speaks, where it is not the run's own.
    pub agent: Option<String>,
    /// When it began.
    pub start: DateTime<Utc>,
    /// When it ended, or now.
    pub end: DateTime<Utc>,
    /// Whether its length is shown: work and waits have one, messages have none.
    pub is_timed: bool,
    /// Whether something went wrong.
    pub has_failed: bool,
    /// A state of its own: that of an approval, a delivery or the run.
    pub state: Option<String>,
    /// The page that it leads to; `None`: its own details, or none.
    pub href: Option<String>,
}

impl TimelineRow {
    /// A row without length at an instant, which nobody chooses.
    pub fn at(kind: &'static str, at: DateTime<Utc>) -> TimelineRow {
        TimelineRow {
            id: None,
            seq: None,
            kind,
            label: String::new(),
            line: String::new(),
            agent: None,
            start: at,
            end: at,
            is_timed: false,
            has_failed: false,
            state: None,
            href: None,
        }
    }

    /// How long it took, in milliseconds.
    pub fn length(&self) -> i64 {
        (self.end - self.start).num_milliseconds().max(0)
    }

    /// Whether in this time the run did nothing itself.
    pub fn is_wait(&self) -> bool {
        matches!(self.kind, "wait" | "idle" | "attempt" | "queue")
    }

    /// The row as the template shows it: a page that begins at entry `from` leads to its details.
    pub fn view(&self, scale: &TimeScale, from: i64, selected: Option<i64>) -> Value {
        let own = self.seq.map(|seq| match from {
            0 => format!("?row={seq}#detail"),
            from => format!("?from={from}&row={seq}#detail"),
        });
        let length = self.length();
        let has_bar = self.is_timed && self.kind != "queue" && length > 0;
        json!({
            "id": self.id,
            "kind": self.kind,
            "name": name(self.kind),
            "label": self.label,
            "line": self.line,
            "agent": self.agent,
            "offset": offset(scale.offset(self.start)),
            "took": self.is_timed.then(|| took(length as f64)),
            "bar": has_bar.then(|| scale.bar(self.start, self.end)),
            "is_wait": self.is_wait(),
            "failed": self.has_failed,
            "state": self.state,
            "href": self.href.clone().or(own),
            "is_selected": selected.is_some() && self.seq == selected,
        })
    }
}

/// How far from the start of the run it is: `+1.2 s`; `before` where it was earlier.
fn offset(ms: i64) -> String {
    if ms < 0 { "before".to_owned() } else { format!("+{}", took(ms as f64)) }
}

/// The word of a kind.
fn name(kind: &str) -> &'static str {
    match kind {
        "instructions" => "Instructions",
        "message" => "Message",
        "model" => "Model",
        "tool" => "Tool",
        "unusable" => "Model",
        "check" => "Check",
        "shortened" => "Shortened",
        "pipeline" => "Pipeline",
        "step" => "Step",
        "wait" => "Person",
        "idle" => "Idle",
        "attempt" => "Attempt",
        "queue" => "Queue",
        "delivery" => "Delivery",
        "end" => "End",
        _ => "Entry",
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn row_says_where_in_the_run_it_is_and_how_long_it_took() {
        let at = |seconds| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        let scale = TimeScale::new(at(0), at(10), &[]);
        let row = TimelineRow {
            id: Some("row-12".into()),
            seq: Some(12),
            end: at(4),
            is_timed: true,
            ..TimelineRow::at("tool", at(2))
        };
        let view = row.view(&scale, 0, Some(12));
        assert_eq!(
            (&view["offset"], &view["took"], &view["name"]),
            (&json!("+2.0 s"), &json!("2.0 s"), &json!("Tool"))
        );
        assert_eq!((&view["bar"], &view["href"]), (&json!({ "x": 200, "w": 200 }), &json!("?row=12#detail")));
        assert_eq!((&view["is_selected"], &view["is_wait"]), (&json!(true), &json!(false)));
        let later = row.view(&scale, 200, None);
        assert_eq!((&later["href"], &later["is_selected"]), (&json!("?from=200&row=12#detail"), &json!(false)));
        let message = TimelineRow::at("message", at(-1)).view(&scale, 0, None);
        assert_eq!(
            (&message["took"], &message["bar"], &message["offset"]),
            (&Value::Null, &Value::Null, &json!("before"))
        );
    }
}
