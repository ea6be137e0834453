//! The instants of a task on a line from past to future: runs by their states, fires that lie ahead, and the present.
//!
//! It places marks; the template draws them. Each side of the present has a scale of its own where they differ much, so
//! that neither is squeezed to a point.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::http::ui::frame::instant::instant;

/// Height of a drawing.
const HEIGHT: f64 = 24.0;
/// Room at either end, so that no mark is cut.
const EDGE: f64 = 8.0;
/// Half the size of a mark.
const HALF: f64 = 4.0;
/// The least part of the width that each side of the present has.
const LEAST_SIDE: f64 = 0.2;

/// A run of the past.
#[derive(Debug, Clone, PartialEq)]
pub struct PastMark {
    /// The nominal instant of its fire.
    pub at: DateTime<Utc>,
    /// Id of the run.
    pub run: String,
    /// State of the run.
    pub state: String,
}

impl PastMark {
    /// The mark of a run as the API has it, in lists and as a task's last one; `None` for what is no run.
    pub fn of(run: &Value) -> Option<PastMark> {
        Some(PastMark {
            at: instant(&run["scheduled_for"])?,
            run: run["id"].as_str()?.to_owned(),
            state: run["state"].as_str()?.to_owned(),
        })
    }
}

/// A drawing of this width: `{width, height, now, past: [{d, tone, title, href}], ahead: [{d, title}], from, to}`; `d`
/// is the outline of a mark, and `now` the place of the present. Null where there is nothing to show.
pub fn strip(width: f64, past: &[PastMark], ahead: &[DateTime<Utc>], now: DateTime<Utc>) -> Value {
    let instants = past.iter().map(|mark| mark.at).chain(ahead.iter().copied());
    let (Some(first), Some(last)) = (instants.clone().min(), instants.max()) else { return Value::Null };
    let scale = StripScale::new(width, first, last, now);
    let past: Vec<Value> = past
        .iter()
        .map(|mark| {
            let tone = tone(&mark.state);
            let title = format!("{}, {}", mark.state.replace('_', " "), told(mark.at));
            json!({ "d": outline(tone, scale.place(mark.at)), "tone": tone, "title": title,
                "href": format!("/ui/runs/{}", mark.run) })
        })
        .collect();
    let ahead: Vec<Value> = ahead
        .iter()
        .map(|at| json!({ "d": outline("good", scale.place(*at)), "title": format!("fires {}", told(*at)) }))
        .collect();
    json!({
        "width": width,
        "height": HEIGHT,
        "now": rounded(scale.present),
        "past": past,
        "ahead": ahead,
        "from": first.min(now),
        "to": last.max(now),
    })
}

/// Where instants stand on the line.
struct StripScale {
    now: DateTime<Utc>,
    /// Place of the present.
    present: f64,
    /// Width and time of the past.
    before: (f64, f64),
    /// Width and time of the future.
    after: (f64, f64),
}

impl StripScale {
    fn new(width: f64, first: DateTime<Utc>, last: DateTime<Utc>, now: DateTime<Utc>) -> StripScale {
        let room = width - 2.0 * EDGE;
        let (before, after) = (milliseconds(first, now), milliseconds(now, last));
        let share = match before + after {
            0.0 => 0.5,
            whole => (before / whole).clamp(LEAST_SIDE, 1.0 - LEAST_SIDE),
        };
        let present = EDGE + room * share;
        StripScale { now, present, before: (room * share, before), after: (room * (1.0 - share), after) }
    }

    fn place(&self, at: DateTime<Utc>) -> f64 {
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        match at <= self.now {
            true => self.present - self.before.0 * ratio(milliseconds(at, self.now), self.before.1),
            false => self.present + self.after.0 * ratio(milliseconds(self.now, at), self.after.1),
        }
    }
}

/// The time from one instant to a later one; none where it is not later.
fn milliseconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    ((to - from).num_milliseconds() as f64).max(0.0)
}

/// The colour of a state. Each has a form of its own besides.
fn tone(state: &str) -> &'static str {
    match state {
        "succeeded" => "good",
        "failed" | "expired" => "bad",
        "skipped" | "cancelled" => "plain",
        _ => "waiting",
    }
}

/// The outline of a mark around a place: a disc, a diamond, a bar or a square.
fn outline(tone: &str, place: f64) -> String {
    let (x, y) = (rounded(place), HEIGHT / 2.0);
    let (left, top) = (rounded(place - HALF), y - HALF);
    match tone {
        "good" => format!("M{left} {y}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
        "bad" => format!("M{x} {top}l4 4-4 4-4-4z"),
        "plain" => format!("M{} {top}h2v8h-2z", rounded(place - 1.0)),
        _ => format!("M{left} {top}h8v8h-8z"),
    }
}

fn rounded(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

fn told(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: f64 = 640.0;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn mark(text: &str, state: &str) -> PastMark {
        PastMark { at: at(text), run: "r1".into(), state: state.into() }
    }

    fn scale(first: &str, last: &str, now: &str) -> StripScale {
        StripScale::new(WIDTH, at(first), at(last), at(now))
    }

    #[test]
    fn nothing_to_show_is_no_drawing() {
        assert_eq!(strip(WIDTH, &[], &[], at("2026-11-21T00:00:00Z")), Value::Null);
    }

    #[test]
    fn one_instant_stands_at_its_end_of_the_line_or_on_the_present() {
        let now = "2026-11-21T08:00:00Z";
        let one = scale(now, now, now);
        assert_eq!((one.present, one.place(at(now))), (320.0, 320.0));
        let past = scale("2026-11-20T08:00:00Z", "2026-11-20T08:00:00Z", now);
        assert_eq!(past.place(at("2026-11-20T08:00:00Z")).round(), EDGE);
        let ahead = scale("2026-11-22T08:00:00Z", "2026-11-22T08:00:00Z", now);
        assert_eq!(ahead.place(at("2026-11-22T08:00:00Z")).round(), WIDTH - EDGE);
        let drawn = strip(WIDTH, &[], &[at("2026-11-22T08:00:00Z")], at(now));
        assert_eq!((&drawn["past"], drawn["ahead"].as_array().map(Vec::len)), (&json!([]), Some(1)));
        assert_eq!((&drawn["from"], &drawn["to"]), (&json!("2026-11-21T08:00:00Z"), &json!("2026-11-22T08:00:00Z")));
    }

    #[test]
    fn past_and_future_of_like_length_have_one_scale() {
        let line = scale("2026-11-20T08:00:00Z", "2026-11-22T08:00:00Z", "2026-11-21T08:00:00Z");
        let places = ["2026-11-20T08:00:00Z", "2026-11-20T20:00:00Z", "2026-11-21T08:00:00Z", "2026-11-21T20:00:00Z"];
        assert_eq!(places.map(|text| line.place(at(text))), [8.0, 164.0, 320.0, 476.0]);
    }

    #[test]
    fn marks_keep_their_order_and_no_side_is_squeezed_or_leaves_the_drawing() {
        let now = at("2026-11-21T08:00:00Z");
        let far = ["2016-01-01T00:00:00Z", "2026-11-21T07:59:00Z", "2026-11-21T08:00:01Z", "2026-11-21T08:00:05Z"];
        let line = StripScale::new(WIDTH, at(far[0]), at(far[3]), now);
        let places = far.map(|text| line.place(at(text)));
        assert!(places.is_sorted(), "{places:?}");
        assert!(places.iter().all(|place| (EDGE..=WIDTH - EDGE + 0.001).contains(place)), "{places:?}");
        assert!(WIDTH - EDGE - line.present >= (WIDTH - 2.0 * EDGE) * LEAST_SIDE - 0.001, "{}", line.present);
        const { assert!(HALF <= EDGE && 2.0 * HALF <= HEIGHT) };
    }

    #[test]
    fn runs_have_the_colour_and_the_form_of_their_state_and_lead_to_it() {
        let now = at("2026-11-21T08:00:00Z");
        let runs =
            ["succeeded", "failed", "skipped", "pending_approval"].map(|state| mark("2026-11-21T07:00:00Z", state));
        let drawn = strip(WIDTH, &runs, &[], now);
        let tones: Vec<&str> = (0_usize..4).filter_map(|n| drawn["past"][n]["tone"].as_str()).collect();
        assert_eq!(tones, ["good", "bad", "plain", "waiting"]);
        let forms: std::collections::BTreeSet<&str> =
            (0_usize..4).filter_map(|n| drawn["past"][n]["d"].as_str()).collect();
        assert_eq!(forms.len(), 4);
        assert_eq!(drawn["past"][3]["title"], "pending approval, 2026-11-21 07:00:00 UTC");
        assert_eq!(drawn["past"][0]["href"], "/ui/runs/r1");
    }

    #[test]
    fn mark_is_made_of_runs_alone() {
        let run = json!({ "id": "r1", "state": "failed", "scheduled_for": "2026-11-21T07:00:00Z" });
        assert_eq!(PastMark::of(&run), Some(mark("2026-11-21T07:00:00Z", "failed")));
        assert_eq!(PastMark::of(&Value::Null), None);
    }
}
