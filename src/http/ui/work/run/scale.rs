//! Where in a run an instant is: the bars of a timeline, in which long waits for people take little room.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

/// Width of a timeline, in its own units.
const WIDTH: f64 = 1_000.0;
/// The least width of a bar, so that it is seen.
const THIN: f64 = 3.0;
/// The share of a timeline that a long wait takes, of what is left without long waits.
const WAIT_SHARE: f64 = 0.05;

/// The instants of a run and their places.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeScale {
    start: DateTime<Utc>,
    /// Stretches in order, each with its length in milliseconds and its width in units of the timeline.
    stretches: Vec<(f64, f64)>,
}

impl TimeScale {
    /// The scale of a run from its start to its end, or to now; of each of the long waits a small part is shown.
    pub fn new(start: DateTime<Utc>, end: DateTime<Utc>, waits: &[(DateTime<Utc>, DateTime<Utc>)]) -> TimeScale {
        let end = end.max(start);
        let ms = |at: DateTime<Utc>| (at.clamp(start, end) - start).num_milliseconds() as f64;
        let mut waits: Vec<(f64, f64)> = waits.iter().map(|(from, to)| (ms(*from), ms(*to))).collect();
        waits.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut stretches: Vec<(f64, bool)> = Vec::new();
        let mut reached = 0.0;
        for (from, to) in waits.into_iter().filter(|(from, to)| to > from) {
            if from > reached {
                stretches.push((from - reached, false));
            }
            if to > reached {
                stretches.push((to - from.max(reached), true));
                reached = to;
            }
        }
        stretches.push((ms(end) - reached, false));
        TimeScale { start, stretches: widths(&stretches) }
    }

    /// The place of an instant, from 0 to [`WIDTH`].
    fn place(&self, at: DateTime<Utc>) -> f64 {
        let (mut left, mut place) = ((at - self.start).num_milliseconds() as f64, 0.0);
        for (length, width) in &self.stretches {
            if left <= *length {
                return place + if *length > 0.0 { left.max(0.0) / length * width } else { 0.0 };
            }
            (left, place) = (left - length, place + width);
        }
        WIDTH
    }

    /// The bar of what began and ended then: `{x, w}`, in units of the timeline.
    pub fn bar(&self, start: DateTime<Utc>, end: DateTime<Utc>) -> Value {
        let (from, to) = (self.place(start), self.place(end));
        let width = (to - from).max(THIN);
        json!({ "x": from.min(WIDTH - width).round() as i64, "w": width.round() as i64 })
    }

    /// Milliseconds from the start of the run; negative before it.
    pub fn offset(&self, at: DateTime<Utc>) -> i64 {
        (at - self.start).num_milliseconds()
    }
}

/// The widths of these stretches, of which some are long waits.
fn widths(stretches: &[(f64, bool)]) -> Vec<(f64, f64)> {
    let work: f64 = stretches.iter().filter(|(_, is_wait)| !is_wait).map(|(length, _)| length).sum();
    // a wait that is shorter than its part would be takes what it takes
    let part = |(length, is_wait): &(f64, bool)| match is_wait {
        true if work > 0.0 => length.min(work * WAIT_SHARE),
        _ => *length,
    };
    let whole: f64 = stretches.iter().map(part).sum();
    let width = |stretch| if whole > 0.0 { part(stretch) / whole * WIDTH } else { 0.0 };
    stretches.iter().map(|stretch| (stretch.0, width(stretch))).collect()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn bars_are_where_in_the_run_the_work_was() {
        let scale = TimeScale::new(at(100), at(110), &[]);
        assert_eq!(scale.bar(at(102), at(107)), json!({ "x": 200, "w": 500 }));
        assert_eq!(scale.bar(at(110), at(110)), json!({ "x": 997, "w": 3 }), "what took no time is seen");
        assert_eq!(scale.bar(at(50), at(90)), json!({ "x": 0, "w": 3 }), "before the start");
        assert_eq!((scale.offset(at(103)), scale.offset(at(99))), (3_000, -1_000));
        let nothing = TimeScale::new(at(100), at(90), &[]);
        assert_eq!(nothing.bar(at(100), at(100)), json!({ "x": 0, "w": 3 }));
    }

    #[test]
    fn long_waits_take_little_room() {
        // ten seconds of work on both sides of a day
        let scale = TimeScale::new(at(0), at(86_420), &[(at(10), at(86_410)), (at(20), at(30))]);
        let (before, wait) = (scale.bar(at(0), at(10)), scale.bar(at(10), at(86_410)));
        assert_eq!((before["w"].as_i64(), wait["w"].as_i64()), (Some(476), Some(48)));
        assert_eq!(scale.bar(at(86_410), at(86_420)), json!({ "x": 524, "w": 476 }));
    }

    #[test]
    fn run_that_has_only_waited_is_one_bar() {
        let scale = TimeScale::new(at(0), at(60), &[(at(0), at(60))]);
        assert_eq!(scale.bar(at(0), at(60)), json!({ "x": 0, "w": 1_000 }));
    }
}
